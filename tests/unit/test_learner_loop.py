"""The inside of a learner: what is drawn, what is learned from, which priorities go back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from learner.loop import LearnerLoop
from repertory.types import Array, Sample, TransitionBatch, UpdateResult


@dataclass
class State:
    updates: int = 0


class Algorithm:
    def __init__(self, priorities: list[float] | None) -> None:
        self._priorities = priorities

    def update(self, state: State, sample: Sample) -> UpdateResult:
        state.updates += 1
        priorities = None if self._priorities is None else torch.tensor(self._priorities)
        return UpdateResult({"loss": 1.0}, priorities)


class Replay:
    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.sent: list[tuple[list[int], list[float]]] = []

    def insert(self, batch: TransitionBatch, priorities: Array | None = None) -> int:
        raise NotImplementedError

    def sample(self, size: int, *, timeout_seconds: float) -> Sample:
        self.sizes.append(size)
        column = np.zeros(size, np.float32)
        return Sample(TransitionBatch(*[column] * 7), 10 + np.arange(size), column)

    def update_priorities(self, keys: Array, priorities: Array) -> None:
        self.sent.append((keys.tolist(), priorities.tolist()))


def make(priorities: list[float] | None) -> tuple[LearnerLoop, Replay]:
    replay = Replay()
    algorithm = Algorithm(priorities)
    loop = LearnerLoop(algorithm, State(), replay, batch_size=3, send_priorities=True)  # type: ignore[arg-type]
    return loop, replay


def test_priorities_go_back_to_the_items_they_are_of() -> None:
    loop, replay = make([0.5, 1.5, 2.5])
    loop.step(timeout_seconds=1.0)
    assert replay.sent == [([10, 11, 12], [0.5, 1.5, 2.5])]


def test_a_priority_that_is_not_finite_is_not_sent() -> None:
    loop, replay = make([0.5, float("nan"), float("inf")])
    loop.step(timeout_seconds=1.0)
    assert replay.sent == [([10], [0.5])]


def test_where_none_is_finite_nothing_is_sent() -> None:
    loop, replay = make([float("nan")] * 3)
    loop.step(timeout_seconds=1.0)
    assert replay.sent == []


def test_the_batch_size_is_that_of_the_next_draw() -> None:
    loop, replay = make(None)
    loop.step(timeout_seconds=1.0)
    loop.batch_size = 5
    loop.step(timeout_seconds=1.0)
    assert replay.sizes == [3, 5]
    assert loop.updates == 2
