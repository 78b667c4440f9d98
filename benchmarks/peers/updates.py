"""What every side of the learner benchmark is asked for: so many updates on the same made-up data.

A side builds its learner with a replay that is full, and then learns for some time; drawing a batch
is part of an update. Standard library and NumPy only: it runs in each peer's own environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.peers.commands import answer_lines

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class UpdateJob:
    """A learner, and the replay that it draws from."""

    algorithm: str
    env_id: str
    observation_size: int
    action_size: int  # numbers of a continuous action, or how many discrete ones there are
    discrete: bool
    hidden: tuple[int, ...]
    batch: int
    items: int  # transitions in the replay; of an on-policy learner, steps of one iteration
    epochs: int = 1  # of an on-policy learner over these
    threads: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)  # more, in a side's own words

    @property
    def on_policy(self) -> bool:
        return self.algorithm == "ppo"

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> UpdateJob:
        return cls(**{**document, "hidden": tuple(document["hidden"])})


@dataclass(frozen=True)
class UpdateCount:
    """Updates; of an on-policy learner, steps on a minibatch."""

    updates: int
    seconds: float
    cpu_seconds: float  # of all threads: what others do on the machine is not in it


class Updates(Protocol):
    """A learner that is ready."""

    def run(self) -> int:
        """Some updates, not many; returns how many."""
        ...


@dataclass(frozen=True)
class Transitions:
    """Made-up experience; the discount is 0 where an episode terminated."""

    observation: Array  # [N, O] float32
    action: Array  # [N, A] float32 in [-1, 1], or [N] int64
    reward: Array  # [N] float32
    terminated: Array  # [N] bool
    next_observation: Array  # [N, O] float32


def transitions(job: UpdateJob) -> Transitions:
    rng = np.random.default_rng(0)
    observation = rng.standard_normal((job.items + 1, job.observation_size), dtype=np.float32)
    action: Array
    if job.discrete:
        action = rng.integers(0, job.action_size, job.items)
    else:
        action = rng.uniform(-1, 1, (job.items, job.action_size)).astype(np.float32)
    return Transitions(
        observation=observation[:-1],
        action=action,
        reward=rng.standard_normal(job.items, dtype=np.float32),
        terminated=rng.random(job.items) < 0.01,
        next_observation=observation[1:],
    )


def measure(learner: Updates, warm_up_seconds: float, seconds: float) -> UpdateCount:
    warm = time.monotonic() + warm_up_seconds
    while time.monotonic() < warm:
        learner.run()
    updates, begin, cpu = 0, time.monotonic(), time.process_time()
    end = begin + seconds
    while time.monotonic() < end:
        updates += learner.run()
    return UpdateCount(updates, time.monotonic() - begin, time.process_time() - cpu)


def answer_updates(
    build: Callable[[UpdateJob], Updates], versions: Callable[[], dict[str, str]]
) -> None:
    """The main loop of a side's process, which holds one learner at a time."""
    learner: Updates | None = None

    def answer(command: Mapping[str, Any]) -> Any:
        nonlocal learner
        if command["command"] == "versions":
            return versions()
        if command["command"] == "build":
            learner = build(UpdateJob.from_json(command["job"]))
            return None
        assert learner is not None
        count = measure(learner, command["warm_up_seconds"], command["seconds"])
        return asdict(count)

    answer_lines(answer)
