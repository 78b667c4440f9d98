"""Batches are spread over shards in proportion to what they hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer_server.allocation import allocate, count_strata
from buffer_server.draws import Population

masses_of_shards = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-9, 1e12)), min_size=1, max_size=9
).filter(any)


def shards(*masses: float, own: tuple[int, ...] = ()) -> list[Population]:
    own = own or (0,) * len(masses)
    return [
        Population(int(mass), mass, own_items) for mass, own_items in zip(masses, own, strict=True)
    ]


@given(masses_of_shards, st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_every_count_is_within_one_of_its_share_for_each_border(
    masses: list[float], size: int, seed: int
) -> None:
    allocation = allocate(shards(*masses), size, 0, np.random.default_rng(seed))
    shares = size * np.array(masses) / sum(masses)
    assert sum(allocation.sizes) == size
    # A stratum that a border cuts falls to one side or the other; each shard has two borders.
    assert (np.abs(np.array(allocation.sizes) - shares) < 2 + 1e-6).all()
    assert not np.array(allocation.sizes)[np.array(masses) == 0].any()
    np.testing.assert_allclose(allocation.chances, np.array(masses) / sum(masses), rtol=1e-12)


def test_counts_are_the_exact_share_on_average() -> None:
    masses = np.array([1.0, 2.5, 96.0, 0.5])
    rng = np.random.default_rng(3)
    draws = 4000
    counts = [allocate(shards(*masses), 7, 0, rng).sizes for _ in range(draws)]
    expected = 7 * masses / masses.sum()
    # A count moves by at most 1 from batch to batch: its deviation is 0.5 or less.
    np.testing.assert_allclose(np.mean(counts, axis=0), expected, atol=4 * 0.5 / draws**0.5)


def test_single_draws_fall_to_shards_as_their_masses_say() -> None:
    masses = np.array([5.0, 1.0, 3.0, 11.0])
    rng = np.random.default_rng(4)
    draws = 20_000
    counts = np.sum([allocate(shards(*masses), 1, 0, rng).sizes for _ in range(draws)], axis=0)
    expected = draws * masses / masses.sum()
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 16.3  # 3 degrees of freedom, exceeded once in a thousand


def test_a_position_that_rounding_puts_at_the_end_falls_to_the_last_shard_with_mass() -> None:
    class AlmostOne:
        def random(self, size: int) -> np.ndarray:
            return np.full(size, np.nextafter(1.0, 0.0))

    chances = np.array([0.5, 0.5, 0.0])
    counts = count_strata(chances, 2, AlmostOne())  # type: ignore[arg-type]
    assert counts.tolist() == [1, 1, 0]


def test_where_nothing_is_known_to_be_shards_count_alike() -> None:
    allocation = allocate(shards(0.0, 0.0), 10, 0, np.random.default_rng(0))
    assert allocation.sizes == [5, 5]
    assert allocation.chances == [0.5, 0.5]


def test_own_items_come_from_where_they_are_and_the_rest_from_all() -> None:
    rng = np.random.default_rng(5)
    counts = [allocate(shards(10, 90, own=(9, 3)), 20, 8, rng) for _ in range(3000)]
    own = np.mean([allocation.own_items for allocation in counts], axis=0)
    sizes = np.mean([allocation.sizes for allocation in counts], axis=0)
    np.testing.assert_allclose(own, [6.0, 2.0], atol=0.04)
    np.testing.assert_allclose(sizes - own, [1.2, 10.8], atol=0.04)
    assert all(sum(allocation.own_items) == 8 for allocation in counts)


@pytest.mark.parametrize("shard_count", [1, 2])
def test_where_nobody_has_own_items_all_come_from_all(shard_count: int) -> None:
    allocation = allocate(shards(*[10.0] * shard_count), 20, 8, np.random.default_rng(0))
    assert sum(allocation.sizes) == 20
    assert sum(allocation.own_items) == 0


def test_a_whole_part_falls_to_one_shard_with_its_chance() -> None:
    rng = np.random.default_rng(6)
    draws = 4000
    sizes = [allocate(shards(1.0, 3.0), 50, 0, rng, whole=True).sizes for _ in range(draws)]
    assert {tuple(counts) for counts in sizes} == {(50, 0), (0, 50)}
    share = sum(counts == [50, 0] for counts in sizes) / draws
    assert abs(share - 0.25) < 4 * (0.25 * 0.75 / draws) ** 0.5
