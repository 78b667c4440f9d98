"""The chain of h-DQN's paper: where its two actions lead, and what its two known policies get."""

from __future__ import annotations

import numpy as np
import pytest

from repertory.environments.chain import Chain


def play(env: Chain, actions: list[int]) -> tuple[list[int], float]:
    """The states seen and the return, until the actions or the episode are over."""
    observation, _ = env.reset(seed=0)
    states, total = [int(observation.argmax())], 0.0
    for action in actions:
        observation, reward, terminated, _, _ = env.step(action)
        states.append(int(observation.argmax()))
        total += reward
        if terminated:
            break
    return states, total


def test_left_ends_it_with_the_small_reward():
    assert play(Chain(), [0, 0]) == ([1, 0], 0.01)


def test_right_moves_by_one_and_not_beyond_the_last():
    states, _ = play(Chain(), [1] * 200)
    moves = np.diff(states)
    assert states[0] == 1
    assert set(moves) <= {-1, 0, 1}
    assert all(states[k] == 5 for k in np.flatnonzero(moves == 0))


@pytest.mark.parametrize(("right", "expected"), [(1.0, 0.208), (0.5, 0.01 + 0.99 / 121)])
def test_returns_of_policies_that_are_known(right: float, expected: float):
    rng = np.random.default_rng(0)
    env, returns = Chain(), []
    env.reset(seed=1)
    for _ in range(4000):
        env.reset()
        ended = False
        while not ended:
            _, reward, ended, _, _ = env.step(int(rng.random() < right))
        returns.append(reward)
    # Five deviations of the mean: .99 sqrt(p (1 - p) / 4000) with p = (expected - .01) / .99.
    p = (expected - 0.01) / 0.99
    assert np.mean(returns) == pytest.approx(expected, abs=5 * 0.99 * np.sqrt(p * (1 - p) / 4000))
