"""One named place for experience: a storage, a sampler and a rate limiter behind one lock.

`Table` is the `Replay` of a single process; `buffer_server`'s service puts it on the network, and
nothing here knows of that. Every call that may wait has a deadline, and says what it waited for;
`blocked` lists those who wait, `dismiss` sends one away, and `configure_limiter` may let them pass.

A sampler that uses items up (`Fifo`) makes the table a queue: an insert waits rather than overwrite
an item that is still wanted. So that a half full queue cannot hold up both sides, such a table
takes batches of at most half its capacity, rounded up: fewer items than one sample needs then leave
room for any insert. Its balance is the queue's own, so the limiter must not set another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from buffer_server.callers import Blocked, Caller, CallerDismissed, Operation
from buffer_server.contents import Inheritance, TableContents
from buffer_server.draws import Draw, DrawRequest, Population
from buffer_server.frames import Column
from buffer_server.item_ages import ItemAges
from buffer_server.rate_limiter import RateLimiter
from buffer_server.samplers.protocol import Sampler
from buffer_server.snapshots import RowStream, TableSnapshot
from buffer_server.statistics import ConsumerStatistics, PolicyShare, TableStatistics
from buffer_server.storage import Storage
from buffer_server.writer_ledger import Origin, WriterLedger
from repertory.errors import ReplayTimeout, UsageError
from repertory.types import Array, Sample, Signature, TransitionBatch

INSERT_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    caller: Caller
    operation: Operation
    items: int
    since: float  # on the monotonic clock
    explain: Callable[[], str]
    consumer: int | None = None


class Table:
    """Experience with one signature. Safe to share between threads."""

    def __init__(
        self,
        name: str,
        signature: Signature,
        capacity: int,
        sampler: Sampler,
        limiter: RateLimiter,
        seed: int,
        *,
        capacity_bytes: int | None = None,
    ) -> None:
        """With a capacity in bytes too, whichever is reached first counts."""
        self._storage = Storage(signature, capacity, capacity_bytes)
        capacity = self._storage.capacity
        if sampler.capacity != capacity:
            raise UsageError(
                f"table {name!r} has a capacity of {capacity}, but its sampler was made for "
                f"{sampler.capacity}: make both with the same"
            )
        if sampler.consumes and self._storage.frames is not None:
            raise UsageError(
                f"table {name!r} uses its items up and never drops one, but stacks share frames "
                "that run out: leave `stack` out of its columns"
            )
        self.name = name
        self.signature = signature
        self._sampler = sampler
        self._limiter = limiter
        self._largest_batch = (capacity + 1) // 2 if sampler.consumes else capacity
        self._bits = np.random.PCG64(seed)
        self._rng = np.random.Generator(self._bits)
        self._changed = threading.Condition()
        self._ledger = WriterLedger()
        self._contents = TableContents(
            name, self._storage, sampler, limiter, self._ledger, self._bits
        )
        self._duplicate_inserts = 0
        self._waiting: list[_Waiting] = []
        self._closed: str | None = None  # why nobody may wait any more
        self._wait_seconds: dict[Operation, float] = {"insert": 0.0, "sample": 0.0}
        self._ages = ItemAges()
        # What callers use now, and a change of the limiter must go on allowing.
        self._batch_in_use: dict[Operation, int] = {"insert": 0, "sample": 0}
        self._check_limiter(limiter)

    @property
    def size(self) -> int:
        """Items in the storage, used up or not."""
        return self._storage.size

    @property
    def available(self) -> int:
        """Items that can be sampled now: of a queue, those not yet used up."""
        with self._changed:
            return self._available()

    @property
    def capacity(self) -> int:
        return self._storage.capacity

    @property
    def consumes(self) -> bool:
        """Whether sampling uses items up: a queue."""
        return self._sampler.consumes

    @property
    def nbytes(self) -> int:
        """Bytes of the storage when it is full."""
        return self._storage.nbytes

    @property
    def per_item(self) -> frozenset[str]:
        """Which arrays of the sampler have one entry for each item that can be selected."""
        return self._sampler.per_item

    @property
    def insert_count(self) -> int:
        return self._limiter.insert_count

    @property
    def sample_count(self) -> int:
        return self._limiter.sample_count

    def insert(
        self,
        batch: TransitionBatch,
        priorities: Array | None = None,
        *,
        timeout_seconds: float = INSERT_TIMEOUT_SECONDS,
    ) -> int:
        """All items of the batch or, with an error, none. Returns how many there were."""
        self.insert_once(None, batch.columns(), priorities, timeout_seconds=timeout_seconds)
        return len(batch)

    def insert_once(
        self,
        origin: Origin | None,
        columns: Mapping[str, Column],
        priorities: Array | None = None,
        *,
        timeout_seconds: float,
        caller: Caller | None = None,
    ) -> bool:
        """Like `insert`, but an origin that was here before is not inserted again: then False."""
        columns = self._storage.prepare(columns)
        count = len(columns["reward"])
        self._check_queue_batch("an insert", count)

        def done() -> bool:
            return origin is not None and self._ledger.contains(origin)

        def ready() -> bool:
            return done() or (self._room() >= count and self._limiter.can_insert(count))

        def explain() -> str:
            return f"did not take {count} items: {self._why_insert_blocked(count)}"

        with self._changed:
            self._limiter.check_insert(count)
            if count == 0:
                return True
            self._batch_in_use["insert"] = count
            waiting = _Waiting(caller or Caller(""), "insert", count, time.monotonic(), explain)
            self._wait_until(ready, waiting, timeout_seconds)
            if done():
                self._duplicate_inserts += 1
                return False
            first = self._storage.next_key
            keys = np.arange(first, first + count, dtype=np.int64)
            # The sampler goes first: it may refuse the priorities, the storage was asked above.
            self._sampler.on_insert(keys, columns, priorities)
            evicted = self._storage.write(columns)
            if evicted:
                self._sampler.on_evict(np.asarray(evicted, dtype=np.int64))
            self._ages.note(first, time.monotonic(), live_from=self._storage.first_key)
            self._limiter.inserted(count)
            if origin is not None:
                self._ledger.note(origin)
            self._changed.notify_all()
        return True

    def last_sequence(self, writer: bytes) -> int:
        """The highest of this writer's inserts that were done here; 0: none."""
        with self._changed:
            return self._ledger.highest(writer)

    def sample(self, size: int, *, timeout_seconds: float, consumer: int | None = None) -> Sample:
        """Copies of `size` chosen items."""
        request = DrawRequest(size, consumer=consumer)
        return self.draw(request, timeout_seconds=timeout_seconds).sample()

    def draw(
        self, request: DrawRequest, *, timeout_seconds: float, caller: Caller | None = None
    ) -> Draw:
        """Copies of the chosen items, and how likely each was to be chosen."""
        size, consumer, consumes = request.size, request.consumer, self._sampler.consumes
        self._check_provenance(request)
        self._check_queue_batch("a sample", size)
        needed = size if consumes and not request.partial else 1

        def ready() -> bool:
            return self._available() >= needed and self._limiter.can_sample(size, consumer)

        def explain() -> str:
            return f"had no {size} items to give: {self._why_sample_blocked(request, needed)}"

        with self._changed:
            self._limiter.check_sample(size, consumer)
            self._batch_in_use["sample"] = size
            caller = caller or Caller("")
            if consumer is not None:
                self._limiter.note_caller(consumer, caller.name)
            waiting = _Waiting(caller, "sample", size, time.monotonic(), explain, consumer)
            self._wait_until(ready, waiting, timeout_seconds)
            if consumes and request.partial:
                request = replace(request, size=min(size, self._available()))
            live = self._storage.live_keys
            population = self._sampler.population(request, live)
            selection = self._sampler.select(request, live, self._rng)
            columns = self._storage.gather(selection.keys)
            self._limiter.sampled(len(selection.keys), consumer)
            self._changed.notify_all()
        return Draw(columns, selection, population)

    def population(self, request: DrawRequest) -> Population:
        """What such a request could draw from now."""
        self._check_provenance(request)
        with self._changed:
            return self._sampler.population(request, self._storage.live_keys)

    def update_priorities(self, keys: Array, priorities: Array) -> None:
        """Priorities of items that were overwritten since they were sampled are ignored."""
        keys, priorities = np.asarray(keys, dtype=np.int64), np.asarray(priorities)
        if keys.ndim != 1 or keys.shape != priorities.shape:
            raise UsageError(
                f"keys {list(keys.shape)} and priorities {list(priorities.shape)} do not match: "
                "give one priority for each key"
            )
        with self._changed:
            live = self._storage.live(keys)
            self._sampler.update(keys[live], priorities[live])

    def configure_limiter(
        self,
        *,
        min_size: int,
        samples_per_insert: float | None = None,
        error_buffer: float | None = None,
        consumers: Mapping[int, float] | None = None,
        consumer_buffer_items: int | None = None,
    ) -> None:
        """Other settings from here on, which wake those who wait. Refused if one side could stop:
        also where a batch that waits, or the last one that came, would be too large for ever."""
        trial = RateLimiter(
            min_size=min_size,
            samples_per_insert=samples_per_insert,
            error_buffer=error_buffer,
            consumers=consumers,
            consumer_buffer_items=consumer_buffer_items,
        )
        with self._changed:
            self._check_limiter(trial)
            trial.check_insert(self._batch_in_use["insert"])
            if not consumers:  # each of whom may sample any batch
                trial.check_sample(self._batch_in_use["sample"])
            for one in self._waiting:
                if one.operation == "insert":
                    trial.check_insert(one.items)
                else:
                    trial.check_sample(one.items, one.consumer)
            self._limiter.configure(
                min_size=min_size,
                samples_per_insert=samples_per_insert,
                error_buffer=error_buffer,
                consumers=consumers,
                consumer_buffer_items=consumer_buffer_items,
            )
            self._changed.notify_all()

    def configure_consumers(self, ratios: Mapping[int, float]) -> None:
        """Other samples per insert for these consumers from here on, which wakes those who wait.

        The others keep theirs; one that is not known yet is added.
        """
        with self._changed:
            self._limiter.configure_consumers(ratios)
            self._changed.notify_all()

    def dismiss(self, caller: Caller, reason: str) -> None:
        """Sends a caller away, now or when it comes to wait. Takes the lock only if it waits."""
        caller.dismissed = reason
        if caller.waits_at is self:
            with self._changed:
                self._changed.notify_all()

    def close(self, reason: str) -> None:
        """From now on nobody waits here: those who do, and would, are sent away."""
        with self._changed:
            self._closed = reason
            self._changed.notify_all()

    def statistics(self) -> TableStatistics:
        now = time.monotonic()
        with self._changed:
            limiter = self._limiter
            return TableStatistics(
                size=self._storage.size,
                capacity=self.capacity,
                size_nbytes=self._storage.size_nbytes,
                capacity_nbytes=self.nbytes,
                inserted=limiter.insert_count,
                sampled=limiter.sample_count,
                evicted=max(0, limiter.insert_count - self._storage.size),
                duplicate_inserts=self._duplicate_inserts,
                min_size=limiter.min_size,
                samples_per_insert=limiter.samples_per_insert,
                error_buffer=limiter.error_buffer,
                surplus=limiter.surplus,
                insert_wait_seconds=self._wait_seconds["insert"],
                sample_wait_seconds=self._wait_seconds["sample"],
                newest_age_seconds=self._ages.newest(now),
                oldest_age_seconds=self._ages.oldest(self._storage.first_key, now),
                policies=tuple(
                    PolicyShare(policy, *share)
                    for policy, share in self._sampler.shares(self._storage.live_keys).items()
                ),
                blocked=tuple(
                    Blocked(
                        waiting.caller.name,
                        waiting.operation,
                        waiting.items,
                        max(0.0, now - waiting.since),
                        waiting.explain(),
                        waiting.consumer,
                    )
                    for waiting in self._waiting
                ),
                consumer_buffer_items=limiter.consumer_buffer_items,
                consumers=self._consumer_statistics(),
            )

    def arrays(self) -> dict[str, Array]:
        """Everything that decides what comes next, as copies under flat names."""
        with self._changed:
            return self._contents.arrays()

    def snapshot(self) -> TableSnapshot:
        """The same, to be copied piece by piece while the table goes on."""
        with self._changed:
            return self._contents.snapshot(self._read_rows)

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Takes the place of all state: the same calls then give the same samples as there."""
        with self._changed:
            self._contents.load_arrays(arrays)
            self._loaded()

    def inherit(self, inheritance: Inheritance) -> None:
        """Takes the place of all state, from tables of other shards."""
        with self._changed:
            self._contents.inherit(inheritance)
            self._loaded()

    def _loaded(self) -> None:
        self._ages.clear()
        if self._storage.size:
            first_key = self._storage.first_key
            self._ages.note(first_key, time.monotonic(), live_from=first_key)
        self._changed.notify_all()

    def _read_rows(self, stream: RowStream, rows: range) -> tuple[Array, int]:
        """A copy of those rows that are still there, the last ones, and the first key that is."""
        with self._changed:
            first = max(rows.start, stream.first())
            return stream.read(first, max(first, rows.stop)), self._storage.first_key

    def _consumer_statistics(self) -> tuple[ConsumerStatistics, ...]:
        limiter = self._limiter
        held_by = [
            holder
            for waiting in self._waiting
            if waiting.operation == "insert"
            for holder in limiter.held_by(waiting.items)
        ]
        sampling = [one.consumer for one in self._waiting if one.operation == "sample"]
        return tuple(
            ConsumerStatistics(
                consumer=consumer,
                samples_per_insert=balance.samples_per_insert,
                sampled=balance.sampled,
                surplus=balance.surplus(limiter.insert_count),
                caller=balance.caller,
                waiting_samples=sampling.count(consumer),
                held_inserts=held_by.count(consumer),
            )
            for consumer, balance in sorted(limiter.consumers.items())
        )

    def _check_limiter(self, limiter: RateLimiter) -> None:
        """Raises for a limiter that does not go with the rest of the table."""
        min_size, ratio = limiter.min_size, limiter.samples_per_insert
        if self._sampler.consumes and (ratio is not None or limiter.consumers):
            what = "the ratios of consumers" if ratio is None else f"samples_per_insert {ratio:g}"
            raise UsageError(
                f"table {self.name!r} uses its items up, so {what} could stop both sides: "
                "leave it out"
            )
        if min_size > self._largest_batch:
            raise UsageError(
                f"min_size {min_size} of table {self.name!r} is never reached: with a capacity "
                f"of {self.capacity} it may be {self._largest_batch} at most; "
                "lower it or raise that"
            )

    def _wait_until(
        self, ready: Callable[[], bool], waiting: _Waiting, timeout_seconds: float
    ) -> None:
        """Gives up the lock while waiting; holds it on return, with `ready()` true."""
        if not 0 <= timeout_seconds <= threading.TIMEOUT_MAX:
            raise UsageError(f"a timeout of {timeout_seconds} s is not a deadline: give seconds")
        if ready():
            return
        deadline = waiting.since + timeout_seconds
        with self._listed(waiting):  # before looking whether it was dismissed, see `Caller`
            while not ready():
                dismissed = waiting.caller.dismissed or self._closed
                if dismissed is not None:
                    raise CallerDismissed(dismissed)
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise ReplayTimeout(
                        f"table {self.name!r}, within {timeout_seconds:g} s, {waiting.explain()}"
                    )
                self._changed.wait(remaining)

    @contextmanager
    def _listed(self, waiting: _Waiting) -> Iterator[None]:
        caller = waiting.caller
        self._waiting.append(waiting)
        caller.waits_at = self
        try:
            yield
        finally:
            caller.waits_at = None
            self._waiting.remove(waiting)
            seconds = time.monotonic() - waiting.since
            caller.waited_seconds += seconds
            self._wait_seconds[waiting.operation] += seconds

    def _available(self) -> int:
        return self._sampler.available(self._storage.live_keys)

    def _room(self) -> int:
        """How many items can be inserted without loss."""
        return self.capacity - (self._available() if self._sampler.consumes else 0)

    def _why_insert_blocked(self, count: int) -> str:
        if self._room() < count:
            return (
                f"{self._available()} of at most {self.capacity} items still wait to be sampled, "
                f"which leaves room for {self._room()}"
            )
        return self._limiter.why_insert_blocked(count)

    def _why_sample_blocked(self, request: DrawRequest, needed: int) -> str:
        if not self._limiter.can_sample(request.size, request.consumer):
            return self._limiter.why_sample_blocked(request.size, request.consumer)
        return f"{self._available()} can be sampled, and {needed} are needed"

    def _check_provenance(self, request: DrawRequest) -> None:
        if request.by_provenance and not self._sampler.knows_provenance:
            raise UsageError(
                f"table {self.name!r} does not know whose experience its items are: give it the "
                "sampler mixture, or ask for neither own items nor an age"
            )

    def _check_queue_batch(self, what: str, count: int) -> None:
        if count > self._largest_batch and self._sampler.consumes:
            raise UsageError(
                f"{what} of {count} items is more than {self._largest_batch}, half the capacity of "
                f"table {self.name!r}, and could stop both sides: "
                f"raise the capacity to {2 * count} or use smaller batches"
            )
