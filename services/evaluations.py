"""Evaluations of a distributed run: whole episodes by the evaluator, while training goes on.

They are asked for with the weights of that moment, and done one after the other. Where the
evaluator is slower than training, a newer one takes the place of one that has not begun; where it
dies, the one it was at is done again by its successor.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray

from repertory.types import Array
from services.weights import Published

logger = logging.getLogger(__name__)

HUB_SECONDS = 5.0
ARRAYS_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Asked:
    learner: str
    env_steps: int
    seed: int
    weights: Published


@dataclass(frozen=True, slots=True)
class Finished:
    """One evaluation, with the weights it was of."""

    learner: str
    env_steps: int
    version: int
    returns: list[float]
    video: bytes | None  # an MP4
    arrays: Mapping[str, Array]


class Evaluations:
    """One thread uses it."""

    def __init__(self, hub: Any) -> None:
        self._hub = hub
        self._waiting: dict[str, Asked] = {}  # by learner
        self._running: tuple[Asked, Any] | None = None  # and the reference to its answer

    @property
    def idle(self) -> bool:
        return self._running is None and not self._waiting

    def ask(self, learner: str, env_steps: int, seed: int) -> bool:
        """Of its newest weights. False: there are none yet."""
        weights = self._newest(learner)
        if weights is None:
            return False
        self._waiting[learner] = Asked(learner, env_steps, seed, weights)
        return True

    def look(self, evaluator: Any) -> Finished | None:
        """Moves on; `evaluator` is None while there is none."""
        finished = self._collect()
        if self._running is None and self._waiting and evaluator is not None:
            asked = self._waiting.pop(next(iter(self._waiting)))
            arguments = (asked.learner, asked.weights.arrays, asked.seed)
            self._running = (asked, evaluator.evaluate.remote(*arguments))
        return finished

    def _collect(self) -> Finished | None:
        if self._running is None:
            return None
        asked, reference = self._running
        ready, _ = ray.wait([reference], timeout=0)
        if not ready:
            return None
        self._running = None
        try:
            returns, video = ray.get(reference)
            arrays = ray.get(asked.weights.arrays, timeout=ARRAYS_SECONDS)
        except ray.exceptions.RayActorError:
            logger.warning("the evaluator is gone: the evaluation is done again")
            self._waiting.setdefault(asked.learner, asked)
            return None
        except ray.exceptions.RayError as error:
            logger.warning("an evaluation was lost: %s", " ".join(str(error).split())[-300:])
            return None
        version = asked.weights.edition.version
        return Finished(asked.learner, asked.env_steps, version, returns, video, arrays)

    def _newest(self, learner: str) -> Published | None:
        try:
            newest = ray.get(self._hub.newer.remote({learner: -1}, 0.0), timeout=HUB_SECONDS)
        except ray.exceptions.RayError as error:
            logger.warning("the weight hub is away: %s", type(error).__name__)
            return None
        return newest[0] if newest else None
