"""What the dashboard's JSON looks like: the page uses nothing else, and so can everybody.

Every answer is one of these models; `openapi` describes them. Times are seconds since the epoch,
durations seconds, sizes bytes, shares between 0 and 1. None: not known, or not computed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, RootModel

State = Literal["running", "paused", "finished", "stopped", "failed", "lost"]
Axis = Literal["steps", "time"]
Level = Literal["plain", "good", "warning", "bad"]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Problem(Model):
    """Every error, whatever its status."""

    error: str


class RunSummary(Model):
    """A line of the list of runs."""

    id: str
    env: str
    learners: dict[str, str]  # name -> algorithm
    group: str  # runs with the same one differ in their seed alone
    seed: int
    distributed: bool
    state: State
    steerable: bool  # its control server answers, and this dashboard is not read-only
    env_steps: int
    total_steps: int
    mean_return: float | None  # of the last episodes, with exploration
    evaluation: float | None  # mean of the newest, of whoever leads
    best_evaluation: float | None
    started_at: float | None
    heard_at: float | None  # the last sign of life


class RunList(Model):
    runs: list[RunSummary]
    read_only: bool


class Holdup(Model):
    """What holds a run back now, or that nothing does, in plain words."""

    level: Literal["fine", "notice", "warning"]
    text: str
    remedy: str | None


class Video(Model):
    policy: str
    file: str  # at /api/runs/{run}/videos/{file}
    kind: Literal["gif", "mp4"]
    made_at: float


class LearnerRatio(Model):
    """Gradient updates per environment step: what is made, and what the settings ask for."""

    learner: str
    target: float
    measured: float | None


class Overview(Model):
    run: RunSummary
    updates: int
    steps_per_second: float | None
    updates_per_second: float | None
    ratios: list[LearnerRatio]
    version_lag: float | None  # the worst of all actors
    lag_seconds: float | None
    elapsed_seconds: float | None
    remaining_seconds: float | None
    episodes: int | None
    actors: int | None  # that are heard of
    wanted_actors: int | None
    restarts: int
    faults: int  # restarts, skipped updates, broken episodes, failed checkpoints
    holdups: list[Holdup]
    videos: list[Video]


class Series(Model):
    """One metric, thinned so that its extremes are kept."""

    x: list[float]
    y: list[float | None]
    total: int  # points before thinning


class SeriesSet(Model):
    axis: Axis
    series: dict[str, Series]


class MetricNames(Model):
    names: list[str]


class Band(Model):
    """Evaluated returns of runs that differ in their seed alone."""

    label: str
    runs: list[str]
    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


class Comparison(Model):
    metric: str
    bands: list[Band]


class Evaluations(Model):
    """Of every learner, and in a portfolio of whoever led, under the empty name."""

    curves: dict[str, Series]
    deviations: dict[str, list[float]]


class Learner(Model):
    name: str
    algorithm: str
    updates: int | None
    version: int | None
    skipped: int | None
    device: str | None
    memory_bytes: int | None
    waiting_share: float | None  # of its time, for data
    updates_per_second: float | None
    update_seconds: float | None  # for one, without waiting
    staleness_versions: float | None  # of the data of its last batch
    heard_seconds: float | None
    metrics: list[str]  # the names of its series


class Learners(Model):
    learners: list[Learner]


class Candidate(Model):
    """A policy as the director sees it."""

    name: str
    share: float  # of the newest choices
    step_share: float  # of the newest episodes' steps
    update_share: float
    mean: float | None  # what an episode of it is believed to return
    low: float | None
    high: float | None
    count: float | None  # episodes that this rests upon
    pinned: bool
    benched: bool


class DecisionLine(Model):
    at: float
    actor: str
    number: int
    policy: str
    reason: str
    probability: float | None
    episode_return: float | None = None  # None: not ended yet, or not known
    length: int | None = None


class DirectorView(Model):
    """Without a portfolio there are no candidates."""

    strategy: str | None
    decisions: int | None
    regret: float | None  # per episode, of late
    total_regret: float | None
    candidates: list[Candidate]
    newest: list[DecisionLine]


class RequestTimes(Model):
    operation: str  # insert, sample, update
    count: int
    per_second: float
    p50_seconds: float
    p99_seconds: float


class PolicyCount(Model):
    policy: str
    items: int
    share: float


class Waiting(Model):
    caller: str
    operation: str
    reason: str
    seconds: float


class Reader(Model):
    """A learner that samples from a table, with a ratio of its own."""

    policy: str
    samples_per_insert: float
    sampled: int
    surplus: float  # samples that it owes; negative: it is ahead
    waiting_samples: int  # of it, that its ratio or the table's least size holds now
    held_inserts: int  # of anybody, that wait for it now


class TableView(Model):
    name: str
    size: int
    capacity: int
    size_bytes: int
    inserted: int
    sampled: int
    evicted: int
    oldest_seconds: float | None
    newest_seconds: float | None
    min_size: int
    samples_per_insert: float | None
    error_buffer: float | None
    surplus: float
    insert_wait_seconds: float
    sample_wait_seconds: float
    readers: list[Reader]  # empty: there is one count for all
    policies: list[PolicyCount]
    blocked: list[Waiting]


class Shard(Model):
    name: str
    host: str
    heard_seconds: float
    memory_bytes: int | None
    insert_rate: float | None  # items a second
    sample_rate: float | None
    requests: list[RequestTimes]
    tables: list[TableView]


class ReplayView(Model):
    shards: list[Shard]
    provenance: list[PolicyCount]  # over all shards


class WeightsView(Model):
    policy: str
    version: int
    lag_versions: int | None
    age_seconds: float | None


class Process(Model):
    """Anything that runs, as it last said of itself."""

    name: str
    role: str
    host: str
    process_id: int
    starts: int
    heard_seconds: float
    stale: bool
    memory_bytes: int | None
    env_steps: int | None
    steps_per_second: float | None
    weights: list[WeightsView]
    broken_episodes: int | None
    last_error: str | None  # the newest reason of a restart
    last_error_at: float | None
    says: str  # in a few words


class Processes(Model):
    processes: list[Process]
    wanted_actors: int | None


class Node(Model):
    host: str
    processes: int
    memory_bytes: int


class ControlServer(Model):
    """The Redis or Valkey of a run, None where it does not answer."""

    version: str
    memory_bytes: int
    clients: int
    commands_per_second: int


class Checkpoint(Model):
    name: str
    env_steps: int | None
    at: float
    size_bytes: int


class SystemView(Model):
    nodes: list[Node]
    control: ControlServer | None
    checkpoints: list[Checkpoint]
    logs: list[str]  # names of processes
    config: str  # YAML, resolved
    versions: dict[str, Any]


class Event(Model):
    """One line of the run's record; details depend on the kind."""

    number: int  # the line in the record: ask for those after it
    at: float
    kind: str
    level: Level
    text: str
    details: dict[str, Any]


class Events(Model):
    events: list[Event]  # oldest first
    last: int


class LogLine(Model):
    at: float | None
    level: str
    logger: str
    message: str


class Log(Model):
    process: str
    lines: list[LogLine]


Policy = Annotated[str, Field(min_length=1, max_length=200)]


class Plain(Model):
    name: Literal["pause", "resume", "checkpoint", "stop"]


class Scale(Model):
    name: Literal["scale"]
    actors: Annotated[
        int,
        Field(ge=0, le=10_000),
        # In JSON 4 and 4.0 are one number.
        BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n),
    ]


class Cast(Model):
    """One policy of a portfolio acts alone, or does not act."""

    name: Literal["pin", "bench"]
    policy: Policy


class Release(Model):
    name: Literal["release"]
    policy: Policy | None = None  # None: all


class Limiter(Model):
    """Gradient updates of that learner per environment step, from now on."""

    name: Literal["limiter"]
    policy: Policy
    updates_per_step: Annotated[float, Field(gt=0, le=1000)]


class Order(RootModel[Plain | Scale | Cast | Release | Limiter]):
    """What a person asks of a run."""

    model_config = ConfigDict(frozen=True)

    root: Annotated[Plain | Scale | Cast | Release | Limiter, Field(discriminator="name")]


class Obeyed(Model):
    name: str
    result: dict[str, Any]


class Row(Model):
    """One row of metrics, as it is written."""

    step: float
    seconds: float | None  # since the run began
    values: dict[str, float | None]
