"""How weights get from learners to actors: through Ray's object store, one copy for each node.

A learner hands its arrays to the hub; the hub puts them there, keeps the newest of each policy and
wakes whoever asked for something newer. That the hub puts them, and not the learner, lets weights
outlive the learner, and Ray keep nothing of the call: one that carries a reference in its arguments
costs its caller a few hundred bytes for good. Actors on a node read the one copy without copying
it, and never wait: they look whether an answer has come, between two steps. Versions never go back,
and a learner that was replaced (an older epoch) is refused.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import ray

from repertory.errors import RepertoryError
from repertory.types import Array, WeightSnapshot

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 30.0  # the hub answers at least so often, if only that there is nothing new


@dataclass(frozen=True, slots=True)
class Edition:
    """One version of a policy's weights, without the weights."""

    policy: str
    epoch: int
    version: int
    checksum: int
    published_at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Published:
    """Where an edition's weights are: a reference to {name: array}."""

    edition: Edition
    arrays: Any


class WeightHub:
    """The newest weights of every policy. A Ray actor, `services.hosts` makes it one."""

    def __init__(self) -> None:
        self._newest: dict[str, Published] = {}
        self._acted_with: dict[str, int] = {}  # the highest version that any actor has
        self._changed = asyncio.Condition()

    async def publish(self, edition: Edition, arrays: Mapping[str, Array]) -> bool:
        """False: a newer learner has taken over, or this version is not above the last."""
        async with self._changed:
            if edition.policy in self._newest:
                last = self._newest[edition.policy].edition
                if (edition.epoch, edition.version) == (last.epoch, last.version):
                    return True  # said again, in case this hub was started anew
                if edition.epoch < last.epoch or edition.version <= last.version:
                    return False
            self._newest[edition.policy] = Published(edition, ray.put(arrays))
            self._changed.notify_all()
            return True

    async def newer(
        self, known: Mapping[str, int], timeout_seconds: float = ANSWER_SECONDS
    ) -> list[Published]:
        """Of the policies asked for, those above the version known; waits for one.

        What actors know is remembered: where the hub and a learner die together, the learner's
        successor must not publish below that, and nobody else has kept it.
        """
        for policy, version in known.items():
            self._acted_with[policy] = max(version, self._acted_with.get(policy, -1))

        def found() -> list[Published]:
            return [
                self._newest[policy]
                for policy, version in known.items()
                if policy in self._newest and self._newest[policy].edition.version > version
            ]

        async with self._changed:
            if found() or timeout_seconds <= 0:
                return found()
            try:
                await asyncio.wait_for(
                    self._changed.wait_for(lambda: bool(found())), timeout_seconds
                )
            except TimeoutError:
                return []
            return found()

    async def versions(self) -> dict[str, int]:
        """The highest of each policy that anybody may have."""
        published = {policy: one.edition.version for policy, one in self._newest.items()}
        return {
            policy: max(published.get(policy, -1), self._acted_with.get(policy, -1))
            for policy in {*published, *self._acted_with}
        }


class WeightSource:
    """An actor's view of the hub, for one policy."""

    def __init__(self, hub: Any, policy: str) -> None:
        self._hub = hub
        self._policy = policy
        self._answer: Future[list[Published]] | None = None
        self.version = -1  # of what was handed out last
        self.checksum = 0
        self.received_at = 0.0
        self.published_at = 0.0

    def newest(self) -> WeightSnapshot | None:
        """Something newer than before, if it has come. Never waits."""
        return self._take(0.0)

    def wait(self, timeout_seconds: float) -> WeightSnapshot | None:
        """The same, but waits for it."""
        return self._take(timeout_seconds)

    def _take(self, timeout_seconds: float) -> WeightSnapshot | None:
        # Whether an answer is there is asked at every step: a future costs nothing to look at, and
        # asking Ray takes a third of a millisecond.
        if self._answer is None:
            self._answer = self._hub.newer.remote({self._policy: self.version}).future()
        if timeout_seconds > 0:
            futures.wait([self._answer], timeout_seconds)
        if not self._answer.done():
            return None
        answer, self._answer = self._answer, None
        try:
            published = answer.result()
            if not published:
                return None
            newest = published[0].edition
            arrays = ray.get(published[0].arrays, timeout=60.0)
        except ray.exceptions.RayError as error:  # the hub or the object's node is gone
            logger.warning("no new weights: %s", type(error).__name__)
            return None
        snapshot = WeightSnapshot(self._policy, newest.version, arrays)
        if snapshot.checksum != newest.checksum:
            raise RepertoryError(
                f"version {newest.version} of {self._policy} arrived with the checksum "
                f"{snapshot.checksum:08x}, not {newest.checksum:08x}"
            )
        self.version, self.checksum = newest.version, newest.checksum
        self.published_at, self.received_at = newest.published_at, time.time()
        return snapshot


class WeightPublisher:
    """A learner's way to the hub.

    A version is the number of updates, unless a learner before has published more of them than the
    checkpoint has that this one went on from: then all versions are moved above its last. `renew`
    moves them by one more, so that the same weights can be published as something newer.
    """

    def __init__(
        self, hub: Any, policy: str, epoch: int, updates: int, acted_with: int = -1
    ) -> None:
        """`acted_with` is a version that an actor is known to have: the hub, if it was started
        anew with this learner, may not have heard of it yet.
        """
        self._hub = hub
        self._policy = policy
        self._epoch = epoch
        self._answer: Any = None
        last = ray.get(hub.versions.remote(), timeout=60.0).get(policy, -1)
        self.offset = max(0, max(last, acted_with) + 1 - updates)  # from updates to versions
        self.version = -1

    def renew(self) -> None:
        """What is published next is newer, whether its weights are or not."""
        self.offset += 1

    def publish(self, arrays: Mapping[str, Array], updates: int) -> int:
        """Without waiting; returns the version.

        Raises where the hub has refused the one before: another learner has taken over.
        """
        self._check_last()
        self.version = updates + self.offset
        snapshot = WeightSnapshot(self._policy, self.version, arrays)
        edition = Edition(self._policy, self._epoch, self.version, snapshot.checksum, time.time())
        self._answer = self._hub.publish.remote(edition, dict(arrays))
        return self.version

    def _check_last(self) -> None:
        if self._answer is None:
            return
        ready, _ = ray.wait([self._answer], timeout=0.0)
        if not ready:
            return
        answer, self._answer = self._answer, None
        try:
            taken = ray.get(answer)
        except ray.exceptions.RayError as error:
            logger.warning("the weight hub is away: %s", type(error).__name__)
            return
        if not taken:
            raise LearnerReplaced(
                f"version {self.version} of {self._policy} was refused: another learner publishes"
            )


class SilentPublisher:
    """That of every replica but the first: knows the versions, and sends nothing."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def renew(self) -> None:
        self.offset += 1

    def publish(self, arrays: Mapping[str, Array], updates: int) -> int:
        return updates + self.offset


class LearnerReplaced(RepertoryError):
    """Another learner of the same policy has a newer epoch: this one must end."""
