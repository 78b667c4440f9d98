"""Hours of running, in small: does anything grow? `python -m benchmarks.soak --minutes 30`.

DQN learns on a trivial environment with two actors and two shards, as fast as the machine lets it,
with a replay that is full after a third of the time. From then on the memory, open files and
threads of every process, and whatever queues there are, must stay as they are. Every few seconds
all of it is read from /proc, the control server and the shards; a line through each (`benchmarks.
trend`) says by how much it grows in an hour. Exit code 1 if a process surely grows by more than
`--bound-mb` in an hour.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.measure import ROOT, machine_facts
from benchmarks.measured_run import MeasuredRun
from benchmarks.trend import Trend, trend
from buffer_server.client import ClientConfig, ReplayClient
from repertory.errors import RepertoryError

MB = 2**20
NEVER = 1_000_000_000  # steps
WIDTH = 110  # of the table, also where it goes to a file
START_SECONDS = 300.0
REPLAY_ITEMS = 2000  # full within seconds


@dataclass(frozen=True)
class Options:
    """A long run on a trivial environment: memory, files and queues must not grow."""

    minutes: float = 30.0
    every_seconds: float = 5.0
    bound_mb: float = 20.0
    """By which a process may grow in an hour."""
    bound_files: float = 10.0
    """By how many open files, or threads, a process may grow in an hour."""
    algo: str = "dqn"
    out: Path = ROOT / "benchmarks" / "results" / "soak.json"


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure of one process, or of a queue."""

    what: str
    unit: str
    trend: Trend
    bound: float | None  # per hour; None: only shown

    @property
    def ok(self) -> bool:
        return self.bound is None or not self.trend.grows_more_than(self.bound)


class Samples:
    """Every figure over time, by its name and unit."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._values: dict[tuple[str, str], list[tuple[float, float]]] = {}

    def add(self, what: str, unit: str, value: float) -> None:
        hours = (time.monotonic() - self._begin) / 3600.0
        self._values.setdefault((what, unit), []).append((hours, value))

    def findings(self, warm_up_hours: float, options: Options) -> Iterator[Finding]:
        bounds = {"MB": options.bound_mb, "files": options.bound_files}
        bounds["threads"] = options.bound_files
        for (what, unit), values in sorted(self._values.items()):
            late = [one for one in values if one[0] >= warm_up_hours]
            found = trend([hours for hours, _ in late], [value for _, value in late])
            if found is not None:
                yield Finding(what, unit, found, bounds.get(unit))


def arguments(options: Options) -> list[str]:
    settings = {
        "env.kwargs.length": 20,
        "learner.hidden_sizes": "[16,16]",
        "learner.batch_size": 32,
        "learner.learning_starts": 200,
        "learner.updates_per_step": 0.25,
        "replay.capacity": REPLAY_ITEMS,
        "checkpoint.every": 20_000,
        "evaluation.every": 20_000,
        "evaluation.episodes": 2,
    }
    return [
        "benchmarks.trivial_env:Trivial", "--algo", options.algo, "--steps", str(NEVER),
        "--actors", "2", "--shards", "2",
        *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
    ]  # fmt: skip


def sample(run: MeasuredRun, samples: Samples) -> None:
    for process_id, (name, usage) in run.usage().items():
        # A process that was started again is another: what it had is gone.
        name = f"{name} [{process_id}]"
        samples.add(name, "MB", usage.resident_bytes / MB)
        samples.add(name, "files", usage.open_files)
        samples.add(name, "threads", usage.threads)
        if "raylet" in name:
            samples.add("object store", "MB", usage.shared_bytes / MB)
    client = run.control().address.connect()
    try:
        samples.add("control server's data", "MB", client.info("memory")["used_memory"] / MB)
        for key in client.scan_iter("repertory:*"):
            if client.type(key) == "stream":
                samples.add(f"stream {key.rpartition(':')[2]}", "entries", client.xlen(key))
    finally:
        client.close()
    for name, member in run.members().items():
        if member.role == "shard":
            with contextlib.suppress(RepertoryError, OSError):  # it may be gone by now
                _sample_shard(name, member.process_id, samples)


def _sample_shard(name: str, process_id: int, samples: Samples) -> None:
    for address in _listens_at(process_id):
        with ReplayClient(ClientConfig(address=address, table="replay")) as client:
            statistics = client.statistics()
        samples.add(f"{name} in flight", "bytes", statistics.inflight_nbytes)
        samples.add(f"{name} streams", "streams", statistics.open_streams)
        samples.add(f"{name} size", "items", statistics.tables["replay"].size)


def _listens_at(process_id: int) -> list[str]:
    """The unix sockets of a shard that callers connect to."""
    mine = set()
    for file in Path(f"/proc/{process_id}/fd").iterdir():
        with contextlib.suppress(OSError):
            mine.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) == 8 and fields[6] in mine and fields[7].endswith(".sock"):
            found.add(f"unix:{fields[7]}")
    return sorted(address for address in found if "/shard-" in address)


def main() -> int:
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    facts = machine_facts()
    with MeasuredRun(arguments(options)) as run:
        run.until(lambda: len(run.workers()) == 2, START_SECONDS)
        samples = Samples()
        begin, steps = time.monotonic(), run.env_steps()
        while (elapsed := time.monotonic() - begin) < 60.0 * options.minutes:
            sample(run, samples)
            run.until(
                lambda until=begin + elapsed + options.every_seconds: time.monotonic() >= until,  # type: ignore[misc]
                START_SECONDS,
            )
        made = run.env_steps() - steps
        restarts = sum(member.incarnation - 1 for member in run.members().values())
    findings = list(samples.findings(options.minutes / 60.0 / 3.0, options))
    summary = f"{made} steps in {options.minutes:g} minutes, {restarts} restarts"
    _print(findings, Console(width=WIDTH), summary)
    document = {
        "machine": facts,
        "options": {**asdict(options), "out": options.out.name},
        "env_steps": made,
        "restarts": restarts,
        "findings": [{**asdict(one), "ok": one.ok} for one in findings],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(one.ok for one in findings) else 1


def _print(findings: list[Finding], console: Console, summary: str) -> None:
    """Files and threads only where they change."""
    table = Table("what", "unit", "first", "last", "per hour", "95 % interval", "")
    for one in findings:
        trend_ = one.trend
        if one.unit in ("files", "threads", "streams") and trend_.slope == 0.0:
            continue
        table.add_row(
            one.what,
            one.unit,
            f"{trend_.first:.1f}",
            f"{trend_.last:.1f}",
            f"{trend_.slope:+.2f}",
            f"{trend_.low:+.2f} to {trend_.high:+.2f}",
            "" if one.ok else "GROWS",
        )
    console.print(table)
    console.print(summary)


if __name__ == "__main__":
    sys.exit(main())
