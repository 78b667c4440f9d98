"""The settings of a run, passed whole to every part of it.

    defaults  <  preset for (algorithm, env)  <  YAML file  <  command line

A run has a portfolio: `learners` maps names to the settings of one algorithm each. The short form
`learner.KEY` speaks of every learner at once. Where a value is refused, the message names it, its
limit and a remedy; an unknown key is refused and the nearest known one named.
"""

from __future__ import annotations

import copy
import fnmatch
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError, model_validator

from repertory.atari import ATARI_PREFIX, AtariConfig
from repertory.config_messages import explain, value_at
from repertory.director_config import DirectorConfig
from repertory.errors import UsageError
from repertory.parts import lookup
from repertory.settings import (
    ExplorationSettings,
    RelabelSettings,
    SamplerSettings,
    Settings,
    part_default,
)

PORTFOLIO_MAX_LAG = 4
NOT_LEARNERS = ("best", "last", "ensemble")  # what `--policy` means by them

HiddenSizes = tuple[Annotated[int, Field(ge=1)], ...]


class EnvConfig(Settings):
    id: str  # a Gymnasium id, `module:EnvId-v0`, or `package.module:make_env`
    kwargs: dict[str, Any] = Field(default_factory=dict)
    wrappers: tuple[str, ...] = ()  # `package.module:Wrapper`, innermost first
    reward_function: str | None = None  # `package.module:function`, see envs.RewardFunction
    max_episode_steps: int | None = Field(default=None, ge=1)
    frame_stack: int = Field(default=1, ge=1, le=64)
    copies: int = Field(default=1, ge=1, le=4096)
    # All copies in this process, one process each, or all in EnvPool's C++ (`envpool_env`).
    vector: Literal["sync", "async", "envpool"] = "sync"
    # In a distributed run: how often in a row a copy may break and be made anew.
    max_faults: int = Field(default=3, ge=0)
    atari: AtariConfig | None = None  # the standard preprocessing, on by itself for `ALE/` ids

    @model_validator(mode="before")
    @classmethod
    def _atari_by_itself(cls, values: Any) -> Any:
        if isinstance(values, dict) and str(values.get("id", "")).startswith(ATARI_PREFIX):
            return {"atari": {}, "frame_stack": 4, **values}
        return values

    @model_validator(mode="after")
    def _atari_is_for_atari(self) -> EnvConfig:
        if self.atari is not None and not self.id.startswith(ATARI_PREFIX):
            raise ValueError(
                f"env.atari is for the games of ale-py, as {ATARI_PREFIX}Pong-v5, "
                f"not for {self.id}: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _envpool_has_its_own(self) -> EnvConfig:
        """What is Python around or inside an environment cannot be had in EnvPool."""
        if self.vector != "envpool":
            return self
        for key, refused in (
            ("id", ":" in self.id),
            ("wrappers", bool(self.wrappers)),
            ("reward_function", self.reward_function is not None),
            ("atari", self.atari is None and self.id.startswith(ATARI_PREFIX)),
            ("frame_stack", self.frame_stack > 1 and self.atari is None),
        ):
            if refused:
                raise ValueError(
                    f"env.{key} = {getattr(self, key)} with env.vector = envpool is refused, its "
                    "environments are EnvPool's own, with the standard preprocessing for Atari "
                    "alone: leave it out, or set env.vector to sync or async"
                )
        return self


class LearnerConfig(Settings):
    """What every algorithm has; its own `Config` adds the rest."""

    algorithm: str
    lr: float = Field(default=3e-4, ge=0, le=1)
    gamma: float = Field(default=0.99, ge=0, le=1)
    hidden_sizes: HiddenSizes = (256, 256)
    max_grad_norm: float | None = Field(default=None, gt=0)
    normalize_observation: bool = False  # by running mean and deviation, which travel with weights
    normalize_reward: bool = False  # by the running deviation of discounted returns


class OffPolicyConfig(LearnerConfig):
    """What every algorithm that learns from a replay has."""

    stretches: ClassVar[bool] = False  # whether it has a second table, of `actors.stretches`
    batch_size: int = Field(default=256, ge=1)
    n_step: int = Field(default=1, ge=1, le=1000)
    random_steps: int = Field(default=1000, ge=0)  # environment steps of uniform random actions
    learning_starts: int = Field(default=1000, ge=0)  # environment steps before the first update
    train_every: int = Field(default=1, ge=1)  # environment steps from one burst to the next
    updates_per_step: float = Field(default=1.0, gt=0)  # gradient updates per environment step
    exploration: ExplorationSettings = part_default("none")
    relabel: RelabelSettings = None  # hindsight: goals reached later, for goal environments
    # In a portfolio: of each batch, at least so much is what its own policy did ...
    own_share: float = Field(default=0.5, ge=0, le=1)
    # ... and nothing is more versions behind the newest of the same policy than this.
    max_age: int | None = Field(default=None, ge=0)

    @property
    def items_per_step(self) -> int:
        """What one environment step becomes in the replay, in the mean over whole episodes."""
        return 1 if self.relabel is None else 1 + self.relabel.goals

    @model_validator(mode="after")
    def _hindsight_is_of_single_steps(self) -> Self:
        if self.relabel is not None and self.n_step > 1:
            raise ValueError(
                f"learner.relabel with learner.n_step = {self.n_step} is refused: sums of rewards "
                "were made for the goal of their time; set learner.n_step=1"
            )
        if self.relabel is not None and self.normalize_reward:
            raise ValueError(
                "learner.relabel with learner.normalize_reward is refused: what the relabelled "
                "episodes return is not known; set learner.normalize_reward=false"
            )
        return self


class OnPolicyConfig(LearnerConfig):
    """What every algorithm that learns from its own fresh experience has."""

    segment_length: int = Field(default=2048, ge=1)  # steps of each copy between two updates


class ReplayConfig(Settings):
    capacity: int = Field(default=1_000_000, ge=1)  # transitions
    # Whichever of the two is reached first; 8e9 is fine.
    capacity_bytes: int | None = Field(default=None, ge=1)
    sampler: SamplerSettings = part_default("uniform")
    transport: Literal["local", "grpc"] = "local"  # how a --local run reaches its replay


class EvaluationConfig(Settings):
    every: int = Field(default=5000, ge=1)  # environment steps; the untrained policy comes first
    episodes: int = Field(default=10, ge=1)
    video: bool = False  # one more episode of each, as an MP4; drawing it takes a second or two


class CheckpointConfig(Settings):
    every: int = Field(default=10_000, ge=1)  # environment steps
    keep: int = Field(default=3, ge=1)
    replay: bool = True  # whether what was experienced is saved with the learner


class RestartConfig(Settings):
    """How patient the supervisor of a distributed run is with its processes."""

    first_pause_seconds: float = Field(default=0.5, gt=0)  # doubles with each failure in a row
    longest_pause_seconds: float = Field(default=30.0, gt=0)
    healthy_seconds: float = Field(default=30.0, gt=0)  # up for so long, failures are forgotten
    max_failures: int = Field(default=8, ge=1)  # in a row
    start_seconds: float = Field(default=180.0, gt=0)  # until the first sign of life
    silence_seconds: float = Field(default=60.0, gt=0)  # without a sign of life


class TopologyConfig(Settings):
    """How a distributed run is laid out; `auto` is worked out from the machines there are."""

    actors: Annotated[int, Field(ge=0, le=100_000)] | Literal["auto"] = "auto"
    shards: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    # Learner processes of each algorithm, which share its batches.
    replicas: int = Field(default=1, ge=1, le=1024)
    # GPUs of all learners together.
    gpus: Annotated[float, Field(ge=0, le=65_536)] | Literal["auto"] = "auto"
    send_items: int = Field(default=64, ge=1)  # that an actor gathers for one message
    publish_every: int = Field(default=20, ge=1)  # updates; on-policy learners publish each
    # On-policy: rounds that actors may run ahead. `auto` is 0 for a learner alone; in a portfolio
    # its policy acts now and then, and a segment begun by older weights is not lost.
    max_lag: Annotated[int, Field(ge=0, le=64)] | Literal["auto"] = "auto"
    # An actor that has not taken newer weights for so long is spoken of.
    lag_alarm_seconds: float = Field(default=30.0, gt=0)
    restarts: RestartConfig = Field(default_factory=RestartConfig)


class LogConfig(Settings):
    every: int = Field(default=1000, ge=1)  # environment steps
    tensorboard: bool = True
    wandb_project: str | None = None  # needs the extra `wandb`
    # Where Prometheus finds a distributed run, as 127.0.0.1:9400; port 0 takes a free one.
    prometheus: str | None = None
    # A page that shows and steers a distributed run, on this machine, while it goes on.
    dashboard: bool = True
    # Its port; None: the first free one from 8600 on.
    dashboard_port: int | None = Field(default=None, ge=0, lt=65536)


def _validate_learner(value: Any) -> Any:
    if isinstance(value, LearnerConfig):
        return value
    if not isinstance(value, dict) or not isinstance(value.get("algorithm"), str):
        raise UsageError(f"learner settings {value!r} do not say which `algorithm` they are for")
    return lookup("algorithm", value["algorithm"]).Config.model_validate(value)


class RunConfig(Settings):
    env: EnvConfig
    learners: dict[
        str, Annotated[SerializeAsAny[LearnerConfig], BeforeValidator(_validate_learner)]
    ]
    steps: int = Field(default=100_000, ge=1)  # environment steps over all copies
    seed: int = Field(default=0, ge=0, lt=2**32)
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    # Of torch, for each learner on the CPU; auto: by the size of its products, 1 in a local run.
    threads: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    # Learners' steps to machine code (CUDA graphs on a GPU), by a process beside them. true: in a
    # --local run too, which waits for it. auto: not there, and only where a run is long enough.
    compile: bool | Literal["auto"] = "auto"
    replay: ReplayConfig = Field(default_factory=ReplayConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    topology: TopologyConfig = Field(default_factory=TopologyConfig)
    director: DirectorConfig = Field(default_factory=DirectorConfig)
    log: LogConfig = Field(default_factory=LogConfig)
    callbacks: tuple[str, ...] = ()  # `package.module:Callback`

    @model_validator(mode="after")
    def _one_learner_or_more(self) -> RunConfig:
        if not self.learners:
            raise ValueError("a run needs at least one learner: give --algo")
        for name in self.learners:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
                raise ValueError(
                    f"the learner {name!r} cannot be called so: use letters, digits, _ . and -"
                )
            if name in NOT_LEARNERS:
                raise ValueError(
                    f"the learner {name!r} cannot be called so: --policy {name} means another; "
                    "use another name"
                )
        return self

    @property
    def max_lag(self) -> int:
        """In versions: how old a segment may be that an on-policy learner takes."""
        if self.topology.max_lag != "auto":
            return self.topology.max_lag
        return 0 if len(self.learners) == 1 else PORTFOLIO_MAX_LAG

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)

    @classmethod
    def from_yaml(cls, text: str) -> RunConfig:
        return validate(parse_yaml(text, "the config"))


def resolve(
    env_id: str | None,
    algorithms: Sequence[str],
    *,
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Lays the four layers over each other and validates the result.

    `overrides` are dotted keys: `{"learner.lr": 1e-3, "env.copies": 8}`.
    """
    from_file = read_yaml(file) if file is not None else {}
    if isinstance(from_file.get("env"), str):  # `env: CartPole-v1` is short for its id
        from_file["env"] = {"id": from_file["env"]}
    from_overrides = _layer(overrides or {})
    if env_id is not None:
        merge(from_overrides, {"env": {"id": env_id}})

    chosen_env = value_at(from_overrides, ("env", "id")) or value_at(from_file, ("env", "id"))
    if not isinstance(chosen_env, str):
        raise UsageError("no environment: name one, for example `repertory train CartPole-v1`")
    portfolio = _portfolio(algorithms, from_file)
    if isinstance(from_file.get("learners"), dict):  # those that were not asked for stay out
        from_file["learners"] = {
            name: settings or {}
            for name, settings in from_file["learners"].items()
            if name in portfolio
        }

    document = {
        "env": EnvConfig(id=chosen_env).model_dump(mode="json"),
        "learners": {
            name: lookup("algorithm", algorithm).Config(algorithm=algorithm).model_dump(mode="json")
            for name, algorithm in portfolio.items()
        },
        **{
            name: section().model_dump(mode="json")
            for name, section in (
                ("replay", ReplayConfig),
                ("evaluation", EvaluationConfig),
                ("checkpoint", CheckpointConfig),
                ("topology", TopologyConfig),
                ("director", DirectorConfig),
                ("log", LogConfig),
            )
        },
    }
    for algorithm in portfolio.values():
        merge(document, _expand_learner(preset(algorithm, chosen_env), portfolio, algorithm))
    for layer in (from_file, from_overrides):
        merge(document, _expand_learner(layer, portfolio))
    return validate(document)


def changed(config: RunConfig, overrides: Mapping[str, Any]) -> RunConfig:
    """The same run with other settings, by dotted keys as for `resolve`.

    Who learns on which environment is what a run is: that stays.
    """
    document = config.model_dump(mode="json")
    members = {name: learner.algorithm for name, learner in config.learners.items()}
    merge(document, _expand_learner(_layer(overrides), members))
    if document["env"]["id"] != config.env.id:
        raise UsageError(f"env.id of a run that is resumed stays {config.env.id}: begin a new run")
    if {name: one.get("algorithm") for name, one in document["learners"].items()} != members:
        raise UsageError(
            f"the learners of a run that is resumed stay {', '.join(members)}: begin a new run"
        )
    return validate(document)


def _layer(overrides: Mapping[str, Any]) -> dict[str, Any]:
    layer: dict[str, Any] = {}
    for key, value in overrides.items():
        merge(layer, nest(key, value))
    return layer


def _portfolio(algorithms: Sequence[str], from_file: Mapping[str, Any]) -> dict[str, str]:
    """Learner names and their algorithms: those asked for, else those of the file."""
    if algorithms:
        if len(set(algorithms)) < len(algorithms):
            raise UsageError(
                f"--algo {','.join(algorithms)} names an algorithm twice: give such learners names "
                "of their own under `learners:` in a config file"
            )
        return {_learner_name(algorithm): algorithm for algorithm in algorithms}
    learners = from_file.get("learners")
    if isinstance(learners, dict):
        return {
            name: str(settings.get("algorithm", name) if isinstance(settings, dict) else name)
            for name, settings in learners.items()
        }
    raise UsageError("no algorithm: name one with --algo, or in a config file under `learners:`")


def _learner_name(algorithm: str) -> str:
    """A dotted path's own name is its last word: `my.module:FastTD3` is called fasttd3."""
    return algorithm.rpartition(":")[2].lower()


def _expand_learner(
    layer: Mapping[str, Any], portfolio: Mapping[str, str], only: str | None = None
) -> dict[str, Any]:
    """Writes the short form `learner: {...}` out for every learner (of one algorithm)."""
    expanded = {key: value for key, value in layer.items() if key != "learner"}
    shared = layer.get("learner")
    if shared is not None:
        if not isinstance(shared, dict):
            raise UsageError(f"learner = {shared!r} is refused: it holds settings, as learner.lr")
        named = {
            name: copy.deepcopy(shared)
            for name, algorithm in portfolio.items()
            if only is None or algorithm == only
        }
        merge(named, expanded.get("learners", {}))
        expanded["learners"] = named
    return expanded


def preset(algorithm: str, env_id: str) -> dict[str, Any]:
    """The settings we recommend for an algorithm on an environment; the first match counts."""
    file = resources.files("repertory") / "presets" / f"{algorithm}.yaml"
    if ":" in algorithm or not file.is_file():
        return {}
    for pattern, settings in parse_yaml(file.read_text(), f"preset {file}").items():
        if fnmatch.fnmatchcase(env_id, pattern):
            return dict(settings)
    return {}


def merge(base: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Lays `layer` over `base` in place; another part's name replaces the part's settings whole."""
    for key, value in layer.items():
        below = base.get(key)
        if isinstance(below, dict) and "name" in below and isinstance(value, str):
            value = {"name": value}
        if isinstance(below, str) and isinstance(value, Mapping):
            below = base[key] = {"name": below}  # a part by its name, and now its settings
        if (
            isinstance(below, dict)
            and isinstance(value, Mapping)
            and value.get("name", below.get("name")) == below.get("name")
        ):
            merge(below, value)
        else:
            base[key] = copy.deepcopy(value)


def nest(key: str, value: Any) -> dict[str, Any]:
    """`a.b.c` and a value as nested mappings."""
    for part in reversed(key.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def parse_assignment(text: str) -> tuple[str, Any]:
    """`key=value` from the command line; the value is read as YAML, and 1e-3 is a number."""
    key, separator, raw = text.partition("=")
    if not separator or not key.strip():
        raise UsageError(f"--set {text!r} is not an assignment: write it as key=value")
    for number in (int, float):
        try:
            return key.strip(), number(raw)
        except ValueError:
            continue
    try:
        return key.strip(), yaml.safe_load(raw)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"--set {text!r} cannot be read as YAML: {reason}") from error


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        return parse_yaml(path.read_text(), f"config file {path}")
    except OSError as error:
        raise UsageError(f"cannot read config file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"config file {path} is not text: {error.reason}") from error


class _Yaml(yaml.SafeLoader):
    """YAML 1.2's numbers: 1e6 is one, where PyYAML's 1.1 sees a word."""


_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def parse_yaml(text: str, what: str) -> dict[str, Any]:
    try:
        document = yaml.load(text, Loader=_Yaml)  # _Yaml is a SafeLoader
    except yaml.YAMLError as error:
        raise UsageError(f"{what} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{what} must hold a mapping of settings, not {document!r}")
    return document


def validate(document: Any) -> RunConfig:
    """A RunConfig, or a UsageError with one sentence for the first thing wrong."""
    try:
        return RunConfig.model_validate(document)
    except ValidationError as error:
        raise UsageError(explain(error, document, RunConfig)) from None
