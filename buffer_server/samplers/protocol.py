"""The seam between a table and its sampler: which items come next, and how likely each was.

`live` is always the range of keys that are in the storage now. Ours are `Uniform`, `Prioritized`,
`Mixture` and `Fifo`; a user's own is named as `package.module:Name` and is built like ours, from
its nested `Config` and the capacity of the table. The table holds the lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

import numpy as np

from buffer_server.draws import DrawRequest, Population, Selection
from buffer_server.frames import Column
from repertory.types import Array


class Sampler(Protocol):
    """Chooses items by their keys."""

    # True: an item can be used up, so a selection needs `size` available items, and a table must
    # not overwrite an item that is still available. False: one available item is enough.
    consumes: ClassVar[bool]

    # True: it can tell whose experience an item is (`DrawRequest.by_provenance`).
    knows_provenance: ClassVar[bool]

    # Names in `arrays` that have one entry for each item that can be selected, oldest first. A
    # snapshot reads those of a sampler that does not consume piece by piece, with a part of `live`;
    # other shards take their part of them, and the largest of everything else.
    per_item: ClassVar[frozenset[str]]

    capacity: int

    def on_insert(
        self, keys: Array, columns: Mapping[str, Column], priorities: Array | None
    ) -> None:
        """New items, with consecutive keys. Refuses bad ones before changing anything."""
        ...

    def on_evict(self, keys: Array) -> None:
        """These items, the oldest, are gone though nothing overwrites them: a limit in bytes."""
        ...

    def available(self, live: range) -> int:
        """How many items can be selected now."""
        ...

    def population(self, request: DrawRequest, live: range) -> Population: ...

    def select(self, request: DrawRequest, live: range, rng: np.random.Generator) -> Selection: ...

    def update(self, keys: Array, priorities: Array) -> None:
        """New priorities. The table has already dropped the keys that are no longer live."""
        ...

    def shares(self, live: range) -> dict[int, tuple[int, int]]:
        """By policy: how many items it has, and its newest version. Empty where that is unknown."""
        ...

    def arrays(self, live: range) -> dict[str, Array]:
        """All state, per item in the order of keys; always under the same names."""
        ...

    def load_arrays(self, arrays: Mapping[str, Array], live: range) -> None:
        """Takes the place of the state. `live` may be the newest part of what was saved."""
        ...
