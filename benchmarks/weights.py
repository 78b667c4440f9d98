"""How long new weights take from a learner to those who act: `make bench-weights`.

Real Ray, the hub and the two ends of `services.weights`: a process publishes at a steady rate,
others wait for what is newer and load it into their policies. Latency is from the learner's call
to the moment the weights are loaded; staleness is how many versions behind the newest a reader is,
over time. Nothing is compared with a peer.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.measure import BUSY_LOAD, RESULTS, ROOT, machine_facts, write_results
from repertory.specs import EnvSpec
from services import ray_environment

ENV_ID = "HalfCheetah-v5"
POLICY = "td3"
START_SECONDS = 300.0  # for 32 processes on few cores
ANSWER_SECONDS = 60.0
WAIT_SECONDS = 0.2  # of a reader, before it looks whether its time is up
IDLE_SECONDS = 1.0  # after the last publication: what is under way arrives


@dataclass(frozen=True)
class Options:
    """From a learner's publish to weights that are loaded."""

    readers: tuple[int, ...] = (1, 8, 32)
    widths: tuple[int, ...] = (256, 1024)
    """Of policies with two hidden layers."""
    publications: int = 60
    every_seconds: float = 0.1
    """From one to the next; a learner of 200 updates/s publishes so often."""
    quick: bool = False
    """One and four readers of the small policy, ten publications. Its figures mean little."""
    out: Path | None = None
    """Where the JSON goes; by default benchmarks/results/weights.json (quick: -quick.json)."""

    @property
    def results_file(self) -> Path:
        return self.out or RESULTS / ("weights-quick.json" if self.quick else "weights.json")


@dataclass(frozen=True)
class Loaded:
    """One version as one reader got it; moments are in seconds since the epoch."""

    version: int
    published: float
    loaded: float


@dataclass(frozen=True)
class Spread:
    """Of one size of policy to so many readers."""

    width: int
    readers: int
    megabytes: float
    latencies: list[float] = field(repr=False)  # seconds, of every version at every reader
    staleness: list[float]  # the mean over time of each reader, in versions
    seen: float  # of the versions published, how many a reader loaded in the mean

    @property
    def median_ms(self) -> float:
        return 1000 * median(self.latencies)

    @property
    def late_ms(self) -> float:
        """What 95 of 100 do not exceed."""
        return 1000 * float(np.quantile(self.latencies, 0.95))

    @property
    def worst_ms(self) -> float:
        return 1000 * max(self.latencies)


def policy_of(spec: EnvSpec, width: int) -> Any:
    from repertory.policies.deterministic import DeterministicPolicy

    return DeterministicPolicy(DeterministicPolicy.Config(hidden_sizes=(width, width)), spec)


class Publisher:
    """A learner's process, without the learning."""

    def __init__(self, hub: Any, policy: str, spec: EnvSpec, width: int) -> None:
        import torch

        from services.weights import WeightPublisher

        torch.set_num_threads(1)
        self._weights = policy_of(spec, width).weights()
        self._publisher = WeightPublisher(hub, policy, epoch=0, updates=0)

    def megabytes(self) -> float:
        return float(sum(array.nbytes for array in self._weights.values())) / 1e6

    def publish(self, count: int, every_seconds: float) -> list[tuple[int, float]]:
        """Version and moment of each, at a steady rate."""
        published = []
        begin = time.monotonic()
        for number in range(1, count + 1):
            moment = time.time()
            published.append((self._publisher.publish(self._weights, number), moment))
            time.sleep(max(0.0, begin + number * every_seconds - time.monotonic()))
        return published


class Reader:
    """An actor's process, without the acting."""

    def __init__(self, hub: Any, policy: str, spec: EnvSpec, width: int) -> None:
        import torch

        from services.weights import WeightSource

        torch.set_num_threads(1)
        self._policy = policy_of(spec, width)
        self._source = WeightSource(hub, policy)

    def ready(self) -> None:
        """It has been made."""

    def read(self, seconds: float) -> list[Loaded]:
        found = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            snapshot = self._source.wait(WAIT_SECONDS)
            if snapshot is not None:
                self._policy.load_weights(snapshot.arrays)
                found.append(Loaded(snapshot.version, self._source.published_at, time.time()))
        return found


def staleness(published: Sequence[tuple[int, float]], loaded: Sequence[Loaded]) -> float:
    """How many versions behind, the mean over the time from the first to the last publication."""
    begin, end = published[0][1], published[-1][1]
    if end <= begin:
        return 0.0
    # +1 at each publication; at each load, back to what is newer than the one loaded.
    changes = sorted(
        [(moment, 0, version) for version, moment in published]
        + [(one.loaded, 1, one.version) for one in loaded]
    )
    newest = has = published[0][0] - 1
    area, before = 0.0, begin
    for moment, kind, version in changes:
        until = min(max(moment, begin), end)
        area += (newest - has) * (until - before)
        before = until
        if kind == 0:
            newest = version
        else:
            has = version
    return area / (end - begin)


def measure(options: Options, console: Console) -> list[Spread]:
    import ray

    from repertory.config import EnvConfig
    from repertory.envs import probe
    from services.cluster import Cluster
    from services.weights import WeightHub

    spec = probe(EnvConfig(id=ENV_ID))
    results = []
    with Cluster():
        for width in options.widths:
            for readers in options.readers:
                console.print(f"2 x {width}, {readers} readers ...")
                name = f"{POLICY}-{width}-{readers}"
                made: list[Any] = []
                try:
                    hub: Any = ray.remote(WeightHub).options(num_cpus=0).remote()
                    publisher: Any = (
                        ray.remote(Publisher).options(num_cpus=0).remote(hub, name, spec, width)
                    )
                    made += [hub, publisher]
                    remote: Any = ray.remote(Reader).options(num_cpus=0)
                    all_readers = [remote.remote(hub, name, spec, width) for _ in range(readers)]
                    made += all_readers
                    ray.get([one.ready.remote() for one in all_readers], timeout=START_SECONDS)
                    size: Any = ray.get(publisher.megabytes.remote(), timeout=ANSWER_SECONDS)
                    seconds = options.publications * options.every_seconds + 2 * IDLE_SECONDS
                    reading = [one.read.remote(seconds) for one in all_readers]
                    publishing = publisher.publish.remote(
                        options.publications, options.every_seconds
                    )
                    patience = seconds + ANSWER_SECONDS
                    published = ray.get(publishing, timeout=patience)
                    found: list[list[Loaded]] = ray.get(reading, timeout=patience)
                finally:
                    for actor in made:
                        ray.kill(actor)
                results.append(_spread(width, size, published, found))
    return results


def _spread(
    width: int,
    megabytes: float,
    published: Sequence[tuple[int, float]],
    found: Sequence[Sequence[Loaded]],
) -> Spread:
    moments = dict(published)
    return Spread(
        width=width,
        readers=len(found),
        megabytes=megabytes,
        latencies=[one.loaded - moments[one.version] for reader in found for one in reader],
        staleness=[staleness(published, reader) for reader in found],
        seen=mean(len(reader) for reader in found) / len(published),
    )


def show(results: Sequence[Spread], facts: dict[str, Any], options: Options) -> Table:
    table = Table(
        title=f"publish to loaded, {options.publications} versions, one every "
        f"{options.every_seconds:g} s; {facts['cores']} cores, load {facts['load']} before, commit "
        f"{facts['commit']}"
    )
    columns = ("policy", "MB", "readers", "median", "95 %", "worst", "versions behind", "loaded")
    for name in columns:
        table.add_column(name, justify="right")
    for one in results:
        table.add_row(
            f"2 x {one.width}",
            f"{one.megabytes:.2f}",
            str(one.readers),
            f"{one.median_ms:.1f} ms",
            f"{one.late_ms:.1f} ms",
            f"{one.worst_ms:.1f} ms",
            f"{mean(one.staleness):.2f}",
            f"{100 * one.seen:.0f} %",
        )
    return table


def main() -> int:
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    if options.quick:
        options = replace(options, readers=(1, 4), widths=(256,), publications=10)
    console = Console(highlight=False)
    console.width = max(console.width, 110)  # also where the output goes into a file
    facts = machine_facts()
    if float(str(facts["load"])) > BUSY_LOAD:
        console.print(f"the load is {facts['load']}: others work here, and latencies show it")
    # Workers of Ray find the classes by this module's name.
    os.environ["PYTHONPATH"] = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    with tempfile.TemporaryDirectory(prefix="weights-") as folder:
        ray_environment.prepare(Path(folder) / "token", make_token=True)
        results = measure(options, console)
    console.print(show(results, facts, options))
    document = {
        "machine": facts,
        "options": {**asdict(options), "out": None},
        "results": [
            {
                **asdict(one), "median_ms": one.median_ms, "late_ms": one.late_ms,
                "worst_ms": one.worst_ms,
            }
            for one in results
        ],
    }  # fmt: skip
    write_results(options.results_file, document)
    console.print(f"everything that was measured: {options.results_file}")
    return 0


if __name__ == "__main__":
    # Not as `__main__`: Ray's workers could not find the classes.
    from benchmarks.weights import main as entry

    sys.exit(entry())
