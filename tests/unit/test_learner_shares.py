"""How updates are shared out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.learner_shares import by_choice, equal


def test_equal_is_equal() -> None:
    assert equal(["a", "b", "c", "d"]) == dict.fromkeys("abcd", 0.25)


def test_nobody_chosen_yet_is_equal() -> None:
    assert by_choice({"a": 0.0, "b": 0.0}, 0.1) == {"a": 0.5, "b": 0.5}


def test_shares_above_the_floor_are_those_of_the_choices() -> None:
    assert by_choice({"a": 0.7, "b": 0.3}, 0.05) == pytest.approx({"a": 0.7, "b": 0.3})


def test_who_is_lifted_takes_from_the_others_in_proportion() -> None:
    shares = by_choice({"a": 0.6, "b": 0.4, "c": 0.0}, 0.1)
    assert shares == pytest.approx({"a": 0.54, "b": 0.36, "c": 0.1})


def test_one_that_is_pushed_below_the_floor_by_this_is_lifted_too() -> None:
    # c is lifted to 0.2, b falls to 0.21 * 0.8 = 0.168 and is lifted, a has what remains
    shares = by_choice({"a": 0.79, "b": 0.21, "c": 0.0}, 0.2)
    assert shares == pytest.approx({"a": 0.6, "b": 0.2, "c": 0.2})


@given(
    chosen=st.lists(st.integers(0, 100), min_size=1, max_size=12),
    fraction=st.floats(0, 1),
)
def test_shares_sum_to_one_and_none_is_below_the_floor(chosen: list[int], fraction: float) -> None:
    total = sum(chosen) or 1
    floor = fraction / len(chosen)
    shares = by_choice({str(i): count / total for i, count in enumerate(chosen)}, floor)
    assert sum(shares.values()) == pytest.approx(1)
    assert min(shares.values()) >= floor - 1e-9
