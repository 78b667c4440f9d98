"""What each consumer of a shared table is owed: one balance for each, pure arithmetic.

The learners of a portfolio sample one table, each at a ratio of its own. A consumer is one of them,
named by its place in the portfolio:

    surplus = samples_per_insert * (inserted - min_size) - sampled

From the moment `min_size` items are in, a consumer with a ratio above 0 is never further behind
than `samples_per_insert * buffer_items`, nor further ahead than that or, if that is more, than one
batch. The buffer counts inserted items, so it means the same for every ratio: how far the writers
may run ahead of any consumer, and any consumer ahead of the writers.

Both sides can never wait for each other. An insert of b items waits for a consumer only while its
surplus is above samples_per_insert * (buffer_items - b); `check_insert` refuses every batch above
`buffer_items`, so that is never below 0. A sample waits only while its consumer's surplus is below
0. Whoever an insert waits for may therefore sample, with any batch and under any ratio: another
ratio is never refused for what callers do.

Another ratio counts from that moment on. What was owed stays owed, cut to the new bounds and to
whole steps of the new ratio, towards 0. At a ratio of 0 a consumer may not sample, holds nobody
back, and its balance stands still until it gets another ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from repertory.errors import UsageError
from repertory.types import Array

MOST_CONSUMERS = 256
LARGEST_CONSUMER = 2**31 - 1

# What is saved of each consumer; `configured` is not a number if it came while running.
SAVED = {
    "consumer": "<i8",
    "sampled": "<i8",
    "largest_sample": "<i8",
    "surplus": "<f8",
    "samples_per_insert": "<f8",
    "configured": "<f8",
}


@dataclass(slots=True, eq=False)
class Balance:
    """One consumer's. The surplus times `per_sample` is an integer: no rounding."""

    samples_per_insert: float = 0.0
    sampled: int = 0  # items, ever
    largest_sample: int = 0
    caller: str = ""  # who sampled for it last
    per_insert: int = 0
    per_sample: int = 1
    origin: int = 0  # items inserted when `carried` was what it was owed
    carried: int = 0  # less what it has sampled since

    def scaled_surplus(self, inserted: int) -> int:
        return self.carried + self.per_insert * max(0, inserted - self.origin)

    def surplus(self, inserted: int) -> float:
        """Samples that it owes; negative where it is ahead."""
        return self.scaled_surplus(inserted) / self.per_sample

    def go_on(self, ratio: float, buffer_items: int, inserted: int, min_size: int) -> None:
        """At this ratio from here on, with what was owed before."""
        owed = Fraction(self.scaled_surplus(inserted), self.per_sample)
        self.owe(owed, ratio, buffer_items, inserted, min_size)

    def owe(
        self, owed: Fraction, ratio: float, buffer_items: int, inserted: int, min_size: int
    ) -> None:
        self.samples_per_insert = ratio
        self.origin = max(inserted, min_size)
        if ratio == 0:
            self.per_insert, self.per_sample, self.carried = 0, owed.denominator, owed.numerator
            return
        # As the settings were written: 0.1 means one tenth, not the float next to it.
        exact = Fraction(str(float(ratio)))
        self.per_insert, self.per_sample = exact.numerator, exact.denominator
        bound = self.per_insert * buffer_items
        # Below min_size nobody may sample, so nobody may be waited for.
        most = bound if inserted >= min_size else 0
        least = -max(bound, self.largest_sample * self.per_sample)
        self.carried = max(least, min(most, int(owed * self.per_sample)))


class Consumers:
    """The balances of one table's consumers. Who calls says how many items were ever inserted."""

    buffer_items: int

    def __init__(
        self,
        ratios: Mapping[int, float],
        buffer_items: int | None,
        inserted: int,
        min_size: int,
        configured: Mapping[int, float],
    ) -> None:
        """`configured`: the ratios that the table was made with."""
        self._configured = configured
        self._balances: dict[int, Balance] = {}
        self.replace(ratios, buffer_items, inserted, min_size)

    @property
    def balances(self) -> Mapping[int, Balance]:
        return self._balances

    def replace(
        self, ratios: Mapping[int, float], buffer_items: int | None, inserted: int, min_size: int
    ) -> None:
        """These consumers and no others. Those who stay keep their balances.

        Refused settings change nothing.
        """
        _check_ratios(ratios)
        self.buffer_items = _checked_buffer(buffer_items)
        self._balances = {name: self._balances.get(name) or Balance() for name in ratios}
        for name, ratio in ratios.items():
            self._balances[name].go_on(ratio, self.buffer_items, inserted, min_size)

    def change(self, ratios: Mapping[int, float], inserted: int, min_size: int) -> None:
        """Other ratios for these consumers, or new ones; all of them or, with an error, none."""
        current = {name: balance.samples_per_insert for name, balance in self._balances.items()}
        self.replace({**current, **ratios}, self.buffer_items, inserted, min_size)

    def surplus(self, inserted: int) -> float:
        """Of whoever is furthest behind, among those who count."""
        counting = (balance for balance in self._balances.values() if balance.per_insert)
        return max((balance.surplus(inserted) for balance in counting), default=0.0)

    def check_insert(self, count: int) -> None:
        """Raises for a batch that could wait for ever."""
        if count > self.buffer_items:
            raise UsageError(
                f"an insert of {count} items is more than consumer_buffer_items, "
                f"{self.buffer_items}: raise that to at least {count}, or insert smaller batches"
            )

    def check_sample(self, consumer: int | None) -> None:
        """Raises for somebody who has no balance here."""
        known = ", ".join(map(str, sorted(self._balances)))
        if consumer is None:
            raise UsageError(
                "a sample must say for which consumer it is, because each has a ratio of its own "
                f"here: set `consumer` to one of {known}"
            )
        if consumer not in self._balances:
            raise UsageError(
                f"consumer {consumer} is not known here: there is {known}; "
                "add it with configure_consumers"
            )

    def can_insert(self, inserted: int, count: int) -> bool:
        upto, buffer_items = inserted + count, self.buffer_items
        for balance in self._balances.values():
            per_insert = balance.per_insert
            if per_insert and balance.scaled_surplus(upto) > per_insert * buffer_items:
                return False
        return True

    def can_sample(self, consumer: int | None, inserted: int, count: int) -> bool:
        balance = None if consumer is None else self._balances.get(consumer)
        if balance is None or not balance.per_insert:
            return False
        wanted = count * balance.per_sample
        least = -max(balance.per_insert * self.buffer_items, wanted)
        return balance.scaled_surplus(inserted) - wanted >= least

    def holders(self, inserted: int, count: int) -> list[int]:
        """For whom an insert must wait, the furthest behind first."""
        held = {
            consumer: Fraction(balance.scaled_surplus(inserted), balance.per_insert)
            for consumer, balance in self._balances.items()
            if balance.per_insert
            and balance.scaled_surplus(inserted + count) > balance.per_insert * self.buffer_items
        }
        return sorted(held, key=lambda consumer: held[consumer], reverse=True)

    def why_insert_blocked(self, inserted: int, count: int) -> str:
        holders = self.holders(inserted, count)
        if not holders:
            return f"inserting {count} items may go on"
        balance = self._balances[holders[0]]
        ratio, behind = balance.samples_per_insert, balance.surplus(inserted)
        others = f", and for {len(holders) - 1} more" if len(holders) > 1 else ""
        return (
            f"inserting {count} items must wait{others}: {self._named(holders[0])} has sampled "
            f"{round(behind):,} items less than its {ratio:g} samples per insert ask for, these "
            f"make it {round(behind + ratio * count):,}, and it may be "
            f"{round(ratio * self.buffer_items):,} behind at most"
        )

    def why_sample_blocked(self, consumer: int | None, inserted: int, count: int) -> str:
        balance = None if consumer is None else self._balances.get(consumer)
        if consumer is None or balance is None:
            return f"consumer {consumer} is not known here"
        if not balance.per_insert:
            return (
                f"{self._named(consumer)} has a ratio of 0 and may not sample until it has another"
            )
        ratio, ahead = balance.samples_per_insert, -balance.surplus(inserted)
        return (
            f"sampling {count} items must wait for more inserts: {self._named(consumer)} has "
            f"sampled {round(ahead):,} items more than its {ratio:g} samples per insert ask for, "
            f"and may be {round(max(ratio * self.buffer_items, count)):,} ahead at most"
        )

    def note_caller(self, consumer: int, caller: str) -> None:
        """Who samples for it, for people."""
        self._balances[consumer].caller = caller

    def sampled(self, consumer: int, count: int) -> None:
        balance = self._balances[consumer]
        balance.sampled += count
        balance.carried -= count * balance.per_sample
        balance.largest_sample = max(balance.largest_sample, count)

    def arrays(self, inserted: int) -> dict[str, Array]:
        """What must survive, one row for each consumer."""
        rows = [
            (
                name,
                one.sampled,
                one.largest_sample,
                one.surplus(inserted),
                one.samples_per_insert,
                self._configured.get(name, math.nan),
            )
            for name, one in self._balances.items()
        ]
        return {
            name: np.asarray([row[place] for row in rows], dtype=dtype)
            for place, (name, dtype) in enumerate(SAVED.items())
        }

    def load_arrays(self, arrays: Mapping[str, Array], inserted: int, min_size: int) -> None:
        """Takes the place of all counts; without arrays every balance begins here.

        A ratio that was changed while running goes on, unless the settings are others by now.
        """
        for balance in self._balances.values():
            balance.sampled = balance.largest_sample = 0
            ratio = balance.samples_per_insert
            balance.owe(Fraction(0), ratio, self.buffer_items, inserted, min_size)
        rows = zip(*(arrays[name].tolist() for name in SAVED), strict=True) if arrays else ()
        for name, sampled, largest_sample, surplus, ratio, configured in rows:
            before = None if math.isnan(configured) else configured
            if before is not None and name not in self._balances:
                continue  # the settings no longer have it
            balance = self._balances.setdefault(name, Balance())
            balance.sampled, balance.largest_sample = sampled, largest_sample
            ratio = ratio if self._configured.get(name) == before else balance.samples_per_insert
            _check_ratios({name: ratio})
            balance.owe(Fraction(str(surplus)), ratio, self.buffer_items, inserted, min_size)

    def _named(self, consumer: int) -> str:
        caller = self._balances[consumer].caller
        return f"consumer {consumer} (caller {caller})" if caller else f"consumer {consumer}"


def _check_ratios(ratios: Mapping[int, float]) -> None:
    if len(ratios) > MOST_CONSUMERS:
        raise UsageError(f"{len(ratios)} consumers are too many: give at most {MOST_CONSUMERS}")
    for consumer, ratio in ratios.items():
        if not 0 <= consumer <= LARGEST_CONSUMER:
            raise UsageError(
                f"consumer {consumer} is no place in a portfolio: give 0 to {LARGEST_CONSUMER}"
            )
        if not 0 <= ratio < math.inf:
            raise UsageError(
                f"samples_per_insert {ratio} of consumer {consumer} is no ratio: give 0 or more"
            )


def _checked_buffer(buffer_items: int | None) -> int:
    if buffer_items is None or buffer_items < 1:
        raise UsageError(
            f"consumer_buffer_items {buffer_items} would let nobody insert: "
            "give as many items as the largest insert has, better twice as many"
        )
    return buffer_items
