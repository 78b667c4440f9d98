"""How throughput grows with actors, shards, items and machines: `make bench-scaling`.

One table and one figure of what other benchmarks measure: actors on an environment that sleeps
(`benchmarks.actor_scaling`), shards and items of the replay (`benchmarks.growth`), machines in
network namespaces (`benchmarks.node_scaling`). There is no peer: linear is the measure.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from benchmarks import actor_scaling, figures
from benchmarks.actor_scaling import START_SECONDS, Throughput
from benchmarks.comparisons import OURS
from benchmarks.growth import Growth, ShardRates, measure_growth, measure_shards
from benchmarks.measure import BUSY_LOAD, RESULTS, machine_facts, write_results
from benchmarks.measured_run import MeasuredRun
from benchmarks.node_scaling import NodeRate, measure_nodes, why_not

Part = Literal["actors", "shards", "items", "nodes"]
PARTS: tuple[Part, ...] = ("actors", "shards", "items", "nodes")
LINEAR = 0.9  # of what the environments allow


@dataclass(frozen=True)
class Options:
    """Throughput against actors, shards, items and machines."""

    parts: tuple[Part, ...] = PARTS
    actors: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    shards: tuple[int, ...] = (1, 2, 3, 4)
    items: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)
    nodes: tuple[int, ...] = (1, 2, 3)
    actors_per_node: int = 4
    env_seconds: float = 0.02
    """That a step of the environment sleeps."""
    seconds: float = 20.0
    """Of one measurement with actors."""
    warm_up_seconds: float = 5.0
    """After the last actor has taken its first step."""
    rounds: int = 3
    """Of the replay's measurements."""
    quick: bool = False
    """Two sizes of each, without machines. Its figures mean little."""
    check: bool = False
    """Exit with 1 if a target is missed."""
    out: Path | None = None
    """Where the JSON goes; by default benchmarks/results/scaling.json (quick: -quick.json)."""

    @property
    def results_file(self) -> Path:
        return self.out or RESULTS / ("scaling-quick.json" if self.quick else "scaling.json")


@dataclass
class Report:
    machine: dict[str, Any]
    options: dict[str, Any]
    actors: list[Throughput] = field(default_factory=list)
    shards: list[ShardRates] = field(default_factory=list)
    items: list[Growth] = field(default_factory=list)
    nodes: list[NodeRate] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # parts, and why

    @property
    def missed(self) -> list[str]:
        rows = [
            (f"{one.actors} actors: {100 * one.share:.0f} %", one.share >= LINEAR)
            for one in self.actors
        ]
        rows += [
            (f"{one.nodes} nodes: {100 * one.share:.0f} %", one.share >= LINEAR)
            for one in self.nodes
        ]
        rows += [(f"items, {one.sampler}: {one.ratio:.1f} x", one.ok) for one in self.items]
        return [name for name, ok in rows if not ok]

    def document(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "options": self.options,
            "actors": [{**asdict(one), "share": one.share} for one in self.actors],
            "shards": [asdict(one) for one in self.shards],
            "items": [
                {**asdict(one), "medians": one.medians, "ratio": one.ratio, "ok": one.ok}
                for one in self.items
            ],
            "nodes": [{**asdict(one), "share": one.share} for one in self.nodes],
            "skipped": self.skipped,
            "missed": self.missed,
        }


def measure_actors(options: Options) -> list[Throughput]:
    """One run that is scaled up."""
    settings = actor_scaling.Options(
        actors=options.actors[0],
        env_seconds=options.env_seconds,
        seconds=options.seconds,
        warm_up_seconds=options.warm_up_seconds,
    )
    results = []
    with MeasuredRun(actor_scaling.arguments(settings)) as run:
        for place, actors in enumerate(options.actors):
            if place:
                run.scale(actors)
            seconds = run.until(lambda wanted=actors: len(run.workers()) == wanted, START_SECONDS)  # type: ignore[misc]
            results.append(actor_scaling.measure(run, settings, actors, seconds))
    return results


def run(options: Options, console: Console) -> Report:
    report = Report(machine_facts(), {**asdict(options), "out": None})
    if report.machine["load"] > BUSY_LOAD:
        console.print(f"the load is {report.machine['load']}: others work here, do not trust it")
    if "shards" in options.parts:
        console.print("shards ...")
        report.shards = measure_shards(OURS, options.shards, options.rounds, 0.5)
    if "items" in options.parts:
        console.print("items ...")
        report.items = measure_growth(OURS, options.items, options.rounds, 0.5)
    if "actors" in options.parts:
        console.print("actors ...")
        report.actors = measure_actors(options)
    if "nodes" in options.parts:
        reason = why_not()
        if reason is not None:
            report.skipped["nodes"] = reason
            console.print(f"no machines: {reason}")
        else:
            console.print("machines ...")
            try:
                report.nodes = measure_nodes(
                    options.nodes,
                    actors_per_node=options.actors_per_node,
                    env_seconds=options.env_seconds,
                    warm_up_seconds=options.warm_up_seconds,
                    seconds=options.seconds,
                )
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                report.skipped["nodes"] = f"failed: {' '.join(str(error).split())[:300]}"
                console.print(f"machines {report.skipped['nodes']}")
    return report


def show(report: Report) -> Table:
    machine = report.machine
    table = Table(
        title=f"{machine['cores']} cores, load {machine['load']} before, commit {machine['commit']}"
    )
    for name in ("what", "rate", "against", "target", "ok"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for what, rate, against, target, ok in rows_of(report.document()):
        table.add_row(what, rate, against, target, ok)
    return table


def rows_of(document: dict[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """What was measured, its rate, what that is against, the target, and whether it is met."""
    rows = []
    for unit, name in (("actors", "actors"), ("nodes", "machines")):
        for one in document[unit]:
            actors = "" if unit == "actors" else f" of {one['actors'] // one['nodes']} actors"
            rows.append(
                (
                    f"{one[unit]} {name}{actors}",
                    f"{one['steps_per_second']:,.0f} steps/s",
                    f"{100 * one['share']:.0f} % of linear",
                    f">= {100 * LINEAR:.0f} %",
                    "yes" if one["share"] >= LINEAR else "no",
                )
            )
    for one in document["shards"]:
        first = document["shards"][0]
        rows.append(
            (
                f"{one['shards']} shards",
                f"{median(one['insert']):,.0f} in, {median(one['sample']):,.0f} out, "
                f"{median(one['as_learners']):,.0f} out as learners do, items/s",
                f"{median(one['sample']) / median(first['sample']):.2f}, "
                f"{median(one['as_learners']) / median(first['as_learners']):.2f} x one shard, out",
                "",
                "",
            )
        )
    for one in document["items"]:
        sizes = list(one["medians"].items())
        for items, microseconds in sizes:
            last = items == sizes[-1][0]
            rows.append(
                (
                    f"{int(items):,} items, {one['sampler']}",
                    f"{microseconds:,.0f} us a batch",
                    f"slowest / fastest {one['ratio']:.2f}" if last else "",
                    f"<= {one['target']:g}" if last and one["target"] else "",
                    ("yes" if one["ok"] else "no") if last and one["target"] else "",
                )
            )
    return rows


def main() -> int:
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is under way is ended
    if options.quick:
        options = replace(
            options, parts=("actors", "shards", "items"), actors=(1, 2), shards=(1, 2),
            items=(10_000, 100_000), seconds=4.0, warm_up_seconds=1.0, rounds=1,
        )  # fmt: skip
    console = Console(highlight=False)
    console.width = max(console.width, 110)  # also where the output goes into a file
    report = run(options, console)
    console.print(show(report))
    write_results(options.results_file, report.document())
    if not options.quick:
        figures.draw_scaling(options.results_file)
    console.print(f"everything that was measured: {options.results_file}")
    if options.check and report.missed:
        console.print(f"missed: {'; '.join(report.missed)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
