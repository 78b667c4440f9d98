"""One update of TD3 against the NumPy reference, and the traps of delayed policy updates.

Both sides run in float64; the tolerance is explained in `reference.from_torch`.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference.from_torch import (
    assert_all_close,
    assert_close,
    critics_of,
    double_precision,
    linear_gradients,
    linear_parameters,
    member_gradients,
    member_parameters,
    mlp_of,
    scramble,
    snapshot,
)
from reference.samples import continuous_spec, transitions
from reference.td3 import Td3Reference

from learner.algorithms.td3 import TD3, State, critic_loss, critic_target, policy_loss
from learner.critics import TwinQ
from learner.optimization import gradient_step
from learner.tensors import TensorBatch, to_tensors
from repertory.types import Sample

SEED, SIZE = 11, 16
CPU = torch.device("cpu")
SWITCHES = {
    "defaults": {},
    "policy at every update": {"policy_period": 1},
    "policy at every third update": {"policy_period": 3},
    "no target noise": {"target_noise": 0.0},
    "both clips at work": {"target_noise": 2.0, "target_noise_clip": 0.7},
    "clipped gradients": {"max_grad_norm": 0.05},
    "gradients below the clip": {"max_grad_norm": 1e4},
    "targets copied": {"tau": 1.0},
}


@pytest.fixture(autouse=True)
def _float64():
    with double_precision():
        yield


def make(**switches: object) -> tuple[TD3, State, Td3Reference]:
    """Our learner and the reference with the same weights; the targets differ from the networks."""
    config = TD3.Config(hidden_sizes=(8, 7), **({"lr": 1e-2, "tau": 0.1} | switches))
    algorithm = TD3(config, device=CPU, seed=SEED)
    state = algorithm.initial_state(continuous_spec())
    modules = (state.policy, state.critic, state.target_policy, state.target_critic)
    for seed, module in enumerate(modules):
        scramble(module, seed)
    reference = Td3Reference(
        policy=mlp_of(state.policy, "relu", "tanh"),
        critics=critics_of(state.critic),
        target_policy=mlp_of(state.target_policy, "relu", "tanh"),
        target_critics=critics_of(state.target_critic),
        lr=config.lr,
        tau=config.tau,
        target_noise=config.target_noise,
        target_noise_clip=config.target_noise_clip,
        policy_period=config.policy_period,
        max_grad_norm=config.max_grad_norm,
    )
    return algorithm, state, reference


def sample_of(seed: int = 0, **options: int) -> Sample:
    return transitions(continuous_spec(), SIZE, seed, **options)


def tensors_of(state: State, sample: Sample) -> TensorBatch:
    return to_tensors(sample, state.policy.normalizer, CPU, learn_moments=False)


def same_noise() -> torch.Generator:
    """Draws what the learner draws: one [B, A] block of standard normals for each update."""
    return torch.Generator().manual_seed(SEED)


def draw(generator: torch.Generator) -> np.ndarray:
    return torch.randn((SIZE, 2), generator=generator).numpy()


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_four_updates_equal_the_reference(switches: dict[str, float], n_step: int) -> None:
    algorithm, state, reference = make(**switches)
    generator = same_noise()
    for step in range(4):
        sample, noise = sample_of(step, n_step=n_step), draw(generator)
        target = critic_target(
            state, tensors_of(state, sample), torch.from_numpy(noise), algorithm.config
        )
        result = algorithm.update(state, sample)
        expected = reference.update(sample, noise)

        assert_close(target, expected.target, "target")
        assert_close(result.metrics["critic_loss"], expected.critic_loss, "critic loss")
        assert_close(result.metrics["critic_grad_norm"], expected.critic_norm, "norm")
        assert_close(result.priorities, expected.priorities, "priorities")
        for member in (0, 1):
            assert_all_close(
                member_gradients(state.critic, member),
                expected.critic_gradients[member],
                f"gradient of critic {member}",
            )
            assert_all_close(
                member_parameters(state.critic, member),
                reference.critics[member].parameters,
                f"critic {member} after Adam",
            )
            assert_all_close(
                member_parameters(state.target_critic, member),
                reference.target_critics[member].parameters,
                f"target critic {member}",
            )
        assert ("policy_loss" in result.metrics) == (expected.policy_loss is not None)
        if expected.policy_gradients is not None:
            assert_close(result.metrics["policy_loss"], expected.policy_loss, "policy loss")
            assert_all_close(
                linear_gradients(state.policy), expected.policy_gradients, "policy gradient"
            )
        assert_all_close(
            linear_parameters(state.policy), reference.policy.parameters, "policy after Adam"
        )
        assert_all_close(
            linear_parameters(state.target_policy),
            reference.target_policy.parameters,
            "target policy",
        )


def test_the_example_reaches_both_clips_of_the_target_action() -> None:
    """Otherwise the case `both clips at work` above would prove nothing."""
    _, _, reference = make(**SWITCHES["both clips at work"])
    noise = draw(same_noise())
    next_observation = sample_of().batch.next_observation
    unclipped_noise = np.abs(2.0 * noise) < 0.7
    action = reference.smoothed_action(next_observation, noise)
    assert 0 < unclipped_noise.sum() < noise.size
    assert 0 < (np.abs(action) == 1).sum() < action.size


def test_the_example_has_either_critic_as_the_smaller() -> None:
    """Otherwise a target of the first critic alone would go unnoticed."""
    _, state, _ = make()
    batch = tensors_of(state, sample_of())
    action = state.target_policy(batch.next_observation)
    first, second = state.target_critic(batch.next_observation, action)
    assert 0 < int((first < second).sum()) < SIZE


def test_target_looks_at_the_next_observation_only() -> None:
    algorithm, state, _ = make()
    sample, noise = sample_of(), torch.from_numpy(draw(same_noise()))
    batch = tensors_of(state, sample)
    moved = TensorBatch(
        observation=batch.observation + 1,
        action=-batch.action,
        reward=batch.reward,
        discount=batch.discount,
        next_observation=batch.next_observation,
        weights=batch.weights,
        extras={},
    )
    target = critic_target(state, batch, noise, algorithm.config)
    assert torch.equal(target, critic_target(state, moved, noise, algorithm.config))


def test_target_is_the_reward_where_the_episode_terminated() -> None:
    algorithm, state, _ = make()
    batch = tensors_of(state, sample_of())
    target = critic_target(state, batch, torch.zeros(SIZE, 2), algorithm.config)
    terminated = batch.discount == 0
    assert 0 < terminated.sum() < SIZE
    assert torch.equal(target == batch.reward, terminated)


def test_shapes_never_broadcast() -> None:
    algorithm, state, _ = make()
    batch = tensors_of(state, sample_of())
    q = state.critic(batch.observation, batch.action)
    target = critic_target(state, batch, torch.zeros(SIZE, 2), algorithm.config)
    assert q.shape == (2, SIZE)
    assert target.shape == (SIZE,)
    assert algorithm.update(state, sample_of()).priorities.shape == (SIZE,)
    with pytest.raises(AssertionError):
        critic_loss(q, target.unsqueeze(-1), batch.weights)
    with pytest.raises(AssertionError):
        critic_loss(q, target, batch.weights.unsqueeze(-1))


def test_first_update_leaves_the_policy_and_all_targets_alone() -> None:
    algorithm, state, _ = make()
    held = (state.policy, state.target_policy, state.target_critic)
    before = [snapshot(module) for module in held]
    algorithm.update(state, sample_of())
    for module, old in zip(held, before, strict=True):
        for left, right in zip(snapshot(module), old, strict=True):
            np.testing.assert_array_equal(left, right)


def test_second_update_moves_the_policy_and_all_targets() -> None:
    algorithm, state, _ = make()
    algorithm.update(state, sample_of(0))
    held = (state.policy, state.target_policy, state.target_critic)
    before = [snapshot(module) for module in held]
    algorithm.update(state, sample_of(1))
    for module, old in zip(held, before, strict=True):
        changed = [(a != b).any() for a, b in zip(snapshot(module), old, strict=True)]
        assert all(changed)


@pytest.mark.parametrize(("period", "expected"), [(1, 100), (2, 50), (3, 33)])
def test_policy_updates_in_a_hundred(period: int, expected: int) -> None:
    algorithm, state, _ = make(policy_period=period)
    sample = sample_of()
    results = [algorithm.update(state, sample) for _ in range(100)]
    assert sum("policy_loss" in result.metrics for result in results) == expected
    assert state.updates == 100


def test_policy_step_leaves_the_critic_and_its_gradients_alone() -> None:
    algorithm, state, _ = make()
    sample = sample_of()
    algorithm.update(state, sample)
    weights = snapshot(state.critic)
    gradients = [member_gradients(state.critic, member) for member in (0, 1)]
    before = snapshot(state.policy)

    gradient_step(state.policy_optimizer, policy_loss(state, tensors_of(state, sample)))

    assert any((a != b).any() for a, b in zip(snapshot(state.policy), before, strict=True))
    for left, right in zip(snapshot(state.critic), weights, strict=True):
        np.testing.assert_array_equal(left, right)
    for member in (0, 1):
        for left, right in zip(
            member_gradients(state.critic, member), gradients[member], strict=True
        ):
            np.testing.assert_array_equal(left, right)


def test_policy_loss_is_of_the_first_critic_at_the_policys_own_action() -> None:
    _, state, _ = make()
    batch = tensors_of(state, sample_of())
    q = state.critic(batch.observation, state.policy(batch.observation))
    assert_close(policy_loss(state, batch), -q[0].detach().numpy().mean())


def test_the_two_critics_begin_different() -> None:
    algorithm, _, _ = make()
    critic = algorithm.initial_state(continuous_spec()).critic
    pairs = zip(member_parameters(critic, 0), member_parameters(critic, 1), strict=True)
    assert all((first != second).any() for first, second in pairs)


def test_twin_evaluation_equals_each_critic_alone() -> None:
    twin = TwinQ(continuous_spec(), (8, 7))
    batch = sample_of().batch
    observation, action = torch.from_numpy(batch.observation), torch.from_numpy(batch.action)
    both = twin(observation, action)
    for member, critic in enumerate(critics_of(twin)):
        alone = critic(np.hstack([batch.observation, batch.action]))[:, 0]
        assert_close(both[member], alone)
    assert_close(twin.first(observation, action), both[0].detach().numpy())


def test_targets_begin_as_copies_and_take_no_gradient() -> None:
    algorithm, _, _ = make()
    state = algorithm.initial_state(continuous_spec())
    for target, source in (
        (state.target_policy, state.policy),
        (state.target_critic, state.critic),
    ):
        for left, right in zip(target.parameters(), source.parameters(), strict=True):
            assert torch.equal(left, right)
            assert left is not right
            assert not left.requires_grad


def test_same_seed_same_weights_and_the_global_generator_is_left_alone() -> None:
    algorithm, _, _ = make()
    before = torch.get_rng_state()
    first, second = (algorithm.initial_state(continuous_spec()) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    for left, right in zip(first.critic.parameters(), second.critic.parameters(), strict=True):
        assert torch.equal(left, right)


def test_normalised_update_trains_on_normalised_columns() -> None:
    """With both normalisers on, an update equals the plain one on columns normalised in NumPy.

    Normalised columns are float32, so networks are too: float32 rounding (1e-7) through three
    layers and one Adam step of 1e-2 stays below 1e-5.
    """
    torch.set_default_dtype(torch.float32)
    sample = sample_of()
    returns = np.random.default_rng(3).normal(loc=2, scale=5, size=SIZE)
    columns = sample.batch.columns()
    for name in ("observation", "next_observation", "action", "reward", "discount"):
        columns[name] = columns[name].astype(np.float32)
    raw = Sample(
        type(sample.batch).from_columns(columns | {"extras/discounted_return": returns}),
        sample.keys,
        sample.weights.astype(np.float32),
    )
    mean = columns["observation"].mean(0, dtype=np.float64)
    deviation = np.sqrt(columns["observation"].var(0, dtype=np.float64) + 1e-8)
    by_hand = columns | {
        "observation": ((columns["observation"] - mean) / deviation).astype(np.float32),
        "next_observation": ((columns["next_observation"] - mean) / deviation).astype(np.float32),
        "reward": (columns["reward"] / np.sqrt(returns.var() + 1e-8)).astype(np.float32),
    }
    plain = Sample(type(sample.batch).from_columns(by_hand), raw.keys, raw.weights)

    normalising, state, _ = make(normalize_observation=True, normalize_reward=True, policy_period=1)
    other, other_state, _ = make(policy_period=1)
    result, expected = normalising.update(state, raw), other.update(other_state, plain)

    for name, value in expected.metrics.items():
        assert float(result.metrics[name]) == pytest.approx(float(value), rel=1e-5), name
    for left, right in zip(
        [*state.policy.parameters(), *state.critic.parameters()],
        [*other_state.policy.parameters(), *other_state.critic.parameters()],
        strict=True,
    ):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)
