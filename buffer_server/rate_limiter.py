"""How far sampling may run ahead of inserting, and inserting ahead of sampling: pure arithmetic.

Like Reverb's SampleToInsertRatio (Cassirer et al., 2021), with batches instead of single items:

    surplus = samples_per_insert * (inserted - min_size) - sampled

stays within [-error_buffer, +error_buffer] from the moment `min_size` items are in. Whoever would
leave that interval waits for the other side. The table asks `can_...`, waits, then reports.

Both sides can never wait for each other. An insert of b items waits only while
surplus > error_buffer - samples_per_insert * b, a sample of s items only while
surplus < s - error_buffer. `check_insert` and `check_sample` refuse every batch that alone exceeds
the error buffer, so the first limit is never below 0, the second never above, and no surplus lies
beyond both. Before min_size the surplus is negative, so an insert never waits. The sums are exact
integers: rounding cannot open a gap either. Since that holds for every surplus, it also holds after
`configure` has changed the settings, for every batch that the new ones allow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from repertory.errors import UsageError

Number = int | float


class RateLimiter:
    """Without `samples_per_insert` only `min_size` counts: sampling waits for it, inserting never.

    One object serves one table, under its lock.
    """

    def __init__(
        self,
        *,
        min_size: int = 1,
        samples_per_insert: float | None = None,
        error_buffer: float | None = None,
    ) -> None:
        self._inserted = 0
        self._sampled = 0
        self._inserted_origin = min_size  # where the surplus is zero
        self._sampled_origin = 0
        self._set(min_size, samples_per_insert, error_buffer)

    @property
    def insert_count(self) -> int:
        return self._inserted

    @property
    def sample_count(self) -> int:
        return self._sampled

    @property
    def surplus(self) -> float:
        """Samples that are owed for what was inserted; negative where sampling runs ahead."""
        return self._scaled_surplus() / self._per_sample

    def configure(
        self, *, min_size: int, samples_per_insert: float | None, error_buffer: float | None
    ) -> None:
        """Other settings from here on; refused ones change nothing. The counts stay."""
        before = (self.min_size, self.samples_per_insert)
        self._set(min_size, samples_per_insert, error_buffer)
        if before != (min_size, samples_per_insert):
            self._start_anew()

    def check_insert(self, count: int) -> None:
        """Raises for a batch that could wait for ever."""
        if self.samples_per_insert is not None and count * self._per_insert > self._limit:
            raise UsageError(
                f"an insert of {count} items at {self.samples_per_insert:g} samples per insert "
                f"moves the balance by {count * self.samples_per_insert:g}, past the error buffer "
                f"of {self.error_buffer:g}: raise error_buffer to at least "
                f"{count * self.samples_per_insert:g}, or insert smaller batches"
            )

    def check_sample(self, count: int) -> None:
        """Raises for a batch that could wait for ever."""
        if self.samples_per_insert is not None and count * self._per_sample > self._limit:
            raise UsageError(
                f"a sample of {count} items is larger than the error buffer of "
                f"{self.error_buffer:g}: raise error_buffer to at least {count}, "
                "or sample smaller batches"
            )

    def can_insert(self, count: int) -> bool:
        if self.samples_per_insert is None:
            return True
        return self._scaled_surplus() + count * self._per_insert <= self._limit

    def can_sample(self, count: int) -> bool:
        if self._inserted < self.min_size:
            return False
        if self.samples_per_insert is None:
            return True
        return self._scaled_surplus() - count * self._per_sample >= -self._limit

    def why_insert_blocked(self, count: int) -> str:
        return f"inserting {count} items must wait for more samples ({self._numbers()})"

    def why_sample_blocked(self, count: int) -> str:
        if self._inserted < self.min_size:
            return f"only {self._inserted} of the first {self.min_size} items (min_size) are in"
        return f"sampling {count} items must wait for more inserts ({self._numbers()})"

    def inserted(self, count: int) -> None:
        self._inserted += count

    def sampled(self, count: int) -> None:
        self._sampled += count

    def state(self) -> dict[str, Number]:
        return {
            "inserted": self._inserted,
            "sampled": self._sampled,
            "inserted_origin": self._inserted_origin,
            "sampled_origin": self._sampled_origin,
            "min_size": self.min_size,
            "samples_per_insert": float(self.samples_per_insert or 0.0),
        }

    def load_state(self, state: Mapping[str, Number]) -> None:
        self._inserted = int(state["inserted"])
        self._sampled = int(state["sampled"])
        self._inserted_origin = int(state["inserted_origin"])
        self._sampled_origin = int(state["sampled_origin"])
        mine = self.state()
        if any(state[name] != mine[name] for name in ("min_size", "samples_per_insert")):
            self._start_anew()

    def _set(
        self, min_size: int, samples_per_insert: float | None, error_buffer: float | None
    ) -> None:
        _check_settings(min_size, samples_per_insert, error_buffer)
        self.min_size = min_size
        self.samples_per_insert = samples_per_insert
        self.error_buffer = error_buffer
        # As the settings were written: 0.1 means one tenth, not the float next to it.
        ratio = Fraction(str(samples_per_insert or 0.0))
        # The surplus times `_per_sample` is an integer.
        self._per_insert, self._per_sample = ratio.numerator, ratio.denominator
        self._limit = math.floor(Fraction(str(error_buffer or 0.0)) * self._per_sample)

    def _start_anew(self) -> None:
        """Under another ratio the old counts would mean a huge debt, and one side would stand
        still until it was paid. The new ratio holds from here on."""
        self._inserted_origin = max(self._inserted, self.min_size)
        self._sampled_origin = self._sampled

    def _scaled_surplus(self) -> int:
        owed = self._per_insert * (self._inserted - self._inserted_origin)
        return owed - self._per_sample * (self._sampled - self._sampled_origin)

    def _numbers(self) -> str:
        return (
            f"inserted {self._inserted}, sampled {self._sampled}, "
            f"samples_per_insert {self.samples_per_insert}, min_size {self.min_size}, "
            f"surplus {self.surplus:g} of +-{self.error_buffer}"
        )


def _check_settings(
    min_size: int, samples_per_insert: float | None, error_buffer: float | None
) -> None:
    if min_size < 1:
        raise UsageError(f"min_size {min_size} would sample from nothing: give at least 1")
    if samples_per_insert is None:
        if error_buffer is not None:
            raise UsageError(
                f"error_buffer {error_buffer} means nothing without samples_per_insert: "
                "leave it out, or give a ratio"
            )
        return
    if not 0 < samples_per_insert < math.inf:
        raise UsageError(
            f"samples_per_insert {samples_per_insert} is not a positive number: "
            "give one, or leave it out for no ratio"
        )
    least = max(1.0, samples_per_insert)
    if error_buffer is None or not least <= error_buffer < math.inf:
        raise UsageError(
            f"error_buffer {error_buffer} would let neither side move: with samples_per_insert "
            f"{samples_per_insert:g} give at least {least:g}, and as much as the largest batch"
        )
