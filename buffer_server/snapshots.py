"""A table at one moment, copied piece by piece while it goes on.

What is small (counts, the ledger, the generator) is copied at once; the columns follow, oldest
items first, a piece at a time. Items that come meanwhile are not part of it, and neither are their
names in the ledger: an insert is there with its origin, or neither is. Items that are overwritten
before their turn came are lost to the snapshot; `first_whole_key` says where the rest begins.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from buffer_server.writer_ledger import LedgerRow, ledger_arrays
from repertory.array_files import StreamedArray
from repertory.types import Array, ColumnSpec

# The table waits while one piece is copied: less than a millisecond.
PIECE_NBYTES = 2**18
PIECE_ROWS = 2**14
REST = 2.0  # how much longer than a piece took those who are served have for themselves
LONGEST_REST_SECONDS = 0.05  # a disk that stood still for a minute is no reason for two more


@dataclass(frozen=True, slots=True)
class RowStream:
    """Rows of a ring: items of a column or of the sampler, or frames."""

    name: str  # as in `Table.arrays`
    row: ColumnSpec
    rows: range  # the numbers of those that are there at the moment
    first: Callable[[], int]  # rows before it are gone by now
    read: Callable[[int, int], Array]  # copies, from a number up to another


@dataclass(slots=True)
class TableSnapshot:
    """Made by `Table.snapshot`; `read` copies a piece of a stream under the table's lock."""

    live: range
    small: Mapping[str, Array]
    ledger: Sequence[LedgerRow]
    streams: Sequence[RowStream]
    read: Callable[[RowStream, range], tuple[Array, int]]
    first_whole_key: int = field(init=False)  # final when all streams are written

    def __post_init__(self) -> None:
        self.first_whole_key = self.live.start

    @property
    def items(self) -> int:
        """How many are whole so far."""
        return max(0, self.live.stop - self.first_whole_key)

    def arrays(self, *, gently: bool) -> dict[str, Array | StreamedArray]:
        """Under the names of `Table.arrays`, to be written once.

        Gently: most of the time is left to those who are served meanwhile.
        """
        ledger = ledger_arrays(self.ledger)
        return {
            **self.small,
            **{f"ledger/{name}": array for name, array in ledger.items()},
            **{
                stream.name: StreamedArray(
                    stream.row.dtype,
                    (len(stream.rows), *stream.row.shape),
                    functools.partial(self._pieces, stream, gently),
                )
                for stream in self.streams
            },
        }

    def _pieces(self, stream: RowStream, gently: bool) -> Iterator[Array]:
        step = min(PIECE_ROWS, max(1, PIECE_NBYTES // max(1, stream.row.nbytes)))
        for start in range(0, len(stream.rows), step):
            begun = time.monotonic()
            rows = stream.rows[start : start + step]
            piece, first_key = self.read(stream, rows)
            lost = len(rows) - len(piece)
            if lost:
                self.first_whole_key = max(self.first_whole_key, first_key)
                yield np.zeros((lost, *stream.row.shape), stream.row.dtype)
            yield piece  # it is written when we go on
            if gently:
                time.sleep(min(LONGEST_REST_SECONDS, REST * (time.monotonic() - begun)))
