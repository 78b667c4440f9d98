"""Request times: percentiles near the true ones, over the last minute only."""

from __future__ import annotations

import numpy as np
import pytest

from buffer_server.request_times import BOUNDS, BUCKETS, WINDOW_SECONDS, RequestTimes


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_within_a_bucket_of_the_true_ones(seed: int, clock: Clock) -> None:
    times = RequestTimes(clock)
    drawn = np.exp(np.random.default_rng(seed).normal(-6.0, 1.0, size=5000))
    for seconds in drawn:
        times.note(float(seconds))
    statistics = times.statistics()
    # A bucket is sqrt(2) wide.
    assert statistics.p50_seconds == pytest.approx(np.percentile(drawn, 50), rel=0.42)
    assert statistics.p99_seconds == pytest.approx(np.percentile(drawn, 99), rel=0.42)


def test_nothing_has_no_percentiles(clock: Clock) -> None:
    statistics = RequestTimes(clock).statistics()
    assert (statistics.count, statistics.per_second, statistics.p99_seconds) == (0, 0.0, 0.0)


def test_the_rate_is_of_the_time_that_was_looked_at(clock: Clock) -> None:
    times = RequestTimes(clock)
    for _ in range(100):
        clock.now += 0.1
        times.note(0.001)
    assert times.statistics().per_second == pytest.approx(10.0)


def test_what_was_slow_long_ago_is_forgotten_but_counted(clock: Clock) -> None:
    times = RequestTimes(clock)
    times.note(5.0)
    clock.now += WINDOW_SECONDS + 1
    times.note(0.001)
    assert times.statistics().p99_seconds > 1.0  # the half before still counts
    clock.now += WINDOW_SECONDS + 1
    times.note(0.001)
    statistics = times.statistics()
    assert statistics.p99_seconds < 0.002
    assert statistics.count == 3


def test_a_long_silence_makes_the_rate_zero(clock: Clock) -> None:
    times = RequestTimes(clock)
    for _ in range(1000):
        times.note(0.001)
    clock.now += 10 * WINDOW_SECONDS
    assert times.statistics().per_second == 0.0


@pytest.mark.parametrize(
    ("seconds", "place"), [(0.0, 0), (BOUNDS[0], 0), (BOUNDS[3], 3), (1e9, BUCKETS)]
)
def test_a_bucket_holds_what_is_up_to_its_bound(seconds: float, place: int, clock: Clock) -> None:
    times = RequestTimes(clock)
    times.note(seconds)
    total = times.total()
    assert total.counts.index(1) == place
    assert total.total_seconds == seconds
