"""One learner process: samples, updates, publishes weights, answers for its state.

Knows no Ray and no gRPC: the replay and the publisher are handed in. `run` goes on until it is told
to stop; `checkpoint`, from another thread, gets the state between two updates.

A loss or weight that is not finite is never published: the state goes back to the last one that
was, and the samples since are as if they had not been drawn. After `MAX_SKIPPED` of those in a row
the process ends with an error, and the supervisor starts it from the newest checkpoint.
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

from learner.checkpoint import load_state_tree, state_tree
from learner.loop import LearnerLoop
from repertory.config import OnPolicyConfig, RunConfig
from repertory.errors import RepertoryError, ReplayTimeout
from repertory.heartbeat import Heartbeat
from repertory.protocols import Policy
from repertory.types import Array, WeightSnapshot

logger = logging.getLogger(__name__)

MAX_SKIPPED = 5
REPORT_SECONDS = 2.0
SHORT_WAIT_SECONDS = 1.0
REPUBLISH_SECONDS = 5.0  # also without updates: a hub that was started anew knows nothing


class Publisher(Protocol):
    def publish(self, arrays: Mapping[str, Array], updates: int) -> int: ...


class LearnerProcess:
    """One learner of the portfolio."""

    def __init__(
        self,
        name: str,
        config: RunConfig,
        loop: LearnerLoop,
        policy: Policy,
        publisher: Publisher,
        heartbeat: Heartbeat,
    ) -> None:
        self._name = name
        on_policy = isinstance(config.learners[name], OnPolicyConfig)
        self._publish_every = 1 if on_policy else config.topology.publish_every
        self._loop = loop
        self._policy = policy
        self._publisher = publisher
        self._heartbeat = heartbeat
        self._requests: queue.SimpleQueue[Future[dict[str, Any]]] = queue.SimpleQueue()
        self._version = -1
        self._published_updates = -1
        self._published_at = -math.inf
        self._reported_at = time.monotonic()
        self._last_good: dict[str, Any] = state_tree(loop.state)
        self._skipped = 0  # in a row
        self._waiting_seconds = 0.0
        self.stopping = threading.Event()
        self.paused = threading.Event()

    def run(self) -> None:
        self._publish()
        while not self.stopping.is_set():
            self._heartbeat.progress()
            self._answer_requests()
            if self.paused.is_set():
                self.stopping.wait(SHORT_WAIT_SECONDS / 10)
            else:
                self._update()
            if time.monotonic() - self._reported_at > REPORT_SECONDS:
                self._report()
            if time.monotonic() - self._published_at > REPUBLISH_SECONDS:
                self._publish()
        self._publish()
        self._report()
        self._answer_requests()

    def checkpoint(self, timeout_seconds: float) -> dict[str, Any]:
        """The state between two updates, from any thread."""
        answer: Future[dict[str, Any]] = Future()
        self._requests.put(answer)
        return answer.result(timeout_seconds)

    def facts(self) -> dict[str, Any]:
        """For the heartbeat."""
        return {"updates": self._loop.updates, "version": self._version, "skipped": self._skipped}

    def _update(self) -> None:
        begin = time.monotonic()
        try:
            metrics = self._loop.step(timeout_seconds=SHORT_WAIT_SECONDS)
        except ReplayTimeout:  # no data yet, or the limiter holds us: neither is a fault
            self._waiting_seconds += time.monotonic() - begin
            return
        if not all(math.isfinite(float(value)) for value in metrics.values()):
            self._skip({name: float(value) for name, value in metrics.items()})
            return
        if self._loop.updates - self._published_updates >= self._publish_every:
            self._publish()

    def _skip(self, metrics: Mapping[str, float]) -> None:
        broken = ", ".join(
            f"{name} {value}" for name, value in metrics.items() if not math.isfinite(value)
        )
        self._skipped += 1
        self._heartbeat.count(skipped_updates=1)
        self._heartbeat.event("update_skipped", reason=broken, updates=self._loop.updates)
        load_state_tree(self._loop.state, self._last_good)
        self._loop.averages.read()  # they count what never was
        if self._skipped > MAX_SKIPPED:
            raise RepertoryError(
                f"{self._skipped} updates in a row were not finite ({broken}): training has "
                "diverged; lower learner.lr or set learner.max_grad_norm"
            )

    def _publish(self) -> None:
        weights = self._policy.weights()
        if not all(np.isfinite(array).all() for array in weights.values()):
            self._skip({"weights": math.nan})
            return
        if self._loop.updates > self._published_updates:
            self._last_good = state_tree(self._loop.state)
            self._skipped = 0
        self._version = self._publisher.publish(weights, self._loop.updates)
        self._published_updates = self._loop.updates
        self._published_at = time.monotonic()

    def _report(self) -> None:
        now = time.monotonic()
        seconds, self._reported_at = now - self._reported_at, now
        waiting, self._waiting_seconds = self._waiting_seconds, 0.0
        averages = self._loop.averages.read()
        self._heartbeat.metrics(
            self._loop.updates,
            {
                **averages,
                "updates": self._loop.updates,
                "version": self._version,
                "waiting_share": min(1.0, waiting / seconds) if seconds > 0 else 0.0,
            },
        )

    def _answer_requests(self) -> None:
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
