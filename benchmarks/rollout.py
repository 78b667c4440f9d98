"""Our rollouts against the bare vector environment, in turns on one core: `make bench-rollout`.

The bare environment gets random actions that were drawn before and forgets what it returns. A
rollout runs a policy's network at every step, explores, and assembles the columns that a replay
takes. Both step the same kind of environment: Gymnasium's `SyncVectorEnv`, or EnvPool.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from actors.casting import Solo
from actors.rollout import rollout_for
from benchmarks.measure import BUSY_LOAD, RESULTS, Comparison, machine_facts, write_results
from repertory.config import resolve
from repertory.envs import probe
from repertory.parts import lookup

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
TARGET = 0.5  # of the bare environment's steps
TARGET_COPIES = 64  # with fewer, a step of all copies is shorter than one call of anything
WIDTH = 110  # of the table, also where it goes to a file

Backend = Literal["gymnasium", "envpool"]
Stepping = Callable[[int], int]  # takes at least so many steps, says how many it took
BARE = "bare"
Rates = dict[tuple[Backend, str], list[float]]  # of an algorithm's rollout, or of the bare one

CARTPOLE, CHEETAH = "CartPole-v1", "HalfCheetah-v5"
# Random actions in all of them, so that episodes are as long as those of the bare environment.
SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": {
        "learner.hidden_sizes": [256, 256],
        "learner.random_steps": 0,  # the network is asked, and overruled
        "learner.exploration.epsilon.start": 1.0,
        "learner.exploration.epsilon.final": 1.0,
    },
    "ppo": {"learner.hidden_sizes": [64, 64]},
    "sac": {"learner.hidden_sizes": [256, 256], "learner.random_steps": 0},
}


@dataclass(frozen=True)
class Options:
    """Our rollouts against the bare vector environment, on one core."""

    rounds: int = 7
    """How often each is measured."""
    seconds: float = 0.4
    """Of one measurement, about."""
    quick: bool = False
    """Short, few sizes. Its figures mean little."""
    check: bool = False
    """Exit with 1 if a target is missed."""
    out: Path | None = None
    """Where the JSON goes; by default benchmarks/results/rollout.json (rollout-quick.json)."""

    @property
    def results_file(self) -> Path:
        return self.out or RESULTS / ("rollout-quick.json" if self.quick else "rollout.json")


@dataclass(frozen=True, slots=True)
class Work:
    """One environment, so many copies of it, and whose rollouts are measured."""

    env_id: str
    copies: int
    algorithms: tuple[str, ...]


WORK = (
    *(Work(CARTPOLE, copies, ("dqn", "ppo")) for copies in (1, 8, 64, 256)),
    *(Work(CHEETAH, copies, ("sac",)) for copies in (1, 8)),
)
QUICK = (
    Work(CARTPOLE, 1, ("dqn",)),
    Work(CARTPOLE, TARGET_COPIES, ("dqn", "ppo")),
    Work(CHEETAH, 1, ("sac",)),
)


@dataclass
class Report:
    machine: dict[str, Any]
    options: dict[str, Any]
    versions: dict[str, str]
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def missed(self) -> list[str]:
        return [one.work for one in self.comparisons if not one.ok]

    def write(self, path: Path) -> None:
        document = {
            "machine": self.machine,
            "options": self.options,
            "versions": self.versions,
            "comparisons": [
                {**asdict(one), "ratio": one.ratio, "interval": one.interval, "ok": one.ok}
                for one in self.comparisons
            ],
        }
        write_results(path, document)


def bare(backend: Backend, work: Work) -> Stepping:
    """The vector environment alone, with random actions."""
    env: Any
    if backend == "gymnasium":
        env = gym.vector.SyncVectorEnv([lambda: gym.make(work.env_id)] * work.copies)
        single = env.single_action_space
    else:
        envpool: Any = importlib.import_module("envpool")
        env = envpool.make(
            work.env_id, env_type="gymnasium", num_envs=work.copies, num_threads=1, seed=0
        )
        single = env.action_space
    env.reset()
    single.seed(0)
    # More than one set, so that episodes are not all alike.
    actions = [
        np.stack([single.sample() for _ in range(work.copies)]).astype(single.dtype)
        for _ in range(64)
    ]

    def step(env_steps: int) -> int:
        count = -(-env_steps // work.copies)
        for number in range(count):
            env.step(actions[number % len(actions)])
        return count * work.copies

    return step


def rollout(backend: Backend, work: Work, algorithm: str) -> Stepping:
    """Ours, as a run makes it."""
    vector = "sync" if backend == "gymnasium" else "envpool"
    settings = {"env.copies": work.copies, "env.vector": vector, **SETTINGS[algorithm]}
    config = resolve(work.env_id, [algorithm], overrides=settings)
    spec = probe(config.env)
    ((name, learner),) = config.learners.items()
    torch.manual_seed(0)
    made = lookup("algorithm", learner.algorithm)(learner, device=torch.device("cpu"), seed=0)
    policy = made.policy(made.initial_state(spec)).requires_grad_(False)
    acting = rollout_for(config, spec, {name: policy}, Solo())
    return lambda env_steps: acting.collect(env_steps).env_steps


def steps_per_second(step: Stepping, env_steps: int) -> float:
    """By the processor's time: what others take of the core is not counted."""
    began = time.process_time()
    taken = step(env_steps)
    return taken / (time.process_time() - began)


def measure(work: Work, backends: tuple[Backend, ...], rounds: int, seconds: float) -> Rates:
    """All of them in every round; who is first changes from round to round."""
    systems: dict[tuple[Backend, str], Stepping] = {}
    for backend in backends:
        systems[backend, BARE] = bare(backend, work)
        for algorithm in work.algorithms:
            systems[backend, algorithm] = rollout(backend, work, algorithm)
    env_steps = {}
    for key, step in systems.items():
        steps_per_second(step, 500)  # caches, and what is made when it is first needed
        env_steps[key] = max(work.copies, int(seconds * steps_per_second(step, 1000)))
    rates: Rates = {key: [] for key in systems}
    keys = list(systems)
    for number in range(rounds):
        turn = number % len(keys)
        for key in keys[turn:] + keys[:turn]:
            rates[key].append(steps_per_second(systems[key], env_steps[key]))
    return rates


def compared(work: Work, rates: Rates) -> list[Comparison]:
    target = TARGET if work.env_id == CARTPOLE and work.copies == TARGET_COPIES else None
    return [
        Comparison(
            f"{work.env_id}, {work.copies} x, {algorithm}, {backend}",
            ours=ours,
            peer=rates[backend, BARE],
            target=target if backend == "gymnasium" else None,
        )
        for (backend, algorithm), ours in rates.items()
        if algorithm != BARE
    ]


def run(options: Options, console: Console) -> Report:
    core = min(os.sched_getaffinity(0))
    facts = machine_facts()
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    backends: tuple[Backend, ...] = ("gymnasium",)
    if importlib.util.find_spec("envpool") is not None:
        backends = ("gymnasium", "envpool")
    else:
        console.print("EnvPool is not installed: only Gymnasium is measured")
    rounds, seconds = (3, 0.1) if options.quick else (options.rounds, options.seconds)
    versions = {name: importlib.metadata.version(name) for name in (*backends, "numpy", "torch")}
    report = Report(facts, {"rounds": rounds, "seconds": seconds, "core": core}, versions)
    if facts["load"] > BUSY_LOAD:  # type: ignore[operator]
        console.print(f"the load is {facts['load']}: others work here, do not trust the ratios")
    for work in QUICK if options.quick else WORK:
        console.print(f"{work.env_id}, {work.copies} copies ...")
        report.comparisons += compared(work, measure(work, backends, rounds, seconds))
    return report


def show(report: Report, console: Console) -> None:
    machine = report.machine
    console.print()
    console.print(
        f"{machine['cpu']}, one of {machine['cores']} cores, load {machine['load']}, "
        f"commit {machine['commit']}"
    )
    table = Table(title=f"environment steps/s, medians of {report.options['rounds']} rounds")
    table.add_column("work")
    for name in ("rollout", "bare", "ratio [lowest - highest]", "target"):
        table.add_column(name, justify="right")
    table.add_column("ok")
    for one in report.comparisons:
        low, high = one.interval
        has_target = one.target is not None
        table.add_row(
            one.work,
            f"{median(one.ours):,.0f}",
            f"{median(one.peer):,.0f}",
            f"{one.ratio:.2f} [{low:.2f} - {high:.2f}]".replace("[", r"\["),
            f">= {one.target:g}" if has_target else "",
            ("[green]yes[/green]" if one.ok else "[red]no[/red]") if has_target else "",
        )
    console.print(table)


def main() -> int:
    if ONE_THREAD.items() - os.environ.items():  # read by the libraries when they are loaded
        command = [sys.executable, "-m", "benchmarks.rollout", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **ONE_THREAD})
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    warnings.simplefilter("ignore")
    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
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
