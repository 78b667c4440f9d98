"""The benchmark of whole systems: rates by counters, when systems may be compared, what is kept."""

from __future__ import annotations

import io
import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import end_to_end
from benchmarks.course import Course, at_moment
from benchmarks.end_to_end import Options, plan
from benchmarks.peers.training import (
    Judged,
    Narrator,
    Progress,
    TrainingJob,
    Versions,
    parse_line,
)
from benchmarks.training_cases import CASES, DISTRIBUTED, JOBS, LAYOUTS, our_settings
from benchmarks.training_records import Record, Records, median_seconds, spread
from benchmarks.training_run import Trained
from benchmarks.training_verdicts import compare, return_verdicts, time_verdicts
from repertory.config import OnPolicyConfig, resolve

JOB = TrainingJob("td3", "HalfCheetah-v5", (256, 256), batch=256, lr=1e-3, steps=100)


def record(system: str, round_: int, rate: float, ratio: float = 1.0, case: str = "td3") -> Record:
    return Record(
        "throughput", case, system, round_, asdict(JOB), 30.0,  # type: ignore[arg-type]
        steps_per_second=rate, updates_per_second=rate * ratio, updates_per_step=ratio,
    )  # fmt: skip


def test_lines_that_are_said_are_those_that_are_read() -> None:
    out = io.StringIO()
    narrator = Narrator(out)
    narrator.versions({"torch": "2"})
    narrator.judged(100, -5.5)
    narrator.progress(10, 0)
    narrator.progress(20, 0)  # too soon after the last
    narrator.progress(30, 1)  # the first update is always said
    versions, judged, *progress = [parse_line(line) for line in out.getvalue().splitlines()]
    assert versions == Versions({"torch": "2"})
    assert isinstance(judged, Judged)
    assert (judged.env_steps, judged.mean) == (100, -5.5)
    assert [(one.env_steps, one.updates) for one in progress if isinstance(one, Progress)] == [
        (10, 0), (30, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "Using cpu device", "12", "[1]", '{"kind": "other"}', "{}"])
def test_what_libraries_print_is_no_line(text: str) -> None:
    assert parse_line(text) is None


def test_a_job_survives_its_way_to_a_peer() -> None:
    job = JOBS["time_to_threshold"]["ppo"]
    assert TrainingJob.from_json(json.loads(json.dumps(asdict(job)))) == job


def test_rates_are_from_the_end_of_one_burst_to_the_end_of_another() -> None:
    """Cycles of 4 s: 100 steps in the first 3, then 50 updates in the last."""
    course = Course(started=0.0)
    for cycle in range(5):
        begin = 10.0 + 4 * cycle
        for second, steps, updates in ((1, 33, 0), (2, 66, 0), (3, 100, 0), (4, 100, 50)):
            course.env_steps.append((begin + second, 100 * cycle + steps))
            course.updates.append((begin + second, 50 * cycle + updates))
    steady = course.steady(settle_seconds=0.0)
    assert course.seconds_to_first_update == 14.0
    assert steady is not None
    assert steady.seconds == 16.0
    assert (steady.steps_per_second, steady.updates_per_second, steady.ratio) == (25.0, 12.5, 0.5)
    settled = course.steady(settle_seconds=5.0)
    assert settled is not None
    assert (settled.seconds, settled.ratio) == (8.0, 0.5)


def test_what_is_made_ready_beside_learning_does_not_count() -> None:
    course = Course(0.0, [(float(t), t) for t in range(20)], [(float(t), t) for t in range(20)])
    course.prepared = 9.0
    assert course.learned_for(12.0) == 3.0
    steady = course.steady(settle_seconds=1.0)
    assert steady is not None
    assert steady.seconds == 9.0  # from 10 to 19


def test_there_is_no_rate_without_two_bursts() -> None:
    assert Course(0.0).steady(0.0) is None
    assert Course(0.0, [(1.0, 5)], [(0.5, 0), (1.0, 3)]).steady(0.0) is None


def test_between_two_readings_a_counter_goes_evenly() -> None:
    readings = [(0.0, 0), (10.0, 100), (11.0, 200)]
    assert [at_moment(readings, moment) for moment in (-1.0, 5.0, 10.5, 99.0)] == [0, 50, 150, 200]


def test_a_threshold_is_reached_by_the_first_evaluation_that_is_not_below() -> None:
    judged = [Judged(5.0, 10, 400.0), Judged(7.0, 20, 475.0), Judged(9.0, 30, 500.0)]
    course = Course(1.0, judged=judged)
    assert course.seconds_to(475.0) == 6.0
    assert course.seconds_to(501.0) is None


def test_ratios_are_of_medians_over_the_rounds_that_both_have() -> None:
    rates = {"repertory": (100.0, 200.0, 400.0, 9.0), "sb3": (50.0, 100.0, 50.0)}
    records = Records(
        record(system, number, rate)
        for system, of_system in rates.items()
        for number, rate in enumerate(of_system, 1)
    )
    verdict = compare(records, "td3", "sb3")
    assert verdict is not None
    assert verdict.comparison is not None
    assert verdict.comparison.ratio == 200.0 / 50.0
    assert verdict.comparison.interval == (2.0, 8.0)
    assert compare(records, "td3", "rllib") is None


@pytest.mark.parametrize(("ratio", "compared"), [(0.96, True), (1.04, True), (0.94, False)])
def test_systems_that_update_at_other_rates_are_not_compared(ratio: float, compared: bool) -> None:
    records = Records([record("repertory", 1, 100.0, ratio), record("sb3", 1, 50.0, 1.0)])
    verdict = compare(records, "td3", "sb3")
    assert verdict is not None
    assert (verdict.comparison is not None) is compared
    assert (verdict.refusal is None) is compared
    assert verdict.ok is compared


def test_the_target_holds_against_the_peer_with_as_many_copies_too() -> None:
    rates = {"repertory": 199.0, "sb3": 50.0, "sb3_vector": 100.0}
    records = Records(record(name, 1, rate, case="ppo") for name, rate in rates.items())
    alone, vector = compare(records, "ppo", "sb3"), compare(records, "ppo", "sb3_vector")
    assert alone is not None
    assert vector is not None
    assert (alone.ok, vector.ok) == (True, False)


def seeds_of(part: str, system: str, values: list[float | None], case: str = "td3") -> list[Record]:
    measured = "threshold_seconds" if part == "time_to_threshold" else "final_return"
    return [
        replace(Record(part, case, system, seed, asdict(JOB)), **{measured: value})  # type: ignore[arg-type]
        for seed, value in enumerate(values, 1)
    ]


@pytest.mark.parametrize(
    ("case", "ours", "ratio", "ok"),
    [
        ("td3", [60.0, 70.0, 50.0], 0.6, True),
        ("td3", [60.0, 70.0, 90.0], 0.7, False),  # more than two thirds
        ("ppo", [60.0, 70.0, 90.0], 0.7, True),  # not slower is enough there
        ("td3", [60.0, 50.0, None], 0.6, True),  # one seed that never arrives is the slowest
        ("td3", [60.0, None, None], math.inf, False),
    ],
)
def test_times_to_a_threshold_are_medians_over_seeds(
    case: str, ours: list[float | None], ratio: float, ok: bool
) -> None:
    peers = seeds_of("time_to_threshold", "sb3", [100.0, 90.0, 110.0, 1.0], case)
    records = Records([*seeds_of("time_to_threshold", "repertory", ours, case), *peers])
    (verdict,) = time_verdicts(records, case)  # type: ignore[arg-type]
    assert (verdict.ratio, verdict.ok) == (pytest.approx(ratio), ok)
    assert median_seconds(ours) == pytest.approx(ratio * 100)


@pytest.mark.parametrize(
    ("ours", "peer", "ok"),
    [
        ([10.0, 20.0, 30.0], [10.0, 20.0, 36.0], True),  # less, but within what seeds differ by
        ([10.0, 11.0, 12.0], [20.0, 21.0, 22.0], False),
        ([30.0, 31.0, 32.0], [20.0, 21.0, 22.0], True),
        ([19.0], [20.0], False),  # nothing is known of chance
    ],
)
def test_a_loss_in_return_is_one_beyond_chance(
    ours: list[float | None], peer: list[float | None], ok: bool
) -> None:
    records = [*seeds_of("returns", "repertory", ours), *seeds_of("returns", "sb3", peer)]
    (verdict,) = return_verdicts(Records(records), "td3")
    assert verdict.ok is ok


def test_what_is_there_with_the_same_settings_is_not_made_again(tmp_path: Path) -> None:
    done = record("sb3", 1, 50.0)
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"records": Records([done]).to_json()}))
    records = Records.read(path)
    wanted = replace(done, steps_per_second=None)
    assert records.has(wanted)
    assert not records.has(replace(wanted, round=2))
    assert not records.has(replace(wanted, window_seconds=5.0))
    assert not records.has(replace(wanted, job=asdict(replace(JOB, threads=2))))
    assert records.has(replace(wanted, commit=f"{done.commit}+"))  # results are files, too
    assert not records.has(replace(wanted, commit="another"))
    records.add(replace(done, failure="it ended"))
    assert not records.has(wanted)
    assert Records.read(tmp_path / "none.json").to_json() == []


def test_rounds_go_through_systems_forth_and_back() -> None:
    options = Options(cases=("sac",), rounds=2)
    assert [(one.round, one.system) for one in plan(options)] == [
        (1, "repertory"), (1, "sb3"), (1, "rllib"), (2, "rllib"), (2, "sb3"), (2, "repertory"),
    ]  # fmt: skip
    assert {one.system for one in plan(Options(cases=("td3",)))} == {"repertory", "sb3"}
    assert "sb3_vector" in {one.system for one in plan(Options(cases=("ppo",)))}
    seeds = [one.job["seed"] for one in plan(Options(parts=("returns",), cases=("dqn",)))]
    assert sorted(set(seeds)) == [1, 2, 3]


def test_compiled_steps_are_there_before_a_time_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once for each case, and not where the point is that they are missing."""
    made: list[tuple[str, str, bool]] = []

    def train(system: str, case: str, job: TrainingJob, *rest: object) -> Trained:
        made.append((system, case, job.evaluate_every > 0))
        return Trained(Course(0.0))

    monkeypatch.setattr(end_to_end, "train", train)
    options = Options(
        parts=("time_to_threshold",), cases=("td3", "ppo"), rounds=2, out=tmp_path / "out.json"
    )
    end_to_end.run(options, Console(quiet=True))
    warm_ups = [(system, case) for system, case, judged in made if not judged]
    assert warm_ups == [("repertory", "td3")]
    assert made.index(("repertory", "td3", False)) < made.index(("repertory", "td3", True))
    assert made.count(("repertory_first", "td3", True)) == 2
    assert not any(case == "ppo" and system in DISTRIBUTED for system, case, _ in made)


@pytest.mark.parametrize("part", ["throughput", "time_to_threshold", "returns"])
@pytest.mark.parametrize("case", CASES)
def test_our_settings_ask_for_the_work_of_the_job(part: str, case: str) -> None:
    job = JOBS[part][case]  # type: ignore[index]
    for layout in (None, LAYOUTS[case]):  # type: ignore[index]
        config = resolve(job.env_id, [job.algorithm], overrides=our_settings(job, layout))
        (learner,) = config.learners.values()
        assert (learner.lr, learner.gamma, learner.hidden_sizes) == (job.lr, job.gamma, job.hidden)
        if isinstance(learner, OnPolicyConfig):
            actors = 1 if layout is None else layout.actors
            steps = learner.segment_length * config.env.copies * actors
            assert steps == job.iteration_steps


def test_a_spread_is_mean_and_deviation() -> None:
    assert spread([1.0, 3.0], 1) == "2.0 ± 1.4"
    assert spread([5.0]) == "5"
    assert spread([]) == "-"
