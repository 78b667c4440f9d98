"""An actor's way to the director: a `Lease` of `actors.casting`, over Ray.

One call is under way at a time. It carries how decisions ended, which of those that the actor has
it will still play, and how many more it wants; so whatever was lost with a director that died is
said again with the next one, and what did not reach the actor goes out again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from repertory.types import DecisionOutcome
from services.decision import Decision

logger = logging.getLogger(__name__)


class DirectorLink:
    """`known_edition` tells the newest edition that this process has heard of."""

    def __init__(self, director: Any, actor: str, known_edition: Callable[[], int]) -> None:
        self._director = director
        self._actor = actor
        self._known_edition = known_edition
        self._mine: set[int] = set()  # handed out to this actor, and not yet ended
        self._ended: list[DecisionOutcome] = []  # the director has not confirmed these
        self._wanted = 0
        self._call: Any = None  # the reference to its answer
        self._reported = 0  # how many of `_ended` the call carries
        self._answered: list[Decision] | None = None

    @property
    def edition(self) -> int:
        return self._known_edition()

    def request(self, count: int) -> None:
        self._wanted = count
        self._send()

    def report(self, decisions: Sequence[DecisionOutcome]) -> None:
        self._ended += decisions
        self._mine.difference_update(one.decision for one in decisions)
        self._receive(0.0)
        self._send()

    def give_back(self, decisions: Sequence[int]) -> None:
        self._mine.difference_update(decisions)

    def take(self) -> Sequence[Decision] | None:
        self._receive(0.0)
        answered, self._answered = self._answered, None
        return answered

    def wait(self, timeout_seconds: float) -> None:
        self._receive(timeout_seconds)

    def flush(self, timeout_seconds: float) -> None:
        """Until the director has heard of all that has ended, or the time is over."""
        self._wanted = 0
        deadline = time.monotonic() + timeout_seconds
        while self._ended and (remaining := deadline - time.monotonic()) > 0:
            self._answered = None  # nobody plays these
            self._send()
            self._receive(remaining)

    def _send(self) -> None:
        if self._call is not None or self._answered is not None:
            return
        if not self._wanted and not self._ended:
            return
        self._reported = len(self._ended)
        self._call = self._director.lease.remote(
            self._actor, self._wanted, sorted(self._mine), list(self._ended)
        )

    def _receive(self, timeout_seconds: float) -> None:
        if self._call is None:
            return
        ready, _ = ray.wait([self._call], timeout=timeout_seconds)
        if not ready:
            return
        call, self._call = self._call, None
        try:
            decisions: list[Decision] = ray.get(call)
        except ray.exceptions.RayError as error:
            logger.warning("the director is away: %s", type(error).__name__)
            self._send()
            return
        del self._ended[: self._reported]
        if decisions:
            self._wanted = 0
            self._mine.update(decision.number for decision in decisions)
            self._answered = decisions
        else:
            self._send()  # something was asked for meanwhile
