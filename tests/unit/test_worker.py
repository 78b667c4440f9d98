"""A rollout worker among stand-ins: what it sends, when it waits, how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from actors import worker as worker_module
from actors.rollout import WorkerPlace, rollout_for
from actors.worker import RolloutWorker
from repertory.config import RunConfig, resolve
from repertory.envs import probe
from repertory.errors import ReplayTimeout
from repertory.parts import lookup
from repertory.policies.policy import build_policy
from repertory.types import TransitionBatch, WeightSnapshot

LONG_SECONDS = 30.0


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine even a few steps may take as long as gathering may."""
    monkeypatch.setattr(worker_module, "LONGEST_GATHERING_SECONDS", 1000.0)


class FakeWeights:
    """Versions that come when the test says so."""

    def __init__(self, policy: Any, newest: int = 0) -> None:
        self._arrays = policy.weights()
        self._available = newest
        self._changed = threading.Condition()
        self.version = -1
        self.published_at = 0.0
        self.waits = 0

    def offer(self, version: int) -> None:
        with self._changed:
            self._available = version
            self._changed.notify_all()

    def newest(self) -> WeightSnapshot | None:
        if self._available <= self.version:
            return None
        self.version = self._available
        return WeightSnapshot("p", self.version, self._arrays)

    def wait(self, timeout_seconds: float) -> WeightSnapshot | None:
        with self._changed:
            self.waits += 1
            self._changed.wait_for(lambda: self._available > self.version, timeout_seconds)
        return self.newest()


class FakeReplay:
    """Takes what it may, and refuses while it is told to."""

    def __init__(self) -> None:
        self.batches: list[TransitionBatch] = []
        self.blocked = False
        self.refusals = 0
        self.on_insert: Callable[[], None] = lambda: None

    def insert(
        self, batch: TransitionBatch, priorities: Any = None, *, timeout_seconds: Any = None
    ) -> int:
        if self.blocked:
            self.refusals += 1
            self.on_insert()
            raise ReplayTimeout("the limiter holds you")
        self.batches.append(batch)
        self.on_insert()
        return len(batch)

    @property
    def items(self) -> int:
        return sum(len(batch) for batch in self.batches)


class FakeHeartbeat:
    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        self.reports: list[dict[str, Any]] = []

    def progress(self) -> None: ...

    def count(self, *, soon: bool = False, **counts: int) -> None:
        for name, count in counts.items():
            self.totals[name] = self.totals.get(name, 0) + count

    def metrics(self, env_steps: int, metrics: dict[str, Any]) -> None:
        self.reports.append(metrics)


class World:
    def __init__(self, algorithm: str, newest: int = 0, **overrides: Any) -> None:
        settings = {"env.copies": 2, "steps": 100_000, "topology.send_items": 16, **overrides}
        self.config: RunConfig = resolve("CartPole-v1", [algorithm], overrides=settings)
        (learner,) = self.config.learners.values()
        spec = probe(self.config.env)
        made = lookup("algorithm", algorithm)(learner, device="cpu", seed=0)
        policy = build_policy(made.policy(made.initial_state(spec)).config, spec)
        self.rollout = rollout_for(self.config, learner, spec, policy)
        self.weights = FakeWeights(policy, newest)
        self.replay = FakeReplay()
        self.heartbeat = FakeHeartbeat()
        self.worker = RolloutWorker(
            self.config, learner, self.rollout, self.replay, self.weights, self.heartbeat
        )  # type: ignore[arg-type]

    def run_until(self, enough: Callable[[], bool]) -> None:
        """Stops the worker from within an insert, when there is enough."""

        def look() -> None:
            if enough():
                self.worker.stopping.set()

        self.replay.on_insert = look
        self.worker.run()


def test_what_is_gathered_goes_in_messages_of_the_size_asked_for() -> None:
    world = World("dqn")
    world.run_until(lambda: world.replay.items >= 100)
    sizes = [len(batch) for batch in world.replay.batches[:-1]]
    assert set(sizes) <= {16, 17}  # two copies at a time
    assert world.heartbeat.totals["env_steps"] == world.replay.items


def test_episodes_are_told_with_their_returns() -> None:
    world = World("dqn")
    world.run_until(lambda: world.heartbeat.totals.get("episodes", 0) >= 5)
    returns = [value for report in world.heartbeat.reports for value in report["returns"]]
    lengths = [value for report in world.heartbeat.reports for value in report["lengths"]]
    assert len(returns) == world.heartbeat.totals["episodes"] >= 5
    assert returns == [float(length) for length in lengths]  # CartPole: one for each step


def test_it_acts_with_the_newest_weights_and_says_which() -> None:
    world = World("dqn")

    def newer() -> bool:
        world.weights.offer(len(world.replay.batches))
        return len(world.replay.batches) >= 5

    world.run_until(newer)
    versions = [int(batch.policy_version.max()) for batch in world.replay.batches[:5]]
    assert versions == sorted(versions)
    assert versions[-1] >= 3


def test_it_waits_for_the_first_weights() -> None:
    world = World("dqn", newest=-1)
    thread = threading.Thread(target=world.worker.run)
    thread.start()
    world.worker.stopping.set()
    thread.join(LONG_SECONDS)
    assert not thread.is_alive()
    assert world.replay.items == 0


def test_a_limiter_that_holds_it_loses_nothing() -> None:
    world = World("dqn")
    world.replay.blocked = True

    def release() -> None:
        if world.replay.refusals >= 3:
            world.replay.blocked = False
        if world.replay.items >= 50:
            world.worker.stopping.set()

    world.replay.on_insert = release
    world.worker.run()
    assert world.replay.refusals >= 3
    assert world.heartbeat.totals["env_steps"] == world.replay.items


def test_what_cannot_be_sent_at_the_end_is_counted() -> None:
    world = World("dqn")
    world.replay.blocked = True
    world.replay.on_insert = world.worker.stopping.set
    world.worker.run()
    assert world.heartbeat.totals["items_not_sent"] == 16


def test_it_stops_acting_when_all_steps_of_the_run_are_taken() -> None:
    world = World("dqn", steps=64)
    thread = threading.Thread(target=world.worker.run)
    thread.start()
    deadline = threading.Event()
    while world.heartbeat.totals.get("env_steps", 0) < 64:
        assert not deadline.wait(0.001)
    taken = world.heartbeat.totals["env_steps"]
    world.worker.stopping.set()
    thread.join(LONG_SECONDS)
    assert world.heartbeat.totals["env_steps"] - taken <= 16
    assert world.heartbeat.totals["env_steps"] == world.replay.items


@pytest.mark.parametrize("lag", [0, 2])
def test_on_policy_it_runs_ahead_by_no_more_than_the_lag(lag: int) -> None:
    world = World("ppo", **{"learner.segment_length": 8, "topology.max_lag": lag})
    thread = threading.Thread(target=world.worker.run)
    thread.start()
    for version in range(1, 6):
        # It sends `lag` rounds more than there were updates, then waits.
        until(lambda v=version: len(world.replay.batches) == v + lag and world.weights.waits > 0)
        world.weights.waits = 0
        until(lambda: world.weights.waits > 0)
        assert len(world.replay.batches) == version + lag
        world.weights.offer(version)
    world.worker.stopping.set()
    world.weights.offer(100)
    thread.join(LONG_SECONDS)
    ages = [n - int(batch.policy_version.min()) for n, batch in enumerate(world.replay.batches[:5])]
    assert max(ages) == lag


def until(condition: Callable[[], bool]) -> None:
    clock = threading.Event()
    for _ in range(int(LONG_SECONDS * 1000)):
        if condition():
            return
        clock.wait(0.001)
    raise AssertionError("it never came to that")


def test_schedules_run_over_the_steps_of_all_workers() -> None:
    world = World("dqn")
    world.heartbeat.totals["env_steps"] = 5000  # what others took
    world.run_until(lambda: world.replay.items >= 40)
    assert world.rollout.env_steps >= 5040


def test_workers_play_different_episodes() -> None:
    world = World("dqn")
    first = world.rollout.collect(20).batch
    (learner,) = world.config.learners.values()
    others = [
        rollout_for(world.config, learner, probe(world.config.env), world.rollout.policy, place)
        for place in (WorkerPlace(0, 1), WorkerPlace(0, 2), WorkerPlace(1, 1))
    ]
    batches = [other.collect(20).batch for other in others]
    assert first is not None
    starts = [batch.observation[0] for batch in batches if batch is not None]
    np.testing.assert_array_equal(starts[0], first.observation[0])  # as in a local run
    assert len({start.tobytes() for start in starts}) == 3
