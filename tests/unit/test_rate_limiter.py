"""The balance of inserting and sampling: bounds, deadlock freedom, what it says."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buffer_server.rate_limiter import RateLimiter
from repertory.errors import UsageError


@st.composite
def limiters(draw: st.DrawFn) -> tuple[RateLimiter, int, int]:
    """A limiter with the largest batches it allows."""
    # Tenths and thirds are no binary fractions: this is where rounding would show.
    ratio = draw(st.sampled_from([0.1, 0.3, 1 / 3, 0.7, 1.0, 2.5, 4.0, 7.3]))
    buffer = draw(st.floats(max(1.0, ratio), 40.0) | st.sampled_from([8.0, ratio * 8]))
    buffer = max(buffer, ratio, 1.0)
    limiter = RateLimiter(
        min_size=draw(st.integers(1, 30)), samples_per_insert=ratio, error_buffer=buffer
    )
    largest_insert = math.floor(Fraction(str(buffer)) / Fraction(str(ratio)))
    return limiter, largest_insert, math.floor(buffer)


@settings(max_examples=100, deadline=None)
@given(made=limiters(), data=st.data())
def test_any_interleaving_keeps_the_bounds_and_never_stops_both_sides(
    made: tuple[RateLimiter, int, int], data: st.DataObject
) -> None:
    limiter, largest_insert, largest_sample = made
    assert limiter.samples_per_insert is not None
    assert limiter.error_buffer is not None
    inserted = sampled = 0
    steps = st.tuples(st.booleans(), st.integers(1, 1000))
    for wants_insert, number in data.draw(st.lists(steps, max_size=80)):
        insert, sample = number % largest_insert + 1, number % largest_sample + 1
        if wants_insert and limiter.can_insert(insert):
            limiter.inserted(insert)
            inserted += insert
        elif not wants_insert and limiter.can_sample(sample):
            assert inserted >= limiter.min_size
            limiter.sampled(sample)
            sampled += sample
        # The definition, in floats; 1e-9 is far above their rounding at these sizes.
        surplus = limiter.samples_per_insert * (inserted - limiter.min_size) - sampled
        assert surplus <= limiter.error_buffer + 1e-9
        if inserted >= limiter.min_size:
            assert surplus >= -limiter.error_buffer - 1e-9
        # Whatever two batches now wait, one of them may go.
        assert limiter.can_insert(largest_insert) or limiter.can_sample(largest_sample)


@settings(max_examples=100, deadline=None)
@given(made=limiters())
def test_the_largest_batches_pass_the_check_and_larger_ones_do_not(
    made: tuple[RateLimiter, int, int],
) -> None:
    limiter, largest_insert, largest_sample = made
    limiter.check_insert(largest_insert)
    limiter.check_sample(largest_sample)
    with pytest.raises(UsageError, match="error_buffer"):
        limiter.check_insert(largest_insert + 1)
    with pytest.raises(UsageError, match="error_buffer"):
        limiter.check_sample(largest_sample + 1)


def test_a_long_run_keeps_the_ratio() -> None:
    limiter = RateLimiter(min_size=100, samples_per_insert=4.0, error_buffer=256.0)
    for _ in range(5000):  # both sides as greedy as they can
        if limiter.can_insert(8):
            limiter.inserted(8)
        if limiter.can_sample(64):
            limiter.sampled(64)
    assert limiter.insert_count > 5_000
    assert abs(limiter.sample_count - 4 * (limiter.insert_count - 100)) <= 256


def test_sampling_waits_for_min_size() -> None:
    limiter = RateLimiter(min_size=10)
    limiter.inserted(9)
    assert not limiter.can_sample(1)
    assert "only 9 of the first 10 items" in limiter.why_sample_blocked(1)
    limiter.inserted(1)
    assert limiter.can_sample(1)


def test_without_a_ratio_nothing_else_waits() -> None:
    limiter = RateLimiter(min_size=1)
    limiter.inserted(1)
    limiter.check_insert(10**9)
    limiter.check_sample(10**9)
    assert limiter.can_insert(10**9)
    assert limiter.can_sample(10**9)


def test_inserting_waits_at_the_upper_bound() -> None:
    limiter = RateLimiter(min_size=10, samples_per_insert=2.0, error_buffer=8.0)
    limiter.inserted(13)  # surplus 6
    assert limiter.can_insert(1)
    assert not limiter.can_insert(2)
    reason = limiter.why_insert_blocked(2)
    assert "inserting 2 items must wait for more samples" in reason
    assert "inserted 13, sampled 0" in reason
    assert "surplus 6 of +-8" in reason


def test_sampling_waits_at_the_lower_bound() -> None:
    limiter = RateLimiter(min_size=10, samples_per_insert=2.0, error_buffer=8.0)
    limiter.inserted(10)
    limiter.sampled(5)  # surplus -5
    assert limiter.can_sample(3)
    assert not limiter.can_sample(4)
    reason = limiter.why_sample_blocked(4)
    assert "sampling 4 items must wait for more inserts" in reason
    assert "inserted 10, sampled 5" in reason
    assert "surplus -5 of +-8" in reason


def test_a_batch_that_could_wait_for_ever_is_refused_with_the_remedy() -> None:
    limiter = RateLimiter(min_size=1, samples_per_insert=4.0, error_buffer=100.0)
    with pytest.raises(UsageError, match=r"insert of 32 .* buffer of 100: .* at least 128"):
        limiter.check_insert(32)
    with pytest.raises(UsageError, match=r"sample of 256 .* buffer of 100: .* at least 256"):
        limiter.check_sample(256)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_size": 0}, "min_size 0"),
        ({"samples_per_insert": 0.0, "error_buffer": 9.0}, "samples_per_insert 0.0"),
        ({"samples_per_insert": math.inf, "error_buffer": 9.0}, "samples_per_insert inf"),
        ({"samples_per_insert": math.nan, "error_buffer": 9.0}, "samples_per_insert nan"),
        ({"samples_per_insert": 8.0, "error_buffer": 7.0}, "error_buffer 7.0 .* at least 8"),
        ({"samples_per_insert": 0.5, "error_buffer": 0.5}, "error_buffer 0.5 .* at least 1"),
        ({"samples_per_insert": 1.0, "error_buffer": math.nan}, "error_buffer nan"),
        ({"samples_per_insert": 1.0}, "error_buffer None .* at least 1"),
        ({"error_buffer": 9.0}, "error_buffer 9.0 means nothing without samples_per_insert"),
    ],
)
def test_impossible_settings_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RateLimiter(**arguments)


def test_restored_counters_block_and_allow_the_same() -> None:
    saved = RateLimiter(min_size=10, samples_per_insert=2.0, error_buffer=8.0)
    saved.inserted(12)
    saved.sampled(7)
    restored = RateLimiter(min_size=10, samples_per_insert=2.0, error_buffer=8.0)
    restored.load_state(saved.state())
    assert restored.surplus == saved.surplus == -3.0
    assert (restored.insert_count, restored.sample_count) == (12, 7)


@pytest.mark.parametrize(
    "changed", [{"samples_per_insert": 8.0}, {"min_size": 1}, {"min_size": 5000}]
)
def test_with_changed_settings_no_debt_is_carried_over(changed: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {
        "min_size": 10, "samples_per_insert": 2.0, "error_buffer": 80.0,
    }  # fmt: skip
    saved = RateLimiter(**arguments)
    saved.inserted(1000)
    saved.sampled(1950)
    restored = RateLimiter(**(arguments | changed))
    restored.load_state(saved.state())
    assert restored.insert_count == 1000
    assert restored.can_insert(10)
    assert restored.can_sample(80) == (restored.min_size <= 1000)


def test_a_part_below_min_size_does_not_wait_for_samples_that_cannot_come() -> None:
    restored = RateLimiter(min_size=10, samples_per_insert=2.0, error_buffer=8.0)
    # Half of what a shard had: 14 items, 8 samples owed.
    half = {"inserted": 7, "sampled": 0, "inserted_origin": 5, "sampled_origin": 0}
    restored.load_state({**half, "min_size": 10, "samples_per_insert": 2.0})
    while restored.insert_count < 10:
        assert restored.can_insert(1)
        restored.inserted(1)
    assert restored.can_sample(8)


def test_with_a_larger_min_size_inserting_goes_on_until_it_is_reached() -> None:
    saved = RateLimiter(min_size=10, samples_per_insert=2.0, error_buffer=80.0)
    saved.inserted(50)
    restored = RateLimiter(min_size=500, samples_per_insert=2.0, error_buffer=80.0)
    restored.load_state(saved.state())
    while restored.insert_count < 500:
        assert restored.can_insert(10)
        restored.inserted(10)
    assert restored.can_sample(80)
