"""Everything of a table that decides what comes next, and how it is saved and loaded.

A `Table` puts a lock around it and lets callers wait; nothing here knows of either. The arrays have
flat names: `storage/...`, `sampler/...`, `limiter/...`, `ledger/...`, `generator` and, where there
are consumers, `consumers/...`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from buffer_server.consumers import SAVED
from buffer_server.frames import Column
from buffer_server.rate_limiter import Number, RateLimiter
from buffer_server.samplers.protocol import Sampler
from buffer_server.snapshots import RowStream, TableSnapshot
from buffer_server.storage import COLUMNS_PREFIX, FRAMES, NEXT_FRAME, NEXT_KEY, Storage
from buffer_server.writer_ledger import WriterLedger
from repertory.errors import CheckpointError
from repertory.seeding import pack_generator, unpack_generator
from repertory.types import Array, ColumnSpec

STORAGE, SAMPLER, LIMITER, LEDGER = "storage/", "sampler/", "limiter/", "ledger/"
CONSUMERS = "consumers/"
GENERATOR = "generator"


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What a table takes over from the shards of another set."""

    next_key: int  # keys begin here
    items: int
    batches: Iterable[Mapping[str, Column]]  # items, oldest first
    sampler: Mapping[str, Array]
    limiter: Mapping[str, Number]
    consumers: Mapping[str, Array]
    ledgers: Iterable[Mapping[str, Array]]


class TableContents:
    """The parts of one table. Who calls holds the table's lock."""

    def __init__(
        self,
        name: str,
        storage: Storage,
        sampler: Sampler,
        limiter: RateLimiter,
        ledger: WriterLedger,
        bits: np.random.PCG64,
    ) -> None:
        self._name = name
        self._storage = storage
        self._sampler = sampler
        self._limiter = limiter
        self._ledger = ledger
        self._bits = bits

    def arrays(self) -> dict[str, Array]:
        """Copies of everything."""
        return {
            **_named(STORAGE, self._storage.arrays()),
            **_named(SAMPLER, self._sampler.arrays(self._storage.live_keys)),
            **_named(LEDGER, self._ledger.arrays()),
            **self._counts(),
        }

    def snapshot(self, read: Callable[[RowStream, range], tuple[Array, int]]) -> TableSnapshot:
        """The same, to be read piece by piece."""
        live, sampler = self._storage.live_keys, self._sampler
        # What a queue knows of its items changes with every sample: it is copied at once.
        streamed = frozenset[str]() if sampler.consumes else sampler.per_item
        state = sampler.arrays(live[:0] if streamed else live)
        small = {NEXT_KEY: np.asarray(live.stop, dtype=np.int64)}
        streams = [
            self._key_stream(
                STORAGE + COLUMNS_PREFIX + name, spec, functools.partial(self._storage.read, name)
            )
            for name, spec in self._storage.stored.items()
        ]
        frames = self._storage.frames
        if frames is not None:
            saved = self._storage.frames_to_save()
            small[NEXT_FRAME] = np.asarray(saved.stop, dtype=np.int64)
            streams.append(
                RowStream(
                    STORAGE + FRAMES, frames.frame, saved, lambda: frames.first_number, frames.read
                )
            )
        for name in sorted(streamed):
            spec = ColumnSpec(state[name].dtype.str, state[name].shape[1:])
            streams.append(self._key_stream(SAMPLER + name, spec, self._sampler_reader(name)))
        whole = {name: array for name, array in state.items() if name not in streamed}
        return TableSnapshot(
            live=live,
            small={**_named(STORAGE, small), **_named(SAMPLER, whole), **self._counts()},
            ledger=self._ledger.rows(),
            streams=streams,
            read=read,
        )

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Takes the place of all state."""
        sampler = self._part(arrays, SAMPLER, self._sampler.arrays(range(0)))
        limiter = self._part(arrays, LIMITER, self._limiter.state())
        generator = self._part(arrays, GENERATOR, {"": None})
        self._storage.load_arrays(without(STORAGE, arrays))
        self._sampler.load_arrays(sampler, self._storage.live_keys)
        consumers = without(CONSUMERS, arrays)  # a table that had none has saved none
        if consumers:
            self._part(arrays, CONSUMERS, SAVED)
        self._limiter.load_state({name: a.item() for name, a in limiter.items()}, consumers)
        # Checkpoints from before there were writers have no ledger.
        self._ledger.load_arrays(without(LEDGER, arrays) or WriterLedger().arrays())
        unpack_generator(self._bits, generator[""])

    def inherit(self, inheritance: Inheritance) -> None:
        """Takes the place of all state but the generator."""
        self._part(_named(SAMPLER, inheritance.sampler), SAMPLER, self._sampler.arrays(range(0)))
        self._storage.clear(inheritance.next_key)
        for batch in inheritance.batches:
            self._storage.append(batch)
        self._sampler.load_arrays(inheritance.sampler, self._storage.live_keys)
        self._limiter.load_state(inheritance.limiter, inheritance.consumers)
        for ledger in inheritance.ledgers:
            self._ledger.merge_arrays(ledger)

    def _counts(self) -> dict[str, Array]:
        limiter = {name: np.asarray(number) for name, number in self._limiter.state().items()}
        return {
            **_named(LIMITER, limiter),
            **_named(CONSUMERS, self._limiter.consumer_arrays()),
            GENERATOR: pack_generator(self._bits),
        }

    def _key_stream(
        self, name: str, row: ColumnSpec, read: Callable[[int, int], Array]
    ) -> RowStream:
        return RowStream(name, row, self._storage.live_keys, lambda: self._storage.first_key, read)

    def _sampler_reader(self, name: str) -> Callable[[int, int], Array]:
        return lambda first, stop: self._sampler.arrays(range(first, stop))[name]

    def _part(
        self, arrays: Mapping[str, Array], prefix: str, expected: Mapping[str, object]
    ) -> dict[str, Array]:
        """The arrays of one part, which must be exactly those that this part saves."""
        part = without(prefix, arrays)
        if part.keys() != expected.keys():
            raise CheckpointError(
                f"table {self._name!r} cannot be restored: under {prefix!r} were saved "
                f"{sorted(part)}, but {sorted(expected)} are needed; "
                "was it saved with another sampler?"
            )
        return part


def _named(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {prefix + name: array for name, array in arrays.items()}


def without(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Those with the prefix, under their own names."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
