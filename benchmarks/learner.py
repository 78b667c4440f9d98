"""Updates per second, ours against Stable-Baselines3 and plain torch: `make bench-learner`.

Each side draws its batches from a full replay in its own process. Beside it stands what the machine
allows: the rate of matrix products of the same size, over those that an update needs
(`benchmarks.flops`). What is fair about it and what is not: benchmarks/README.md.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from benchmarks import flops
from benchmarks.fleet import Launch, Process
from benchmarks.measure import (
    BUSY_LOAD,
    RESULTS,
    ROOT,
    Comparison,
    all_in_turns,
    machine_facts,
    write_results,
)
from benchmarks.peers.updates import UpdateCount, UpdateJob

CaseName = Literal["td3", "sac", "dqn", "ppo"]
SB3, PLAIN, PRODUCTS = "sb3", "plain", "matrix products"
TWICE = 2.0
FIRST_WARM_UP_SECONDS, WARM_UP_SECONDS = 1.0, 0.3
ANSWER_SECONDS = 600.0  # compiling takes half a minute, on a busy machine several
ITEMS = 100_000

CASES: dict[CaseName, UpdateJob] = {
    "td3": UpdateJob("td3", "HalfCheetah-v5", 17, 6, False, (256, 256), 256, ITEMS),
    "sac": UpdateJob("sac", "HalfCheetah-v5", 17, 6, False, (256, 256), 256, ITEMS),
    "dqn": UpdateJob("dqn", "CartPole-v1", 4, 2, True, (256, 256), 128, ITEMS),
    "ppo": UpdateJob("ppo", "HalfCheetah-v5", 17, 6, False, (64, 64), 64, 2048, epochs=10),
}


@dataclass(frozen=True)
class Variant:
    """One way to run our learner, which is a column of the table."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted keys, as `--set` takes them


VARIANTS = (
    Variant("ours", {"compile": False}),
    Variant("ours, compiled", {"compile": True}),  # which its first update waits for
)


@dataclass(frozen=True)
class Options:
    """Updates per second: ours, Stable-Baselines3, plain torch, and what the machine allows."""

    cases: tuple[CaseName, ...] = ("td3", "sac", "dqn", "ppo")
    rounds: int = 7
    """How often each side is measured."""
    seconds: float = 2.0
    """Of one measurement, after a warm-up."""
    threads: int = 1
    """Of torch, on every side."""
    quick: bool = False
    """Half a minute to see that everything works. Its figures mean little."""
    check: bool = False
    """Exit with 1 if a target is missed."""
    out: Path | None = None
    """Where the JSON goes; by default benchmarks/results/learner.json (quick: -quick.json; with
    threads: learner_threads.json)."""

    @property
    def results_file(self) -> Path:
        if self.quick:
            return self.out or RESULTS / "learner-quick.json"
        return self.out or RESULTS / f"learner{'_threads' if self.threads > 1 else ''}.json"


@dataclass
class CaseResult:
    """Of one case: counts by side and by round."""

    name: str
    job: UpdateJob
    counts: dict[str, list[UpdateCount]]

    def rates(self, side: str) -> list[float]:
        return [one.updates / one.seconds for one in self.counts[side]]

    def cpu_rates(self, side: str) -> list[float]:
        """Updates per second of CPU time: others on the machine disturb this less."""
        return [one.updates / one.cpu_seconds for one in self.counts[side]]

    def comparison(self, variant: str, peer: str, target: float | None = None) -> Comparison:
        work = f"{self.name}, {variant} / {peer}"
        return Comparison(work, self.rates(variant), self.rates(peer), target)

    def best(self, variants: Sequence[Variant]) -> Comparison:
        """Of our variants, the one that counts: against Stable-Baselines3, with the target."""
        against = [self.comparison(variant.name, SB3, TWICE) for variant in variants]
        return max(against, key=lambda comparison: comparison.ratio)

    @property
    def gigaflops(self) -> float:
        """Of matrix products alone."""
        product = flops.forward(self.job.batch, [self.job.hidden[-1]] * 2)
        return median(self.rates(PRODUCTS)) * product / 1e9

    @property
    def limit(self) -> float:
        """Updates per second, were there nothing but matrix products."""
        return self.gigaflops * 1e9 / flops.of_update(self.job)


@dataclass
class Report:
    machine: dict[str, Any]
    options: dict[str, Any]
    variants: tuple[Variant, ...] = VARIANTS
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    results: list[CaseResult] = field(default_factory=list)

    def comparisons(self) -> list[Comparison]:
        """Of each case the best variant first, which has the target; then all others."""
        found = []
        for one in self.results:
            best = one.best(self.variants)
            others = [one.comparison(v.name, peer) for v in self.variants for peer in (SB3, PLAIN)]
            found += [best, *(other for other in others if other.work != best.work)]
        return found

    @property
    def missed(self) -> list[str]:
        """Cases in which none of our variants reaches the target."""
        return [f"{one.work}: {one.ratio:.2f} x" for one in self.comparisons() if not one.ok]

    def document(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "options": self.options,
            "versions": self.versions,
            "cases": [
                {
                    "name": one.name,
                    "job": asdict(one.job),
                    "device": "cpu",
                    "updates_per_second": {side: one.rates(side) for side in one.counts},
                    "updates_per_cpu_second": {side: one.cpu_rates(side) for side in one.counts},
                    "megaflops_per_update": flops.of_update(one.job) / 1e6,
                    "gigaflops_of_products": one.gigaflops,
                    "limit_updates_per_second": one.limit,
                    "share_of_limit": {
                        v.name: median(one.rates(v.name)) / one.limit for v in self.variants
                    },
                }
                for one in self.results
            ],
            "comparisons": [
                {**asdict(one), "ratio": one.ratio, "interval": one.interval, "ok": one.ok}
                for one in self.comparisons()
            ],
            "missed": self.missed,
        }


def launches(threads: int, variants: Sequence[Variant] = VARIANTS) -> dict[str, Launch]:
    environment = {"OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}
    here = Path(sys.executable)
    sb3 = ROOT / "benchmarks" / ".venv-sb3" / "bin" / "python"
    ours = Launch("repertory", here, "benchmarks.peers.our_learner", environment=environment)
    plain = Launch(PLAIN, here, "benchmarks.peers.plain_learner", environment=environment)
    return {
        **{variant.name: replace(ours, name=variant.name) for variant in variants},
        SB3: Launch(SB3, sb3, "benchmarks.peers.sb3_learner", environment=environment),
        PLAIN: plain,
        PRODUCTS: replace(plain, name=PRODUCTS),
    }


def run(options: Options, console: Console) -> Report:
    rounds, seconds = (2, 0.5) if options.quick else (options.rounds, options.seconds)
    settings = {"rounds": rounds, "seconds": seconds, "threads": options.threads, "items": ITEMS}
    variants = VARIANTS[:1] if options.quick else VARIANTS  # compiling takes minutes
    report = Report(machine_facts(), settings, variants)
    if report.machine["load"] > BUSY_LOAD:
        console.print(
            f"the load is {report.machine['load']}: others work here, look at the CPU time instead"
        )
    processes: dict[str, Process] = {}
    try:
        for name, launch in launches(options.threads, variants).items():
            processes[name] = Process(launch, ANSWER_SECONDS)
        for name, process in processes.items():
            report.versions[name] = process.ask("versions")
        for case in options.cases:
            job = replace(CASES[case], threads=options.threads)
            report.results.append(_measure(case, job, variants, processes, rounds, seconds))
            ratios = [report.results[-1].comparison(v.name, SB3).ratio for v in variants]
            told = ", ".join(f"{v.name} {r:.2f}" for v, r in zip(variants, ratios, strict=True))
            console.print(f"{case}, times Stable-Baselines3: {told}")
    finally:
        for process in processes.values():
            process.close()
    return report


def _measure(
    case: str,
    job: UpdateJob,
    variants: Sequence[Variant],
    processes: Mapping[str, Process],
    rounds: int,
    seconds: float,
) -> CaseResult:
    settings = {variant.name: variant.settings for variant in variants}
    for name, process in processes.items():
        algorithm = "matrix product" if name == PRODUCTS else job.algorithm
        asked = replace(job, algorithm=algorithm, settings=settings.get(name, {}))
        process.ask("build", job=asdict(asked))
        process.ask("measure", warm_up_seconds=FIRST_WARM_UP_SECONDS, seconds=0.0)

    def measured(process: Process) -> UpdateCount:
        return UpdateCount(
            **process.ask("measure", warm_up_seconds=WARM_UP_SECONDS, seconds=seconds)
        )

    measures = {name: lambda p=process: measured(p) for name, process in processes.items()}
    return CaseResult(case, job, all_in_turns(measures, rounds))


def show(report: Report, console: Console) -> None:
    machine, options = report.machine, report.options
    console.print()
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']} before, commit "
        f"{machine['commit']}; {options['threads']} torch thread(s) each, cpu, replay of "
        f"{options['items']:,} items"
    )
    console.print(_updates_table(report))
    console.print(_limit_table(report))


def _updates_table(report: Report) -> Table:
    sb3 = f"SB3 {report.versions[SB3]['stable-baselines3']}"
    torch = f"plain torch {report.versions[PLAIN]['torch']}"
    table = Table(title=f"updates/s, medians of {report.options['rounds']} rounds in turns")
    table.add_column("case")
    columns = [
        *(variant.name for variant in report.variants), sb3, torch,
        *(f"{variant.name} / SB3" for variant in report.variants),
        "by CPU time", "/ plain", "target",
    ]  # fmt: skip
    for name in columns:
        table.add_column(name, justify="right")
    table.add_column("ok")
    for one in report.results:
        against = [one.comparison(variant.name, SB3) for variant in report.variants]
        best = one.best(report.variants)
        name = best.work.removeprefix(f"{one.name}, ").removesuffix(f" / {SB3}")
        cpu = median(one.cpu_rates(name)) / median(one.cpu_rates(SB3))
        table.add_row(
            title_of(one.job),
            *(f"{median(one.rates(v.name)):,.0f}" for v in report.variants),
            f"{median(one.rates(SB3)):,.0f}",
            f"{median(one.rates(PLAIN)):,.0f}",
            *(ratio_text(comparison).replace("[", r"\[") for comparison in against),
            f"{cpu:.2f}",
            f"{one.comparison(name, PLAIN).ratio:.2f}",
            f">= {TWICE:g}",
            "[green]yes[/green]" if best.ok else "[red]no[/red]",
        )
    return table


def _limit_table(report: Report) -> Table:
    table = Table(title="what matrix products alone would allow, in the same run")
    table.add_column("case")
    for name in ("GFLOP/s", "MFLOP/update", "limit, updates/s", "share of it that we reach"):
        table.add_column(name, justify="right")
    for one in report.results:
        ours = max(median(one.rates(variant.name)) for variant in report.variants)
        table.add_row(
            one.name,
            f"{one.gigaflops:,.1f}",
            f"{flops.of_update(one.job) / 1e6:,.1f}",
            f"{one.limit:,.0f}",
            f"{100 * ours / one.limit:.0f} %",
        )
    return table


def title_of(job: UpdateJob) -> str:
    network = " x ".join(str(width) for width in job.hidden)
    return f"{job.algorithm}, {job.env_id}, {network}, batch {job.batch}"


def ratio_text(comparison: Comparison) -> str:
    low, high = comparison.interval
    return f"{comparison.ratio:.2f} [{low:.2f} - {high:.2f}]"


def main() -> int:
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the sides are ended
    console = Console(highlight=False)
    console.width = max(console.width, 130)  # also where the output goes into a file
    python = launches(options.threads)[SB3].python
    if not os.access(python, os.X_OK):
        console.print(f"{python} is not there: run `make bench-setup` first")
        return 2
    report = run(options, console)
    show(report, console)
    write_results(options.results_file, report.document())
    console.print(f"everything that was measured: {options.results_file}")
    if options.check and report.missed:
        console.print(f"missed: {'; '.join(report.missed)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
