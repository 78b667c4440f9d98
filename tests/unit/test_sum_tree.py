"""The tree of sums, against np.cumsum and np.searchsorted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buffer_server.samplers.sum_tree import SumTree
from repertory.errors import UsageError

# Masses of very different size, many of them zero.
MASSES = st.one_of(st.just(0.0), st.floats(1e-12, 1e12), st.sampled_from([0.1, 1e-300, 1e38]))


def tree_of(masses: list[float], widest_top: int = 2) -> SumTree:
    tree = SumTree(len(masses), widest_top)
    tree.set(np.arange(len(masses)), np.array(masses, dtype=np.float64))
    return tree


@settings(max_examples=80, deadline=None)
@given(
    capacity=st.integers(1, 400),
    widest_top=st.sampled_from([1, 3, 4096]),
    data=st.data(),
)
def test_any_sequence_of_sets_finds_what_searchsorted_finds(
    capacity: int, widest_top: int, data: st.DataObject
) -> None:
    # Whole numbers: their sums are exact, so the leaf must be exactly that of the reference.
    tree, model = SumTree(capacity, widest_top), np.zeros(capacity)
    changes = st.lists(st.tuples(st.integers(0, capacity - 1), st.integers(0, 5)), max_size=60)
    for change in data.draw(st.lists(changes, min_size=1, max_size=4)):
        for index, mass in change:
            model[index] = mass
        indices = np.array([index for index, _ in change], dtype=np.int64)
        tree.set(indices, np.array([mass for _, mass in change], dtype=np.float64))
        assert tree.total == model.sum()
        if model.any():
            prefixes = np.arange(0, model.sum(), 0.5)
            expected = np.searchsorted(np.cumsum(model), prefixes, side="right")
            np.testing.assert_array_equal(tree.find(prefixes), expected)


@settings(max_examples=150, deadline=None)
@given(
    masses=st.lists(MASSES, min_size=1, max_size=70).filter(any),
    widest_top=st.sampled_from([1, 4096]),
    seed=st.integers(0, 2**32),
)
def test_a_leaf_without_mass_is_never_found(
    masses: list[float], widest_top: int, seed: int
) -> None:
    tree = tree_of(masses, widest_top)
    fractions = np.random.default_rng(seed).random(200)
    edges = [0.0, np.nextafter(tree.total, 0), tree.total, np.nextafter(tree.total, np.inf)]
    starts = np.cumsum(masses)  # the places where rounding decides
    prefixes = np.concatenate([fractions * tree.total, edges, starts, np.nextafter(starts, 0)])
    assert (tree.get(tree.find(prefixes)) > 0).all()


def test_a_prefix_at_the_end_finds_the_last_leaf_with_mass() -> None:
    tree = tree_of([1.0, 2.0, 0.0, 0.0, 0.0])
    assert tree.find(np.array([3.0, 100.0])).tolist() == [1, 1]


def test_of_a_repeated_index_the_last_mass_counts() -> None:
    tree = SumTree(4)
    tree.set(np.array([2, 1, 2, 2]), np.array([5.0, 1.0, 7.0, 3.0]))
    assert tree.get(np.arange(4)).tolist() == [0.0, 1.0, 3.0, 0.0]
    assert tree.total == 4.0


def test_rounding_errors_do_not_pile_up() -> None:
    # Corrected by differences, the total would keep the rounding errors of the large masses.
    tree = tree_of([0.1, 0.2, 0.3])
    for mass in (1e16, 1e-3, 1e18, 0.1):
        tree.set(np.array([0]), np.array([mass]))
    assert tree.total == tree_of([0.1, 0.2, 0.3]).total


def test_a_tree_of_one_leaf() -> None:
    tree = tree_of([2.5])
    assert tree.total == 2.5
    assert tree.find(np.array([0.0, 2.4, 2.5])).tolist() == [0, 0, 0]


def test_find_leaves_the_prefixes_as_they_were() -> None:
    prefixes = np.array([0.5, 2.5])
    tree_of([1.0, 1.0, 1.0]).find(prefixes)
    assert prefixes.tolist() == [0.5, 2.5]


def test_nothing_is_found_without_mass() -> None:
    with pytest.raises(UsageError, match="no leaf has any mass"):
        SumTree(4).find(np.array([0.0]))
