"""Which steps of an episode give their goals away."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.goal_choices import Episode, Final, Future
from repertory.parts import SHORT_NAMES, lookup

lengths, counts, seeds = st.integers(1, 60), st.integers(1, 8), st.integers(0, 2**32 - 1)


@given(length=lengths, goals=counts, seed=seeds)
def test_future_is_this_step_or_a_later_one_of_the_same_episode(length, goals, seed):
    chosen = Future(Future.Config(goals=goals)).draw(length, np.random.default_rng(seed))
    assert chosen.shape == (length, goals)
    assert (chosen >= np.arange(length)[:, None]).all()
    assert (chosen < length).all()


@given(length=lengths, goals=counts, seed=seeds)
def test_episode_is_any_step_of_the_same_episode(length, goals, seed):
    chosen = Episode(Episode.Config(goals=goals)).draw(length, np.random.default_rng(seed))
    assert chosen.shape == (length, goals)
    assert ((chosen >= 0) & (chosen < length)).all()


@given(length=lengths, goals=counts)
def test_final_is_the_last_step(length, goals):
    chosen = Final(Final.Config(goals=goals)).draw(length, np.random.default_rng(0))
    np.testing.assert_array_equal(chosen, np.full((length, goals), length - 1))


@pytest.mark.parametrize(
    ("choice", "first"),
    [(Future, [0, 1, 2, 3]), (Episode, [0, 0, 0, 0])],
    ids=["future", "episode"],
)
def test_every_step_that_may_be_chosen_is_chosen_equally_often(choice, first):
    draws = 40_000
    chosen = choice(choice.Config(goals=100)).draw
    rng = np.random.default_rng(0)
    rows = np.concatenate([chosen(4, rng) for _ in range(draws // 100)], axis=1)  # [4, draws]
    for step, low in enumerate(first):
        share = np.bincount(rows[step], minlength=4) / draws
        expected = np.where(np.arange(4) >= low, 1 / (4 - low), 0)
        # The deviation of a share is at most sqrt(.25 / 40000) = .0025; five of them.
        np.testing.assert_allclose(share, expected, atol=0.0125)


@pytest.mark.parametrize("name", SHORT_NAMES["relabel"])
def test_there_are_four_goals_by_default(name):
    assert lookup("relabel", name).Config().goals == 4
