"""A learner process among stand-ins: what it publishes, what it never publishes, how it answers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from learner.loop import MetricAverages
from repertory.config import resolve
from repertory.errors import RepertoryError, ReplayTimeout
from services import learner_process
from services.learner_process import MAX_SKIPPED, LearnerProcess

LONG_SECONDS = 30.0


@dataclass
class State:
    """One number, which every update adds one to."""

    value: float = 0.0
    updates: int = 0


class FakeLoop:
    """Each step gives the next loss; what the list does not say is 0.5."""

    def __init__(self, losses: Iterator[float | None]) -> None:
        self.state = State()
        self.averages = MetricAverages()
        self._losses = losses
        self.after_step: Callable[[], None] = lambda: None

    @property
    def updates(self) -> int:
        return self.state.updates

    def step(self, *, timeout_seconds: float) -> Mapping[str, float]:
        loss = next(self._losses, 0.5)
        try:
            if loss is None:
                raise ReplayTimeout("no data yet")
            self.state.value += loss
            self.state.updates += 1
            metrics = {"loss": loss}
            self.averages.add(metrics)
            return metrics
        finally:
            self.after_step()


class FakePolicy:
    def __init__(self, loop: FakeLoop) -> None:
        self._loop = loop

    def weights(self) -> dict[str, np.ndarray]:
        return {"w": np.array([self._loop.state.value])}


class FakePublisher:
    def __init__(self) -> None:
        self.published: list[tuple[int, float]] = []

    def publish(self, arrays: Mapping[str, np.ndarray], updates: int) -> int:
        self.published.append((updates, float(arrays["w"][0])))
        return updates


class FakeHeartbeat:
    def __init__(self) -> None:
        self.reports: list[Mapping[str, Any]] = []
        self.counts: dict[str, int] = {}

    def progress(self) -> None: ...

    def event(self, kind: str, **details: Any) -> None: ...

    def count(self, **counts: int) -> None:
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count

    def metrics(self, updates: int, metrics: Mapping[str, Any]) -> None:
        self.reports.append(metrics)


class World:
    def __init__(self, *losses: float | None, algorithm: str = "dqn") -> None:
        config = resolve("CartPole-v1", [algorithm], overrides={"topology.publish_every": 3})
        self.loop = FakeLoop(iter(losses))
        self.publisher = FakePublisher()
        self.heartbeat = FakeHeartbeat()
        self.process = LearnerProcess(
            algorithm,
            config,
            self.loop,  # type: ignore[arg-type]
            FakePolicy(self.loop),  # type: ignore[arg-type]
            self.publisher,
            self.heartbeat,  # type: ignore[arg-type]
        )

    def run(self, steps: int) -> None:
        taken = iter(range(steps - 1))
        self.loop.after_step = lambda: (
            None if next(taken, None) is not None else self.process.stopping.set()
        )
        self.process.run()


@pytest.fixture(autouse=True)
def _by_updates_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the clock must not decide what is published."""
    monkeypatch.setattr(learner_process, "REPUBLISH_SECONDS", math.inf)


def test_weights_are_published_first_every_few_updates_and_last() -> None:
    world = World()
    world.run(8)
    assert [updates for updates, _ in world.publisher.published] == [0, 3, 6, 8]


def test_on_policy_every_update_is_published() -> None:
    world = World(algorithm="ppo")
    world.run(3)
    assert [updates for updates, _ in world.publisher.published] == [0, 1, 2, 3, 3]


def test_a_loss_that_is_not_finite_is_never_published_nor_reported() -> None:
    world = World(1.0, 1.0, 1.0, 1.0, math.nan, 2.0, 2.0, 2.0)
    world.run(8)
    # Back to the state at the third update, then three more.
    assert world.publisher.published == [(0, 0.0), (3, 3.0), (6, 9.0), (6, 9.0)]
    assert world.heartbeat.counts == {"skipped_updates": 1}
    assert all(math.isfinite(report["loss"]) for report in world.heartbeat.reports)


def test_too_many_of_those_in_a_row_end_it() -> None:
    world = World(*[math.inf] * 100)
    with pytest.raises(RepertoryError, match="updates in a row were not finite"):
        world.run(100)
    assert world.heartbeat.counts == {"skipped_updates": MAX_SKIPPED + 1}


def test_waiting_for_data_is_no_fault_and_is_told() -> None:
    world = World(None, None, 1.0)
    world.run(3)
    assert world.loop.updates == 1
    assert world.heartbeat.counts == {}
    assert 0 <= world.heartbeat.reports[-1]["waiting_share"] <= 1


def test_a_checkpoint_is_of_a_moment_between_two_updates() -> None:
    world = World(*[1.0] * 10_000)
    thread = threading.Thread(target=world.run, args=(10**9,))
    thread.start()
    answers = [world.process.checkpoint(LONG_SECONDS) for _ in range(5)]
    world.process.stopping.set()
    thread.join(LONG_SECONDS)
    for answer in answers:
        assert answer["state"]["updates"] == answer["updates"]
        assert answer["policy"].arrays["w"][0] == answer["state"]["value"]


def test_while_paused_nothing_is_learned_and_checkpoints_are_answered() -> None:
    world = World()
    world.process.paused.set()
    thread = threading.Thread(target=world.process.run)
    thread.start()
    assert world.process.checkpoint(LONG_SECONDS)["updates"] == 0
    world.process.stopping.set()
    thread.join(LONG_SECONDS)
    assert world.loop.updates == 0
