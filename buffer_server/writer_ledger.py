"""Which inserts were done: so that one that is repeated, for want of an answer, is not done twice.

Every insert over the network is named by (writer, sequence). Of each writer the ledger keeps the
highest sequence and a bit for each of the WINDOW newest, as IPsec does against replayed packets
(RFC 4303, section 3.4.3): sequences may come in any order and may be left out, and the memory is
bounded. Beyond `max_writers` the writer that was silent for longest is forgotten. The table holds
the lock, and saves the ledger with the items, so that both are of the same moment.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from repertory.errors import RepertoryError, UsageError
from repertory.types import Array

WINDOW = 1024
WRITER_BYTES = 16
MAX_SEQUENCE = 2**63 - 1
_MASK = (1 << WINDOW) - 1

# writer, (highest sequence, bits: bit k stands for highest - k)
LedgerRow = tuple[bytes, tuple[int, int]]


class SequenceTooOld(RepertoryError):
    """An insert so old that nobody remembers whether it was done."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The name of one insert."""

    writer: bytes  # 16 random bytes
    sequence: int  # from 1

    def __post_init__(self) -> None:
        if len(self.writer) != WRITER_BYTES:
            raise UsageError(f"a writer is named by {WRITER_BYTES} bytes, not {len(self.writer)}")
        if not 1 <= self.sequence <= MAX_SEQUENCE:
            raise UsageError(f"a sequence of {self.sequence} is refused: inserts count from 1")


class WriterLedger:
    """The newest sequences of each writer."""

    def __init__(self, max_writers: int = 65_536) -> None:
        self._max_writers = max_writers
        # Longest silent first.
        self._done: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._done)

    def highest(self, writer: bytes) -> int:
        """Of its sequences that were done; 0: none is known."""
        return self._done.get(writer, (0, 0))[0]

    def contains(self, origin: Origin) -> bool:
        """Whether this insert was done. Raises where that is no longer known."""
        highest, bits = self._done.get(origin.writer, (0, 0))
        age = highest - origin.sequence
        if age < 0:
            return False
        if age >= WINDOW:
            raise SequenceTooOld(
                f"insert {origin.sequence} of writer {origin.writer.hex()[:8]} is refused: "
                f"{highest} came already, and only the newest {WINDOW} are remembered; "
                "keep fewer under way"
            )
        return bool(bits >> age & 1)

    def note(self, origin: Origin) -> None:
        """This insert is done."""
        highest, bits = self._done.get(origin.writer, (0, 0))
        ahead = origin.sequence - highest
        if ahead > 0:
            highest, bits = origin.sequence, _aged(bits, ahead) | 1
        else:
            bits |= 1 << -ahead
        self._remember(origin.writer, highest, bits)

    def rows(self) -> tuple[LedgerRow, ...]:
        """What it knows now: quickly, for the table is waiting."""
        return tuple(self._done.items())

    def arrays(self) -> dict[str, Array]:
        return ledger_arrays(self.rows())

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        self._done.clear()
        self.merge_arrays(arrays)

    def merge_arrays(self, arrays: Mapping[str, Array]) -> None:
        """From now on it knows both: what was done here, and what was done there."""
        rows = zip(arrays["writers"], arrays["highest"], arrays["bits"], strict=True)
        for raw_writer, raw_highest, raw_bits in rows:
            writer, there = raw_writer.tobytes(), int(raw_highest)
            here, bits = self._done.get(writer, (0, 0))
            highest = max(here, there)
            bits = _aged(bits, highest - here)
            bits |= _aged(int.from_bytes(raw_bits.tobytes(), "little"), highest - there)
            self._remember(writer, highest, bits)

    def _remember(self, writer: bytes, highest: int, bits: int) -> None:
        self._done[writer] = (highest, bits)
        self._done.move_to_end(writer)
        if len(self._done) > self._max_writers:
            self._done.popitem(last=False)


def ledger_arrays(rows: Sequence[LedgerRow]) -> dict[str, Array]:
    """Writers [W, 16], highest sequences [W] and bits [W, 128], longest silent first."""
    writers = b"".join(writer for writer, _ in rows)
    bits = b"".join(bits.to_bytes(WINDOW // 8, "little") for _, (_, bits) in rows)
    return {
        "writers": np.frombuffer(writers, np.uint8).reshape(-1, WRITER_BYTES).copy(),
        "highest": np.array([highest for _, (highest, _) in rows], dtype=np.int64),
        "bits": np.frombuffer(bits, np.uint8).reshape(-1, WINDOW // 8).copy(),
    }


def _aged(bits: int, by: int) -> int:
    # A shift by more than the window only makes zeros, slowly.
    return bits << by & _MASK if by < WINDOW else 0
