"""A rollout worker among stand-ins: what it sends, when it waits, how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from troupes import Listed

from actors import worker as worker_module
from actors.casting import Solo
from actors.rollout import Collected, WorkerPlace, rollout_for
from actors.worker import RolloutWorker
from repertory.config import RunConfig, resolve
from repertory.envs import probe
from repertory.errors import ReplayTimeout
from repertory.parts import lookup
from repertory.policies.policy import build_policy
from repertory.table_layout import table_of, tables_of
from repertory.types import DecisionOutcome, TransitionBatch, WeightSnapshot

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
        self.checksum = 0xBEEF
        self.published_at = time.time()
        self.waits = 0
        self.looks = 0
        self.on_wait: Callable[[], None] = lambda: None

    def offer(self, version: int) -> None:
        with self._changed:
            self._available = max(self._available, version)
            self._changed.notify_all()

    def newest(self) -> WeightSnapshot | None:
        self.looks += 1
        if self._available <= self.version:
            return None
        self.version = self._available
        return WeightSnapshot("p", self.version, self._arrays)

    def wait(self, timeout_seconds: float) -> WeightSnapshot | None:
        with self._changed:
            self.waits += 1
            self.on_wait()
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
    """`algorithms` are the learners of the run; the first one's weights and table are at hand."""

    def __init__(
        self,
        *algorithms: str,
        newest: int = 0,
        casting: Any = None,
        env: str = "CartPole-v1",
        **overrides: Any,
    ) -> None:
        settings = {"env.copies": 2, "steps": 100_000, "topology.send_items": 16, **overrides}
        self.config: RunConfig = resolve(env, algorithms, overrides=settings)
        spec = probe(self.config.env)
        self.policies = {}
        for name, learner in self.config.learners.items():
            made = lookup("algorithm", learner.algorithm)(learner, device="cpu", seed=0)
            policy = made.policy(made.initial_state(spec))
            self.policies[name] = build_policy(policy.config, spec)
        self.rollout = rollout_for(self.config, spec, self.policies, casting or Solo())
        self.sources = {name: FakeWeights(one, newest) for name, one in self.policies.items()}
        self.replays = {table: FakeReplay() for table in tables_of(self.config)}
        self.weights = self.sources[algorithms[0]]
        self.replay = self.replays[table_of(self.config, algorithms[0])]
        self.heartbeat = FakeHeartbeat()
        self.reported: list[DecisionOutcome] = []
        self.worker = self.make_worker(self.rollout)

    def make_worker(self, rollout: Any) -> RolloutWorker:
        return RolloutWorker(
            self.config,
            rollout,
            self.replays,
            self.sources,
            self.heartbeat,  # type: ignore[arg-type]
            self.reported.extend,
        )

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


@pytest.mark.parametrize(("seconds", "looks"), [(0.0, 8), (1000.0, 1)])
def test_between_two_looks_at_its_weights_it_acts_for_a_moment_at_most(
    monkeypatch: pytest.MonkeyPatch, seconds: float, looks: int
) -> None:
    """At each step where that is slow, else once for a message: 16 items are 8 steps of 2."""
    monkeypatch.setattr(worker_module, "STRETCH_SECONDS", seconds)
    world = World("dqn")
    world.run_until(lambda: len(world.replay.batches) >= 10)
    in_the_beginning = 1 + 1  # the first weights, and a first stretch of one step
    assert world.weights.looks == pytest.approx(10 * looks + in_the_beginning, abs=1)


def test_relabelled_episodes_go_in_pieces_that_the_limiter_takes() -> None:
    relabel = {"learner.relabel": "future", "topology.send_items": 4, "env.kwargs.bits": 30}
    world = World("dqn", env="repertory.environments.bit_flip:BitFlip", **relabel)
    world.run_until(lambda: world.replay.items >= 600)
    # Two episodes of 30 steps end at once, with five items a step: 300 in pieces of 4 * 5.
    assert {len(batch) for batch in world.replay.batches} == {20}
    whole_episodes = world.heartbeat.totals["env_steps"] // 60
    assert world.replay.items == 5 * 60 * whole_episodes


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
    thread = threading.Thread(target=world.worker.run, daemon=True)
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
    thread = threading.Thread(target=world.worker.run, daemon=True)
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
    thread = threading.Thread(target=world.worker.run, daemon=True)
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
    first = world.rollout.collect(20).batches["replay"]
    others = [
        rollout_for(world.config, probe(world.config.env), world.policies, Solo(), place)
        for place in (WorkerPlace(0, 1), WorkerPlace(0, 2), WorkerPlace(1, 1))
    ]
    starts = [other.collect(20).batches["replay"].observation[0] for other in others]
    np.testing.assert_array_equal(starts[0], first.observation[0])  # as in a local run
    assert len({start.tobytes() for start in starts}) == 3


class ScriptedRollout:
    """Each step completes the segments that the script says, by the versions they began with."""

    def __init__(self, steps: list[list[int]], on_step: Callable[[int], None]) -> None:
        self._steps = iter(steps)
        self._on_step = on_step
        self.players = (self,)
        self.name = "ppo"
        self.policy = self
        self.version = 0
        self.env_steps = 0
        self.broken_episodes = 0
        self.taken = 0

    def load_weights(self, arrays: Any) -> None: ...

    def collect(self, env_steps: int) -> Collected:
        self.taken += 1
        self.env_steps += env_steps
        begun = np.array(next(self._steps), np.int64)
        self._on_step(self.taken)
        if not len(begun):
            return Collected({}, [], [], env_steps)
        versions = np.stack([begun, np.full(len(begun), self.version)], axis=1)
        column = np.zeros(versions.shape, np.float32)
        batch = TransitionBatch(*[column] * 5, versions.astype(np.int32), versions)
        return Collected({"ppo": batch}, [], [], env_steps)


def steps_of_rounds(
    steps: list[list[int]], *, max_lag: int = 0, on_step: Callable[[Any, int], None] | None = None
) -> list[int]:
    """After which steps a worker with two copies waited for weights; one version is the answer."""
    overrides = {"learner.segment_length": 2, "topology.max_lag": max_lag}
    world = World("ppo", **overrides)
    rollout = ScriptedRollout(
        steps, lambda step: on_step(world, step) if on_step is not None else None
    )
    worker = world.make_worker(rollout)
    waited: list[int] = []

    def answer() -> None:
        if rollout.taken:
            waited.append(rollout.taken)
        if rollout.taken == len(steps):
            worker.stopping.set()
        world.weights.offer(world.weights.version + 1)

    world.weights.on_wait = answer
    worker.run()
    assert world.replay.items == sum(len(step) for step in steps)  # all are sent
    return waited


def test_on_policy_a_round_has_one_segment_of_each_copy() -> None:
    assert steps_of_rounds([[], [0, 0], [], [1, 1]]) == [2, 4]


def test_a_copy_that_breaks_does_not_leave_the_round_short() -> None:
    """One copy completes its segment in time, the other a step later."""
    assert steps_of_rounds([[], [0], [0], [], [1, 1]]) == [3, 5]


def test_a_segment_begun_in_the_round_before_does_not_fill_this_one() -> None:
    assert steps_of_rounds([[], [0], [0], [0], [1], [], [1]]) == [3, 7]


def test_within_the_lag_it_does() -> None:
    """The first round does not wait; of the second, one segment was begun in the first."""
    assert steps_of_rounds([[0, 0], [0], [0], [0], [1]], max_lag=1) == [3, 5]


def test_versions_that_came_during_a_round_allow_for_no_more_than_one() -> None:
    """A learner that waits for a slow round publishes again and again."""

    def publish(world: Any, step: int) -> None:
        if step == 1:
            world.weights.offer(7)

    assert steps_of_rounds([[0, 0], [7, 7], [8, 8]], on_step=publish) == [1, 2, 3]


def test_facts_say_which_weights_it_has() -> None:
    world = World("dqn")
    assert "checksum" not in world.worker.facts()  # none yet
    world.run_until(lambda: world.replay.items >= 16)
    facts = world.worker.facts()
    assert facts["version"] == 0
    assert facts["checksum"] == "0000beef"
    assert 0 <= facts["weights_age_seconds"] < LONG_SECONDS


def test_reports_of_episodes_say_how_old_the_weights_were() -> None:
    world = World("dqn")
    world.weights.published_at = time.time() - 1000.0
    world.run_until(lambda: world.heartbeat.totals.get("episodes", 0) >= 1)
    (report, *_) = world.heartbeat.reports
    assert report["policy_version"] == 0
    assert 1000.0 <= report["weights_age_seconds"] < 1000.0 + LONG_SECONDS


# Several players


BOTH = {"learners.dqn.random_steps": 0, "learners.ppo.segment_length": 4}


def test_what_each_table_takes_goes_there() -> None:
    world = World("dqn", "ppo", casting=Listed((0, 5), (1, 5)), **BOTH)
    world.run_until(lambda: world.replay.items >= 200)
    queue = world.replays["ppo"]
    assert {int(who) for batch in world.replay.batches for who in batch.policy_id} == {0, 1}
    assert {int(who) for batch in queue.batches for who in batch.policy_id.ravel()} == {1}
    assert {len(batch) for batch in world.replay.batches[:-1]} <= {*range(16, 24)}  # as asked for
    assert {len(batch) for batch in queue.batches} <= {1, 2}  # at once


def test_it_waits_for_the_first_weights_of_every_player() -> None:
    world = World("dqn", "ppo", casting=Listed((0, None)), **BOTH)
    world.sources["ppo"]._available = -1
    waits: list[int] = []

    def look() -> None:
        waits.append(1)
        if len(waits) == 2:  # it did not begin after the first
            world.worker.stopping.set()

    world.sources["ppo"].on_wait = look
    world.run_until(lambda: True)
    assert world.replay.items == 0
    assert len(waits) == 2


def test_each_player_acts_with_its_own_newest_weights() -> None:
    world = World("dqn", "ppo", casting=Listed((0, 5), (1, 5)), **BOTH)
    world.sources["dqn"].offer(3)
    world.sources["ppo"].offer(8)
    world.run_until(lambda: world.replay.items >= 100)
    for batch in world.replay.batches:
        np.testing.assert_array_equal(batch.policy_version, np.where(batch.policy_id, 8, 3))


def test_an_on_policy_player_that_is_ahead_does_not_hold_up_the_others() -> None:
    """No newer weights ever come for it, and it makes many rounds all the same."""
    world = World("dqn", "ppo", casting=Listed((0, 5), (1, 5)), **BOTH)
    world.run_until(lambda: world.replay.items >= 400)
    assert world.replays["ppo"].items > 2 * 5
    assert world.sources["ppo"].waits == 1  # for the first weights


def test_what_the_director_is_to_hear_is_reported_once() -> None:
    world = World("dqn", "ppo", casting=Listed((0, 5), (1, 5)), **BOTH)
    world.run_until(lambda: len(world.reported) >= 20)
    numbers = [one.decision for one in world.reported]
    assert len(set(numbers)) == len(numbers)
    assert {one.outcome.policy_id for one in world.reported} == {0, 1}


def test_reports_of_episodes_say_who_ended_them() -> None:
    world = World("dqn", "ppo", casting=Listed((0, None), (1, None)), **BOTH)
    world.run_until(lambda: world.heartbeat.totals.get("episodes", 0) >= 5)
    ended = [who for report in world.heartbeat.reports for who in report["policy_ids"]]
    # The first decision goes to player 0, all others to player 1.
    assert sorted(ended) == [0] + [1] * (world.heartbeat.totals["episodes"] - 1)


def test_facts_say_which_weights_each_player_has() -> None:
    world = World("dqn", "ppo", casting=Listed((0, 5), (1, 5)), **BOTH)
    world.sources["ppo"].offer(8)
    world.run_until(lambda: world.replay.items >= 16)
    facts = world.worker.facts()
    assert {name: one["version"] for name, one in facts["weights"].items()} == {"dqn": 0, "ppo": 8}
