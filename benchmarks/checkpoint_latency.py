"""How long a sample takes while the shard writes a checkpoint, and while it does not.

    python -m benchmarks.checkpoint_latency --out results.json

The shard is a process of its own (`repertory buffer-server`) with one million items of 17
observations and 6 actions; one reader draws batches of 256 over a unix socket, one at a time. Only
samples that lie wholly within a checkpoint count as "during". With `--inserts-per-second` a writer
goes on meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tyro
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.measure import machine_facts
from buffer_server.client import ClientConfig, ReplayClient
from repertory.types import TransitionBatch

ROOT = Path(__file__).parents[1]
OBSERVATIONS, ACTIONS = 17, 6
TABLE = "replay"
FILL_BATCH = 2_000
ALLOWED_RATIO = 3.0  # of the 99th percentiles


@dataclass(frozen=True)
class Options:
    """Sample latency with and without a checkpoint under way."""

    items: int = 1_000_000
    sampler: str = "uniform"
    batch: int = 256
    seconds: float = 10.0
    """Of the measurement without checkpoints."""
    checkpoints: int = 10
    """How many are written, one after the other, for the measurement with them."""
    inserts_per_second: int = 0
    """Items, in batches of 100."""
    out: Path | None = None
    """Where the JSON goes."""
    check: bool = False
    """Exit with 1 if the 99th percentile is more than three times as long."""


@dataclass(frozen=True)
class Latency:
    """Milliseconds."""

    samples: int
    p50: float
    p99: float
    longest: float


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory(prefix="checkpoint-latency-") as folder:
        address = f"unix:{folder}/shard.sock"
        shard = _start(Path(folder), address, options)
        try:
            config = ClientConfig(address=address, table=TABLE)
            with ReplayClient(config) as reader, ReplayClient(config) as other:
                _fill(reader, options.items)
                without, during, seconds = _measure(reader, other, config, options)
        finally:
            shard.terminate()
            shard.wait(120.0)
    ratio = during.p99 / without.p99
    _print(without, during, seconds, ratio)
    if options.out is not None:
        report = {
            "machine": machine_facts(),
            "options": {**asdict(options), "out": str(options.out)},
            "milliseconds": {"without": asdict(without), "during": asdict(during)},
            "checkpoint_seconds": seconds,
            "p99_ratio": ratio,
        }
        options.out.write_text(json.dumps(report, indent=1))
    if options.check and ratio > ALLOWED_RATIO:
        sys.exit(1)


def _measure(
    reader: ReplayClient, other: ReplayClient, config: ClientConfig, options: Options
) -> tuple[Latency, Latency, list[float]]:
    """Latencies without and during checkpoints, and how long each checkpoint took."""
    enough = threading.Event()
    writer = threading.Thread(target=_insert, args=(config, options.inserts_per_second, enough))
    if options.inserts_per_second:
        writer.start()
    _sample(reader, options.batch, seconds=1.0)  # a warm-up
    without = _sample(reader, options.batch, seconds=options.seconds)
    spans: list[tuple[float, float]] = []

    def save() -> None:
        for _ in range(options.checkpoints):
            begun = time.perf_counter()
            other.checkpoint(timeout_seconds=120.0)
            spans.append((begun, time.perf_counter()))

    saving = threading.Thread(target=save)
    saving.start()
    drawn = []
    while saving.is_alive():
        drawn += _sample(reader, options.batch, seconds=0.2)
    saving.join()
    enough.set()
    if options.inserts_per_second:
        writer.join()
    during = [
        (begun, ended)
        for begun, ended in drawn
        if any(first <= begun and ended <= last for first, last in spans)
    ]
    return _latency(without), _latency(during), [last - first for first, last in spans]


def _sample(reader: ReplayClient, batch: int, seconds: float) -> list[tuple[float, float]]:
    """When each began and ended."""
    drawn = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        begun = time.perf_counter()
        reader.sample(batch, timeout_seconds=60.0)
        drawn.append((begun, time.perf_counter()))
    return drawn


def _latency(drawn: list[tuple[float, float]]) -> Latency:
    milliseconds = np.array([1e3 * (ended - begun) for begun, ended in drawn])
    p50, p99 = np.percentile(milliseconds, [50, 99])
    return Latency(len(drawn), float(p50), float(p99), float(milliseconds.max()))


def _insert(config: ClientConfig, per_second: int, enough: threading.Event) -> None:
    items = _items(100)
    with ReplayClient(config) as client:
        while not enough.wait(100 / per_second):
            client.insert(items)


def _fill(client: ReplayClient, items: int) -> None:
    batch = _items(FILL_BATCH)
    for _ in range(-(-items // FILL_BATCH)):
        client.insert(batch)


def _items(count: int) -> TransitionBatch:
    rng = np.random.default_rng(0)
    observation = rng.standard_normal((count, OBSERVATIONS), dtype=np.float32)
    return TransitionBatch(
        observation=observation,
        action=rng.standard_normal((count, ACTIONS), dtype=np.float32),
        reward=observation[:, 0].copy(),
        discount=np.ones(count, np.float32),
        next_observation=observation,
        policy_id=np.zeros(count, np.int32),
        policy_version=np.zeros(count, np.int64),
    )


def _start(folder: Path, address: str, options: Options) -> subprocess.Popen[str]:
    columns = {
        name: {"dtype": spec.dtype, "shape": list(spec.shape)}
        for name, spec in _items(1).signature().items()
    }
    table = {"columns": columns, "capacity": options.items, "sampler": options.sampler}
    (folder / "tables.yaml").write_text(yaml.safe_dump({"tables": {TABLE: table}}))
    arguments = ["--tables", "tables.yaml", "--address", address, "--checkpoint-dir", "saved"]
    arguments += ["--checkpoint-every", "86400", "--exit-with-parent", "--json"]
    shard = subprocess.Popen(
        [sys.executable, "-m", "services.cli", "buffer-server", *arguments],
        stdout=subprocess.PIPE,
        cwd=folder,
        text=True,
    )
    assert shard.stdout is not None
    if not shard.stdout.readline():
        raise SystemExit("the shard did not start")
    return shard


def _print(without: Latency, during: Latency, seconds: list[float], ratio: float) -> None:
    table = Table("sample of one batch", "samples", "p50 ms", "p99 ms", "longest ms")
    for name, one in (("no checkpoint", without), ("during a checkpoint", during)):
        cells = (f"{one.p50:.2f}", f"{one.p99:.2f}", f"{one.longest:.2f}")
        table.add_row(name, str(one.samples), *cells)
    console = Console()
    console.print(table)
    mean = sum(seconds) / len(seconds)
    console.print(f"p99 ratio {ratio:.2f}, at most {ALLOWED_RATIO:g}; checkpoints of {mean:.2f} s")


if __name__ == "__main__":
    main(tyro.cli(Options))
