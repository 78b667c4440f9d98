"""One named place for experience: a storage, a sampler and a rate limiter behind one lock.

`Table` is the `Replay` of a single process; `buffer_server`'s service puts it on the network, and
nothing here knows of that. Every call that may wait has a deadline, and says what it waited for.

A sampler that uses items up (`Fifo`) makes the table a queue: an insert waits rather than overwrite
an item that is still wanted. So that a half full queue cannot hold up both sides, such a table
takes batches of at most half its capacity, rounded up: fewer items than one sample needs then leave
room for any insert. Its balance is the queue's own, so the limiter must not set another.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping

import numpy as np

from buffer_server.rate_limiter import RateLimiter
from buffer_server.samplers.protocol import Sampler
from buffer_server.storage import Storage
from repertory.config import LearnerConfig, OnPolicyConfig, RunConfig
from repertory.errors import CheckpointError, ReplayTimeout, UsageError
from repertory.parts import lookup
from repertory.seeding import derive_seed
from repertory.specs import EnvSpec
from repertory.types import Array, ColumnSpec, Sample, Signature, TransitionBatch

INSERT_TIMEOUT_SECONDS = 60.0


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
    ) -> None:
        if sampler.capacity != capacity:
            raise UsageError(
                f"table {name!r} has a capacity of {capacity}, but its sampler was made for "
                f"{sampler.capacity}: make both with the same"
            )
        if sampler.consumes and limiter.samples_per_insert is not None:
            raise UsageError(
                f"table {name!r} uses its items up, so samples_per_insert "
                f"{limiter.samples_per_insert:g} could stop both sides: leave it out"
            )
        self.name = name
        self._storage = Storage(signature, capacity)
        self._sampler = sampler
        self._limiter = limiter
        self._largest_batch = (capacity + 1) // 2 if sampler.consumes else capacity
        self._bits = np.random.PCG64(seed)
        self._rng = np.random.Generator(self._bits)
        self._changed = threading.Condition()
        if limiter.min_size > self._largest_batch:
            raise UsageError(
                f"min_size {limiter.min_size} of table {name!r} is never reached: with a capacity "
                f"of {capacity} it may be {self._largest_batch} at most; lower it or raise that"
            )

    @property
    def size(self) -> int:
        """Items in the storage, used up or not."""
        return self._storage.size

    @property
    def capacity(self) -> int:
        return self._storage.capacity

    @property
    def nbytes(self) -> int:
        """Bytes of the storage when it is full."""
        return self._storage.nbytes

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
        count = len(batch)
        self._storage.check(batch)
        self._limiter.check_insert(count)
        self._check_queue_batch("an insert", count)
        if count == 0:
            return 0
        with self._changed:
            self._wait_until(
                lambda: self._room() >= count and self._limiter.can_insert(count),
                lambda: f"did not take {count} items: {self._why_insert_blocked(count)}",
                timeout_seconds,
            )
            first = self._storage.next_key
            # The sampler goes first: it may refuse the priorities, the storage was asked above.
            self._sampler.on_insert(np.arange(first, first + count, dtype=np.int64), priorities)
            self._storage.append(batch)
            self._limiter.inserted(count)
            self._changed.notify_all()
        return count

    def sample(self, size: int, *, timeout_seconds: float) -> Sample:
        """Copies of `size` chosen items."""
        if size < 1:
            raise UsageError(f"a sample of {size} items was asked for: give at least 1")
        self._limiter.check_sample(size)
        self._check_queue_batch("a sample", size)
        needed = size if self._sampler.consumes else 1
        with self._changed:
            self._wait_until(
                lambda: self._available() >= needed and self._limiter.can_sample(size),
                lambda: f"had no {size} items to give: {self._why_sample_blocked(size, needed)}",
                timeout_seconds,
            )
            chosen = self._sampler.select(size, self._storage.live_keys, self._rng)
            batch = self._storage.gather(chosen.keys)
            self._limiter.sampled(size)
            self._changed.notify_all()
        return Sample(batch, chosen.keys, chosen.weights)

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

    def arrays(self) -> dict[str, Array]:
        """Everything that decides what comes next, as copies under flat names."""
        with self._changed:
            sampler = self._sampler.arrays(self._storage.live_keys)
            limiter = self._limiter.state()
            return {
                **{f"storage/{name}": array for name, array in self._storage.arrays().items()},
                **{f"sampler/{name}": array for name, array in sampler.items()},
                **{f"limiter/{name}": np.asarray(number) for name, number in limiter.items()},
                "generator": _pack_generator(self._bits),
            }

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Takes the place of all state: the same calls then give the same samples as there."""
        with self._changed:
            sampler = self._part(arrays, "sampler/", self._sampler.arrays(range(0)))
            limiter = self._part(arrays, "limiter/", self._limiter.state())
            generator = self._part(arrays, "generator", {"": None})
            self._storage.load_arrays(
                {
                    name.removeprefix("storage/"): array
                    for name, array in arrays.items()
                    if name.startswith("storage/")
                }
            )
            self._sampler.load_arrays(sampler, self._storage.live_keys)
            self._limiter.load_state({name: array.item() for name, array in limiter.items()})
            _unpack_generator(self._bits, generator[""])
            self._changed.notify_all()

    def _wait_until(
        self, ready: Callable[[], bool], explain: Callable[[], str], timeout_seconds: float
    ) -> None:
        """Gives up the lock while waiting; holds it on return, with `ready()` true."""
        if not 0 <= timeout_seconds <= threading.TIMEOUT_MAX:
            raise UsageError(f"a timeout of {timeout_seconds} s is not a deadline: give seconds")
        deadline = time.monotonic() + timeout_seconds
        while not ready():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise ReplayTimeout(
                    f"table {self.name!r}, within {timeout_seconds:g} s, {explain()}"
                )
            self._changed.wait(remaining)

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

    def _why_sample_blocked(self, size: int, needed: int) -> str:
        if not self._limiter.can_sample(size):
            return self._limiter.why_sample_blocked(size)
        return f"{self._available()} can be sampled, and {needed} are needed"

    def _check_queue_batch(self, what: str, count: int) -> None:
        if count > self._largest_batch and self._sampler.consumes:
            raise UsageError(
                f"{what} of {count} items is more than {self._largest_batch}, half the capacity of "
                f"table {self.name!r}, and could stop both sides: "
                f"raise the capacity to {2 * count} or use smaller batches"
            )

    def _part(
        self, arrays: Mapping[str, Array], prefix: str, expected: Mapping[str, object]
    ) -> dict[str, Array]:
        """The arrays of one part, which must be exactly those that this part saves."""
        part = {
            name.removeprefix(prefix): array
            for name, array in arrays.items()
            if name.startswith(prefix)
        }
        if part.keys() != expected.keys():
            raise CheckpointError(
                f"table {self.name!r} cannot be restored: under {prefix!r} were saved "
                f"{sorted(part)}, but {sorted(expected)} are needed; "
                "was it saved with another sampler?"
            )
        return part


def _pack_generator(bits: np.random.PCG64) -> Array:
    """[6] uint64: the state and the increment in two words each, and the spare half draw."""
    state = bits.state
    words = [
        word
        for number in (state["state"]["state"], state["state"]["inc"])
        for word in divmod(number, 1 << 64)
    ]
    return np.array([*words, state["has_uint32"], state["uinteger"]], dtype=np.uint64)


def _unpack_generator(bits: np.random.PCG64, packed: Array) -> None:
    state_high, state_low, inc_high, inc_low, has_uint32, uinteger = (int(word) for word in packed)
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": state_high << 64 | state_low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }


def table_for(
    config: RunConfig,
    learner_config: LearnerConfig,
    spec: EnvSpec,
    policy_extras: Mapping[str, ColumnSpec],
) -> Table:
    """A replay for off-policy learners, a queue of segments for on-policy ones."""
    extras = dict(policy_extras)
    if learner_config.normalize_reward:
        extras["discounted_return"] = ColumnSpec("<f4", ())
    segment_length = None
    if isinstance(learner_config, OnPolicyConfig):
        segment_length = learner_config.segment_length
        extras["boundary"] = ColumnSpec("|b1", ())
        sampler_config = lookup("sampler", "fifo").Config()
        capacity = 2 * config.env.copies
    else:
        sampler_config = config.replay.sampler
        capacity = min(config.replay.capacity, config.steps)
    signature = spec.transition_signature(extras, segment_length)
    _refuse_more_than_memory(capacity * sum(column.nbytes for column in signature.values()), config)
    return Table(
        learner_config.algorithm,
        signature,
        capacity,
        lookup("sampler", sampler_config.name)(sampler_config, capacity),
        RateLimiter(),
        seed=derive_seed(config.seed, "replay"),
    )


def _refuse_more_than_memory(nbytes: int, config: RunConfig) -> None:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if nbytes > 0.9 * physical:
        raise UsageError(
            f"replay.capacity = {config.replay.capacity} is refused: it takes "
            f"{nbytes / 2**30:.1f} GiB when full, this machine has {physical / 2**30:.1f} GiB; "
            "lower it with --set replay.capacity=..."
        )
