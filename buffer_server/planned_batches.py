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

A message costs more than most batches (threads that wake each other, on both sides), so one shard
may be asked for several at once: B k independent draws are k batches of B. It starts with one, and
twice as many each time all were given; where the limiter does not let all of them pass at once, it
is asked for one, as if nothing had been, and it starts again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from buffer_server.allocation import allocate
from buffer_server.connection import GRACE_SECONDS
from buffer_server.draws import DrawRequest
from buffer_server.joining import Piece, join
from buffer_server.proto import replay_pb2 as pb
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
    count: int = 1  # batches that it is, asked for together
    received: dict[int, list[pb.SampleResponse]] = field(default_factory=dict)  # by shard
    planned: bool = False  # parts that are open now were somebody's before
    refilled: bool = False
    asked_in: int = 0  # the last call of `take` that asked for some of it


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What one shard was asked for."""

    batch: _Batch
    share: _Share


class PlannedBatches:
    """For tables whose items stay where they are."""

    def __init__(self, shards: Sequence[Shard], table: RemoteTable, config: ShardedConfig) -> None:
        self._table = table
        self._config = config
        self._patience = config.patience_seconds
        self._slice = min(SLICE_SECONDS, config.patience_seconds / 4)
        self._lanes = SampleLanes[_Part](shards)
        self._rng = np.random.default_rng(config.seed)
        # Keys and probabilities travel too.
        self._item_nbytes = 16 + sum(column.nbytes for column in table.signature.values())
        self._requests: dict[tuple[int, int, float], bytes] = {}
        self._batches: deque[_Batch] = deque()
        self._stock: deque[Sample] = deque()  # what came together with one that was taken
        self._size = 0
        self._together = 1  # batches of the next request
        self._call = 0
        self.taken = 0
        self.refilled = 0  # batches of which a part came from other shards than planned

    @property
    def lanes(self) -> Sequence[SampleLane[_Part]]:
        return self._lanes.lanes

    def take(self, size: int, deadline: float) -> Sample:
        """The next batch. One that is late stays under way for the next call."""
        self._call += 1
        if size != self._size:
            self._forget()
            self._size = size
        if not self._stock:
            self._stock.extend(_batches(self._next(deadline), size))
        self.taken += 1
        return self._stock.popleft()

    def wake(self) -> None:
        self._lanes.wake()

    def close(self) -> None:
        self._lanes.close()

    def _next(self, deadline: float) -> Sample:
        """One batch, or several."""
        try:
            batch = self._complete(deadline)
        except RepertoryError as error:
            if not isinstance(error, ReplayTimeout):
                self._forget()
            raise
        ahead = self._config.prefetch if self._together == 1 else min(1, self._config.prefetch)
        self._plan(ahead, time.monotonic(), self._slice)
        self.refilled += batch.refilled
        pieces = [
            Piece(index, self._table.read_draw(response, writable=False), chance)
            for index, chance in enumerate(batch.chances)
            for response in batch.received.get(index, ())
        ]
        sample = join(pieces, self._table.signature)
        asked = batch.count * self._size
        if len(sample.keys) != asked:
            raise UsageError(f"{asked} items were asked for, but {len(sample.keys)} came")
        return sample

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
        """So many batches, and shards are asked for all that is open in them."""
        while len(self._batches) < depth:
            items = self._size * self._together
            everything = _Share(items, self._config.own_items(items), 1.0)
            chances = [0.0] * len(self.lanes)
            self._batches.append(_Batch(everything, chances, items, self._together))
        for batch in self._batches:
            # After the deadline, once: what an earlier call was refused may be there by now.
            if batch.open.size and (wait_seconds > 0 or batch.asked_in != self._call):
                self._place(batch, now, max(0.0, wait_seconds))

    def _place(self, batch: _Batch, now: float, wait_seconds: float) -> None:
        """Asks shards for what is open in a batch."""
        usable = self._lanes.usable(now)
        stocked = [lane for lane in usable if lane.shard.population.mass] or usable
        patient = [lane for lane in stocked if lane.held_for(now) < self._patience]
        lanes = patient
        if not batch.planned:
            lanes = [lane for lane in stocked if lane in patient or now >= lane.ask_again_at]
        lanes = lanes or stocked
        if not lanes:
            return
        share = batch.open
        allocation = allocate(
            [lane.shard.population for lane in lanes],
            share.size,
            share.own_items,
            self._rng,
            # While all are held: in one piece, or parts would become smaller with every turn.
            whole=batch.planned and not patient,
        )
        batch.open = _Share(0, 0, 0.0)
        batch.refilled |= batch.planned and len(self.lanes) > 1
        batch.planned = True
        batch.asked_in = self._call
        rows = zip(lanes, allocation.sizes, allocation.own_items, allocation.chances, strict=True)
        for lane, size, own_items, chance in rows:
            chance *= share.chance
            batch.chances[lane.index] += chance
            if size:
                at_once = batch.count > 1 or (patient and lane not in patient)
                seconds = 0.0 if at_once else wait_seconds
                self._ask(lane, _Part(batch, _Share(size, own_items, chance)), now, seconds)

    def _ask(self, lane: SampleLane[_Part], part: _Part, now: float, wait_seconds: float) -> None:
        lane.ask(part, self._request(part.share.size, part.share.own_items, wait_seconds), now)

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

    def _note(self, answer: Answer[_Part], deadline: float) -> None:
        lane, part = answer.lane, answer.ask
        if answer.error is not None:
            raise answer.error
        if answer.response is not None:
            part.batch.received.setdefault(lane.index, []).append(answer.response)
            part.batch.missing -= part.share.size
            if part.batch.count == self._together:
                self._together = min(2 * self._together, self._most_together())
            return
        if answer.held and part.batch.count > 1:
            self._reduce(part)
        now = time.monotonic()
        lane.ask_again_at = now + self._slice
        if answer.held and now < deadline and lane.held_for(now) < self._patience:
            self._ask(lane, part, now, min(self._slice, deadline - now))
        else:
            self._reopen(part, lane)

    def _most_together(self) -> int:
        if len(self.lanes) > 1:
            return 1
        nbytes = min(TOGETHER_BYTES, self._table.max_message_bytes // 2)
        by_bytes = nbytes // (self._size * self._item_nbytes)
        return max(1, min(self._config.batches_at_once, by_bytes))

    def _reduce(self, part: _Part) -> None:
        """To one batch: the only shard has given nothing of it."""
        batch, self._together = part.batch, 1
        batch.count, batch.missing, part.share.size = 1, self._size, self._size
        batch.asked_in = 0  # the one was not asked for yet

    def _reopen(self, part: _Part, lane: SampleLane[_Part]) -> None:
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
            for part in lane.forget():
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
        self._stock.clear()
        self._together = 1
        for lane in self.lanes:
            lane.forget()


def _batches(sample: Sample, size: int) -> Iterator[Sample]:
    """Of so many items each. They share their memory, but no item."""
    if len(sample.keys) == size:
        yield sample
        return
    for start in range(0, len(sample.keys), size):
        rows = slice(start, start + size)
        yield Sample(sample.batch.select(rows), sample.keys[rows], sample.weights[rows])
