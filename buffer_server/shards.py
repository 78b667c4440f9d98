"""The shards of one table as their caller sees them: who is there, and what each holds.

`ShardWatch` keeps this up to date. Streams that break say so here at once; that a shard is back is
for the watch alone to find out. A `Lane` is one direction of one shard (its samples, inserts or
priorities): the shard may be well and a lane in trouble, because its stream was refused or does not
answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from buffer_server import wire
from buffer_server.connection import Connection, ConnectionConfig
from buffer_server.draws import Population
from buffer_server.remote_table import RemoteTable
from buffer_server.statuses import ReplayMismatch, ReplayUnavailable, UnknownTable
from repertory.errors import RepertoryError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Away:
    """Why something is not used, and since when on the monotonic clock."""

    reason: str
    since: float


class Shard:
    """One shard. Safe to share between threads."""

    def __init__(
        self,
        index: int,
        address: str,
        config: ConnectionConfig,
        on_lost: Callable[[Shard], None],
    ) -> None:
        self.index = index
        self.address = address
        self.connection = Connection(address, config)
        self.table: RemoteTable | None = None  # until it was there for the first time
        self.population = Population(0, 0.0)  # what it holds, for all we know
        self.weighed_at = 0.0
        self.away: Away | None = Away("it was not there yet", time.monotonic())
        self._on_lost = on_lost
        self._lock = threading.Lock()

    def lose(self, error: RepertoryError) -> None:
        """It is not used until the watch has found it."""
        with self._lock:
            new = self.away is None
            since = time.monotonic() if self.away is None else self.away.since
            self.away = Away(self.brief(error), since)
        if new:
            logger.warning("a replay shard is away: %s", error)
            self._on_lost(self)

    def weigh(self, population: Population, at: float) -> None:
        """What it held at that time, or later. Older news are ignored."""
        if at >= self.weighed_at:
            self.population, self.weighed_at = population, at

    def find(self, asked_at: float) -> None:
        """It has answered what was asked then."""
        with self._lock:
            if self.away is None or asked_at < self.away.since:
                return
            self.away = None
        logger.info("the replay shard at %s is there", self.address)

    def brief(self, error: RepertoryError) -> str:
        """The error without the shard's address, for lists that have it already."""
        return str(error).removeprefix(f"the replay shard at {self.address}: ")


class Lane:
    """One direction of one shard: whether it may be used. Its owner holds the lock."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._trouble: Away | None = None
        self._retry_at: float | None = None  # None: only an answer ends the trouble
        self._failures = 0

    @property
    def index(self) -> int:
        return self.shard.index

    def usable(self, now: float) -> bool:
        if self.shard.away is not None:
            return False
        return self._trouble is None or (self._retry_at is not None and now >= self._retry_at)

    def answered(self) -> None:
        self._trouble = self._retry_at = None
        self._failures = 0

    def stall(self, reason: str, now: float) -> None:
        """It does not answer. Its stream stays open: an answer, however late, ends this."""
        if self._trouble is None or self._retry_at is not None:
            self._trouble, self._retry_at = Away(reason, now), None

    def fail(self, error: RepertoryError, now: float) -> None:
        """Its stream has ended. It may be opened again after a pause, if the shard is there.

        A timeout is only the stream's own, and says nothing of the shard.
        """
        self._failures += 1
        self._trouble = Away(self.shard.brief(error), now)
        self._retry_at = now + self.shard.connection.pause_seconds(self._failures)
        if isinstance(error, ReplayUnavailable | ReplayMismatch | UnknownTable):
            self.shard.lose(error)

    @property
    def trouble(self) -> Away | None:
        """What is wrong with it. It may be usable all the same, to try again."""
        return self.shard.away or self._trouble

    def away(self, now: float) -> Away | None:
        """Why it is not used."""
        return None if self.usable(now) else self.trouble


def ask_all(
    shards: Sequence[Shard],
    method: str,
    request: Message,
    response: type[wire.M],
    timeout_seconds: float,
) -> dict[str, wire.M | RepertoryError]:
    """The answers by address: all are asked at the same time, each once."""
    raw = request.SerializeToString()
    calls = [(shard, shard.connection.start(method, raw, timeout_seconds)) for shard in shards]
    deadline = time.monotonic() + timeout_seconds
    answers: dict[str, wire.M | RepertoryError] = {}
    for shard, call in calls:
        remaining = max(0.0, deadline - time.monotonic())
        try:
            answers[shard.address] = shard.connection.answer(call, response, remaining)
        except RepertoryError as error:
            answers[shard.address] = error
    return answers
