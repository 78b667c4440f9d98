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

A table that several learners share has a balance for each of them instead, see `consumers`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from buffer_server.consumers import Balance, Consumers
from repertory.errors import UsageError
from repertory.types import Array

Number = int | float


class RateLimiter:
    """Without any ratio only `min_size` counts: sampling waits for it, inserting never.

    One object serves one table, under its lock.
    """

    def __init__(
        self,
        *,
        min_size: int = 1,
        samples_per_insert: float | None = None,
        error_buffer: float | None = None,
        consumers: Mapping[int, float] | None = None,
        consumer_buffer_items: int | None = None,
    ) -> None:
        """`consumers`: the samples per insert of each. None and nobody mean the same."""
        self._inserted = 0
        self._sampled = 0
        self._inserted_origin = min_size  # where the surplus is zero
        self._sampled_origin = 0
        self._consumers: Consumers | None = None
        self._configured = dict(consumers or {})
        self._set(min_size, samples_per_insert, error_buffer, consumers, consumer_buffer_items)

    @property
    def insert_count(self) -> int:
        return self._inserted

    @property
    def sample_count(self) -> int:
        return self._sampled

    @property
    def surplus(self) -> float:
        """Samples that are owed for what was inserted; negative where sampling runs ahead.

        Of several consumers the one that is furthest behind.
        """
        if self._consumers is not None:
            return self._consumers.surplus(self._inserted)
        return self._scaled_surplus() / self._per_sample

    @property
    def consumers(self) -> Mapping[int, Balance]:
        """Empty where there is one count for all callers."""
        return {} if self._consumers is None else self._consumers.balances

    @property
    def consumer_buffer_items(self) -> int | None:
        return None if self._consumers is None else self._consumers.buffer_items

    def configure(
        self,
        *,
        min_size: int,
        samples_per_insert: float | None = None,
        error_buffer: float | None = None,
        consumers: Mapping[int, float] | None = None,
        consumer_buffer_items: int | None = None,
    ) -> None:
        """Other settings from here on; refused ones change nothing. The counts stay."""
        before = (self.min_size, self.samples_per_insert)
        self._set(min_size, samples_per_insert, error_buffer, consumers, consumer_buffer_items)
        if before != (min_size, samples_per_insert):
            self._start_anew()

    def configure_consumers(self, ratios: Mapping[int, float]) -> None:
        """Other ratios for these consumers from here on; refused ones change nothing."""
        if self._consumers is None:
            raise UsageError(
                "there are no consumers here, all callers have one count: set `consumers` and "
                "`consumer_buffer_items` with configure_limiter first"
            )
        self._consumers.change(ratios, self._inserted, self.min_size)

    def check_insert(self, count: int) -> None:
        """Raises for a batch that could wait for ever."""
        if self._consumers is not None:
            self._consumers.check_insert(count)
        if self.samples_per_insert is not None and count * self._per_insert > self._limit:
            raise UsageError(
                f"an insert of {count} items at {self.samples_per_insert:g} samples per insert "
                f"moves the balance by {count * self.samples_per_insert:g}, past the error buffer "
                f"of {self.error_buffer:g}: raise error_buffer to at least "
                f"{count * self.samples_per_insert:g}, or insert smaller batches"
            )

    def check_sample(self, count: int, consumer: int | None = None) -> None:
        """Raises for a batch that could wait for ever, and for a consumer that is not known.

        Where there is one count for all callers, it makes no difference who samples.
        """
        if self._consumers is not None:
            self._consumers.check_sample(consumer)
        if self.samples_per_insert is not None and count * self._per_sample > self._limit:
            raise UsageError(
                f"a sample of {count} items is larger than the error buffer of "
                f"{self.error_buffer:g}: raise error_buffer to at least {count}, "
                "or sample smaller batches"
            )

    def can_insert(self, count: int) -> bool:
        if self._consumers is not None:
            return self._consumers.can_insert(self._inserted, count)
        if self.samples_per_insert is None:
            return True
        return self._scaled_surplus() + count * self._per_insert <= self._limit

    def can_sample(self, count: int, consumer: int | None = None) -> bool:
        if self._inserted < self.min_size:
            return False
        if self._consumers is not None:
            return self._consumers.can_sample(consumer, self._inserted, count)
        if self.samples_per_insert is None:
            return True
        return self._scaled_surplus() - count * self._per_sample >= -self._limit

    def held_by(self, count: int) -> list[int]:
        """The consumers for whom an insert must wait, the furthest behind first."""
        return [] if self._consumers is None else self._consumers.holders(self._inserted, count)

    def why_insert_blocked(self, count: int) -> str:
        if self._consumers is not None:
            return self._consumers.why_insert_blocked(self._inserted, count)
        return f"inserting {count} items must wait for more samples ({self._numbers()})"

    def why_sample_blocked(self, count: int, consumer: int | None = None) -> str:
        if self._inserted < self.min_size:
            return f"only {self._inserted} of the first {self.min_size} items (min_size) are in"
        if self._consumers is not None:
            return self._consumers.why_sample_blocked(consumer, self._inserted, count)
        return f"sampling {count} items must wait for more inserts ({self._numbers()})"

    def inserted(self, count: int) -> None:
        self._inserted += count

    def sampled(self, count: int, consumer: int | None = None) -> None:
        self._sampled += count
        if self._consumers is not None and consumer is not None:
            self._consumers.sampled(consumer, count)

    def note_caller(self, consumer: int, caller: str) -> None:
        """Who samples for a consumer, for people."""
        if self._consumers is not None:
            self._consumers.note_caller(consumer, caller)

    def state(self) -> dict[str, Number]:
        return {
            "inserted": self._inserted,
            "sampled": self._sampled,
            "inserted_origin": self._inserted_origin,
            "sampled_origin": self._sampled_origin,
            "min_size": self.min_size,
            "samples_per_insert": float(self.samples_per_insert or 0.0),
        }

    def consumer_arrays(self) -> dict[str, Array]:
        """What must survive of each; nothing where there is one count for all callers."""
        return {} if self._consumers is None else self._consumers.arrays(self._inserted)

    def load_state(
        self, state: Mapping[str, Number], consumers: Mapping[str, Array] | None = None
    ) -> None:
        self._inserted = int(state["inserted"])
        self._sampled = int(state["sampled"])
        self._inserted_origin = int(state["inserted_origin"])
        self._sampled_origin = int(state["sampled_origin"])
        mine = self.state()
        changed = any(state[name] != mine[name] for name in ("min_size", "samples_per_insert"))
        # Below min_size nobody may sample, so nothing may be owed: inserts would wait for ever.
        if changed or self._inserted < self.min_size:
            self._start_anew()
        if self._consumers is not None:
            self._consumers.load_arrays(consumers or {}, self._inserted, self.min_size)

    def _set(
        self,
        min_size: int,
        samples_per_insert: float | None,
        error_buffer: float | None,
        consumers: Mapping[int, float] | None,
        consumer_buffer_items: int | None,
    ) -> None:
        _check_settings(min_size, samples_per_insert, error_buffer)
        self._set_consumers(min_size, samples_per_insert, consumers or {}, consumer_buffer_items)
        self.min_size = min_size
        self.samples_per_insert = samples_per_insert
        self.error_buffer = error_buffer
        # As the settings were written: 0.1 means one tenth, not the float next to it.
        ratio = Fraction(str(samples_per_insert or 0.0))
        # The surplus times `_per_sample` is an integer.
        self._per_insert, self._per_sample = ratio.numerator, ratio.denominator
        self._limit = math.floor(Fraction(str(error_buffer or 0.0)) * self._per_sample)

    def _set_consumers(
        self,
        min_size: int,
        samples_per_insert: float | None,
        consumers: Mapping[int, float],
        buffer_items: int | None,
    ) -> None:
        if not consumers:
            if buffer_items is not None:
                raise UsageError(
                    f"consumer_buffer_items {buffer_items} means nothing without consumers: "
                    "leave it out, or give their ratios"
                )
            self._consumers = None
            return
        if samples_per_insert is not None:
            raise UsageError(
                f"samples_per_insert {samples_per_insert:g} for all callers and ratios of "
                f"{len(consumers)} consumers could stop each other: leave one of them out"
            )
        if self._consumers is None:
            self._consumers = Consumers(
                consumers, buffer_items, self._inserted, min_size, self._configured
            )
        else:
            self._consumers.replace(consumers, buffer_items, self._inserted, min_size)

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
