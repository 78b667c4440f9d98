"""Which targets are met, over all benchmarks: `python -m benchmarks.bench_summary`.

The end of `make bench`. It reads the results that are there; with `--check` a target that is missed
is an error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.measure import RESULTS
from benchmarks.training_verdicts import ERRORS


@dataclass(frozen=True)
class Options:
    """Targets met and missed."""

    check: bool = False
    """Exit with 1 if one is missed."""
    folder: Path = RESULTS


@dataclass(frozen=True)
class Target:
    benchmark: str
    work: str
    value: str
    target: str
    ok: bool


def of_comparisons(name: str, document: Mapping[str, Any]) -> list[Target]:
    """Ratios with a target; one that was refused is missed."""
    found = []
    for one in document.get("comparisons", []):
        if one.get("refusal"):
            found.append(Target(name, f"{one['case']} / {one['peer']}", one["refusal"], "", False))
        elif one.get("target") is not None:
            found.append(
                Target(
                    name, one["work"], f"{one['ratio']:.2f} x", f">= {one['target']:g}", one["ok"]
                )
            )
    return found


def of_trainings(document: Mapping[str, Any]) -> list[Target]:
    """Of whole systems, beside their steps per second."""
    times = [
        Target(
            "end_to_end",
            f"{one['case']}, time to threshold, {one['system']} / sb3",
            "never" if one["ratio"] is None else f"{one['ratio']:.2f} x",
            f"<= {one['target']:.2f}",
            one["ok"],
        )
        for one in document["times"]
    ]
    returns = [
        Target(
            "end_to_end",
            f"{one['case']}, return at equal steps, {one['system']} - sb3",
            f"{one['difference']:+.0f}",
            f">= {-ERRORS * one['error']:.0f}, {ERRORS:g} errors",
            one["ok"],
        )
        for one in document["returns"]
    ]
    return times + returns


def of_growth(name: str, rows: list[Mapping[str, Any]]) -> list[Target]:
    return [
        Target(
            name,
            f"items, {one['sampler']}",
            f"{one['ratio']:.2f}",
            f"<= {one['target']:g}",
            one["ok"],
        )
        for one in rows
        if one["target"] is not None
    ]


def of_shares(name: str, rows: list[Mapping[str, Any]], unit: str) -> list[Target]:
    return [
        Target(
            name,
            f"{one[unit]} {unit}",
            f"{100 * one['share']:.0f} %",
            ">= 90 %",
            one["share"] >= 0.9,
        )
        for one in rows
    ]


def targets_in(folder: Path) -> list[Target]:
    found: list[Target] = []
    for path in sorted(folder.glob("*.json")):
        name = path.stem
        if name.endswith("-quick"):
            continue
        document = json.loads(path.read_text())
        found += of_comparisons(name, document)
        if name == "end_to_end":
            found += of_trainings(document)
        if name == "replay":
            found += of_growth(name, document["growth"])
        elif name == "scaling":
            found += of_growth(name, document["items"])
            found += of_shares(name, document["actors"], "actors")
            found += of_shares(name, document["nodes"], "nodes")
        elif name == "actor_scaling":
            found += of_shares(name, document["results"], "actors")
    return found


def main() -> int:
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    console = Console(highlight=False)
    console.width = max(console.width, 110)
    targets = targets_in(options.folder)
    table = Table("benchmark", "work", "measured", "target", "met")
    for one in sorted(targets, key=lambda target: (target.ok, target.benchmark)):
        mark = "[green]yes[/green]" if one.ok else "[red]no[/red]"
        table.add_row(one.benchmark, one.work, one.value, one.target, mark)
    console.print(table)
    missed = [one for one in targets if not one.ok]
    console.print(f"{len(targets) - len(missed)} of {len(targets)} targets met")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
