"""Thinned points look as all of them do: extremes, ends and order are kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.dashboard.thinning import thinned

VALUES = st.lists(
    st.floats(-1e6, 1e6, allow_nan=False) | st.just(float("nan")), min_size=1, max_size=300
)


@given(VALUES, st.integers(4, 100), st.integers(0, 2**32 - 1))
def test_extremes_and_ends_stay(values: list[float], points: int, seed: int) -> None:
    y = np.array(values)
    x = np.cumsum(np.random.default_rng(seed).integers(0, 3, len(y))).astype(float)
    kept = thinned(x, y, points)
    assert len(kept) <= max(points, 4)
    assert (np.diff(kept) > 0).all()
    assert kept[0] == 0
    assert kept[-1] == len(y) - 1
    if not np.isnan(y).all():
        assert np.nanmax(y[kept]) == np.nanmax(y)
        assert np.nanmin(y[kept]) == np.nanmin(y)


def test_few_points_are_left_alone() -> None:
    assert thinned(np.arange(5.0), np.zeros(5), 5).tolist() == [0, 1, 2, 3, 4]


def test_one_spike_in_a_million_stays() -> None:
    y = np.zeros(1_000_000)
    y[654_321] = 1.0
    kept = thinned(np.arange(1e6), y, 1000)
    assert 654_321 in kept
    assert len(kept) <= 1000


@pytest.mark.parametrize("points", [4, 40, 400])
def test_every_piece_keeps_its_own_extremes(points: int) -> None:
    rng = np.random.default_rng(0)
    x, y = np.arange(10_000.0), rng.normal(size=10_000)
    kept = thinned(x, y, points)
    pieces = np.minimum((x * (points // 4) / x[-1]).astype(int), points // 4 - 1)
    for piece in range(points // 4):
        inside = pieces == piece
        assert y[kept][inside[kept]].max() == y[inside].max()
        assert y[kept][inside[kept]].min() == y[inside].min()
