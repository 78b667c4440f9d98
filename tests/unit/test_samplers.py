"""Which items the samplers choose, and with which weights."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from buffer_server.draws import DrawRequest
from buffer_server.samplers.fifo import Fifo
from buffer_server.samplers.prioritized import Prioritized
from buffer_server.samplers.protocol import Sampler
from buffer_server.samplers.uniform import Uniform
from repertory.errors import UsageError
from repertory.parts import SHORT_NAMES, lookup

# The 99.9 % quantile of the chi-square distribution with 9 degrees of freedom: with the seeds
# fixed below a correct sampler passes always, and one in a thousand seeds would have failed.
CHI_SQUARE_9_DEGREES = 27.88


def keys(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def prioritized(priorities: list[float], capacity: int = 0, **config: Any) -> Prioritized:
    sampler = Prioritized(Prioritized.Config(**config), capacity or len(priorities))
    sampler.on_insert(np.arange(len(priorities)), {}, np.array(priorities))
    return sampler


@pytest.mark.parametrize("name", SHORT_NAMES["sampler"])
def test_the_config_of_a_short_name_makes_that_sampler(name: str) -> None:
    sampler_class = lookup("sampler", name)
    config = sampler_class.Config()
    assert config.name == name
    assert sampler_class(config, 4).capacity == 4


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        (Prioritized.Config, "alpha", -0.1),
        (Prioritized.Config, "alpha", 1.1),
        (Prioritized.Config, "beta", -0.1),
        (Prioritized.Config, "beta_final", 1.5),
        (Prioritized.Config, "beta_steps", -1),
        (Prioritized.Config, "epsilon", 0.0),
        (Fifo.Config, "max_times_sampled", 0),
    ],
)
def test_settings_out_of_range_are_refused(
    make: Callable[..., object], field: str, value: float
) -> None:
    with pytest.raises(ValidationError, match=field):
        make(**{field: value})


class TestUniform:
    def test_every_live_item_is_equally_likely(self) -> None:
        sampler = Uniform(Uniform.Config(), 10)
        drawn = sampler.select(DrawRequest(20_000), range(95, 105), rng()).keys
        counts = np.bincount(drawn - 95, minlength=10)
        assert counts.sum() == 20_000
        assert chi_square(counts, np.full(10, 0.1)) < CHI_SQUARE_9_DEGREES

    def test_only_live_keys_are_named(self) -> None:
        drawn = Uniform(Uniform.Config(), 3).select(DrawRequest(500), range(7, 10), rng()).keys
        assert set(drawn.tolist()) == {7, 8, 9}

    def test_weights_are_one(self) -> None:
        weights = Uniform(Uniform.Config(), 3).select(DrawRequest(4), range(3), rng()).weights
        assert weights.dtype == np.float32
        assert weights.tolist() == [1.0] * 4


class TestPrioritized:
    def test_items_come_in_proportion_to_priority_to_the_alpha(self) -> None:
        sampler = prioritized([float(p) for p in range(1, 11)], alpha=0.5)
        generator = rng()
        # Single draws: without strata the counts are multinomial, as the chi-square test wants.
        drawn = [sampler.select(DrawRequest(1), range(10), generator).keys[0] for _ in range(4000)]
        masses = np.sqrt(np.arange(1, 11))
        counts = np.bincount(drawn, minlength=10)
        assert chi_square(counts, masses / masses.sum()) < CHI_SQUARE_9_DEGREES

    def test_a_batch_takes_one_item_of_each_stratum(self) -> None:
        priorities = np.arange(1.0, 11.0)
        drawn = (
            prioritized(priorities.tolist(), alpha=1.0)
            .select(DrawRequest(1000), range(10), rng())
            .keys
        )
        expected = 1000 * priorities / priorities.sum()
        # An item's share covers whole strata, one draw each, and parts of two: so at most 2 off,
        # where independent draws would be off by about 10.
        assert np.abs(np.bincount(drawn, minlength=10) - expected).max() < 2

    def test_weights_of_a_hand_computed_example(self) -> None:
        # P = (0.2, 0.8), N = 2: w = (0.4^-0.5, 1.6^-0.5) = (1.5811, 0.7906);
        # divided by the largest: (1, 0.5).
        sampler = prioritized([1.0, 4.0], alpha=1.0, beta=0.5, epsilon=1e-12)
        selection = sampler.select(
            DrawRequest(5), range(2), rng()
        )  # strata of a fifth: one of 0, four of 1
        assert selection.keys.tolist() == [0, 1, 1, 1, 1]
        assert selection.weights.dtype == np.float32
        # float32 resolves 6e-8, epsilon moves the priorities by 1e-12.
        np.testing.assert_allclose(selection.weights, [1.0, 0.5, 0.5, 0.5, 0.5], rtol=1e-6)

    def test_the_largest_weight_is_that_of_the_batch(self) -> None:
        sampler = prioritized([1e-6, 9.0], alpha=1.0, beta=1.0)
        selection = sampler.select(DrawRequest(2), range(2), rng(1))
        assert selection.keys.tolist() == [1, 1]  # the rare item is not in this batch
        assert selection.weights.tolist() == [1.0, 1.0]

    def test_beta_rises_linearly_to_its_final_value(self) -> None:
        sampler = prioritized([1.0, 4.0], beta=0.4, beta_final=1.0, beta_steps=3)
        betas = []
        for _ in range(5):
            betas.append(sampler.beta)
            sampler.select(DrawRequest(2), range(2), rng())
        np.testing.assert_allclose(betas, [0.4, 0.6, 0.8, 1.0, 1.0], rtol=1e-12)

    def test_beta_is_what_the_weights_use(self) -> None:
        sampler = prioritized([1.0, 4.0], alpha=1.0, beta=0.0, beta_steps=1, epsilon=1e-12)
        first = sampler.select(DrawRequest(5), range(2), rng())
        second = sampler.select(DrawRequest(5), range(2), rng())
        assert first.weights.tolist() == [1.0] * 5  # beta 0
        np.testing.assert_allclose(second.weights[1:], 0.25, rtol=1e-6)  # beta 1: 1 / 4

    def test_beta_stays_without_beta_steps(self) -> None:
        sampler = prioritized([1.0, 4.0], beta=0.3)
        sampler.select(DrawRequest(2), range(2), rng())
        assert sampler.beta == 0.3

    def test_new_items_get_the_largest_priority_seen_so_far(self) -> None:
        sampler = prioritized([3.0, 1.0], capacity=3, alpha=1.0)
        sampler.update(keys(0), np.array([0.0]))  # 3 is gone, but it was seen
        sampler.on_insert(keys(2), {}, None)
        np.testing.assert_allclose(
            sampler.arrays(range(3))["masses"], [0.0, 1.0, 3.0], atol=1e-5
        )  # atol: epsilon

    def test_epsilon_keeps_an_item_without_priority_possible(self) -> None:
        sampler = prioritized([0.0, 0.0], alpha=1.0)
        assert sampler.select(DrawRequest(2), range(2), rng()).keys.tolist() == [0, 1]

    def test_an_overwritten_slot_forgets_its_priority(self) -> None:
        sampler = prioritized([100.0, 0.0, 0.0], alpha=1.0)
        sampler.on_insert(keys(3), {}, np.array([0.0]))
        assert sampler.arrays(range(1, 4))["masses"].max() < 1e-5

    def test_keys_name_the_newest_item_of_a_slot(self) -> None:
        sampler = prioritized([1.0, 1.0, 1.0])
        sampler.on_insert(keys(3, 4), {}, None)  # in the slots of 0 and 1
        drawn = sampler.select(DrawRequest(300), range(2, 5), rng()).keys
        assert set(drawn.tolist()) == {2, 3, 4}

    @pytest.mark.parametrize("bad", [np.nan, -0.5, np.inf, 1e39])
    def test_a_bad_priority_is_refused_and_changes_nothing(self, bad: float) -> None:
        sampler = prioritized([1.0, 2.0])
        before = sampler.arrays(range(2))
        with pytest.raises(UsageError, match="at place 1 is not a number from 0 to"):
            sampler.update(keys(0, 1), np.array([5.0, bad]))
        after = sampler.arrays(range(2))
        assert all((before[name] == after[name]).all() for name in before)

    def test_a_wrong_number_of_priorities_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"2 items need priorities \[2\], got \[3\]"):
            prioritized([1.0, 2.0]).update(keys(0, 1), np.ones(3))

    def test_extreme_priorities_give_finite_weights(self) -> None:
        sampler = prioritized([0.0, 3e38], alpha=1.0, beta=1.0, epsilon=1e-12)
        assert np.isfinite(sampler.select(DrawRequest(50), range(2), rng()).weights).all()

    def test_restored_with_another_alpha_the_priorities_stay(self) -> None:
        saved = prioritized([1.0, 4.0, 9.0], alpha=1.0)
        restored = Prioritized(Prioritized.Config(alpha=0.5), 3)
        restored.load_arrays(saved.arrays(range(3)), range(3))
        np.testing.assert_allclose(
            restored.arrays(range(3))["masses"], [1.0, 2.0, 3.0], rtol=1e-6
        )  # rtol: epsilon


class TestFifo:
    def fifo(self, count: int, capacity: int, max_times_sampled: int = 1) -> Fifo:
        sampler = Fifo(Fifo.Config(max_times_sampled=max_times_sampled), capacity)
        sampler.on_insert(np.arange(count), {}, None)
        return sampler

    def test_items_come_in_order_and_never_twice(self) -> None:
        sampler, live = self.fifo(6, 6), range(6)
        drawn = [sampler.select(DrawRequest(2), live, rng()).keys.tolist() for _ in range(3)]
        assert drawn == [[0, 1], [2, 3], [4, 5]]
        assert sampler.available(live) == 0

    def test_more_than_are_left_is_refused(self) -> None:
        sampler = self.fifo(3, 4)
        sampler.select(DrawRequest(2), range(3), rng())
        with pytest.raises(UsageError, match=r"2 items .* only 1 "):
            sampler.select(DrawRequest(2), range(3), rng())

    def test_weights_are_one(self) -> None:
        assert self.fifo(2, 2).select(DrawRequest(2), range(2), rng()).weights.tolist() == [
            1.0,
            1.0,
        ]

    @settings(max_examples=60, deadline=None)
    @given(max_times=st.integers(1, 3), sizes=st.lists(st.integers(1, 5), max_size=20))
    def test_every_item_comes_max_times_and_never_twice_in_a_batch(
        self, max_times: int, sizes: list[int]
    ) -> None:
        sampler, count = self.fifo(8, 8, max_times), 8
        times = np.zeros(100, dtype=int)
        for size in sizes:
            # As the table does it: used-up items make room for as many new ones.
            free = 8 - sampler.available(range(max(0, count - 8), count))
            sampler.on_insert(np.arange(count, count + free), {}, None)
            count += free
            live = range(count - 8, count)
            drawn = sampler.select(DrawRequest(size), live, rng()).keys
            assert len(set(drawn.tolist())) == size
            assert drawn[0] == np.flatnonzero(times < max_times)[0]  # the oldest comes first
            times[drawn] += 1
            assert times.max() <= max_times
            assert sampler.available(live) == count - (times == max_times).sum()

    def test_restored_it_goes_on_where_it_was(self) -> None:
        saved = self.fifo(6, 6, max_times_sampled=2)
        for size in (2, 3):  # 0 and 1 are used up, 2 was sampled once
            saved.select(DrawRequest(size), range(6), rng())
        restored = Fifo(Fifo.Config(max_times_sampled=2), 10)
        restored.load_arrays(saved.arrays(range(6)), range(6))
        drawn = [restored.select(DrawRequest(2), range(6), rng()).keys for _ in range(3)]
        assert np.array(drawn).tolist() == [[2, 3], [3, 4], [4, 5]]

    def test_restored_with_fewer_times_left_items_are_used_up(self) -> None:
        saved = self.fifo(4, 4, max_times_sampled=3)
        saved.select(DrawRequest(2), range(4), rng())
        restored = Fifo(Fifo.Config(max_times_sampled=1), 4)
        restored.load_arrays(saved.arrays(range(4)), range(4))
        assert restored.available(range(4)) == 2
        assert restored.select(DrawRequest(2), range(4), rng()).keys.tolist() == [2, 3]

    def test_restored_into_less_room_it_says_what_is_lost(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        saved = self.fifo(6, 6)
        saved.select(DrawRequest(1), range(6), rng())
        restored = Fifo(Fifo.Config(), 3)
        with caplog.at_level(logging.WARNING):
            restored.load_arrays(saved.arrays(range(6)), range(3, 6))
        assert "2 items" in caplog.text
        assert restored.select(DrawRequest(3), range(3, 6), rng()).keys.tolist() == [3, 4, 5]


@pytest.mark.parametrize("name", ["prioritized", "fifo", "uniform"])
def test_state_has_the_same_names_when_empty(name: str) -> None:
    """`Table.load_arrays` relies on it to tell samplers apart."""
    sampler_class = lookup("sampler", name)
    sampler: Sampler = sampler_class(sampler_class.Config(), 4)
    empty = sampler.arrays(range(0)).keys()
    sampler.on_insert(keys(0, 1), {}, None)
    assert sampler.arrays(range(2)).keys() == empty
