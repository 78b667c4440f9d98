"""Our replay service against dm-reverb, in turns on the same work: `make bench-replay`.

Prints tables, writes every single measurement as JSON, and with `--check` ends with 1 if a target
is missed. What is compared, what is fair about it and what is not: benchmarks/README.md.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.comparisons import OURS, REVERB, TABLES, Comparisons
from benchmarks.fleet import Fleet, Launch
from benchmarks.growth import Growth, ShardRates, measure_growth, measure_shards
from benchmarks.measure import BUSY_LOAD, RESULTS, Comparison, machine_facts, write_results

Part = Literal["insert", "sample", "update", "mixed", "pixels", "growth", "shards"]
PARTS: tuple[Part, ...] = ("insert", "sample", "update", "mixed", "pixels", "growth", "shards")


@dataclass(frozen=True)
class Options:
    """Our replay service against dm-reverb, in turns on the same work."""

    parts: tuple[Part, ...] = PARTS
    """Only some of it."""
    rounds: int = 5
    """How often each side is measured."""
    seconds: float = 1.0
    """Of one measurement, after a warm-up."""
    quick: bool = False
    """A minute to see that everything works: short, few sizes, nothing tuned. Its figures mean
    little."""
    tcp: bool = False
    """Ours through a port, as Reverb's, instead of a socket."""
    check: bool = False
    """Exit with 1 if a target is missed."""
    out: Path | None = None
    """Where the JSON goes; by default benchmarks/results/replay.json (quick: replay-quick.json)."""

    @property
    def results_file(self) -> Path:
        return self.out or RESULTS / ("replay-quick.json" if self.quick else "replay.json")


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    rounds: int
    seconds: float
    tune: bool = True
    writers: tuple[int, ...] = (1, 2, 4)
    table_items: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)
    shards: tuple[int, ...] = (1, 2, 3, 4)


QUICK = Scale(
    rounds=2, seconds=0.3, tune=False, writers=(1,), table_items=(10_000, 100_000), shards=(1, 2)
)


@dataclass
class Report:
    """Everything that was measured."""

    machine: dict[str, Any]
    options: dict[str, Any]
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    reverb_trials: list[dict[str, Any]] = field(default_factory=list)
    reverb_settings: dict[str, Any] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    shards: list[ShardRates] = field(default_factory=list)

    @property
    def missed(self) -> list[str]:
        """The work whose target was missed."""
        rows = [(one.work, one.ok) for one in self.comparisons]
        rows += [(f"growth, {one.sampler}", one.ok) for one in self.growth]
        return [name for name, ok in rows if not ok]

    def write(self, path: Path) -> None:
        document = {
            "machine": self.machine,
            "options": self.options,
            "versions": self.versions,
            "reverb_trials": self.reverb_trials,
            "reverb_settings": self.reverb_settings,
            "comparisons": [
                {**asdict(one), "ratio": one.ratio, "interval": one.interval, "ok": one.ok}
                for one in self.comparisons
            ],
            "growth": [
                {**asdict(one), "medians": one.medians, "ratio": one.ratio, "ok": one.ok}
                for one in self.growth
            ],
            "shards": [asdict(one) for one in self.shards],
        }
        write_results(path, document)


def run(options: Options, console: Console) -> Report:
    parts = set(options.parts)
    scale = QUICK if options.quick else Scale(options.rounds, options.seconds)
    ours = replace(OURS, arguments=("--tcp",)) if options.tcp else OURS
    report = Report(machine_facts(), {"parts": sorted(parts), "tcp": options.tcp, **asdict(scale)})
    if report.machine["load"] > BUSY_LOAD:
        console.print(
            f"the load is {report.machine['load']}: others work here, do not trust the ratios"
        )
    if parts & {"insert", "sample", "update", "mixed", "pixels"}:
        _compare(ours, parts, scale, report, console)
    if "growth" in parts:
        console.print("growth with the items of a table ...")
        report.growth = measure_growth(ours, scale.table_items, scale.rounds, scale.seconds / 2)
    if "shards" in parts:
        console.print("growth with the shards ...")
        report.shards = measure_shards(ours, scale.shards, scale.rounds, scale.seconds / 2)
    return report


def _compare(
    launch: Launch, parts: set[Part], scale: Scale, report: Report, console: Console
) -> None:
    writers = max(scale.writers) if "mixed" in parts else 1
    with (
        Fleet(launch, [*TABLES.values()], writers=writers) as ours,
        Fleet(REVERB, [*TABLES.values()], writers=writers) as reverb,
    ):
        report.versions = {ours.name: ours.versions, reverb.name: reverb.versions}
        comparisons = Comparisons(ours, reverb, scale.rounds, scale.seconds, console.print)
        if scale.tune and parts & {"insert", "sample", "mixed"}:
            comparisons.tune("vector")
        if "insert" in parts:
            comparisons.insert()
        if "sample" in parts:
            comparisons.sample()
        if "update" in parts:
            comparisons.update()
        if "mixed" in parts:
            for count in scale.writers:
                comparisons.mixed(count)
        if "pixels" in parts:
            if scale.tune:
                comparisons.tune("pixels")
            comparisons.pixels()
    report.reverb_trials = [asdict(trial) for trial in comparisons.trials]
    report.reverb_settings = {
        work: asdict(tuned) for work, tuned in comparisons.reverb_settings.items()
    }
    report.comparisons = comparisons.done


def show(report: Report, console: Console) -> None:
    machine = report.machine
    console.print()
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"load {machine['load']}, commit {machine['commit']}"
    )
    if report.comparisons:
        console.print(_comparison_table(report))
    if report.growth:
        console.print(_growth_table(report.growth))
    if report.shards:
        console.print(_shard_table(report.shards, machine["cores"]))


def _comparison_table(report: Report) -> Table:
    table = Table(title=f"items/s, medians of {report.options['rounds']} rounds in turns")
    reverb = f"dm-reverb {report.versions['reverb']['dm-reverb']}"
    table.add_column("work")
    for name in ("ours", reverb, "ratio [lowest - highest]", "target"):
        table.add_column(name, justify="right")
    table.add_column("ok")
    for one in report.comparisons:
        low, high = one.interval
        table.add_row(
            one.work,
            f"{median(one.ours):,.0f}",
            f"{median(one.peer):,.0f}",
            f"{one.ratio:.1f} [{low:.1f} - {high:.1f}]".replace("[", r"\["),
            "" if one.target is None else f">= {one.target:g}",
            "" if one.target is None else _mark(one.ok),
        )
    return table


def _growth_table(growth: list[Growth]) -> Table:
    table = Table(title="microseconds for a batch of 256 samples, by items in the table")
    table.add_column("sampler")
    for items in growth[0].medians:
        table.add_column(f"{items:,}", justify="right")
    table.add_column("slowest / fastest", justify="right")
    table.add_column("target", justify="right")
    table.add_column("ok")
    for one in growth:
        table.add_row(
            one.sampler,
            *(f"{microseconds:,.0f}" for microseconds in one.medians.values()),
            f"{one.ratio:.2f}",
            "" if one.target is None else f"<= {one.target:g}",
            "" if one.target is None else _mark(one.ok),
        )
    return table


def _shard_table(shards: list[ShardRates], cores: int) -> Table:
    table = Table(title=f"items/s of one client, by shards; all processes share {cores} cores")
    for name in ("shards", "insert", "sample, uniform", "as learners do"):
        table.add_column(name, justify="right")
    for one in shards:
        rates = (one.insert, one.sample, one.as_learners)
        table.add_row(str(one.shards), *(f"{median(rate):,.0f}" for rate in rates))
    return table


def _mark(ok: bool) -> str:
    return "[green]yes[/green]" if ok else "[red]no[/red]"


def main() -> int:
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    console = Console(highlight=False)
    console.width = max(console.width, 100)  # also where the output goes into a file
    if not REVERB.python.exists():
        console.print(f"{REVERB.python} is not there: run `make bench-setup` first")
        return 2
    report = run(options, console)
    show(report, console)
    report.write(options.results_file)
    console.print(f"everything that was measured: {options.results_file}")
    if options.check and report.missed:
        console.print(f"missed: {'; '.join(report.missed)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
