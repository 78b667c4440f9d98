"""Does every algorithm learn? `python -m benchmarks.learning` makes the table of the docs.

For each task and seed: one local run by the presets; then the best policy by the run's own
evaluations plays fresh episodes. The table has the mean of those for each seed, beside what others
have published. A finished run is kept and not made again: stop it and call it again.
"""

from __future__ import annotations

import json
import logging
import math
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.learning_tasks import TASKS, LearningTask
from benchmarks.measure import ROOT, machine_facts
from benchmarks.study import Place, run_all
from repertory.api import train
from repertory.checkpoints import write_atomically
from repertory.seeding import derive_seed
from services.plotting import COLORS
from services.run_directory import RunDirectory
from services.run_policy import evaluate_run

WIDTH = 120  # of the table, also where it goes to a file
PLACE = Place("benchmarks.learning")


@dataclass(frozen=True)
class Options:
    """Every algorithm on what it should learn, over seeds."""

    only: tuple[str, ...] = ()
    """Algorithms; none means all."""
    seeds: int = 3
    """Seeds 1 to this."""
    processes: int = 2
    """Runs at the same time, one torch thread each."""
    minutes: float = math.inf
    """After so long no further run is begun; call again to go on."""
    quick: bool = False
    """A fiftieth of the steps, one seed, no page: to see that it works."""
    report: bool = False
    """No runs: the table and the figure of what is in the cache."""
    cache: Path = ROOT / "runs" / "learning-study"
    out: Path = ROOT / "benchmarks" / "results" / "learning.json"
    page: Path | None = ROOT / "docs" / "algorithms.md"
    """Whose table is written anew."""
    image: Path = ROOT / "docs" / "images" / "learning.png"


@dataclass(frozen=True, slots=True)
class Record:
    """What is left of a run."""

    task: str
    seed: int
    returns: list[float]  # of the best policy, in fresh episodes
    curve: Mapping[str, float]  # evaluated mean, by environment steps
    seconds: float
    commit: str

    @property
    def score(self) -> float:
        return float(np.mean(self.returns))


@dataclass(frozen=True, slots=True)
class Job:
    task: LearningTask
    seed: int
    cache: Path

    @property
    def path(self) -> Path:
        return self.cache / f"{self.task.name}-{self.seed}.json"

    @property
    def title(self) -> str:
        return f"{self.task.name} seed {self.seed}"

    def make(self) -> float:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="learning-") as folder:
            run_dir = Path(folder) / "run"
            result = train(
                self.task.env_id,
                self.task.algorithm,
                steps=self.task.steps,
                seed=self.seed,
                settings=self.task.settings,
                run_dir=run_dir,
                progress=False,
            )
            if result.stopped_by is not None:  # half a run must not get into the cache
                raise KeyboardInterrupt(result.stopped_by)
            seed = derive_seed(self.seed, "fresh episodes")
            judged = evaluate_run(run_dir, "best", self.task.episodes, seed)
            history = RunDirectory.open(run_dir).read_evaluations()
        record = Record(
            task=self.task.name,
            seed=self.seed,
            returns=list(judged.returns),
            curve={str(step): float(np.mean(values)) for step, values in history.items()},
            seconds=round(time.monotonic() - begin, 1),
            commit=str(machine_facts()["commit"]),
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, json.dumps(asdict(record), indent=1).encode())
        return record.seconds


def plan(tasks: Sequence[LearningTask], seeds: int, cache: Path) -> list[Job]:
    """Every task has its first seed before one has its second."""
    return [Job(task, seed, cache) for seed in range(1, seeds + 1) for task in tasks]


def found(task: LearningTask, seeds: int, cache: Path) -> list[Record]:
    paths = [job.path for job in plan([task], seeds, cache)]
    return [Record(**json.loads(path.read_text())) for path in paths if path.exists()]


def main() -> int:
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    logging.basicConfig(level=logging.WARNING)
    # So that the pool is closed: the runs under way end and are kept, and no process stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=WIDTH)
    tasks = [task for task in TASKS if not options.only or task.algorithm in options.only]
    if not tasks:
        names = ", ".join(dict.fromkeys(task.algorithm for task in TASKS))
        console.print(f"no task of {', '.join(options.only)}: choose of {names}")
        return 2
    if options.quick:
        tasks = [replace(task, steps=task.steps // 50) for task in tasks]
        quick = options.cache / "quick"
        options = replace(
            options, seeds=1, page=None, out=quick / "learning.json", image=quick / "learning.png"
        )
    if not options.report:
        jobs = plan(tasks, options.seeds, options.cache)
        run_all(jobs, processes=options.processes, minutes=options.minutes, console=console)
    records = {task: found(task, options.seeds, options.cache) for task in tasks}
    records = {task: runs for task, runs in records.items() if runs}
    if not records:
        console.print("no run has finished")
        return 1
    _print(console, records)
    _draw(records, options.image)
    if options.page is not None:
        text = PLACE.filled(options.page.read_text(), page_of(records))
        write_atomically(options.page, text.encode())
    options.out.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": machine_facts(),
        "tasks": [asdict(task) for task in records],
        "runs": [asdict(run) for runs in records.values() for run in runs],
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def row_of(task: LearningTask, runs: Sequence[Record]) -> tuple[str, ...]:
    digits = 3 if max(abs(run.score) for run in runs) < 2 else 0
    scores = ", ".join(f"{run.score:.{digits}f}" for run in runs)
    last = ", ".join(f"{list(run.curve.values())[-1]:.{digits}f}" for run in runs)
    mean = f"{np.mean([run.score for run in runs]):.{digits}f}"
    seeds = ", ".join(str(run.seed) for run in runs)
    env = task.env_id.rpartition(":")[2]
    return (task.algorithm, env, f"{task.steps}", seeds, scores, mean, last, task.elsewhere)


COLUMNS = ("algorithm", "environment", "steps", "seeds", "best policy", "mean", "last evaluation",
           "elsewhere")  # fmt: skip


def page_of(records: Mapping[LearningTask, Sequence[Record]]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for task, runs in records.items():
        name, *rest = row_of(task, runs)
        lines.append("| " + " | ".join((f"`{name}`", *rest)) + " |")
    return "\n".join(lines)


def _print(console: Console, records: Mapping[LearningTask, Sequence[Record]]) -> None:
    table = Table(*COLUMNS)
    for task, runs in records.items():
        table.add_row(*row_of(task, runs))
    console.print(table)


def _draw(records: Mapping[LearningTask, Sequence[Record]], path: Path) -> None:
    """A panel for each task: every seed's evaluations."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(4, len(records))
    rows = -(-len(records) // columns)
    figure, panels = plt.subplots(
        rows, columns, figsize=(3.4 * columns, 2.5 * rows), layout="constrained", squeeze=False
    )
    for panel, (task, runs) in zip(panels.flat, records.items(), strict=False):
        for run, color in zip(runs, COLORS, strict=False):
            steps = [int(step) for step in run.curve]
            panel.plot(steps, list(run.curve.values()), color=color, label=f"seed {run.seed}")
        panel.set_title(f"{task.algorithm}, {task.env_id.rpartition(':')[2]}", fontsize=9)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in list(panels.flat)[len(records) :]:
        panel.axis("off")
    panels[0][0].legend(frameon=False, fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
