"""How long requests take: a histogram since the start, and one of the last minute or so.

Buckets are a factor of sqrt(2) apart, so a percentile is within a fifth of the truth. The recent
one is made of two halves that take turns: whatever is read covers at least WINDOW_SECONDS, once
the shard is that old, and at most twice as much.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from buffer_server.statistics import RequestStatistics

WINDOW_SECONDS = 30.0
SHORTEST_SECONDS = 50e-6
BUCKETS = 37  # up to 13 s; what takes longer is in one more
BOUNDS = tuple(SHORTEST_SECONDS * math.sqrt(2.0) ** place for place in range(BUCKETS))


@dataclass(slots=True)
class Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (BUCKETS + 1))
    total_seconds: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """In the middle of its bucket, in proportion; 0 where there is nothing."""
        wanted, seen = share * self.count, 0
        for place, count in enumerate(self.counts):
            if count and seen + count >= wanted:
                below = BOUNDS[place - 1] if place else 0.0
                above = BOUNDS[min(place, BUCKETS - 1)]
                return below + (above - below) * (wanted - seen) / count
            seen += count
        return 0.0


class RequestTimes:
    """Of one kind of request. Safe to share between threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._total = Histogram()
        self._current, self._previous = Histogram(), Histogram()
        self._current_since = self._previous_since = clock()

    def note(self, seconds: float) -> None:
        place = bisect_left(BOUNDS, seconds)
        with self._lock:
            self._turn()
            for histogram in (self._total, self._current):
                histogram.counts[place] += 1
                histogram.total_seconds += seconds

    def total(self) -> Histogram:
        """A copy, of everything since the start."""
        with self._lock:
            return Histogram(list(self._total.counts), self._total.total_seconds)

    def statistics(self) -> RequestStatistics:
        with self._lock:
            self._turn()
            pairs = zip(self._current.counts, self._previous.counts, strict=True)
            recent = Histogram([one + other for one, other in pairs])
            seconds = max(1e-9, self._clock() - self._previous_since)
            count = self._total.count
        return RequestStatistics(
            count=count,
            per_second=recent.count / seconds,
            p50_seconds=recent.quantile(0.5),
            p99_seconds=recent.quantile(0.99),
        )

    def _turn(self) -> None:
        now = self._clock()
        if now - self._current_since < WINDOW_SECONDS:
            return
        idle = now - self._current_since >= 2 * WINDOW_SECONDS
        self._previous = Histogram() if idle else self._current
        self._previous_since = now - WINDOW_SECONDS if idle else self._current_since
        self._current, self._current_since = Histogram(), now
