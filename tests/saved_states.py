"""Snapshots in memory, as a checkpoint would hold them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from buffer_server.saved_tables import SavedTable
from buffer_server.snapshots import TableSnapshot
from buffer_server.table import Table
from repertory.array_files import StreamedArray
from repertory.types import Array


def written(
    snapshot: TableSnapshot, meanwhile: Callable[[], object] = lambda: None
) -> dict[str, Array]:
    """All arrays; `meanwhile` is called whenever a piece has been copied."""
    arrays: dict[str, Array] = {}
    for name, array in snapshot.arrays(gently=False).items():
        if isinstance(array, StreamedArray):
            pieces = [np.zeros((0, *array.shape[1:]), array.dtype)]
            for piece in array.chunks():
                pieces.append(piece)
                meanwhile()
            array = np.concatenate(pieces)
        arrays[name] = array
    return arrays


def saved(table: Table, meanwhile: Callable[[], object] = lambda: None) -> SavedTable:
    snapshot = table.snapshot()
    arrays = written(snapshot, meanwhile)
    return SavedTable(table.name, arrays, snapshot.first_whole_key)


def restore(table: Table, state: SavedTable) -> Table:
    table.load_arrays(state.moved(table.capacity))
    return table


def numbers(table: Table) -> list[int]:
    """Of a table of `numbered` items, which ones are there, oldest first."""
    return [int(number) for number in table.arrays()["storage/columns/reward"]]
