"""Running statistics: right over any batches, part of a policy's weights, frozen while acting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference.samples import continuous_spec, pixel_spec

from repertory.policies.deterministic import DeterministicPolicy
from repertory.policies.greedy_q import GreedyQPolicy
from repertory.policies.normalizer import Normalizer, RunningMoments
from repertory.policies.policy import build_policy

BATCH_SIZES = (1, 7, 40, 2)


def batches(shape: tuple[int, ...], *, dtype: type = np.float64) -> list[np.ndarray]:
    """Batches of uneven sizes; every one has a mean and a scale of its own."""
    rng = np.random.default_rng(0)
    return [
        rng.normal(loc=10.0 * k, scale=1.0 + k, size=(size, *shape)).astype(dtype)
        for k, size in enumerate(BATCH_SIZES)
    ]


def trained_policy(**settings: bool) -> DeterministicPolicy:
    config = DeterministicPolicy.Config(
        hidden_sizes=(8, 7), **({"normalize_observation": True} | settings)
    )
    policy = DeterministicPolicy(config, continuous_spec())
    returns = np.random.default_rng(1).normal(scale=3.0, size=sum(BATCH_SIZES))
    observation = np.concatenate(batches((3,), dtype=np.float32))
    policy.normalizer.update(torch.from_numpy(observation), torch.from_numpy(returns))
    return policy


@pytest.mark.parametrize("shape", [(3,), (2, 4), ()])
def test_moments_equal_those_of_all_data_at_once(shape: tuple[int, ...]) -> None:
    """Float64 throughout: rounding of four merges, far below 1e-12 relative."""
    moments = RunningMoments(shape)
    for batch in batches(shape):
        moments.update(torch.from_numpy(batch))
    everything = np.concatenate(batches(shape))
    np.testing.assert_allclose(moments.mean.numpy(), everything.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance.numpy(), everything.var(0), rtol=1e-12)
    assert float(moments.count) == sum(BATCH_SIZES)


def test_moments_of_a_small_spread_far_from_zero() -> None:
    """Where a running sum of squares in float32 would keep no digit of the variance."""
    rng = np.random.default_rng(0)
    data = (1e4 + 0.1 * rng.normal(size=(50, 200, 1))).astype(np.float32)
    moments = RunningMoments((1,))
    for batch in data:
        moments.update(torch.from_numpy(batch))
    everything = data.reshape(-1, 1).astype(np.float64)
    # var / mean^2 is 1e-10, so of 16 digits six or so are left.
    np.testing.assert_allclose(moments.variance.numpy(), everything.var(0), rtol=1e-6)


def test_observation_of_everything_seen_has_mean_zero_and_deviation_one() -> None:
    normalizer = Normalizer((3,), observations=True, rewards=False)
    for batch in batches((3,)):
        normalizer.update(torch.from_numpy(batch), None)
    normalised = normalizer.observation(torch.from_numpy(np.concatenate(batches((3,))))).numpy()
    # The result is float32: 1e-7 for each of fifty values.
    np.testing.assert_allclose(normalised.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(normalised.std(0), 1, atol=1e-6)


def test_observation_is_centred_and_scaled_by_hand() -> None:
    normalizer = Normalizer((1,), observations=True, rewards=False)
    normalizer.update(torch.tensor([[2.0], [6.0]]), None)  # mean 4, deviation 2
    assert normalizer.observation(torch.tensor([[8.0]])).item() == pytest.approx(2.0)


def test_nothing_changes_before_the_first_data() -> None:
    normalizer = Normalizer((3,), observations=True, rewards=False)
    observation = torch.from_numpy(batches((3,), dtype=np.float32)[0])
    torch.testing.assert_close(normalizer.observation(observation), observation)


def test_observation_is_clipped_and_float32() -> None:
    normalizer = Normalizer((1,), observations=True, rewards=False)
    normalizer.update(torch.tensor([[-1.0], [1.0]]), None)
    normalised = normalizer.observation(torch.tensor([[1e6], [-1e6]], dtype=torch.float64))
    assert normalised.tolist() == [[10.0], [-10.0]]
    assert normalised.dtype == torch.float32


def test_column_that_never_changes_stays_finite() -> None:
    normalizer = Normalizer((2,), observations=True, rewards=False)
    normalizer.update(torch.full((5, 2), 3.0), None)
    assert normalizer.observation(torch.full((1, 2), 3.0)).tolist() == [[0.0, 0.0]]


def test_reward_is_scaled_by_the_deviation_of_returns_and_not_centred() -> None:
    normalizer = Normalizer((3,), observations=False, rewards=True)
    normalizer.update(torch.zeros(2, 3), torch.tensor([96.0, 104.0]))  # mean 100, deviation 4
    rewards = normalizer.reward(torch.tensor([-2.0, 0.0, 6.0, 1e6]))
    assert rewards.tolist() == pytest.approx([-0.5, 0.0, 1.5, 10.0])


def test_reward_normalisation_needs_discounted_returns() -> None:
    normalizer = Normalizer((3,), observations=False, rewards=True)
    with pytest.raises(AssertionError, match="discounted returns"):
        normalizer.update(torch.zeros(2, 3), None)


def test_switched_off_it_touches_nothing_and_has_no_weights() -> None:
    normalizer = Normalizer((3,), observations=False, rewards=False)
    observation, reward = torch.full((2, 3), 50.0), torch.tensor([7.0, -7.0])
    normalizer.update(observation, None)
    assert torch.equal(normalizer.observation(observation), observation)
    assert torch.equal(normalizer.reward(reward), reward)
    assert not normalizer.state_dict()


@pytest.mark.parametrize("settings", [{}, {"normalize_reward": True}], ids=["observation", "both"])
def test_statistics_survive_weights_and_a_fresh_policy(settings: dict[str, bool]) -> None:
    policy = trained_policy(**settings)
    fresh = build_policy(policy.config, policy.spec)
    fresh.load_weights(policy.weights())

    observation = np.concatenate(batches((3,), dtype=np.float32))
    np.testing.assert_array_equal(
        fresh.act(observation, None).action, policy.act(observation, None).action
    )
    for name, value in policy.normalizer.state_dict().items():
        assert torch.equal(fresh.normalizer.state_dict()[name], value), name
    assert float(fresh.normalizer.observation_moments.count) == sum(BATCH_SIZES)


def test_weights_name_mean_variance_and_count() -> None:
    policy = trained_policy(normalize_reward=True)
    weights = policy.weights()
    for part in ("observation_moments", "return_moments"):
        for name in ("mean", "variance", "count"):
            assert weights[f"normalizer.{part}.{name}"].dtype == np.float64


def test_weights_are_a_copy_of_the_statistics() -> None:
    policy = trained_policy()
    weights = policy.weights()
    before = weights["normalizer.observation_moments.mean"].copy()
    policy.normalizer.update(torch.full((100, 3), 1e3), None)
    np.testing.assert_array_equal(weights["normalizer.observation_moments.mean"], before)


def test_learning_goes_on_after_a_reload_as_if_nothing_had_happened() -> None:
    policy = trained_policy()
    fresh = build_policy(policy.config, policy.spec)
    fresh.load_weights(policy.weights())
    more = torch.from_numpy(batches((3,))[2])
    for each in (policy, fresh):
        each.normalizer.update(more, None)
    for name, value in policy.normalizer.state_dict().items():
        assert torch.equal(fresh.normalizer.state_dict()[name], value), name


def test_acting_does_not_move_the_statistics() -> None:
    policy = trained_policy()
    before = policy.weights()
    policy.act(np.full((4, 3), 1e3, np.float32), np.random.default_rng(0))
    for name, value in policy.weights().items():
        np.testing.assert_array_equal(value, before[name])


def test_acting_sees_the_normalised_observation() -> None:
    policy = trained_policy()
    seen = np.concatenate(batches((3,), dtype=np.float32))
    mean, deviation = seen.mean(0, dtype=np.float64), seen.std(0, dtype=np.float64)
    observation = seen[:5]
    by_hand = torch.from_numpy(((observation - mean) / deviation).astype(np.float32))
    with torch.no_grad():
        expected = policy(by_hand).numpy()
    # Float32 through three layers.
    np.testing.assert_allclose(policy.act(observation, None).action, expected, atol=1e-6)


def test_pixels_have_a_range_of_their_own_and_no_statistics() -> None:
    config = GreedyQPolicy.Config(hidden_sizes=(8,), normalize_observation=True)
    policy = GreedyQPolicy(config, pixel_spec())
    assert policy.normalizer.observation_moments is None
