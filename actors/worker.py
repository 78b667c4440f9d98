"""One rollout process: acts with the newest weights it has, and sends what it sees.

Knows no Ray: weights come through a `Weights`, experience goes through an `Inserts`, and signs of
life through a heartbeat. `services.hosts` makes a Ray actor of it.

Off-policy: acts without ever waiting for weights; the replay's back-pressure is what slows it down.
On-policy: it makes rounds, of one segment for each copy. After each it waits until the learner has
answered all but `max_lag` of them by newer weights, so with `max_lag = 0` every segment is made by
the newest. A copy that breaks does not leave a round short: the others fill in.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from actors.rollout import Collected, Rollout
from repertory.config import LearnerConfig, OnPolicyConfig, RunConfig
from repertory.errors import ReplayTimeout
from repertory.heartbeat import Heartbeat
from repertory.types import Array, EpisodeOutcome, TransitionBatch, WeightSnapshot

logger = logging.getLogger(__name__)

WAIT_SECONDS = 1.0  # how long to wait in one go: between two, stopping is looked at
LONGEST_GATHERING_SECONDS = 1.0  # what a slow environment gives is not held back for longer


class Weights(Protocol):
    """The newest weights of the policy that acts."""

    version: int  # -1 before the first
    checksum: int
    published_at: float

    def newest(self) -> WeightSnapshot | None: ...

    def wait(self, timeout_seconds: float) -> WeightSnapshot | None: ...


class Inserts(Protocol):
    """Where experience goes: a `Replay`, as far as a worker needs it."""

    def insert(
        self,
        batch: TransitionBatch,
        priorities: Array | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> int: ...


class RolloutWorker:
    """`run` returns when it is told to stop; everything gathered until then is sent."""

    def __init__(
        self,
        config: RunConfig,
        learner_config: LearnerConfig,
        rollout: Rollout,
        replay: Inserts,
        weights: Weights,
        heartbeat: Heartbeat,
        total_env_steps: int = 0,
    ) -> None:
        self._config = config
        self._rollout = rollout
        self._replay = replay
        self._weights = weights
        self._heartbeat = heartbeat
        self._on_policy = isinstance(learner_config, OnPolicyConfig)
        self._copies = config.env.copies
        self._rounds_ahead = 0  # on-policy: rounds that no newer weights have answered
        self._send_items = 1 if self._on_policy else config.topology.send_items
        self._gathered: list[TransitionBatch] = []
        self._gathered_items = 0
        self._gathered_steps = 0
        self._outcomes: list[EpisodeOutcome] = []
        self._gathering_since = time.monotonic()
        self._own_env_steps = 0
        self._rollout.env_steps = total_env_steps
        self.stopping = threading.Event()
        self.paused = threading.Event()

    def run(self) -> None:
        if not self._await_weights(lambda: self._weights.version >= 0):
            return
        max_lag = self._config.topology.max_lag
        while not self.stopping.is_set():
            enough = self._heartbeat.totals.get("env_steps", 0) >= self._config.steps
            if self.paused.is_set() or enough:
                self._send()
                self._heartbeat.progress()
                self.stopping.wait(WAIT_SECONDS / 10)
                continue
            self._load(self._weights.newest())
            if not self._on_policy:
                self._take(self._rollout.collect(self._copies))
                continue
            self._make_round()
            self._rounds_ahead += 1
            self._await_weights(lambda: self._rounds_ahead <= max_lag)
        self._send()

    def facts(self) -> dict[str, Any]:
        """For the heartbeat."""
        facts: dict[str, Any] = {
            "env_steps": self._own_env_steps,
            "version": self._weights.version,
            "broken_episodes": self._rollout.broken_episodes,
        }
        if self._weights.version >= 0:
            facts["checksum"] = f"{self._weights.checksum:08x}"
            facts["weights_age_seconds"] = self._weights_age_seconds()
        return facts

    def _make_round(self) -> None:
        """As many segments as there are copies, none of them begun with weights too old to count.

        After a break the copies are no longer in step: what one of them began in the round before
        is sent all the same, and the learner decides.
        """
        oldest = self._rollout.policy_version - self._config.topology.max_lag
        fresh = 0
        while fresh < self._copies and not self.stopping.is_set():
            collected = self._rollout.collect(self._copies)
            if collected.batch is not None:
                fresh += int((collected.batch.policy_version.min(axis=1) >= oldest).sum())
            self._take(collected)

    def _await_weights(self, enough: Callable[[], bool]) -> bool:
        """False: told to stop meanwhile."""
        while not enough():
            if self.stopping.is_set():
                return False
            self._heartbeat.progress()
            self._load(self._weights.wait(WAIT_SECONDS))
        return True

    def _load(self, snapshot: WeightSnapshot | None) -> None:
        if snapshot is None:
            return
        newer_by = snapshot.version - self._rollout.policy_version
        # Versions that came while one round was made do not allow for more than that round.
        self._rounds_ahead = max(0, self._rounds_ahead - newer_by)
        self._rollout.policy.load_weights(snapshot.arrays)
        self._rollout.policy_version = snapshot.version

    def _weights_age_seconds(self) -> float:
        return max(0.0, time.time() - self._weights.published_at)

    def _take(self, collected: Collected) -> None:
        self._heartbeat.progress()
        self._own_env_steps += collected.env_steps
        self._gathered_steps += collected.env_steps
        self._outcomes += collected.outcomes
        if collected.batch is not None:
            self._gathered.append(collected.batch)
            self._gathered_items += len(collected.batch)
        waited = time.monotonic() - self._gathering_since
        if self._gathered_items >= self._send_items or waited > LONGEST_GATHERING_SECONDS:
            self._send()

    def _send(self) -> None:
        self._tell()
        self._gathering_since = time.monotonic()
        if not self._gathered:
            return
        batch = TransitionBatch.concatenate(self._gathered)
        self._gathered, self._gathered_items = [], 0
        while not self._insert(batch):
            self._heartbeat.progress()  # a limiter that holds actors is no fault
            if self.stopping.is_set():
                logger.warning("%d items were not sent", len(batch))
                self._heartbeat.count(items_not_sent=len(batch))
                return

    def _insert(self, batch: TransitionBatch) -> bool:
        try:
            self._replay.insert(batch, timeout_seconds=WAIT_SECONDS)
            return True
        except ReplayTimeout:
            return False

    def _tell(self) -> None:
        """Steps and episodes since the last time."""
        outcomes = self._outcomes
        self._heartbeat.count(soon=True, env_steps=self._gathered_steps, episodes=len(outcomes))
        if outcomes:
            self._heartbeat.metrics(
                self._rollout.env_steps,
                {
                    "returns": [outcome.episode_return for outcome in outcomes],
                    "lengths": [outcome.length for outcome in outcomes],
                    "policy_version": self._rollout.policy_version,
                    "weights_age_seconds": self._weights_age_seconds(),
                },
            )
        self._gathered_steps, self._outcomes = 0, []
        # Schedules of exploration run over the steps of all workers together.
        total = self._heartbeat.totals.get("env_steps", 0)
        self._rollout.env_steps = max(self._rollout.env_steps, total)
