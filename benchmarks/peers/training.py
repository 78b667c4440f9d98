"""A training that every system is given, and the lines by which a peer tells how it goes.

A peer's script reads one job as JSON from its standard input and prints lines of JSON: `Progress`
twice a second, and right after the first update; `Judged` after each evaluation. Standard library
only: it runs in each peer's own environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TextIO

SAY_SECONDS = 0.5


@dataclass(frozen=True)
class TrainingJob:
    """The same work in everybody's words."""

    algorithm: str
    env_id: str
    hidden: tuple[int, ...]
    batch: int
    lr: float
    steps: int
    gamma: float = 0.99
    seed: int = 1
    threads: int = 0  # of torch; 0: as many as the system takes by itself
    # Off-policy
    replay: int = 1_000_000
    learning_starts: int = 1000  # steps of random actions, if continuous; no update before
    train_every: int = 1  # steps from one burst of updates to the next
    updates_per_step: float = 1.0
    noise: float = 0.1  # TD3's, in units of half the action range
    epsilon: tuple[float, float, int] = (1.0, 0.04, 8000)  # DQN's: from, to, in so many steps
    # On-policy
    iteration_steps: int = 2048  # of all copies together
    copies: int = 1
    epochs: int = 10
    gae_lambda: float = 0.95
    normalize: bool = False  # observations and rewards, by running moments
    linear_schedules: bool = False  # of learning rate and clipping, where a system has them
    # Evaluations; none where it is 0
    evaluate_every: int = 0
    episodes: int = 10
    threshold: float | None = None  # the training ends at the first evaluation that is not below

    @property
    def on_policy(self) -> bool:
        return self.algorithm == "ppo"

    @property
    def wanted_ratio(self) -> float:
        """Updates (of PPO: steps on minibatches) per environment step."""
        if self.on_policy:
            minibatches = self.epochs * -(-self.iteration_steps // self.batch)
            return minibatches / self.iteration_steps
        return self.updates_per_step

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TrainingJob:
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in document.items()
        }
        return cls(**values)


@dataclass(frozen=True)
class Progress:
    """The counters at one moment, in seconds since the epoch."""

    time: float
    env_steps: int
    updates: int


@dataclass(frozen=True)
class Judged:
    """Deterministic episodes, and when their mean was known."""

    time: float
    env_steps: int
    mean: float


@dataclass(frozen=True)
class Versions:
    versions: Mapping[str, str]


Line = Progress | Judged | Versions
KINDS: Mapping[str, type[Progress] | type[Judged] | type[Versions]] = {
    "progress": Progress,
    "judged": Judged,
    "versions": Versions,
}


def parse_line(text: str) -> Line | None:
    """None for what is not one of these lines: libraries print, too."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        return None
    if not isinstance(document, dict):
        return None
    kind = KINDS.get(document.pop("kind", ""))
    return None if kind is None else kind(**document)


class Narrator:
    """A peer's way to say lines; what libraries print goes to standard error."""

    def __init__(self, out: TextIO | None = None) -> None:
        if out is None:
            out = os.fdopen(os.dup(1), "w", buffering=1)
            os.dup2(2, 1)
        self._out = out
        self._said_at = 0.0
        self._updates = 0

    def versions(self, versions: Mapping[str, str]) -> None:
        self._say("versions", Versions(versions))

    def progress(self, env_steps: int, updates: int) -> None:
        """Not each time: twice a second, and when the first update has been made."""
        now = time.time()
        first = updates > 0 and self._updates == 0
        if not first and now - self._said_at < SAY_SECONDS:
            return
        self._said_at, self._updates = now, updates
        self._say("progress", Progress(now, env_steps, updates))

    def judged(self, env_steps: int, mean: float) -> None:
        self._say("judged", Judged(time.time(), env_steps, mean))

    def _say(self, kind: str, line: Line) -> None:
        self._out.write(json.dumps({"kind": kind, **asdict(line)}) + "\n")
        self._out.flush()


def read_job() -> TrainingJob:
    return TrainingJob.from_json(json.loads(sys.stdin.readline()))
