"""Which insert goes to which shard, and what happens to it when that shard is gone. Pure: no
threads, no network, no clock. `insert_lanes` drives it, under its lock.

Inserts take turns over the shards that are usable and have room in their window; where none has,
they wait in the backlog. An insert goes from the backlog to a shard's lane, where it gets its name
(writer, sequence): each lane is a writer of its own, so a shard sees every sequence of it, and what
may have to be sent again stays within the window that the shard's ledger remembers.

Nothing is ever in two shards. What has left for a shard and was not acknowledged stays with that
shard and is sent to it again; its ledger drops what it has already. What has not left goes back to
the backlog, and to others. Only `abandon` gives up on a shard.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field

from buffer_server.proto import replay_pb2 as pb
from buffer_server.writer_ledger import WINDOW, WRITER_BYTES
from repertory.errors import RepertoryError

# The shard remembers WINDOW sequences; what may be sent again must stay well within.
MAX_INSERTS_UNDER_WAY = WINDOW // 2
# Acknowledged by one shard; of those between two checkpoints, so many are counted when lost.
REMEMBERED_INSERTS = 20_000


@dataclass(slots=True, eq=False)
class Parcel:
    """One insert on its way."""

    body: bytes  # the request, but for writer and sequence
    awaited: bool = False  # its caller waits for the outcome
    left: bool = False  # it may have reached the shard of its lane
    settled: bool = False
    error: RepertoryError | None = None  # why it was refused


@dataclass(frozen=True, slots=True)
class InsertStatistics:
    """Inserts, each of a whole batch, since the start; and those that are pending now."""

    accepted: int
    acknowledged: int
    refused: int  # by a shard, for good
    dropped: int  # the queue was full
    handed_over: int  # to other shards, after a shard was abandoned
    lost: int  # acknowledged by a shard that came back from a checkpoint without them
    lost_items: int
    pending: int
    pending_bytes: int


@dataclass(slots=True, eq=False)
class RouterLane:
    """The inserts of one shard."""

    writer: bytes
    usable: bool = False
    max_message_bytes: int = 0
    pending: dict[int, Parcel] = field(default_factory=dict)  # by sequence, oldest first
    pending_bytes: int = 0
    to_send: deque[int] = field(default_factory=deque)  # sequences
    sent: dict[int, None] = field(default_factory=dict)  # in this stream, in its order
    next_sequence: int = 1
    highest_acknowledged: int = 0
    # Acknowledged ones, sequence and items: what a shard may still lose.
    acknowledged: deque[tuple[int, int]] = field(
        default_factory=lambda: deque(maxlen=REMEMBERED_INSERTS)
    )

    def add(self, parcel: Parcel) -> None:
        parcel.left = False
        self.pending[self.next_sequence] = parcel
        self.pending_bytes += len(parcel.body)
        self.to_send.append(self.next_sequence)
        self.next_sequence += 1

    def remove(self, sequence: int) -> Parcel:
        parcel = self.pending.pop(sequence)
        self.pending_bytes -= len(parcel.body)
        self.sent.pop(sequence, None)
        return parcel

    def has_room(self, nbytes: int, window_bytes: int) -> bool:
        if nbytes > self.max_message_bytes:
            return False
        if not self.pending:
            return True  # one alone may be larger than the window
        oldest = next(iter(self.pending))
        return (
            not window_bytes or self.pending_bytes + nbytes <= window_bytes
        ) and self.next_sequence - oldest < MAX_INSERTS_UNDER_WAY


class InsertRouter:
    """All shards'."""

    def __init__(self, shards: int, first: int, window_bytes: int, queue_bytes: int) -> None:
        """With a window of 0 only the queue is bounded."""
        self.lanes = [RouterLane(os.urandom(WRITER_BYTES)) for _ in range(shards)]
        self._accepted = self._acknowledged = self._refused = self._dropped = 0
        self._handed_over = 0
        self._lost = self._lost_items = 0
        self._window_bytes = window_bytes
        self._queue_bytes = queue_bytes
        self._backlog: deque[Parcel] = deque()
        self._backlog_bytes = 0
        self._turn = first

    @property
    def pending(self) -> int:
        """Inserts that were accepted and not yet acknowledged."""
        return len(self._backlog) + sum(len(lane.pending) for lane in self.lanes)

    @property
    def pending_bytes(self) -> int:
        return self._backlog_bytes + sum(lane.pending_bytes for lane in self.lanes)

    def has_room(self, nbytes: int) -> bool:
        """One insert alone may be larger than the queue."""
        pending_bytes = self.pending_bytes
        return not pending_bytes or pending_bytes + nbytes <= self._queue_bytes

    def drop(self) -> None:
        """Notes that an insert was not accepted."""
        self._dropped += 1

    def accept(self, parcel: Parcel) -> None:
        self._accepted += 1
        self._put_back([parcel], first=False)
        self.route()

    def withdraw(self, parcel: Parcel) -> bool:
        """Takes an insert back that has not left. Whether that was so."""
        for lane in self.lanes:
            self._recall(lane)
        waits = parcel in self._backlog
        if waits:
            self._backlog.remove(parcel)
            self._backlog_bytes -= len(parcel.body)
            self._accepted -= 1
        self.route()
        return waits

    def route(self) -> None:
        """Gives the backlog to lanes, for as long as there is room."""
        while self._backlog:
            lane = self._next_lane(len(self._backlog[0].body))
            if lane is None:
                return
            parcel = self._backlog.popleft()
            self._backlog_bytes -= len(parcel.body)
            lane.add(parcel)

    def begin_stream(self, index: int) -> None:
        """A new stream: what may have left by an earlier one goes first."""
        lane = self.lanes[index]
        lane.sent.clear()
        lane.to_send = deque(lane.pending)

    def next_request(self, index: int) -> bytes | None:
        """What to send now. From here on it counts as left."""
        lane = self.lanes[index]
        if not lane.to_send:
            return None
        sequence = lane.to_send.popleft()
        parcel = lane.pending[sequence]
        parcel.left = True
        lane.sent[sequence] = None
        # Messages may be put together from pieces: the last of each field counts.
        name = pb.InsertRequest(writer=lane.writer, sequence=sequence)
        return parcel.body + name.SerializeToString()

    def acknowledge(self, index: int, sequence: int, items: int, previous: int) -> None:
        """`previous` is the highest sequence that the shard knew before."""
        lane = self.lanes[index]
        if sequence in lane.pending:
            lane.remove(sequence).settled = True
            self._acknowledged += 1
            self._note_losses(lane, previous)
            lane.acknowledged.append((sequence, items))
            lane.highest_acknowledged = max(lane.highest_acknowledged, sequence)
            self.route()

    def refuse(self, index: int, sequence: int, error: RepertoryError) -> Parcel | None:
        """It will not be done, ever. None if it was settled before."""
        if sequence not in self.lanes[index].pending:
            return None
        parcel = self.lanes[index].remove(sequence)
        parcel.settled, parcel.error = True, error
        self._refused += 1
        self.route()
        return parcel

    def send_again(self, index: int, sequence: int) -> None:
        """The limiter did not let it pass in time: it waits behind the others."""
        lane = self.lanes[index]
        if sequence in lane.sent:
            del lane.sent[sequence]
            lane.to_send.append(sequence)

    def set_usable(self, index: int, usable: bool) -> None:
        """What has not left goes elsewhere if the shard cannot be used."""
        lane = self.lanes[index]
        if lane.usable and not usable:
            self._recall(lane)
        if lane.usable != usable:
            lane.usable = usable
            self.route()

    def abandon(self, index: int) -> None:
        """Everything that waits for this shard goes to the others."""
        lane = self.lanes[index]
        self._handed_over += len(lane.pending)
        lane.to_send.clear()
        self._put_back([lane.remove(sequence) for sequence in list(lane.pending)], first=True)
        self.route()

    def statistics(self) -> InsertStatistics:
        return InsertStatistics(
            accepted=self._accepted,
            acknowledged=self._acknowledged,
            refused=self._refused,
            dropped=self._dropped,
            handed_over=self._handed_over,
            lost=self._lost,
            lost_items=self._lost_items,
            pending=self.pending,
            pending_bytes=self.pending_bytes,
        )

    def _note_losses(self, lane: RouterLane, previous: int) -> None:
        """A shard that came back from a checkpoint knows less than it has acknowledged."""
        if lane.highest_acknowledged <= previous:
            return
        lost = [items for sequence, items in lane.acknowledged if sequence > previous]
        self._lost += len(lost)
        self._lost_items += sum(lost)
        kept = [(sequence, items) for sequence, items in lane.acknowledged if sequence <= previous]
        lane.acknowledged.clear()
        lane.acknowledged.extend(kept)
        lane.highest_acknowledged = previous

    def _recall(self, lane: RouterLane) -> None:
        """Puts what has not left back, in front of the rest."""
        unsent = [sequence for sequence in lane.to_send if not lane.pending[sequence].left]
        lane.to_send = deque(s for s in lane.to_send if lane.pending[s].left)
        self._put_back([lane.remove(sequence) for sequence in unsent], first=True)

    def _put_back(self, parcels: list[Parcel], *, first: bool) -> None:
        if first:
            self._backlog.extendleft(reversed(parcels))
        else:
            self._backlog.extend(parcels)
        self._backlog_bytes += sum(len(parcel.body) for parcel in parcels)

    def _next_lane(self, nbytes: int) -> RouterLane | None:
        for step in range(len(self.lanes)):
            index = (self._turn + step) % len(self.lanes)
            lane = self.lanes[index]
            if lane.usable and lane.has_room(nbytes, self._window_bytes):
                self._turn = index + 1
                return lane
        return None
