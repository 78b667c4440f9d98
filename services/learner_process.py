"""One learner process: samples, updates, publishes weights, answers for its state.

Knows no Ray and no gRPC: the replay and the publisher are handed in. `run` goes on until it is told
to stop; `checkpoint`, from another thread, gets the state between two updates. Replicas of one
learner each run this, and agree on what they do next (`learner.lockstep`); the first of them alone
reports and is asked for checkpoints.

A loss or weight that is not finite is never published: the state goes back to the last one that
was, and the samples since are as if they had not been drawn. After `MAX_SKIPPED` of those in a row
the process ends with an error, and the supervisor starts it from the newest checkpoint.

An on-policy learner that has waited too long publishes the same weights as a new version: workers
then make another round, in place of one that was lost.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np

from learner import data_parallel
from learner.checkpoint import load_state_tree, state_tree
from learner.fresh_segments import FreshSegments
from learner.lockstep import Turn, agree
from learner.loop import LearnerLoop
from learner.patience import Patience
from repertory.config import OnPolicyConfig, RunConfig
from repertory.errors import RepertoryError, ReplayTimeout
from repertory.heartbeat import Heartbeat
from repertory.protocols import Policy
from repertory.types import Array, Sample, WeightSnapshot
from services.replay_access import batch_size

logger = logging.getLogger(__name__)

MAX_SKIPPED = 5
REPORT_SECONDS = 2.0
SHORT_WAIT_SECONDS = 1.0
PUBLISH_SECONDS = 0.1  # off-policy, at least: every worker takes 3 ms to load what is published
REPUBLISH_SECONDS = 5.0  # also without updates: a hub that was started anew knows nothing
STARVED_SECONDS = 10.0  # on-policy, at least: then workers are asked for another round


class Publisher(Protocol):
    def publish(self, arrays: Mapping[str, Array], updates: int) -> int: ...

    def renew(self) -> None:
        """What is published next is newer, whether its weights are or not."""
        ...


class LearnerProcess:
    """One learner of the portfolio, or one of its replicas."""

    def __init__(
        self,
        name: str,
        config: RunConfig,
        loop: LearnerLoop,
        policy: Policy,
        publisher: Publisher,
        heartbeat: Heartbeat,
        segments: FreshSegments | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`segments` are where an on-policy loop draws from; `patience` is with them."""
        self._name = name
        self._config = config
        self._policy_id = list(config.learners).index(name)
        self._on_policy = isinstance(config.learners[name], OnPolicyConfig)
        self._publish_every = 1 if self._on_policy else config.topology.publish_every
        self._loop = loop
        self._policy = policy
        self._publisher = publisher
        self._heartbeat = heartbeat
        self._segments = segments
        self._requests: queue.SimpleQueue[Future[dict[str, Any]]] = queue.SimpleQueue()
        self._sample: Sample | None = None  # drawn, and not yet learned from
        self._batch_size = loop.batch_size  # that is wanted
        self._version = -1
        self._fresh_since = -1  # the first version of the weights there are now
        self._published_updates = -1
        self._published_at = -math.inf
        self._reported_at = time.monotonic()
        self._reported_updates = loop.updates
        self._last_good: dict[str, Any] = state_tree(loop.state)
        self._skipped = 0  # in a row
        self._waiting_seconds = 0.0
        self._patience = patience or Patience(STARVED_SECONDS, time.monotonic())
        self._renew = False  # at the next turn
        self._learned: tuple[Sample, int] | None = None  # the last batch, and with which version
        self.stopping = threading.Event()
        self.paused = threading.Event()

    def run(self) -> None:
        self._loop.batch_size = agree(
            Turn(batch_size=self._batch_size if self._leads else 0)
        ).batch_size
        self._publish()
        self._patience.begin(time.monotonic())
        while not (turn := self._next_turn()).stopping:
            if turn.paused:
                self.stopping.wait(SHORT_WAIT_SECONDS / 10)
                self._patience.begin(time.monotonic())
            elif turn.waiting:
                self._renew = self._on_policy and self._patience.exhausted(time.monotonic())
            else:
                self._learn()
            if time.monotonic() - self._reported_at > REPORT_SECONDS:
                self._report()
        self._publish()
        self._report()
        self.answer_requests()

    def checkpoint(self, timeout_seconds: float) -> dict[str, Any]:
        """The state between two updates, from any thread."""
        answer: Future[dict[str, Any]] = Future()
        self._requests.put(answer)
        return answer.result(timeout_seconds)

    def set_actors(self, actors: int) -> None:
        """How many there are decides how many segments an update takes. From any thread."""
        wanted = batch_size(self._config, self._config.learners[self._name], actors)
        # What cannot be shared evenly is left for the next update.
        self._batch_size = max(1, wanted // self._config.topology.replicas)

    def facts(self) -> dict[str, Any]:
        """For the heartbeat."""
        facts = {
            "updates": self._loop.updates,
            "version": self._version,
            "skipped": self._skipped,
            "device": str(getattr(self._loop.algorithm, "device", "cpu")),
        }
        if self._segments is not None:
            facts["dropped_segments"] = self._segments.dropped
        return facts

    def answer_requests(self) -> None:
        """Only while the state is at rest."""
        while True:
            try:
                answer = self._requests.get_nowait()
            except queue.Empty:
                return
            answer.set_result(
                {
                    "state": state_tree(self._loop.state),
                    "updates": self._loop.updates,
                    "policy": WeightSnapshot(self._name, self._version, self._policy.weights()),
                }
            )

    def _next_turn(self) -> Turn:
        """What all replicas do now; each that has no batch has looked for one."""
        self._heartbeat.progress()
        self.answer_requests()
        leads = self._leads
        if self._sample is None and not (self.paused.is_set() or self.stopping.is_set()):
            self._draw()
        turn = agree(
            Turn(
                waiting=self._sample is None,
                stopping=self.stopping.is_set(),
                paused=self.paused.is_set(),
                publish=leads and time.monotonic() - self._published_at > REPUBLISH_SECONDS,
                renew=leads and self._renew,
                batch_size=self._batch_size if leads else 0,
            )
        )
        if turn.renew:
            self._ask_for_a_round()
        elif turn.publish and not turn.stopping:
            self._publish()
        if turn.batch_size != self._loop.batch_size:
            self._loop.batch_size = turn.batch_size
            if self._segments is not None and self._sample is not None:
                self._segments.put_back(self._sample)
            self._sample = None
            return Turn(waiting=True, stopping=turn.stopping, paused=turn.paused)
        return turn

    @property
    def _leads(self) -> bool:
        """Whether this is the first replica; one alone is."""
        return data_parallel.rank() == 0

    def _draw(self) -> None:
        begin = time.monotonic()
        try:
            self._sample = self._loop.draw(timeout_seconds=SHORT_WAIT_SECONDS)
        except ReplayTimeout:  # no data yet, or the limiter holds us: neither is a fault
            self._waiting_seconds += time.monotonic() - begin

    def _learn(self) -> None:
        assert self._sample is not None
        sample, self._sample = self._sample, None
        self._patience.fed(time.monotonic())
        self._learned = sample, self._version
        metrics = self._loop.learn(sample)
        broken = {name: float(value) for name, value in metrics.items() if not math.isfinite(value)}
        if agree(Turn(broken=bool(broken))).broken:
            self._skip(broken or {"the loss of another replica": math.nan})
            if self._on_policy:  # the segments are gone, and nobody makes others by themselves
                self._ask_for_a_round()
        elif self._due():
            self._publish()
        self._patience.begin(time.monotonic())

    def _due(self) -> bool:
        """Whether to publish what was learned. Replicas go by updates alone: clocks differ."""
        if self._loop.updates - self._published_updates < self._publish_every:
            return False
        steady = self._on_policy or data_parallel.replicas() > 1
        return steady or time.monotonic() - self._published_at >= PUBLISH_SECONDS

    def _skip(self, broken: Mapping[str, float]) -> None:
        reason = ", ".join(f"{name} {value}" for name, value in broken.items())
        self._skipped += 1
        if self._leads:
            self._heartbeat.count(skipped_updates=1)
            self._heartbeat.event("update_skipped", reason=reason, updates=self._loop.updates)
        load_state_tree(self._loop.state, self._last_good)
        self._loop.averages.read()  # they count what never was
        if self._skipped > MAX_SKIPPED:
            raise RepertoryError(
                f"{self._skipped} updates in a row were not finite ({reason}): training has "
                "diverged; lower learner.lr or set learner.max_grad_norm"
            )

    def _ask_for_a_round(self) -> None:
        """By the same weights under a new version."""
        self._renew = False
        self._publisher.renew()
        if self._leads:
            self._heartbeat.count(renewed_versions=1)
        self._publish()

    def _publish(self) -> None:
        weights = self._policy.weights()
        if not all(np.isfinite(array).all() for array in weights.values()):
            self._skip({"weights": math.nan})
            return
        changed = self._loop.updates > self._published_updates
        if changed:
            self._last_good = state_tree(self._loop.state)
            self._skipped = 0
        self._version = self._publisher.publish(weights, self._loop.updates)
        if changed:
            self._fresh_since = self._version
        if self._segments is not None:
            self._segments.version = self._version
            self._segments.fresh_since = self._fresh_since
        self._published_updates = self._loop.updates
        self._published_at = time.monotonic()

    def _staleness(self) -> float | None:
        """Versions from those that acted in the last batch to the one that learned from it.

        Other policies count their own.
        """
        if self._learned is None:
            return None
        sample, version = self._learned
        versions = sample.batch.policy_version[sample.batch.policy_id == self._policy_id]
        return max(0.0, version - float(versions.mean())) if versions.size else None

    def _report(self) -> None:
        now = time.monotonic()
        seconds, self._reported_at = now - self._reported_at, now
        waiting, self._waiting_seconds = self._waiting_seconds, 0.0
        updates, self._reported_updates = (
            self._loop.updates - self._reported_updates,
            self._loop.updates,
        )
        metrics = {
            **self._loop.averages.read(),
            "updates": self._loop.updates,
            "version": self._version,
            "waiting_share": min(1.0, waiting / seconds) if seconds > 0 else 0.0,
            "updates_per_second": max(0, updates) / seconds if seconds > 0 else 0.0,
        }
        staleness = self._staleness()
        if staleness is not None:
            metrics["staleness_versions"] = staleness
        if self._segments is not None:
            metrics["dropped_segments"] = self._segments.dropped
        if self._leads:
            self._heartbeat.metrics(self._loop.updates, metrics)
