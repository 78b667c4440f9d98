"""The line through a figure over time: its slope, and when one may say that it grows."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.trend import trend

HOURS = np.linspace(0.0, 0.5, 240)


def test_the_slope_of_a_straight_line_is_found_exactly() -> None:
    found = trend(HOURS, 100.0 + 30.0 * HOURS)
    assert found is not None
    assert found.slope == pytest.approx(30.0)
    assert (found.low, found.high) == (pytest.approx(30.0), pytest.approx(30.0))
    assert found.grows_more_than(20.0)
    assert not found.grows_more_than(31.0)


def test_slope_and_interval_agree_with_a_computation_by_hand() -> None:
    # One sample twice for each of 12 points x = 0..11, y = x + (1, -1, 1, -1, ...): numpy.polyfit
    # gives the slope; its error is sqrt(sum(rest**2) / 10 / sum((x - mean)**2)).
    x = np.repeat(np.arange(12.0), 2)
    y = x + np.repeat(np.tile([1.0, -1.0], 6), 2)
    slope, intercept = np.polyfit(x[::2], y[::2], 1)
    rest = y[::2] - slope * x[::2] - intercept
    error = np.sqrt((rest**2).sum() / 10 / 143.0)
    found = trend(x, y)
    assert found is not None
    assert found.slope == pytest.approx(slope)
    assert found.high - found.slope == pytest.approx(2.228 * error)


def test_noise_alone_seldom_grows() -> None:
    """By chance one in forty does, which is half of 5 %: of 400 that are 10, and 25 is 5 sigma."""
    rng = np.random.default_rng(0)
    grown = 0
    for _ in range(400):
        found = trend(HOURS, rng.standard_normal(len(HOURS)))
        assert found is not None
        grown += found.grows_more_than(0.0)
    assert grown < 25


def test_too_few_samples_say_nothing() -> None:
    assert trend(HOURS[:23], HOURS[:23]) is None
