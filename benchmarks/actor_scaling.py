"""Many rollout processes on few cores: `python -m benchmarks.actor_scaling`.

Each steps one copy of an environment that sleeps 20 ms a step, and acts by a policy of 2 x 256.
32 of them can make at most 32 / 20 ms = 1600 steps a second; what is missing to that is the cost
of acting, sending and everything around. Then the run is scaled to 8 and back while it goes on.
CPU seconds for 1000 steps tell the same on a machine that others use too.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.measure import ROOT, machine_facts
from benchmarks.measured_run import MeasuredRun, private_bytes

START_SECONDS = 900.0
TARGET = 0.9  # of what the environments allow
NEVER = 1_000_000_000  # steps
WIDTH = 110  # of the table, also where it goes to a file


@dataclass(frozen=True)
class Options:
    """Throughput of many rollout processes whose environment sleeps."""

    actors: int = 32
    """At first and in the end."""
    fewer: int = 8
    """What the run is scaled to in between."""
    env_seconds: float = 0.02
    """That a step of the environment sleeps."""
    seconds: float = 30.0
    """Of one measurement."""
    warm_up_seconds: float = 10.0
    """After the last actor has taken its first step."""
    algo: str = "sac"
    check: bool = False
    """Exit with 1 if less than 90 % is reached."""
    out: Path = ROOT / "benchmarks" / "results" / "actor_scaling.json"


@dataclass(frozen=True, slots=True)
class Throughput:
    """Of so many actors over a window."""

    actors: int
    seconds_until_all: float  # from the moment they were asked for to the last one's first step
    steps_per_second: float
    possible: float
    cpu_seconds_per_1000_steps: Mapping[str, float]  # by kind of process
    cores_used: float

    @property
    def share(self) -> float:
        return self.steps_per_second / self.possible


def arguments(options: Options) -> list[str]:
    """The learner is not what is measured: it learns a little, so that weights are sent."""
    settings = {
        "env.kwargs.seconds": options.env_seconds,
        "learner.updates_per_step": 0.0006,  # about one broadcast a second
        "learner.hidden_sizes": "[256,256]",
        "learner.random_steps": 0,
        "topology.restarts.start_seconds": START_SECONDS,
        "topology.publish_every": 1,
        "evaluation.every": NEVER,
        "evaluation.episodes": 1,
        "checkpoint.every": NEVER,
        "log.every": 10_000,
    }
    return [
        "benchmarks.sleeping_env:Sleeping", "--algo", options.algo, "--steps", str(NEVER),
        "--actors", str(options.actors), "--shards", "1",
        *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
    ]  # fmt: skip


def measure(
    run: MeasuredRun, options: Options, actors: int, seconds_until_all: float
) -> Throughput:
    time.sleep(options.warm_up_seconds)
    begin, steps, usage = time.monotonic(), run.env_steps(), run.usage()
    time.sleep(options.seconds)
    seconds = time.monotonic() - begin
    made = run.env_steps() - steps
    after = run.usage()
    cpu: dict[str, float] = {}
    for process_id, (name, now) in after.items():
        if process_id in usage:
            kind = name.partition("-")[0]
            cpu[kind] = cpu.get(kind, 0.0) + now.cpu_seconds - usage[process_id][1].cpu_seconds
    return Throughput(
        actors=actors,
        seconds_until_all=seconds_until_all,
        steps_per_second=made / seconds,
        possible=actors / options.env_seconds,
        cpu_seconds_per_1000_steps={
            kind: round(1000 * spent / made, 3) for kind, spent in sorted(cpu.items())
        },
        cores_used=sum(cpu.values()) / seconds,
    )


def main() -> int:
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    console = Console(width=WIDTH)
    facts = machine_facts()
    results: list[Throughput] = []
    with MeasuredRun(arguments(options)) as run:
        seconds = run.until(lambda: len(run.workers()) >= options.actors, START_SECONDS)
        results.append(measure(run, options, options.actors, seconds))
        workers = [member.process_id for member in run.workers().values()]
        resident = [run.usage()[process_id][1].resident_bytes for process_id in workers]
        private = [private_bytes(process_id) for process_id in workers]
        for actors in (options.fewer, options.actors):
            run.scale(actors)
            seconds = run.until(lambda wanted=actors: len(run.workers()) == wanted, START_SECONDS)  # type: ignore[misc]
            results.append(measure(run, options, actors, seconds))
        restarts = sum(member.incarnation - 1 for member in run.members().values())
    memory = {
        "resident_mb": round(statistics.median(resident) / 2**20),
        "largest_resident_mb": round(max(resident) / 2**20),
        "private_mb": round(statistics.median(private) / 2**20),
    }
    _print(console, results, memory)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": facts,
        "options": {**asdict(options), "out": options.out.name},
        "results": [{**asdict(one), "share": one.share} for one in results],
        "memory_of_an_actor": memory,
        "restarts": restarts,
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    missed = [one for one in results if one.share < TARGET]
    return 1 if options.check and missed else 0


def _print(console: Console, results: list[Throughput], memory: Mapping[str, int]) -> None:
    table = Table(
        "actors", "there after", "steps/s", "of possible", "cores", "CPU s per 1000 steps"
    )
    for one in results:
        cpu = one.cpu_seconds_per_1000_steps
        largest = sorted(cpu, key=lambda kind: -cpu[kind])[:4]
        table.add_row(
            str(one.actors),
            f"{one.seconds_until_all:.1f} s",
            f"{one.steps_per_second:.0f}",
            f"{100 * one.share:.1f} %",
            f"{one.cores_used:.2f}",
            f"{sum(cpu.values()):.2f}: " + ", ".join(f"{k} {cpu[k]:.2f}" for k in largest),
        )
    console.print(table)
    console.print(
        f"an actor: {memory['resident_mb']} MB resident (largest {memory['largest_resident_mb']}), "
        f"{memory['private_mb']} MB of its own"
    )


if __name__ == "__main__":
    sys.exit(main())
