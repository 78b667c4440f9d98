"""Batches over all shards of a replay, planned ahead: in proportion to what each shard holds.

A batch is allocated over the shards that are there (`allocation`), each is asked for its part on
its stream, and the parts are joined (`joining`). A few batches are under way before they are asked
for. Nobody is held to the slowest shard. The part of one that is gone, gives no answer within the
patience, or is held by its limiter for that long, is allocated again over the others; that counts
into the chances, so the weights stay right:

    chance_j += chance_k q_j      for every other shard j,   then   chance_k = 0

A shard that its limiter holds for longer is asked again every so often, but not waited for; once it
gives its part, it has the patience again. While all are held, parts wait in line. One caller at a
time.

A message costs more than most batches (threads that wake each other, on both sides), so a shard may
be asked for its parts of several batches at once: where draws are independent, it does not matter
with which others they came. It starts with one batch, and twice as many each time all of it was
given. Where a limiter does not let all pass at once, parts are asked for one by one, batches of
which nothing has come are given up, and it starts again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from buffer_server.allocation import allocate
from buffer_server.connection import GRACE_SECONDS
from buffer_server.draws import Draw, DrawRequest
from buffer_server.joining import Piece, join
from buffer_server.remote_table import RemoteTable
from buffer_server.sample_lanes import Answer, SampleLane, SampleLanes
from buffer_server.sharded_config import ShardedConfig
from buffer_server.shards import Shard
from buffer_server.streams import SLICE_SECONDS
from repertory.errors import RepertoryError, ReplayTimeout, UsageError
from repertory.types import Sample

MOST_REQUESTS = 1024  # that are kept
TOGETHER_BYTES = 512 * 2**10  # of several batches in one message, at most


@dataclass(slots=True, eq=False)
class _Share:
    """Some items of a batch, and the chance that goes with them."""

    size: int
    own_items: int
    chance: float

    def add(self, other: _Share) -> None:
        self.size += other.size
        self.own_items += other.own_items
        self.chance += other.chance


@dataclass(slots=True, eq=False)
class _Batch:
    """One batch under way."""

    open: _Share  # what nobody is asked for
    chances: list[float]  # how likely one draw was to fall to each shard
    missing: int
    received: list[tuple[int, Draw]] = field(default_factory=list)  # with their shards
    planned: bool = False  # parts that are open now were somebody's before
    refilled: bool = False
    asked_in: int = 0  # the last call of `take` that asked for some of it


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What one shard is to give for a batch."""

    batch: _Batch
    share: _Share


@dataclass(frozen=True, slots=True, eq=False)
class _Ask:
    """What one shard was asked for with one message: its parts of batches planned together."""

    parts: list[_Part]
    batches: int  # that were planned

    @property
    def items(self) -> int:
        return sum(part.share.size for part in self.parts)


class PlannedBatches:
    """For tables whose items stay where they are."""

    def __init__(self, shards: Sequence[Shard], table: RemoteTable, config: ShardedConfig) -> None:
        self._table = table
        self._config = config
        self._patience = config.patience_seconds
        self._slice = min(SLICE_SECONDS, config.patience_seconds / 4)
        self._lanes = SampleLanes[_Ask](shards)
        self._rng = np.random.default_rng(config.seed)
        # Keys and probabilities travel too.
        self._item_nbytes = 16 + sum(column.nbytes for column in table.signature.values())
        self._requests: dict[tuple[int, int, float], bytes] = {}
        self._batches: deque[_Batch] = deque()
        self._size = 0
        self._together = 1  # batches that are planned next
        self._call = 0
        self.taken = 0
        self.refilled = 0  # batches of which a part came from other shards than planned

    @property
    def lanes(self) -> Sequence[SampleLane[_Ask]]:
        return self._lanes.lanes

    def take(self, size: int, deadline: float) -> Sample:
        """The next batch. One that is late stays under way for the next call."""
        self._call += 1
        if size != self._size:
            self._forget()
            self._size = size
        try:
            batch = self._complete(deadline)
        except RepertoryError as error:
            if not isinstance(error, ReplayTimeout):
                self._forget()
            raise
        # Where several come together, as many again are under way while they are used up.
        ahead = self._config.prefetch
        self._plan(max(ahead, self._together) if ahead else 0, time.monotonic(), self._slice)
        self.taken += 1
        self.refilled += batch.refilled
        pieces = [
            Piece(shard, draw, batch.chances[shard])
            for shard, draw in sorted(batch.received, key=lambda one: one[0])
        ]
        return join(pieces, self._table.signature)

    def wake(self) -> None:
        self._lanes.wake()

    def close(self) -> None:
        self._lanes.close()

    def _complete(self, deadline: float) -> _Batch:
        """The first batch, once nothing is missing."""
        self._receive(0.0, deadline)  # shards are not silent while their answers wait for us
        while True:
            now = time.monotonic()
            self._plan(max(1, self._config.prefetch), now, min(self._slice, deadline - now))
            batch = self._batches[0]
            if not batch.missing:
                return self._batches.popleft()
            if self._recall(now):
                continue
            if now >= deadline and (
                now >= deadline + GRACE_SECONDS or batch.open.size == batch.missing
            ):
                raise ReplayTimeout(f"no {self._size} items came: {self._lanes.why_not(now)}")
            self._receive(self._wait_seconds(now, deadline), deadline)

    def _plan(self, depth: int, now: float, wait_seconds: float) -> None:
        """So many batches at least, and shards are asked for all that is open in them."""
        while len(self._batches) < depth:
            planned = [self._new_batch() for _ in range(self._together)]
            self._batches.extend(planned)
            if len(planned) > 1:
                self._place(planned, now, 0.0)
        for batch in self._batches:
            # After the deadline, once: what an earlier call was refused may be there by now.
            if batch.open.size and (wait_seconds > 0 or batch.asked_in != self._call):
                self._place([batch], now, max(0.0, wait_seconds))

    def _new_batch(self) -> _Batch:
        everything = _Share(self._size, self._config.own_items(self._size), 1.0)
        return _Batch(everything, [0.0] * len(self.lanes), self._size)

    def _place(self, batches: Sequence[_Batch], now: float, wait_seconds: float) -> None:
        """Asks shards for what is open in these batches: each with one message for all of them."""
        usable = self._lanes.usable(now)
        stocked = [lane for lane in usable if lane.shard.population.mass] or usable
        patient = [lane for lane in stocked if lane.held_for(now) < self._patience]
        parts: dict[int, list[_Part]] = {}  # by shard
        for batch in batches:
            lanes = patient
            if not batch.planned:
                lanes = [lane for lane in stocked if lane in patient or now >= lane.ask_again_at]
            lanes = lanes or stocked
            if lanes:
                for lane, part in self._allocated(batch, lanes, whole=not patient):
                    parts.setdefault(lane.index, []).append(part)
        for index, of_batches in parts.items():
            lane = self.lanes[index]
            seconds = 0.0 if patient and lane not in patient else wait_seconds
            self._ask(lane, _Ask(of_batches, len(batches)), now, seconds)

    def _allocated(
        self, batch: _Batch, lanes: Sequence[SampleLane[_Ask]], *, whole: bool
    ) -> list[tuple[SampleLane[_Ask], _Part]]:
        """What each of them is to give of what is open in a batch."""
        share = batch.open
        allocation = allocate(
            [lane.shard.population for lane in lanes],
            share.size,
            share.own_items,
            self._rng,
            # While all are held: in one piece, or parts would become smaller with every turn.
            whole=batch.planned and whole,
        )
        batch.open = _Share(0, 0, 0.0)
        batch.refilled |= batch.planned and len(self.lanes) > 1
        batch.planned = True
        batch.asked_in = self._call
        found = []
        rows = zip(lanes, allocation.sizes, allocation.own_items, allocation.chances, strict=True)
        for lane, size, own_items, chance in rows:
            chance *= share.chance
            batch.chances[lane.index] += chance
            if size:
                found.append((lane, _Part(batch, _Share(size, own_items, chance))))
        return found

    def _ask(self, lane: SampleLane[_Ask], ask: _Ask, now: float, wait_seconds: float) -> None:
        own_items = sum(part.share.own_items for part in ask.parts)
        lane.ask(ask, self._request(ask.items, own_items, wait_seconds), now)

    def _request(self, size: int, own_items: int, wait_seconds: float) -> bytes:
        """Most are like one before."""
        wanted = (size, own_items, wait_seconds)
        raw = self._requests.get(wanted)
        if raw is None:
            config = self._config
            draw = DrawRequest(
                size, own_items, config.own_policy, config.max_age, consumer=config.consumer
            )
            raw = self._table.sample_request(draw, wait_seconds).SerializeToString()
            if len(self._requests) >= MOST_REQUESTS:
                self._requests.clear()
            self._requests[wanted] = raw
        return raw

    def _receive(self, timeout_seconds: float, deadline: float) -> None:
        for answer in self._lanes.receive(timeout_seconds):
            self._note(answer, deadline)

    def _note(self, answer: Answer[_Ask], deadline: float) -> None:
        lane, ask = answer.lane, answer.ask
        if answer.error is not None:
            raise answer.error
        if answer.response is not None:
            self._share_out(ask, lane.index, self._table.read_draw(answer.response, writable=False))
            if ask.batches == self._together:
                self._together = min(2 * self._together, self._most_together())
            return
        now = time.monotonic()
        lane.ask_again_at = now + self._slice
        again = answer.held and now < deadline and lane.held_for(now) < self._patience
        if answer.held and ask.batches > 1:
            self._together = 1
            ask = self._without_new(ask)
        for part in ask.parts:
            if again:
                self._ask(lane, _Ask([part], 1), now, min(self._slice, deadline - now))
            else:
                self._reopen(part, lane)

    def _share_out(self, ask: _Ask, shard: int, draw: Draw) -> None:
        """Its first rows to the first batch, and so on."""
        came = len(draw.selection.keys)
        if came != ask.items:
            raise UsageError(f"{ask.items} items were asked for, but {came} came")
        start = 0
        for part in ask.parts:
            stop = start + part.share.size
            rows = draw if came == part.share.size else draw.rows(slice(start, stop))
            part.batch.received.append((shard, rows))
            part.batch.missing -= part.share.size
            start = stop

    def _most_together(self) -> int:
        nbytes = min(TOGETHER_BYTES, self._table.max_message_bytes // 2)
        by_bytes = nbytes // (self._size * self._item_nbytes)
        return max(1, min(self._config.batches_at_once, by_bytes))

    def _without_new(self, ask: _Ask) -> _Ask:
        """Gives up batches that nobody else was asked for, but not the one that is wanted next."""
        kept = []
        for part in ask.parts:
            batch = part.batch
            batch.asked_in = 0  # alone, it was not asked for yet
            if batch is not self._batches[0] and part.share.size == self._size:
                self._batches.remove(batch)
            else:
                kept.append(part)
        return _Ask(kept, 1)

    def _reopen(self, part: _Part, lane: SampleLane[_Ask]) -> None:
        part.batch.chances[lane.index] -= part.share.chance
        part.batch.open.add(part.share)

    def _recall(self, now: float) -> bool:
        """Takes back what shards that do not answer were asked for, if others can give it."""
        stuck = [
            lane
            for lane in self.lanes
            if lane.waits
            and (now - lane.progress_at >= self._patience or lane.shard.away is not None)
        ]
        if not stuck or all(lane in stuck for lane in self._lanes.usable(now)):
            return False
        for lane in stuck:
            if lane.shard.away is None:
                lane.stall(f"gave no sample for {now - lane.progress_at:.1f} s", now)
            for ask in lane.forget():
                for part in ask.parts:
                    self._reopen(part, lane)
        return True

    def _wait_seconds(self, now: float, deadline: float) -> float:
        """Until something must be done though nothing came."""
        times = [deadline if now < deadline else deadline + GRACE_SECONDS]
        if self._batches[0].open.size:
            times.append(now + self._slice)
        for lane in self.lanes:
            silent_at = lane.progress_at + self._patience
            if lane.waits:  # longer than that only where nobody can stand in for it
                times.append(silent_at if silent_at > now else now + self._slice)
        return max(0.0, min(times) - now)

    def _forget(self) -> None:
        """Gives up all batches, those under way too."""
        self._batches.clear()
        self._together = 1
        for lane in self.lanes:
            lane.forget()
