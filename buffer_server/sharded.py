"""The `Replay` of actors and learners: one table, spread over one or more shards.

    replay = ShardedReplay(ShardedConfig(addresses=("unix:/run/0.sock", "..."), table="td3"))
    replay.insert(batch)
    sample = replay.sample(256, timeout_seconds=10.0)
    replay.update_priorities(sample.keys, priorities)

It behaves like one table that holds everything. Batches come from all shards in proportion to what
each holds, with the weights of the whole (`planned_batches`); from a queue, whatever is there
(`queued_batches`). Inserts take turns over the shards (`insert_lanes`), priorities go where the
items are (`priority_lanes`). Requests are under way before anybody waits for them. A shard that is
gone or slow is done without and rejoins by itself (`shard_watch`); every call has a deadline.

An insert is in one shard, once, with one exception. When a shard was silent for `abandon_seconds`,
what it has not acknowledged goes to the others; if it did some of that and only could not say so,
and comes back with it, those items are there twice. `abandon_seconds=None` never hands over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import Message

from buffer_server.insert_lanes import InsertLanes
from buffer_server.insert_router import InsertStatistics
from buffer_server.joining import unpack_keys
from buffer_server.planned_batches import PlannedBatches
from buffer_server.priority_lanes import PriorityLanes
from buffer_server.proto import replay_pb2 as pb
from buffer_server.queued_batches import QueuedBatches
from buffer_server.remote_table import check_sample, consumers_request, limiter_request
from buffer_server.shard_watch import ShardWatch
from buffer_server.sharded_config import ShardedConfig
from buffer_server.shards import Lane, ask_all
from buffer_server.statistics import ShardStatistics
from buffer_server.statistics_messages import decode_statistics
from buffer_server.streams import SLICE_SECONDS
from repertory.closing import Closing
from repertory.errors import RepertoryError, ReplayTimeout, UsageError
from repertory.types import Array, Sample, Signature, TransitionBatch

__all__ = ["ClientStatistics", "ShardState", "ShardedConfig", "ShardedReplay"]


@dataclass(frozen=True, slots=True)
class ShardState:
    """One shard as its caller sees it."""

    address: str
    up: bool
    reason: str = ""  # why it is away
    away_seconds: float = 0.0  # for how long by now


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """What one caller did, since it was made."""

    inserts: InsertStatistics
    sampled_batches: int
    refilled_batches: int  # a part of which came from others than planned: a shard was slow
    sent_updates: int  # calls of `update_priorities`, for each shard that it concerned
    dropped_updates: int  # for shards that were away
    shards: tuple[ShardState, ...]


class ShardedReplay(Closing):
    """One table of all its shards. Safe to share between threads.

    Making one needs one shard; others may come later.
    """

    def __init__(self, config: ShardedConfig, signature: Signature | None = None) -> None:
        """With a signature, a table with another one is refused."""
        self.config = config
        self._watch = ShardWatch(config, signature)
        try:
            self._table = self._watch.first_table(config.timeout_seconds)
        except BaseException:
            self._watch.close()
            raise
        shards = self._watch.shards
        self._inserts = InsertLanes(shards, config)
        self._updates = PriorityLanes(shards, config)
        batches = QueuedBatches if self._table.consumes else PlannedBatches
        self._batches: QueuedBatches | PlannedBatches = batches(shards, self._table, config)
        self._sampling = threading.Lock()
        self._watch.follow(self._turn)

    @property
    def signature(self) -> Signature:
        return self._table.signature

    @property
    def capacity(self) -> int:
        """Items, of all shards that were ever there."""
        tables = [shard.table for shard in self._watch.shards]
        return sum(table.capacity for table in tables if table is not None)

    def insert(
        self,
        batch: TransitionBatch,
        priorities: Array | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> int:
        """How many items were taken: all, or none if the queue is full and `when_full` is drop.

        With a window they are under way; `flush` waits for them.
        """
        request = self._table.insert_request(batch, priorities, SLICE_SECONDS)
        seconds = self._timeout(timeout_seconds)
        return len(batch) if self._inserts.submit(request.SerializeToString(), seconds) else 0

    def flush(self, *, timeout_seconds: float | None = None) -> None:
        """Returns when every insert is acknowledged, and every new priority that was sent."""
        seconds = self._timeout(timeout_seconds)
        deadline = time.monotonic() + seconds
        self._inserts.flush(seconds)
        self._updates.flush(max(0.0, deadline - time.monotonic()))

    def sample(self, size: int, *, timeout_seconds: float) -> Sample:
        """Arrays that the caller owns. Items of one shard stand together, in the shard's order."""
        check_sample(size, timeout_seconds)
        self._watch.expect_samples()
        deadline = time.monotonic() + timeout_seconds
        if not self._sampling.acquire(timeout=timeout_seconds):
            raise ReplayTimeout(f"within {timeout_seconds:g} s another thread was still sampling")
        try:
            return self._batches.take(size, deadline)
        except ReplayTimeout as error:
            raise ReplayTimeout(f"within {timeout_seconds:g} s {error}") from None
        finally:
            self._sampling.release()

    def update_priorities(self, keys: Array, priorities: Array) -> None:
        """Keys of items that were overwritten meanwhile are ignored. Returns before it is done."""
        keys, priorities = np.asarray(keys, dtype=np.int64), np.asarray(priorities)
        if keys.ndim != 1 or keys.shape != priorities.shape:
            raise UsageError(
                f"keys {list(keys.shape)} and priorities {list(priorities.shape)} do not match: "
                "give one priority for each key"
            )
        owners, keys = unpack_keys(keys)
        for shard in np.unique(owners).tolist():
            if not 0 <= shard < len(self._watch.shards):
                raise UsageError(f"a key names shard {shard}: it is from another replay")
            chosen = owners == shard
            self._updates.send(shard, keys[chosen], priorities[chosen])

    def statistics(self) -> Mapping[str, ShardStatistics | str]:
        """By address: what the shard says of itself, or why it does not."""
        away = [(shard, shard.away) for shard in self._watch.shards]
        answers = ask_all(
            [shard for shard, reason in away if reason is None],
            "Statistics",
            pb.StatisticsRequest(),
            pb.StatisticsResponse,
            self.config.patience_seconds,
        )
        result: dict[str, ShardStatistics | str] = {}
        for shard, missed in away:
            answer = missed or answers[shard.address]
            if isinstance(answer, pb.StatisticsResponse):
                result[shard.address] = decode_statistics(answer)
            elif isinstance(answer, RepertoryError):
                result[shard.address] = shard.brief(answer)
            else:
                result[shard.address] = answer.reason
        return result

    def configure_limiter(
        self,
        *,
        min_size: int,
        samples_per_insert: float | None = None,
        error_buffer: float | None = None,
        consumers: Mapping[int, float] | None = None,
        consumer_buffer_items: int | None = None,
    ) -> None:
        """Of every shard's table: `min_size` and buffers are for each, not for the whole.

        Raises if it could not be done everywhere; it is done where it could.
        """
        request = limiter_request(
            self.config.table,
            min_size,
            samples_per_insert,
            error_buffer,
            consumers,
            consumer_buffer_items,
        )
        self._configure("ConfigureLimiter", request, pb.ConfigureLimiterResponse)

    def configure_consumers(self, ratios: Mapping[int, float]) -> None:
        """Other samples per insert for these consumers, of every shard's table.

        Raises if it could not be done everywhere; it is done where it could. To say the same again
        changes nothing, so who steers may repeat it until every shard has heard.
        """
        request = consumers_request(self.config.table, ratios)
        self._configure("ConfigureConsumers", request, pb.ConfigureConsumersResponse)

    def client_statistics(self) -> ClientStatistics:
        return ClientStatistics(
            inserts=self._inserts.statistics(),
            sampled_batches=self._batches.taken,
            refilled_batches=self._batches.refilled,
            sent_updates=self._updates.sent,
            dropped_updates=self._updates.dropped,
            shards=tuple(self._state(index) for index in range(len(self._watch.shards))),
        )

    def close(self) -> int:
        """Returns how many inserts were not acknowledged; `flush` first to have none."""
        unacknowledged = self._inserts.close()
        self._updates.close()
        self._batches.close()  # whoever waits for a sample is told so
        self._watch.close()
        return unacknowledged

    def _configure(self, method: str, request: Message, response: type[Message]) -> None:
        answers = ask_all(
            self._watch.shards, method, request, response, self.config.patience_seconds
        )
        errors = [answer for answer in answers.values() if isinstance(answer, RepertoryError)]
        if errors:
            kinds = {type(error) for error in errors}
            kind = kinds.pop() if len(kinds) == 1 else RepertoryError
            raise kind(
                f"{len(errors)} of {len(answers)} limiters were not changed: "
                + "; ".join(str(error) for error in errors)
            )

    def _turn(self, changed: bool) -> None:
        self._inserts.turn()
        if changed:
            self._batches.wake()

    def _state(self, index: int) -> ShardState:
        now = time.monotonic()
        lanes: tuple[Lane, ...] = (
            self._inserts.lanes[index],
            self._batches.lanes[index],
            self._updates.lanes[index],
        )
        address = self.config.addresses[index]
        for lane in lanes:
            away = lane.away(now)
            if away is not None:
                return ShardState(address, False, away.reason, now - away.since)
        return ShardState(address, True)

    def _timeout(self, timeout_seconds: float | None) -> float:
        return self.config.timeout_seconds if timeout_seconds is None else timeout_seconds
