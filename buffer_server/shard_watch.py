"""Looks after the shards of a table: one thread that weighs each of them every so often.

So populations stay fresh where nothing is sampled, a shard that hangs is found out, and one that
came back is used again. All shards are asked at the same time, each with a deadline: one that hangs
holds up nobody. A shard that was never there is described first, and must agree with the others.
Thousands of actors look less often than a learner: they hear from a shard by what it acknowledges.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from buffer_server import wire
from buffer_server.draws import DrawRequest
from buffer_server.proto import replay_pb2 as pb
from buffer_server.remote_table import RemoteTable
from buffer_server.sharded_config import ShardedConfig
from buffer_server.shards import Shard
from buffer_server.statuses import ReplayMismatch, ReplayUnavailable
from repertory.errors import RepertoryError, ReplayTimeout
from repertory.types import Signature

logger = logging.getLogger(__name__)

JOIN_SECONDS = 5.0
SELDOM = 10  # times as long between two looks, for who does not sample


@dataclass(slots=True, eq=False)
class _Look:
    """What the watch knows of its asking one shard."""

    shard: Shard
    due: float = 0.0  # when to ask again, on the monotonic clock
    call: Any = None  # gRPC's future
    asked_at: float = 0.0
    tried: bool = False  # it was there, or was found not to be


class ShardWatch:
    """Runs from the moment it is made until `close`."""

    def __init__(self, config: ShardedConfig, expected: Signature | None) -> None:
        self._config = config
        self._expected = expected
        self._events: queue.SimpleQueue[_Look | None] = queue.SimpleQueue()
        self._looks = [
            _Look(Shard(index, address, config, self._look_soon))
            for index, address in enumerate(config.addresses)
        ]
        self.shards = tuple(look.shard for look in self._looks)
        self._jitter = random.SystemRandom()  # callers should not ask in step
        # Stalls are seen at turns.
        self._turn_seconds = min(config.watch_seconds, config.patience_seconds / 4)
        self._on_turn: Callable[[bool], None] = lambda changed: None
        self._heard = threading.Condition()
        self._agreed: RemoteTable | None = None
        self._refusal: RepertoryError | None = None  # the first shard's, which nothing can mend
        self._samples = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="replay-watch", daemon=True)
        self._thread.start()

    def first_table(self, timeout_seconds: float) -> RemoteTable:
        """The table, once a shard is there. Others are given some patience, not more."""
        start = time.monotonic()
        with self._heard:
            if not self._heard.wait_for(self._some_shard, timeout_seconds):
                reasons = "; ".join(str(shard.away and shard.away.reason) for shard in self.shards)
                raise ReplayUnavailable(
                    f"no replay shard was there within {timeout_seconds:g} s: {reasons}"
                )
            patience = start + self._config.patience_seconds - time.monotonic()
            self._heard.wait_for(self._all_tried, max(0.0, patience))
            if self._refusal is not None:
                raise self._refusal
            assert self._agreed is not None
            return self._agreed

    def follow(self, on_turn: Callable[[bool], None]) -> None:
        """To be called by the watch every so often; True: a shard came or went."""
        self._on_turn = on_turn

    def expect_samples(self) -> None:
        """From now on what the shards hold matters."""
        if not self._samples:
            self._samples = True
            for look in self._looks:
                look.due = 0.0
            self._events.put(None)

    def close(self) -> None:
        self._closed = True
        self._events.put(None)
        for shard in self.shards:
            shard.connection.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_SECONDS)

    def _some_shard(self) -> bool:
        return self._refusal is not None or any(shard.away is None for shard in self.shards)

    def _all_tried(self) -> bool:
        return self._refusal is not None or all(look.tried for look in self._looks)

    def _look_soon(self, shard: Shard) -> None:
        self._looks[shard.index].due = 0.0
        self._events.put(None)

    def _run(self) -> None:
        turn, changed = 0.0, False
        while not self._closed:
            now = time.monotonic()
            for look in self._looks:
                if look.call is None and now >= look.due:
                    self._ask(look, now)
            if changed or now >= turn:
                turn = now + self._turn_seconds
                try:
                    self._on_turn(changed)
                except Exception:
                    logger.exception("the watch of the replay shards goes on after an error")
                changed = False
            idle = (look.due for look in self._looks if look.call is None)
            until = min(turn, min(idle, default=turn))
            try:
                event = self._events.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                continue
            if self._closed:
                return
            changed = event is None or self._hear(event)

    def _ask(self, look: _Look, now: float) -> None:
        shard, look.asked_at = look.shard, now
        if shard.away is None and now - shard.weighed_at < self._config.watch_seconds / 2:
            look.due = now + self._pause_seconds(shard)  # a sample has told what it holds
            return
        if shard.table is None:
            method, raw = "Describe", pb.DescribeRequest().SerializeToString()
        else:
            draw = DrawRequest(
                1,
                own_items=1 if self._config.own_share else 0,
                own_policy=self._config.own_policy,
                max_age=self._config.max_age,
            )
            method, raw = "Weigh", shard.table.sample_request(draw, 0.0).SerializeToString()
        try:
            look.call = shard.connection.start(method, raw, self._config.patience_seconds)
        except RepertoryError:  # closed meanwhile
            look.due = now + self._config.watch_seconds
            return
        look.call.add_done_callback(lambda _: self._events.put(look))

    def _hear(self, look: _Look) -> bool:
        """Whether a shard came or went by this answer."""
        shard, call, look.call = look.shard, look.call, None
        was_away = shard.away is not None
        look.due = time.monotonic() + self._pause_seconds(shard)
        try:
            if shard.table is None:
                described = shard.connection.answer(call, pb.DescribeResponse, 0.0)
                shard.table = self._agree(described, shard)
                look.due = 0.0  # now it can be weighed
                return False
            weighed = shard.connection.answer(call, pb.Population, 0.0)
            shard.weigh(wire.decode_population(weighed), look.asked_at)
            shard.find(look.asked_at)
            if shard.away is not None:  # lost since it was asked
                look.due = 0.0
        except RepertoryError as error:
            gone = isinstance(error, ReplayUnavailable | ReplayTimeout)
            if self._refusal is None and not gone:
                self._refusal = error
            shard.lose(error)
        with self._heard:
            look.tried = True
            self._heard.notify_all()
        return was_away != (shard.away is not None)

    def _pause_seconds(self, shard: Shard) -> float:
        seldom = 1 if self._samples or shard.away is not None else SELDOM
        return seldom * self._config.watch_seconds * self._jitter.uniform(0.5, 1.0)

    def _agree(self, described: pb.DescribeResponse, shard: Shard) -> RemoteTable:
        """The shard's table, if it is like that of the first shard."""
        config, agreed = self._config, self._agreed
        table = RemoteTable.described(
            described, config.table, shard.address, config, self._expected
        )
        if agreed is None:
            self._agreed = table
            return table
        if (table.signature_hash, table.consumes) != (agreed.signature_hash, agreed.consumes):
            raise ReplayMismatch(
                f"table {table.name!r} is not the same on all shards: at {agreed.address} "
                f"{_words(agreed)}, but at {table.address} {_words(table)}"
            )
        return table


def _words(table: RemoteTable) -> str:
    return f"{'a queue' if table.consumes else 'a replay'} of {dict(table.signature)}"
