"""The bit-flip environment."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from repertory.environments.bit_flip import BitFlip
from repertory.errors import UsageError


def test_gymnasium_finds_nothing_wrong_with_it():
    check_env(BitFlip(bits=4), skip_render_check=True)


def test_flipping_the_bits_that_differ_reaches_the_goal():
    env = BitFlip(bits=6)
    observation, _ = env.reset(seed=1)
    goal = observation["desired_goal"]
    different = np.flatnonzero(observation["observation"] != goal)
    for count, bit in enumerate(different, start=1):
        observation, reward, terminated, _, info = env.step(int(bit))
        last = count == len(different)
        assert (reward, terminated) == ((0.0, True) if last else (-1.0, False))
        assert info["is_success"] == last
        np.testing.assert_array_equal(observation["observation"], observation["achieved_goal"])
    np.testing.assert_array_equal(observation["achieved_goal"], goal)


def test_episode_is_cut_after_as_many_steps_as_bits():
    env = BitFlip(bits=4)
    env.reset(seed=0)
    env._goal = 1 - env._state  # four flips away: one bit alone does not lead there
    ends = [env.step(0)[2:4] for _ in range(4)]
    assert ends == [(False, False)] * 3 + [(False, True)]


def test_no_episode_begins_at_its_goal():
    env = BitFlip(bits=1)
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        assert observation["observation"] != observation["desired_goal"]


def test_observations_do_not_change_afterwards():
    env = BitFlip(bits=3)
    first, _ = env.reset(seed=0)
    kept = first["observation"].copy()
    env.step(0)
    np.testing.assert_array_equal(first["observation"], kept)


def test_picture_has_the_state_above_the_goal():
    env = BitFlip(bits=3, render_mode="rgb_array")
    observation, _ = env.reset(seed=0)
    image = env.render()
    assert image.dtype == np.uint8
    cells = image[8::16, 8::16, 0] / 255  # the middle of each
    expected = np.stack([observation["observation"], observation["desired_goal"]])
    np.testing.assert_array_equal(cells, expected)


def test_less_than_one_bit_is_refused():
    with pytest.raises(UsageError, match=r"env.kwargs.bits = 0 is refused: give at least 1"):
        BitFlip(bits=0)
