"""Balances of several consumers: bounds, changes while running, deadlock freedom, what they say."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buffer_server.rate_limiter import RateLimiter
from repertory.errors import UsageError

# Tenths and thirds are no binary fractions: this is where rounding would show.
RATIOS = [0.0, 0.1, 0.3, 1 / 3, 1.0, 2.5, 7.3, 64.0]
LARGEST_SAMPLE = 40


def shared(
    consumers: dict[int, float], *, min_size: int = 1, buffer_items: int = 10
) -> RateLimiter:
    return RateLimiter(min_size=min_size, consumers=consumers, consumer_buffer_items=buffer_items)


def surplus(limiter: RateLimiter, consumer: int) -> float:
    return limiter.consumers[consumer].surplus(limiter.insert_count)


def exactly(ratio: float) -> Fraction:
    return Fraction(str(ratio))


@settings(max_examples=150, deadline=None)
@given(
    ratios=st.lists(st.sampled_from(RATIOS), min_size=1, max_size=4),
    min_size=st.integers(1, 30),
    buffer_items=st.integers(1, 20),
    steps=st.lists(st.tuples(st.integers(-1, 3), st.integers(1, 1000)), max_size=80),
)
def test_any_interleaving_keeps_every_consumer_within_its_bounds(
    ratios: list[float], min_size: int, buffer_items: int, steps: list[tuple[int, int]]
) -> None:
    limiter = shared(dict(enumerate(ratios)), min_size=min_size, buffer_items=buffer_items)
    inserted, sampled = 0, [0] * len(ratios)
    for who, number in steps:
        if who < 0:
            count = number % buffer_items + 1
            if limiter.can_insert(count):
                limiter.inserted(count)
                inserted += count
        elif who < len(ratios):
            count = number % LARGEST_SAMPLE + 1
            if limiter.can_sample(count, who):
                assert inserted >= min_size
                limiter.sampled(count, who)
                sampled[who] += count
        for consumer, ratio in enumerate(ratios):
            if ratio == 0:
                assert sampled[consumer] == 0
                continue
            # The definition, in fractions: nothing of it comes from the limiter.
            owed = exactly(ratio) * max(0, inserted - min_size) - sampled[consumer]
            bound = exactly(ratio) * buffer_items
            assert -max(bound, LARGEST_SAMPLE) <= owed <= bound
            assert surplus(limiter, consumer) == pytest.approx(float(owed), abs=1e-9)
        assert_somebody_may_go_on(limiter, buffer_items)


def assert_somebody_may_go_on(limiter: RateLimiter, buffer_items: int) -> None:
    """The largest insert may, or else each for whom it waits, whatever its batch."""
    if not limiter.can_insert(buffer_items):
        holders = limiter.held_by(buffer_items)
        assert holders
        assert limiter.insert_count >= limiter.min_size
        for consumer in holders:
            for count in (1, LARGEST_SAMPLE, 10**6):
                assert limiter.can_sample(count, consumer)


KINDS = ["insert", "insert", "insert", "sample", "sample", "change", "change", "min_size"]


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(0, 1), st.integers(0, 1000)),
        min_size=10,
        max_size=60,
    )
)
def test_any_changes_keep_what_is_owed_within_the_bounds_and_never_stop_both_sides(
    steps: list[tuple[str, int, int]],
) -> None:
    ratios = {0: 2.5, 1: 0.3}
    limiter = shared(ratios, min_size=5)
    for kind, consumer, number in steps:
        if kind == "insert":
            count = number % 10 + 1
            if limiter.can_insert(count):
                limiter.inserted(count)
        elif kind == "sample":
            count = number % LARGEST_SAMPLE + 1
            if limiter.can_sample(count, consumer):
                limiter.sampled(count, consumer)
        elif kind == "min_size":
            min_size = number % 40 + 1
            limiter.configure(min_size=min_size, consumers=ratios, consumer_buffer_items=10)
        else:
            ratio, other = RATIOS[number % len(RATIOS)], 1 - consumer
            before, untouched = surplus(limiter, consumer), surplus(limiter, other)
            limiter.configure_consumers({consumer: ratio})
            ratios[consumer] = ratio
            assert surplus(limiter, other) == untouched
            least = -max(ratio * 10, limiter.consumers[consumer].largest_sample)
            most = ratio * 10 if limiter.insert_count >= limiter.min_size else 0.0
            owed = max(least, min(most, before)) if ratio else before
            # Less than one sample is cut off, towards 0; 1e-9 is for the floats here.
            assert -1e-9 <= abs(owed) - abs(surplus(limiter, consumer)) < 1
        for name, ratio in ratios.items():
            if ratio and limiter.insert_count >= limiter.min_size:
                assert surplus(limiter, name) <= ratio * 10 + 1e-9
        assert_somebody_may_go_on(limiter, 10)
        assert limiter.can_insert(10) or any(ratios[name] for name in limiter.held_by(10))


def test_a_long_run_keeps_each_ratio_and_the_slowest_holds_the_writer() -> None:
    limiter = shared({0: 4.0, 1: 0.5, 2: 0.0}, min_size=100, buffer_items=16)
    for turn in range(20_000):  # all as greedy as they can, but the second comes seldom
        if limiter.can_insert(8):
            limiter.inserted(8)
        if limiter.can_sample(64, 0):
            limiter.sampled(64, 0)
        if turn % 7 == 0 and limiter.can_sample(2, 1):
            limiter.sampled(2, 1)
    since_min_size = limiter.insert_count - 100
    assert since_min_size > 5000
    assert abs(limiter.consumers[0].sampled - 4 * since_min_size) <= 64  # 4 * 16, and one batch
    assert abs(limiter.consumers[1].sampled - 0.5 * since_min_size) <= 8
    assert limiter.consumers[2].sampled == 0
    # What it could do in its turns, and no more.
    assert limiter.consumers[1].sampled == pytest.approx(2 * 20_000 / 7, rel=0.01)
    assert limiter.sample_count == sum(one.sampled for one in limiter.consumers.values())


def test_a_batch_above_the_buffer_waits_until_nothing_is_ahead() -> None:
    limiter = shared({0: 0.5})  # half of 10 items: 5 samples
    limiter.inserted(1)
    assert limiter.can_sample(32, 0)
    limiter.sampled(32, 0)
    for _ in range(64):
        assert not limiter.can_sample(32, 0)
        assert limiter.can_insert(10)
        limiter.inserted(1)
    assert limiter.can_sample(32, 0)


def test_the_reason_names_who_is_behind_and_by_how_much() -> None:
    limiter = shared({1: 100.0, 2: 2000.0}, buffer_items=8)
    limiter.inserted(7)
    limiter.sampled(500, 1)
    limiter.note_caller(2, "learner-sac")
    reason = limiter.why_insert_blocked(4)
    assert (
        "inserting 4 items must wait: consumer 2 (caller learner-sac) has sampled 12,000" in reason
    )
    assert "less than its 2000 samples per insert ask for" in reason
    assert "these make it 20,000, and it may be 16,000 behind at most" in reason
    assert limiter.held_by(4) == [2]
    assert limiter.held_by(8) == [2, 1]
    assert "must wait, and for 1 more: consumer 2" in limiter.why_insert_blocked(8)


def test_the_reason_says_how_far_a_consumer_is_ahead() -> None:
    limiter = shared({0: 2.0, 1: 0.0})
    assert "only 0 of the first 1 items" in limiter.why_sample_blocked(4, 0)
    limiter.inserted(1)
    limiter.sampled(18, 0)
    assert limiter.can_sample(2, 0)
    assert not limiter.can_sample(3, 0)
    reason = limiter.why_sample_blocked(3, 0)
    assert "consumer 0 has sampled 18 items more than its 2 samples per insert ask for" in reason
    assert "20 ahead at most" in reason
    assert "consumer 1 has a ratio of 0" in limiter.why_sample_blocked(1, 1)


def test_the_same_ratio_again_changes_nothing() -> None:
    limiter = shared({0: 1 / 3, 1: 7.3})
    limiter.inserted(8)
    limiter.sampled(3, 0)
    before = [surplus(limiter, consumer) for consumer in (0, 1)]
    for _ in range(100):
        limiter.configure_consumers({0: 1 / 3, 1: 7.3})
    assert [surplus(limiter, consumer) for consumer in (0, 1)] == before


def test_another_ratio_counts_from_now_on() -> None:
    limiter = shared({0: 2.0})
    limiter.inserted(6)  # 10 owed
    limiter.configure_consumers({0: 3.0})
    assert surplus(limiter, 0) == 10
    limiter.inserted(4)
    assert surplus(limiter, 0) == 22
    limiter.configure_consumers({0: 1.0})  # of which 10 can be owed at most
    assert surplus(limiter, 0) == 10
    assert not limiter.can_insert(1)
    limiter.sampled(1, 0)
    assert limiter.can_insert(1)


def test_small_changes_of_a_ratio_give_no_batches_away() -> None:
    limiter = shared({0: 0.5})
    limiter.inserted(1)
    limiter.sampled(32, 0)
    for turn in range(20):
        limiter.configure_consumers({0: 0.5 + 0.01 * (turn % 2)})
    assert not limiter.can_sample(32, 0)
    assert surplus(limiter, 0) == pytest.approx(-32, abs=1)


def test_at_a_ratio_of_0_the_balance_stands_still() -> None:
    limiter = shared({0: 2.0, 1: 1.0})
    limiter.inserted(11)
    assert not limiter.can_insert(1)
    limiter.sampled(10, 1)
    limiter.configure_consumers({0: 0.0})
    assert not limiter.can_sample(1, 0)
    assert limiter.can_insert(10)
    assert limiter.held_by(10) == []
    limiter.inserted(10)
    limiter.configure_consumers({0: 2.0})
    assert surplus(limiter, 0) == 20  # as before, for nothing that came meanwhile
    assert limiter.held_by(1) == [0, 1]


def test_a_consumer_that_comes_while_running_owes_nothing_yet() -> None:
    limiter = shared({0: 1.0})
    limiter.inserted(8)
    limiter.configure_consumers({5: 3.0})
    assert (surplus(limiter, 0), surplus(limiter, 5)) == (7, 0)
    limiter.inserted(1)
    assert surplus(limiter, 5) == 3


@pytest.mark.parametrize(
    ("ratios", "message"),
    [
        ({0: -1.0}, r"samples_per_insert -1\.0 of consumer 0 .* 0 or more"),
        ({0: math.nan}, "samples_per_insert nan"),
        ({0: math.inf}, "samples_per_insert inf"),
        ({-1: 1.0}, "consumer -1 is no place"),
        ({2**31: 1.0}, "consumer 2147483648 is no place"),
        (dict.fromkeys(range(300), 1.0), "300 consumers are too many: give at most 256"),
    ],
)
def test_ratios_that_are_none_are_refused_and_change_nothing(
    ratios: dict[int, float], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        shared(ratios)
    limiter = shared({0: 1.0, 1: 2.0})
    with pytest.raises(UsageError, match=message):
        limiter.configure_consumers({1: 5.0, **ratios})
    with pytest.raises(UsageError, match=message):
        limiter.configure(min_size=9, consumers=ratios, consumer_buffer_items=99)
    assert {name: one.samples_per_insert for name, one in limiter.consumers.items()} == {0: 1, 1: 2}
    assert (limiter.min_size, limiter.consumer_buffer_items) == (1, 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"consumers": {0: 1.0}}, "consumer_buffer_items None .* largest insert"),
        ({"consumers": {0: 1.0}, "consumer_buffer_items": 0}, "consumer_buffer_items 0"),
        ({"consumer_buffer_items": 5}, "consumer_buffer_items 5 means nothing without consumers"),
        ({"consumers": {}, "consumer_buffer_items": 5}, "means nothing without consumers"),
        (
            {
                "consumers": {0: 1.0},
                "consumer_buffer_items": 5,
                "samples_per_insert": 2.0,
                "error_buffer": 9.0,
            },
            "samples_per_insert 2 for all callers and ratios of 1 consumers",
        ),
        (
            {"consumers": {0: 1.0}, "consumer_buffer_items": 5, "error_buffer": 9.0},
            "error_buffer 9.0 means nothing",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        RateLimiter(**arguments)


def test_who_may_not_sample_and_what_may_not_be_inserted_is_refused_with_the_remedy() -> None:
    limiter = shared({0: 1.0, 3: 2.0})
    with pytest.raises(UsageError, match=r"must say for which consumer .* one of 0, 3"):
        limiter.check_sample(1)
    with pytest.raises(UsageError, match="consumer 2 is not known here: there is 0, 3; add it"):
        limiter.check_sample(1, 2)
    with pytest.raises(UsageError, match=r"insert of 11 items .* 10: raise that to at least 11"):
        limiter.check_insert(11)
    limiter.check_insert(10)
    limiter.check_sample(10**9, 3)
    with pytest.raises(UsageError, match="no consumers here"):
        RateLimiter().configure_consumers({0: 1.0})


def test_with_one_count_for_all_it_makes_no_difference_who_samples() -> None:
    limiter = RateLimiter(samples_per_insert=1.0, error_buffer=4.0)
    limiter.inserted(1)
    limiter.check_sample(2, 7)
    limiter.sampled(2, 7)
    assert (limiter.surplus, limiter.sample_count, limiter.can_sample(3, 7)) == (-2, 2, False)


def test_a_restored_limiter_blocks_and_allows_the_same() -> None:
    saved = shared({0: 0.1, 1: 2.0})
    saved.inserted(9)
    saved.sampled(1, 0)
    saved.sampled(5, 1)
    restored = shared({0: 0.1, 1: 2.0})
    restored.load_state(saved.state(), saved.consumer_arrays())
    for consumer in (0, 1):
        assert surplus(restored, consumer) == surplus(saved, consumer)
        assert restored.consumers[consumer].sampled == saved.consumers[consumer].sampled
    for count in range(1, 30):
        assert restored.can_sample(count, 1) == saved.can_sample(count, 1)
        assert restored.can_insert(count) == saved.can_insert(count)


def test_a_ratio_that_was_changed_while_running_goes_on_after_a_restart() -> None:
    saved = shared({0: 1.0, 1: 2.0})
    saved.configure_consumers({0: 0.0, 1: 3.0, 5: 4.0})
    saved.inserted(3)
    restored = shared({0: 1.0, 1: 2.0})
    restored.load_state(saved.state(), saved.consumer_arrays())
    ratios = {name: one.samples_per_insert for name, one in restored.consumers.items()}
    assert ratios == {0: 0.0, 1: 3.0, 5: 4.0}
    assert [surplus(restored, consumer) for consumer in (0, 1, 5)] == [0, 6, 8]


def test_other_settings_count_more_than_what_was_saved() -> None:
    saved = shared({0: 1.0, 1: 2.0, 2: 1.0})
    saved.inserted(8)
    saved.configure_consumers({1: 3.0})
    restored = shared({0: 1.0, 1: 0.5, 4: 1.0})
    restored.load_state(saved.state(), saved.consumer_arrays())
    ratios = {name: one.samples_per_insert for name, one in restored.consumers.items()}
    assert ratios == {0: 1.0, 1: 0.5, 4: 1.0}
    # What is owed: as before, cut to half of 10, and nothing.
    assert [surplus(restored, consumer) for consumer in (0, 1, 4)] == [7, 5, 0]


def test_from_a_checkpoint_without_consumers_every_balance_begins_anew() -> None:
    saved = RateLimiter(samples_per_insert=1.0, error_buffer=50.0)
    saved.inserted(30)
    saved.sampled(20)
    restored = shared({0: 1.0, 1: 2.0})
    restored.load_state(saved.state())
    assert (restored.insert_count, restored.sample_count) == (30, 20)
    assert [surplus(restored, consumer) for consumer in (0, 1)] == [0, 0]
    restored.inserted(2)
    assert [surplus(restored, consumer) for consumer in (0, 1)] == [2, 4]


def test_consumers_that_the_settings_no_longer_have_are_left_out() -> None:
    saved = shared({0: 1.0})
    saved.inserted(8)
    restored = RateLimiter(samples_per_insert=1.0, error_buffer=10.0)
    restored.load_state(saved.state(), saved.consumer_arrays())
    assert restored.consumers == {}
    assert (restored.surplus, restored.insert_count) == (0, 8)


def test_saved_columns_have_the_dtypes_that_are_expected() -> None:
    arrays = shared({0: 1.0}).consumer_arrays()
    assert {array.dtype for array in arrays.values()} == {np.dtype("<i8"), np.dtype("<f8")}
    assert RateLimiter().consumer_arrays() == {}
