"""A learner process among stand-ins: what it publishes, what it never publishes, how it answers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from learner.fresh_segments import FreshSegments
from learner.loop import MetricAverages
from learner.patience import Patience
from repertory.config import resolve
from repertory.errors import RepertoryError, ReplayTimeout
from repertory.types import Sample, TransitionBatch
from services import learner_process
from services.learner_process import MAX_SKIPPED, LearnerProcess

LONG_SECONDS = 30.0


@dataclass
class State:
    """One number, which every update adds one to."""

    value: float = 0.0
    updates: int = 0


class FakeAlgorithm:
    device = "cpu"


class FakeLoop:
    """Each draw gives the next loss, None stands for a timeout; after the last they are 0.5."""

    algorithm = FakeAlgorithm()

    def __init__(self, losses: Iterator[float | None], segments: FreshSegments | None) -> None:
        self.state = State()
        self.averages = MetricAverages()
        self.batch_size = 4
        self.sizes: list[int] = []  # of the draws
        self._losses = losses
        self._loss = 0.0
        self._segments = segments
        self.after_step: Callable[[], None] = lambda: None

    @property
    def updates(self) -> int:
        return self.state.updates

    def draw(self, *, timeout_seconds: float) -> Sample:
        self.sizes.append(self.batch_size)
        loss = next(self._losses, 0.5)
        if loss is None:
            self.after_step()
            raise ReplayTimeout("no data yet")
        self._loss = loss
        if self._segments is not None:
            return self._segments.sample(self.batch_size, timeout_seconds=timeout_seconds)
        return drawn(np.zeros(self.batch_size, np.int64))

    def learn(self, sample: Sample) -> Mapping[str, float]:
        self.state.value += self._loss
        self.state.updates += 1
        metrics = {"loss": self._loss}
        self.averages.add(metrics)
        self.after_step()
        return metrics


def drawn(versions: np.ndarray, policy_id: int = 0) -> Sample:
    """Items of which only the provenance matters; a row of versions is a segment."""
    nothing = np.zeros(versions.shape, np.float32)
    ids = np.full(versions.shape, policy_id, np.int32)
    batch = TransitionBatch(nothing, nothing, nothing, nothing, nothing, ids, versions)
    return Sample(batch, np.arange(len(versions)), np.ones(len(versions), np.float32))


class FakeQueue:
    """Whatever is asked for comes, in segments of two steps by the version that is set."""

    def __init__(self) -> None:
        self.version = 0

    def insert(self, batch: TransitionBatch, priorities: Any = None) -> int:
        raise NotImplementedError

    def update_priorities(self, keys: Any, priorities: Any) -> None:
        raise NotImplementedError

    def sample(self, size: int, *, timeout_seconds: float) -> Sample:
        return drawn(np.full((size, 2), self.version, np.int64))


class FakePolicy:
    def __init__(self, loop: FakeLoop) -> None:
        self._loop = loop

    def weights(self) -> dict[str, np.ndarray]:
        return {"w": np.array([self._loop.state.value])}


class FakePublisher:
    def __init__(self) -> None:
        self.published: list[tuple[int, float]] = []
        self.versions: list[int] = []
        self.offset = 0

    def renew(self) -> None:
        self.offset += 1

    def publish(self, arrays: Mapping[str, np.ndarray], updates: int) -> int:
        self.published.append((updates, float(arrays["w"][0])))
        self.versions.append(updates + self.offset)
        return self.versions[-1]


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


class Impatience(Patience):
    """Exhausted by every wait."""

    def exhausted(self, now: float) -> bool:
        return True


class World:
    def __init__(
        self,
        *losses: float | None,
        algorithm: str = "dqn",
        patience: Patience | None = None,
        segments: FreshSegments | None = None,
    ) -> None:
        overrides = {"topology.publish_every": 3, "env.copies": 2}
        config = resolve("CartPole-v1", [algorithm], overrides=overrides)
        self.loop = FakeLoop(iter(losses), segments)
        self.publisher = FakePublisher()
        self.heartbeat = FakeHeartbeat()
        self.process = LearnerProcess(
            algorithm,
            config,
            self.loop,  # type: ignore[arg-type]
            FakePolicy(self.loop),  # type: ignore[arg-type]
            self.publisher,
            self.heartbeat,  # type: ignore[arg-type]
            segments,
            patience or Patience(math.inf, 0.0),
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
    monkeypatch.setattr(learner_process, "PUBLISH_SECONDS", 0.0)


def test_weights_are_published_first_every_few_updates_and_last() -> None:
    world = World()
    world.run(8)
    assert [updates for updates, _ in world.publisher.published] == [0, 3, 6, 8]


def test_fast_updates_are_not_published_more_often_than_workers_can_load_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(learner_process, "PUBLISH_SECONDS", math.inf)
    world = World()
    world.run(8)
    assert [updates for updates, _ in world.publisher.published] == [0, 8]


def test_on_policy_every_update_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_process, "PUBLISH_SECONDS", math.inf)
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


def test_starved_on_policy_the_same_weights_come_as_a_new_version() -> None:
    world = World(1.0, None, None, 1.0, algorithm="ppo", patience=Impatience(0.0, 0.0))
    world.run(4)
    # First, after the update, for each of the two waits, after the second update, and last.
    assert world.publisher.published == [(0, 0.0), (1, 1.0), (1, 1.0), (1, 1.0), (2, 2.0), (2, 2.0)]
    assert world.publisher.versions == [0, 1, 2, 3, 4, 4]
    assert world.heartbeat.counts == {"renewed_versions": 2}


def test_off_policy_waiting_publishes_nothing() -> None:
    world = World(None, None, None, patience=Impatience(0.0, 0.0))
    world.run(3)
    assert world.publisher.versions == [0, 0]


def test_while_there_is_patience_waiting_publishes_nothing() -> None:
    world = World(None, None, None, algorithm="ppo")
    world.run(3)
    assert world.publisher.versions == [0, 0]


def test_a_pause_does_not_count_as_waiting() -> None:
    world = World(algorithm="ppo", patience=Impatience(0.0, 0.0))
    world.process.paused.set()
    thread = threading.Thread(target=world.process.run)
    thread.start()
    for _ in range(3):
        world.process.checkpoint(LONG_SECONDS)
    world.process.stopping.set()
    thread.join(LONG_SECONDS)
    assert world.publisher.versions == [0, 0]


def test_on_policy_a_skipped_update_asks_for_another_round() -> None:
    """Its segments are used up, and workers wait for something newer than what they had."""
    world = World(1.0, math.nan, 1.0, algorithm="ppo")
    world.run(3)
    assert world.publisher.published == [(0, 0.0), (1, 1.0), (1, 1.0), (2, 2.0), (2, 2.0)]
    assert world.publisher.versions == [0, 1, 2, 3, 3]


def test_what_the_same_weights_made_is_fresh_under_whichever_version() -> None:
    queue = FakeQueue()
    segments = FreshSegments(queue, max_lag=0)
    # One update: version 1. Twice starved: 2 and 3. What came for version 1 is as good as any.
    world = World(
        1.0, None, None, algorithm="ppo", patience=Impatience(0.0, 0.0), segments=segments
    )
    world.loop.after_step = lambda: setattr(queue, "version", 1)
    taken: list[tuple[int, int]] = []
    learn = world.loop.learn

    def noting(sample: Sample) -> Mapping[str, float]:
        taken.append((segments.fresh_since, segments.version))
        if len(taken) == 2:
            world.process.stopping.set()
        return learn(sample)

    world.loop.learn = noting  # type: ignore[method-assign]
    world.process.run()
    assert taken == [(0, 0), (1, 3)]
    assert segments.dropped == 0


def test_the_number_of_actors_decides_how_many_segments_an_update_takes() -> None:
    world = World(algorithm="ppo")  # two copies for each actor
    world.loop.after_step = lambda: (
        (world.process.set_actors(3) if world.loop.updates == 2 else world.process.stopping.set())
        if world.loop.updates >= 2
        else None
    )
    world.process.run()
    assert world.loop.sizes[:3] == [4, 4, 4]  # what was drawn before is put back
    assert set(world.loop.sizes[3:]) == {6}


def test_segments_that_were_drawn_for_another_size_are_not_lost() -> None:
    queue = FakeQueue()
    segments = FreshSegments(queue, max_lag=100)
    world = World(algorithm="ppo", segments=segments)
    asked: list[int] = []
    sample = queue.sample

    def noting(size: int, *, timeout_seconds: float) -> Sample:
        asked.append(size)
        if len(asked) == 1:
            world.process.set_actors(3)
        return sample(size, timeout_seconds=timeout_seconds)

    queue.sample = noting  # type: ignore[method-assign]
    world.run(1)
    assert asked[:2] == [4, 2]  # four are there already


def test_reports_say_how_stale_the_batch_was_and_how_fast_it_goes() -> None:
    world = World(algorithm="ppo")
    world.loop.draw = lambda *, timeout_seconds: drawn(  # type: ignore[method-assign]
        np.array([[0, 0], [0, 2]], np.int64)
    )
    world.run(5)
    report = world.heartbeat.reports[-1]
    assert report["staleness_versions"] == 4 - 0.5  # the fifth update was made with version 4
    assert report["updates_per_second"] > 0


def test_versions_of_another_policy_do_not_count_as_staleness() -> None:
    world = World()
    world.loop.draw = lambda *, timeout_seconds: drawn(  # type: ignore[method-assign]
        np.zeros(4, np.int64), policy_id=1
    )
    world.run(2)
    assert "staleness_versions" not in world.heartbeat.reports[-1]


def test_facts_for_the_heartbeat() -> None:
    segments = FreshSegments(FakeQueue(), max_lag=0)
    segments.dropped = 7
    world = World(algorithm="ppo", segments=segments)
    assert world.process.facts() == {
        "updates": 0,
        "version": -1,
        "skipped": 0,
        "device": "cpu",
        "dropped_segments": 7,
    }
