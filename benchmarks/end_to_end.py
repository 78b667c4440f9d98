"""Whole systems on the same training: `make bench-end-to-end`.

Ours is `repertory train`, really distributed; Stable-Baselines3 and RLlib are scripts in their own
environments. Environment, algorithm, network, batch size and updates per step are the same; the
last is measured, and systems that differ in it are not compared. Each training is kept in the
results as soon as it is done: `--resume` goes on. What is fair about it: benchmarks/README.md.
"""

from __future__ import annotations

import logging
import math
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.course import Course
from benchmarks.measure import BUSY_LOAD, RESULTS, machine_facts, write_results
from benchmarks.peers.training import TrainingJob
from benchmarks.training_cases import (
    CASES,
    JOBS,
    LAYOUTS,
    OURS,
    CaseName,
    Part,
    System,
    systems_of,
)
from benchmarks.training_records import Record, Records, measured, median_seconds, spread
from benchmarks.training_run import Trained, TrainingFailed, peer_python, train
from benchmarks.training_verdicts import Verdict, compare, return_verdicts, time_verdicts

SETTLE_SECONDS = 3.0  # after the first update
START_SECONDS = 600.0  # to the first update, and until its steps are compiled, at most
TRAINING_SECONDS = 1500.0  # a whole training, at most


@dataclass(frozen=True)
class Options:
    """Whole systems: throughput, time to a threshold, returns at equal steps."""

    parts: tuple[Part, ...] = ("throughput",)
    """time_to_threshold and returns take longer."""
    cases: tuple[CaseName, ...] = CASES
    systems: tuple[System, ...] = ()
    """Only these; by default all that have the algorithm."""
    rounds: int = 3
    """Of throughput: how often each system is measured; of the others: seeds."""
    seconds: float = 12.0
    """Of one measurement of throughput, once learning has settled."""
    threads: int = 0
    """Of torch, in learners and in peers; 0: what each system takes by itself."""
    resume: bool = False
    """What is there already, of this commit and with the same settings, is not made again."""
    quick: bool = False
    """One round of five seconds of PPO, ours and SB3. Its figures mean little."""
    check: bool = False
    """Exit with 1 if a target is missed."""
    report: bool = False
    """No trainings: the tables of what is there."""
    out: Path | None = None
    """Where the JSON goes; by default benchmarks/results/end_to_end.json (quick: -quick.json)."""

    @property
    def results_file(self) -> Path:
        name = "end_to_end-quick.json" if self.quick else "end_to_end.json"
        return self.out or RESULTS / name


def plan(options: Options) -> Iterator[Record]:
    """What is to be made, in turns: every round goes through all; every other one backwards."""
    for number in range(1, options.rounds + 1):
        for part in options.parts:
            for case in options.cases:
                systems = [
                    system
                    for system in systems_of(part, case)
                    if not options.systems or system in options.systems
                ]
                for system in systems if number % 2 else reversed(systems):
                    # Throughput is of one work, time and again; the others are of seeds.
                    seed = 1 if part == "throughput" else number
                    job = replace(JOBS[part][case], threads=options.threads, seed=seed)
                    window = options.seconds if part == "throughput" else None
                    yield Record(part, case, system, number, asdict(job), window)


def made(record: Record) -> Record:
    """The training that the record asks for, and what came of it."""
    facts = machine_facts()
    record = replace(record, load=float(str(facts["load"])), date=str(facts["date"]))
    job = TrainingJob.from_json(record.job)
    window = record.window_seconds

    def enough(course: Course, now: float) -> bool:
        if window is not None:
            return course.learned_for(now) >= SETTLE_SECONDS + window
        return job.threshold is not None and course.seconds_to(job.threshold) is not None

    deadline = TRAINING_SECONDS if window is None else START_SECONDS + 2 * window
    try:
        trained = train(record.system, record.case, job, enough, deadline)
    except TrainingFailed as error:
        return replace(record, failure=str(error))
    return _measured(record, job, trained)


def _measured(record: Record, job: TrainingJob, trained: Trained) -> Record:
    course = trained.course
    record = replace(
        record,
        versions=trained.versions,
        first_update_seconds=course.seconds_to_first_update,
        prepared_seconds=course.prepared - course.started if course.prepared else None,
    )
    if record.part == "throughput":
        steady = course.steady(SETTLE_SECONDS)
        if steady is None:
            return replace(record, failure="too few updates to tell their rate")
        return replace(
            record,
            steps_per_second=steady.steps_per_second,
            updates_per_second=steady.updates_per_second,
            updates_per_step=steady.ratio,
        )
    if not course.judged:
        return replace(record, failure="it was never evaluated")
    if job.threshold is not None:
        reached = next((one for one in course.judged if one.mean >= job.threshold), None)
        return replace(
            record,
            threshold_seconds=course.seconds_to(job.threshold),
            threshold_steps=None if reached is None else reached.env_steps,
        )
    last = course.judged[-1]
    return replace(record, final_return=last.mean, final_steps=last.env_steps)


def warm_up(record: Record) -> None:
    """A run of the same kind until its steps are compiled; the next one finds them."""
    job = replace(TrainingJob.from_json(record.job), evaluate_every=0, threshold=None)

    def enough(course: Course, now: float) -> bool:
        return course.learned_for(now) >= SETTLE_SECONDS

    train(record.system, record.case, job, enough, START_SECONDS)


def run(options: Options, console: Console) -> Records:
    path = options.results_file
    records = Records.read(path)
    commit = str(machine_facts()["commit"])
    planned = (replace(one, commit=commit) for one in plan(options))
    todo = [one for one in planned if not (options.resume and records.has(one))]
    warm: set[CaseName] = set()
    for number, wanted in enumerate(todo, 1):
        if wanted.part == "time_to_threshold" and wanted.system == "repertory":
            if wanted.case not in warm:
                console.print(f"{wanted.case}: a run before, so that compiled steps are there ...")
                warm_up(wanted)
            warm.add(wanted.case)
        console.print(f"{number} of {len(todo)}: {' '.join(str(word) for word in wanted.key)} ...")
        record = made(wanted)
        records.add(record)
        write(records, options)
        console.print(f"  {_in_short(record)}")
    return records


def write(records: Records, options: Options) -> None:
    settings = {
        "threads": options.threads, "device": "cpu", "settle_seconds": SETTLE_SECONDS,
        "layouts": {case: asdict(layout) for case, layout in LAYOUTS.items()},
    }  # fmt: skip
    verdicts = verdicts_of(records)
    document: dict[str, Any] = {
        "machine": machine_facts(),
        "options": settings,
        "comparisons": [
            {
                "case": one.case, "peer": one.peer, "refusal": one.refusal,
                **({} if one.comparison is None else
                   {**asdict(one.comparison), "ratio": one.comparison.ratio,
                    "interval": one.comparison.interval, "ok": one.ok}),
            }
            for one in verdicts
        ],
        "times": [
            {"case": one.case, "system": one.system, "ratio": _finite(one.ratio),
             "target": one.target, "ok": one.ok}
            for case in CASES for one in time_verdicts(records, case)
        ],
        "returns": [
            {"case": one.case, "system": one.system, "difference": one.difference,
             "error": one.error, "ok": one.ok}
            for case in CASES for one in return_verdicts(records, case)
        ],
        "missed": missed(records),
        "records": records.to_json(),
    }  # fmt: skip
    write_results(options.results_file, document)


def verdicts_of(records: Records) -> list[Verdict]:
    peers: tuple[System, ...] = ("sb3", "sb3_vector", "rllib")
    found = [compare(records, case, peer) for case in CASES for peer in peers]
    return [one for one in found if one is not None]


def missed(records: Records) -> list[str]:
    """Comparisons below their target, and those that had to be refused."""
    slower = [
        one.refusal or f"{one.comparison.work}: {one.comparison.ratio:.2f} x"  # type: ignore[union-attr]
        for one in verdicts_of(records)
        if not one.ok
    ]
    later = [
        f"{case}, time to threshold, {one.system} / sb3: {one.ratio:.2f}"
        for case in CASES
        for one in time_verdicts(records, case)
        if not one.ok
    ]
    worse = [
        f"{case}, return, {one.system} - sb3: {one.difference:.0f}"
        for case in CASES
        for one in return_verdicts(records, case)
        if not one.ok
    ]
    return slower + later + worse


def _finite(value: float) -> float | None:
    """JSON knows no other numbers."""
    return value if math.isfinite(value) else None


def _in_short(record: Record) -> str:
    if record.failure is not None:
        return f"failed: {record.failure}"
    if record.part == "throughput":
        return (
            f"{record.steps_per_second:,.0f} steps/s, {record.updates_per_second:,.0f} updates/s, "
            f"first update after {record.first_update_seconds:.1f} s"
        )
    if record.part == "time_to_threshold":
        seconds = record.threshold_seconds
        return "not reached" if seconds is None else f"reached after {seconds:.1f} s"
    return f"return {record.final_return:.1f} after {record.final_steps} steps"


def show(records: Records, console: Console) -> None:
    machine = machine_facts()
    console.print()
    console.print(f"{machine['cpu']}, {machine['cores']} cores, commit {machine['commit']}, cpu")
    for table in (throughput_table(records), threshold_table(records), returns_table(records)):
        if table.row_count:
            console.print(table)


def throughput_table(records: Records) -> Table:
    table = Table(title="throughput while learning, medians of rounds in turns")
    for name in ("case", "system"):
        table.add_column(name)
    for name in ("steps/s", "updates/s", "updates/step", "first update", "load"):
        table.add_column(name, justify="right")
    table.add_column("ours / theirs, steps/s")
    for case in CASES:
        for system in records.systems("throughput", case):
            there = measured(records.of("throughput", case, system))
            if not there:
                failures = {one.failure for one in records.of("throughput", case, system)}
                table.add_row(case, system, *["-"] * 5, "; ".join(str(f)[-80:] for f in failures))
                continue
            table.add_row(
                title_of(TrainingJob.from_json(there[-1].job)),
                system,
                f"{_median(there, 'steps_per_second'):,.0f}",
                f"{_median(there, 'updates_per_second'):,.0f}",
                f"{_median(there, 'updates_per_step'):.3f}",
                f"{_median(there, 'first_update_seconds'):.1f} s",
                f"{_median(there, 'load'):.1f}",
                "" if system in OURS else _verdict(compare(records, case, system)),
            )
    return table


def threshold_table(records: Records) -> Table:
    table = Table(title="seconds from the start of the command to the threshold, by seed")
    for name in ("case", "system", "seconds by seed", "median", "steps by seed", "ours / theirs"):
        table.add_column(name)
    for case in CASES:
        ratios = {
            one.system: f"{one.ratio:.2f}, target <= {one.target:.2f}: {'yes' if one.ok else 'no'}"
            for one in time_verdicts(records, case)
        }
        for system in records.systems("time_to_threshold", case):
            there = records.of("time_to_threshold", case, system)
            seconds = [one.threshold_seconds for one in there]
            job = TrainingJob.from_json(there[0].job)
            table.add_row(
                f"{title_of(job)}, threshold {job.threshold:g}",
                system,
                ", ".join("not reached" if one is None else f"{one:.1f}" for one in seconds),
                f"{median_seconds(seconds):.1f}",
                ", ".join(str(one.threshold_steps) for one in there),
                ratios.get(system, ""),
            )
    return table


def returns_table(records: Records) -> Table:
    table = Table(title="return at equal steps, over seeds")
    for name in ("case", "system", "steps", "return", "by seed", "ours - theirs"):
        table.add_column(name)
    for case in CASES:
        differences = {
            one.system: f"{one.difference:+.0f} ± {one.error:.0f}"
            for one in return_verdicts(records, case)
        }
        for system in records.systems("returns", case):
            there = [
                one for one in records.of("returns", case, system) if one.final_return is not None
            ]
            returns = [one.final_return for one in there if one.final_return is not None]
            if returns:
                table.add_row(
                    title_of(TrainingJob.from_json(there[0].job)),
                    system,
                    str(there[0].final_steps),
                    spread(returns),
                    ", ".join(f"{value:.0f}" for value in returns),
                    differences.get(system, ""),
                )
    return table


def title_of(job: TrainingJob) -> str:
    network = " x ".join(str(width) for width in job.hidden)
    threads = f"{job.threads} thread(s)" if job.threads else "threads of its own choice"
    return f"{job.algorithm}, {job.env_id}, {network}, batch {job.batch}, {threads}"


def _median(records: list[Record], name: str) -> float:
    return median(float(getattr(record, name) or 0.0) for record in records)


def _verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    if verdict.comparison is None:
        return verdict.refusal or ""
    low, high = verdict.comparison.interval
    target = verdict.comparison.target
    aim = "" if target is None else f", target >= {target:g}: {'yes' if verdict.ok else 'no'}"
    return rf"{verdict.comparison.ratio:.2f} \[{low:.2f} - {high:.2f}]{aim}"


def main() -> int:
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    logging.basicConfig(level=logging.WARNING)
    # So that what is under way is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(highlight=False)
    console.width = max(console.width, 150)  # also where the output goes into a file
    if options.quick:
        options = replace(
            options, parts=("throughput",), cases=("ppo",), systems=("repertory", "sb3"),
            rounds=1, seconds=5.0,
        )  # fmt: skip
    if options.report:
        show(Records.read(options.results_file), console)
        return 0
    lacking = {
        peer_python(one.system)
        for one in plan(options)
        if one.system not in OURS and not peer_python(one.system).exists()
    }
    if lacking:
        console.print(f"{lacking.pop()} is not there: run `make bench-setup` first")
        return 2
    if float(str(machine_facts()["load"])) > BUSY_LOAD:
        console.print("others work on this machine: do not trust the ratios")
    records = run(options, console)
    show(records, console)
    console.print(f"everything that was measured: {options.results_file}")
    if options.check and missed(records):
        console.print(f"missed: {'; '.join(missed(records))}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
