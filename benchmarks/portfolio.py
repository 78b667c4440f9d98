"""Is a portfolio worth it? `python -m benchmarks.portfolio` compares it with its members alone.

At equal environment steps and equal gradient steps: each member alone, the portfolio under each
strategy, and the default strategy with one setting changed. What is compared with what, and how it
is kept equal, is in `portfolio_tasks.py`; how a run is judged in `portfolio_run.py`.

A finished run is kept in the cache and not made again: the program can be stopped at any moment and
called again. Tables, JSON and figures are made of whatever is in the cache.
"""

from __future__ import annotations

import json
import logging
import math
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.measure import ROOT, machine_facts
from benchmarks.portfolio_figure import draw_regret, draw_scores
from benchmarks.portfolio_page import PLACE, acted, results
from benchmarks.portfolio_run import (
    Record,
    make_record,
    random_mean,
    read_record,
    record_path,
)
from benchmarks.portfolio_summary import Outcome, TaskSummary, summarise
from benchmarks.portfolio_tasks import FIRST, SINGLE, TASKS, Task
from benchmarks.study import run_all
from repertory.checkpoints import write_atomically

WIDTH = 120  # of the tables, also where they go to a file
ENOUGH = 0.8  # of the tasks, on which a strategy should be near the best single


@dataclass(frozen=True)
class Options:
    """Portfolios against their members alone, at equal cost."""

    tasks: tuple[str, ...] = tuple(TASKS)
    """Which tasks, of those in portfolio_tasks.py."""
    arms: tuple[str, ...] = ()
    """Only these arms; none means all."""
    seeds: int = 3
    """Seeds 1 to this."""
    processes: int = 2
    """Runs at the same time, one torch thread each."""
    minutes: float = math.inf
    """After so long no further run is begun; call again to go on."""
    times: float = 1.0
    """The budgets, multiplied: is it time that is missing? Results under another name, no page."""
    quick: bool = False
    """A twentieth of the steps, one seed, results under another name: to see that it works."""
    report: bool = False
    """No runs: tables and figures of what is in the cache."""
    check: bool = False
    """Exit with 1 if the default strategy misses the target."""
    cache: Path = ROOT / "runs" / "portfolio-study"
    out: Path = ROOT / "benchmarks" / "results" / "portfolio.json"
    page: Path | None = ROOT / "docs" / "portfolio.md"
    """Whose tables are written anew."""
    images: Path = ROOT / "docs" / "images"


@dataclass(frozen=True, slots=True)
class Job:
    task: Task
    arm: str
    seed: int
    path: Path

    @property
    def title(self) -> str:
        return f"{self.task.name} {self.arm} seed {self.seed}"

    def make(self) -> float:
        return make_record(self.task, self.arm, self.seed, self.path)


def plan(tasks: Sequence[Task], arms: Sequence[str], seeds: int, cache: Path) -> list[Job]:
    """What matters most first; a run that two tasks share is there once.

    The members alone and the first arms have two seeds before the other arms have one.
    """
    jobs: dict[Path, Job] = {}
    for seed in range(1, seeds + 1):
        for task in tasks:
            for arm in task.arms:
                if not arms or arm in arms or arm.startswith(SINGLE):
                    path = record_path(cache, task, arm, seed)
                    jobs.setdefault(path, Job(task, arm, seed, path))
    return sorted(jobs.values(), key=_turn)


def _turn(job: Job) -> float:
    return job.seed + (0.0 if job.arm.startswith(SINGLE) or job.arm in FIRST else 1.5)


def records_of(task: Task, arms: Sequence[str], seeds: int, cache: Path) -> list[Record]:
    return [
        read_record(job.path, task.name)
        for job in plan([task], arms, seeds, cache)
        if job.path.exists()
    ]


def outcome_of(record: Record) -> Outcome:
    return Outcome(
        arm=record.arm,
        seed=record.seed,
        score=record.score,
        gradient_steps=sum(record.gradient_steps.values()),
        env_steps=record.env_steps,
        curve={int(step): mean for step, mean in record.leading.items()},
    )


def shorter(task: Task) -> Task:
    """For `--quick`: everything happens, and nobody learns much."""
    steps = task.steps // 20
    members = {
        name: {**settings, **({"learning_starts": 50} if "learning_starts" in settings else {})}
        for name, settings in task.members.items()
    }
    return replace(
        task, steps=steps, evaluate_every=steps // 2, members=members, episodes=1,
        fresh_episodes=2, random_episodes=5,
    )  # fmt: skip


def apart(options: Options, name: str) -> Options:
    """What comes out stays apart from the study that the docs have."""
    return replace(
        options,
        out=options.out.with_name(f"{options.out.stem}-{name}.json"),
        images=options.cache / name,
        page=None,
    )


def main() -> int:
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    logging.basicConfig(level=logging.WARNING)
    # So that the pool is closed: the runs under way end and are kept, and no process stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=WIDTH)
    unknown = sorted(set(options.tasks) - set(TASKS))
    if unknown:
        console.print(f"no task {', '.join(unknown)}: choose of {', '.join(TASKS)}")
        return 2
    tasks = [TASKS[name] for name in options.tasks]
    if options.times != 1.0:
        tasks = [replace(task, steps=int(task.steps * options.times)) for task in tasks]
        options = apart(options, f"times-{options.times:g}")
    if options.quick:
        tasks = [shorter(task) for task in tasks]
        options = replace(apart(options, "quick"), seeds=1)
    facts = machine_facts()
    if not options.report:
        jobs = plan(tasks, options.arms, options.seeds, options.cache)
        run_all(jobs, processes=options.processes, minutes=options.minutes, console=console)

    summaries: dict[str, TaskSummary] = {}
    records: dict[str, list[Record]] = {}
    for task in tasks:
        found = records_of(task, options.arms, options.seeds, options.cache)
        if not any(record.arm.startswith(SINGLE) for record in found):
            console.print(f"{task.name}: no finished run of a member alone, left out")
            continue
        random = random_mean(task.env_id, task.random_episodes)
        points = task.steps // task.evaluate_every
        outcomes = [outcome_of(record) for record in found]
        summaries[task.name] = summarise(outcomes, random, task.steps, points)
        records[task.name] = found
        _print_task(console, task, summaries[task.name], found)
    if not summaries:
        return 1
    _print_verdict(console, summaries)
    draw_regret(summaries, options.images / "portfolio-regret.png")
    draw_scores(summaries, options.images / "portfolio-scores.png")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    commits = sorted({record.commit for found in records.values() for record in found})
    if options.page is not None:
        runs = sum(len(found) for found in records.values())
        made = (
            f"{runs} runs. Percentages are of the way from a random policy to the best single; in "
            "brackets the number of seeds."
        )
        text = PLACE.filled(options.page.read_text(), results(summaries, records, made))
        write_atomically(options.page, text.encode())
    document = {
        "machine": facts,
        "commits": commits,
        "settings": {task.name: asdict(task) for task in tasks},
        "summary": {name: asdict(summary) for name, summary in summaries.items()},
        "runs": [asdict(record) for found in records.values() for record in found],
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if options.check and not reached("ucb", summaries) else 0


def reached(arm: str, summaries: Mapping[str, TaskSummary]) -> bool:
    """Never worse than the mean single, and near the best one on at least four tasks of five."""
    there = [task for task in summaries.values() if arm in task.arms]
    near = sum(task.near_best(arm) for task in there)
    return all(task.beats_mean(arm) for task in there) and near >= ENOUGH * len(summaries)


def _print_task(
    console: Console, task: Task, summary: TaskSummary, records: Sequence[Record]
) -> None:
    table = Table(
        "arm", "seeds", "score", "95 %", "of best", "env steps", "gradient steps", "steps acted by",
        title=f"{task.name}: {task.env_id}, random {summary.random:.1f}",
    )  # fmt: skip
    for arm, one in summary.arms.items():
        mark = " *" if arm == summary.best_single else ""
        table.add_row(
            arm + mark,
            str(one.seeds),
            f"{one.score:.1f}",
            f"{one.interval[0]:.1f} .. {one.interval[1]:.1f}",
            f"{100 * one.scaled:.0f} %",
            f"{one.env_steps:.0f}",
            f"{one.gradient_steps:.0f}",
            acted(arm, records),
        )
    table.add_section()
    table.add_row(
        "mean single",
        "",
        f"{summary.mean_single:.1f}",
        "",
        f"{100 * summary.mean_single_scaled:.0f} %",
    )
    console.print(table)


def _print_verdict(console: Console, summaries: Mapping[str, TaskSummary]) -> None:
    arms = dict.fromkeys(
        arm for task in summaries.values() for arm in task.arms if not arm.startswith(SINGLE)
    )
    table = Table(
        "strategy", *summaries, "mean", "near best", ">= mean single", title="of the best single"
    )
    for arm in arms:
        there = {name: task for name, task in summaries.items() if arm in task.arms}
        scaled = [task.arms[arm].scaled for task in there.values()]
        table.add_row(
            arm,
            *(
                f"{100 * there[name].arms[arm].scaled:.0f} %" if name in there else "-"
                for name in summaries
            ),
            f"{100 * np.mean(scaled):.0f} %",
            f"{sum(task.near_best(arm) for task in there.values())} of {len(there)}",
            f"{sum(task.beats_mean(arm) for task in there.values())} of {len(there)}",
        )
    table.add_section()
    table.add_row(
        "mean single", *(f"{100 * task.mean_single_scaled:.0f} %" for task in summaries.values())
    )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
