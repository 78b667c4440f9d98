"""A share of all choices that no strategy can take away."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.minimum_share import CREDIT_CHOICES, MinimumShare


def choose(floor: MinimumShare, wish: str, candidates: list[str]) -> str:
    chosen = floor.due(candidates) or wish
    floor.note(chosen, candidates)
    return chosen


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 8),
    fraction=st.floats(0, 1),
    seed=st.integers(0, 1000),
    start=st.integers(0, 500),
    length=st.integers(1, 1500),
)
def test_over_any_window_everybody_gets_the_promised_share(
    count: int, fraction: float, seed: int, start: int, length: int
) -> None:
    names = [str(place) for place in range(count)]
    share = fraction / count
    floor, rng = MinimumShare(share, names), np.random.default_rng(seed)
    favourites = rng.integers(count, size=4)  # one for each quarter, the rest left out
    made = [choose(floor, names[favourites[i * 4 // 2000]], names) for i in range(2000)]
    window = made[start : start + length]
    for name in names:
        assert window.count(name) >= share * (length - CREDIT_CHOICES) - count


def test_one_that_is_never_wanted_gets_its_share_and_no_more() -> None:
    floor = MinimumShare(0.05, ["good", "bad"])
    made = [choose(floor, "good", ["good", "bad"]) for _ in range(2000)]
    assert made.count("bad") == 100
    assert made[:20] == ["good"] * 19 + ["bad"]


def test_one_that_is_chosen_at_random_often_enough_is_hardly_ever_forced() -> None:
    floor, rng = MinimumShare(0.05, ["good", "bad"]), np.random.default_rng(0)
    names = ["good", "bad"]
    made = [choose(floor, names[int(rng.random() < 0.06)], names) for _ in range(20_000)]
    # Forced in every gap of 20 it would be 0.085: one in (1 - 0.94^20) / 0.06 = 11.8 choices.
    assert made.count("bad") / 20_000 == pytest.approx(0.062, abs=0.006)


def test_all_of_it_promised_is_all_in_turn() -> None:
    names = ["a", "b", "c"]
    floor = MinimumShare(1 / 3, names)
    made = [choose(floor, "a", names) for _ in range(300)]
    assert [made.count(name) for name in names] == pytest.approx([100] * 3, abs=1)


def test_nothing_is_owed_for_the_time_on_the_bench() -> None:
    floor = MinimumShare(0.1, ["good", "bad"])
    for _ in range(9):
        choose(floor, "good", ["good", "bad"])
    floor.start_afresh("bad")
    made = [choose(floor, "good", ["good", "bad"]) for _ in range(10)]
    assert made == ["good"] * 9 + ["bad"]


def test_no_share_forces_nobody() -> None:
    floor = MinimumShare(0.0, ["a", "b"])
    assert {choose(floor, "a", ["a", "b"]) for _ in range(500)} == {"a"}
