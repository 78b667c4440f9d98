"""One rollout process: acts with the newest weights it has, and sends what it sees.

Knows no Ray: weights come through a `Weights`, experience goes through an `Inserts`, and signs of
life through a heartbeat. `services.hosts` makes a Ray actor of it.

Off-policy: acts without ever waiting for weights; the replay's back-pressure is what slows it down.
On-policy: after each round of segments it waits until the learner is at most `max_lag` rounds
behind, so with `max_lag = 0` every segment was made by the newest weights.
"""

from __future__ import annotations

import logging
import threading
import time
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

    version: int
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
        self._chunk = config.env.copies
        if isinstance(learner_config, OnPolicyConfig):
            self._chunk *= learner_config.segment_length
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
        if not self._await_version(0):
            return
        first_version, rounds = self._weights.version, 0
        while not self.stopping.is_set():
            enough = self._heartbeat.totals.get("env_steps", 0) >= self._config.steps
            if self.paused.is_set() or enough:
                self._send()
                self._heartbeat.progress()
                self.stopping.wait(WAIT_SECONDS / 10)
                continue
            self._load(self._weights.newest())
            self._take(self._rollout.collect(self._chunk))
            rounds += 1
            if self._on_policy and not self._await_version(
                first_version + rounds - self._config.topology.max_lag
            ):
                break
        self._send()

    def facts(self) -> dict[str, Any]:
        """For the heartbeat."""
        return {
            "env_steps": self._own_env_steps,
            "version": self._weights.version,
            "weights_age_seconds": max(0.0, time.time() - self._weights.published_at),
            "broken_episodes": self._rollout.broken_episodes,
        }

    def _await_version(self, version: int) -> bool:
        """False: told to stop meanwhile."""
        while self._weights.version < version:
            if self.stopping.is_set():
                return False
            self._heartbeat.progress()
            self._load(self._weights.wait(WAIT_SECONDS))
        return True

    def _load(self, snapshot: WeightSnapshot | None) -> None:
        if snapshot is not None:
            self._rollout.policy.load_weights(snapshot.arrays)
            self._rollout.policy_version = snapshot.version

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
                },
            )
        self._gathered_steps, self._outcomes = 0, []
        # Schedules of exploration run over the steps of all workers together.
        total = self._heartbeat.totals.get("env_steps", 0)
        self._rollout.env_steps = max(self._rollout.env_steps, total)
