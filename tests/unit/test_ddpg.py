"""One update of DDPG against the NumPy reference, and what tells it from TD3.

Both sides run in float64; the tolerance is explained in `reference.from_torch`.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference.ddpg import DdpgReference
from reference.from_torch import (
    assert_all_close,
    assert_close,
    double_precision,
    linear_gradients,
    linear_parameters,
    mlp_of,
    scramble,
    snapshot,
)
from reference.samples import continuous_spec, pixel_spec, transitions

from learner.algorithms.ddpg import DDPG, State, critic_loss, critic_target, policy_loss
from learner.optimization import gradient_step
from learner.tensors import TensorBatch, to_tensors
from repertory.config import resolve
from repertory.errors import UsageError
from repertory.specs import EnvSpec
from repertory.types import Sample

SEED, SIZE = 11, 16
CPU = torch.device("cpu")
SWITCHES = {
    "defaults": {},
    "a learning rate for the policy": {"policy_lr": 1e-3},
    "clipped target": {"target_range": (-0.5, 0.5)},
    "penalty on actions": {"action_penalty": 0.7},
    "clipped gradients": {"max_grad_norm": 0.05},
    "gradients below the clip": {"max_grad_norm": 1e4},
    "targets copied": {"tau": 1.0},
}


@pytest.fixture(autouse=True)
def _float64():
    with double_precision():
        yield


def make(**switches: object) -> tuple[DDPG, State, DdpgReference]:
    """Our learner and the reference with the same weights; the targets differ from the networks."""
    config = DDPG.Config(hidden_sizes=(8, 7), **({"lr": 1e-2, "tau": 0.1} | switches))
    algorithm = DDPG(config, device=CPU, seed=SEED)
    state = algorithm.initial_state(continuous_spec())
    modules = (state.policy, state.critic, state.target_policy, state.target_critic)
    for seed, module in enumerate(modules):
        scramble(module, seed)
    reference = DdpgReference(
        policy=mlp_of(state.policy, "relu", "tanh"),
        critic=mlp_of(state.critic, "relu"),
        target_policy=mlp_of(state.target_policy, "relu", "tanh"),
        target_critic=mlp_of(state.target_critic, "relu"),
        policy_lr=config.lr if config.policy_lr is None else config.policy_lr,
        critic_lr=config.lr,
        tau=config.tau,
        target_range=config.target_range,
        action_penalty=config.action_penalty,
        max_grad_norm=config.max_grad_norm,
    )
    return algorithm, state, reference


def sample_of(seed: int = 0, **options: int) -> Sample:
    return transitions(continuous_spec(), SIZE, seed, **options)


def tensors_of(state: State, sample: Sample) -> TensorBatch:
    return to_tensors(sample, state.policy.normalizer, CPU, learn_moments=False)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_three_updates_equal_the_reference(switches: dict[str, object], n_step: int) -> None:
    algorithm, state, reference = make(**switches)
    for step in range(3):
        sample = sample_of(step, n_step=n_step)
        target = critic_target(state, tensors_of(state, sample), algorithm.config)
        result = algorithm.update(state, sample)
        expected = reference.update(sample)

        assert_close(target, expected.target, "target")
        assert_close(result.priorities, expected.priorities, "priorities")
        for name, value in (
            ("critic_loss", expected.critic_loss),
            ("critic_grad_norm", expected.critic_norm),
            ("policy_loss", expected.policy_loss),
        ):
            assert_close(result.metrics[name], value, name)
        assert_all_close(
            linear_gradients(state.critic), expected.critic_gradients, "critic gradient"
        )
        assert_all_close(
            linear_gradients(state.policy), expected.policy_gradients, "policy gradient"
        )
        for what, module, network in (
            ("critic after Adam", state.critic, reference.critic),
            ("policy after Adam", state.policy, reference.policy),
            ("target critic", state.target_critic, reference.target_critic),
            ("target policy", state.target_policy, reference.target_policy),
        ):
            assert_all_close(linear_parameters(module), network.parameters, what)


def test_the_example_reaches_both_ends_of_the_clipped_target() -> None:
    """Otherwise the case `clipped target` above would prove nothing."""
    _, _, reference = make(**SWITCHES["clipped target"])
    target = reference.target(sample_of())
    assert (target == -0.5).sum() > 0
    assert (target == 0.5).sum() > 0
    assert (np.abs(target) < 0.5).sum() > 0


def test_target_has_no_noise_and_looks_at_the_next_observation_only() -> None:
    algorithm, state, _ = make()
    batch = tensors_of(state, sample_of())
    moved = TensorBatch(
        observation=batch.observation + 1,
        action=-batch.action,
        reward=batch.reward,
        discount=batch.discount,
        next_observation=batch.next_observation,
        weights=batch.weights,
        extras={},
    )
    target = critic_target(state, batch, algorithm.config)
    assert torch.equal(target, critic_target(state, moved, algorithm.config))


def test_target_is_the_reward_where_the_episode_terminated() -> None:
    algorithm, state, _ = make()
    batch = tensors_of(state, sample_of())
    target = critic_target(state, batch, algorithm.config)
    terminated = batch.discount == 0
    assert 0 < terminated.sum() < SIZE
    assert torch.equal(target == batch.reward, terminated)


def test_target_stays_when_the_networks_that_learn_are_moved() -> None:
    algorithm, state, _ = make()
    batch = tensors_of(state, sample_of())
    before = critic_target(state, batch, algorithm.config)
    scramble(state.policy, 20)
    scramble(state.critic, 21)
    assert torch.equal(critic_target(state, batch, algorithm.config), before)


def test_shapes_never_broadcast() -> None:
    algorithm, state, _ = make()
    batch = tensors_of(state, sample_of())
    q = state.critic(batch.observation, batch.action)
    target = critic_target(state, batch, algorithm.config)
    assert q.shape == target.shape == (SIZE,)
    assert algorithm.update(state, sample_of()).priorities.shape == (SIZE,)
    with pytest.raises(AssertionError):
        critic_loss(q, target.unsqueeze(-1), batch.weights)
    with pytest.raises(AssertionError):
        critic_loss(q.unsqueeze(-1), target, batch.weights)


def test_every_update_moves_the_policy_and_all_targets() -> None:
    algorithm, state, _ = make()
    modules = (state.policy, state.critic, state.target_policy, state.target_critic)
    for step in range(2):
        before = [snapshot(module) for module in modules]
        result = algorithm.update(state, sample_of(step))
        assert "policy_loss" in result.metrics
        for module, old in zip(modules, before, strict=True):
            assert all((a != b).any() for a, b in zip(snapshot(module), old, strict=True))
    assert state.updates == 2


def test_policy_step_leaves_the_critic_and_its_gradients_alone() -> None:
    algorithm, state, _ = make()
    sample = sample_of()
    algorithm.update(state, sample)
    weights, gradients = snapshot(state.critic), linear_gradients(state.critic)
    before = snapshot(state.policy)

    loss = policy_loss(state, tensors_of(state, sample), algorithm.config)
    gradient_step(state.policy_optimizer, loss)

    assert any((a != b).any() for a, b in zip(snapshot(state.policy), before, strict=True))
    for left, right in zip(snapshot(state.critic), weights, strict=True):
        np.testing.assert_array_equal(left, right)
    for left, right in zip(linear_gradients(state.critic), gradients, strict=True):
        np.testing.assert_array_equal(left, right)


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


@pytest.mark.parametrize("given", [[0, -50], [1, 1]])
def test_target_range_that_is_none_is_refused_in_a_sentence(given: list[float]) -> None:
    with pytest.raises(UsageError, match=r"target_range = .* the low end comes first"):
        resolve("Pendulum-v1", ["ddpg"], overrides={"learner.target_range": given})


def test_exploration_is_apart_and_can_be_another() -> None:
    config = resolve(
        "Pendulum-v1", ["ddpg"], overrides={"learner.exploration": "ornstein_uhlenbeck"}
    )
    assert config.learners["ddpg"].exploration.name == "ornstein_uhlenbeck"
    assert resolve("Pendulum-v1", ["ddpg"]).learners["ddpg"].exploration.name == "gaussian"


def test_update_takes_the_batch_into_the_statistics() -> None:
    """Float32, which normalised observations are; the statistics themselves are float64."""
    torch.set_default_dtype(torch.float32)
    algorithm, state, _ = make(normalize_observation=True)
    sample = single_precision(sample_of())
    algorithm.update(state, sample)
    moments = state.policy.normalizer.observation_moments
    seen = sample.batch.observation.astype(np.float64)
    assert_close(moments.mean, seen.mean(0))
    assert_close(moments.variance, seen.var(0))


def test_update_on_pixels_moves_every_layer() -> None:
    torch.set_default_dtype(torch.float32)
    spec = continuous_pixel_spec()
    algorithm = DDPG(DDPG.Config(hidden_sizes=(8,)), device=CPU, seed=SEED)
    state = algorithm.initial_state(spec)
    sample, rng = single_precision(sample_of()), np.random.default_rng(0)
    columns = sample.batch.columns()
    for name in ("observation", "next_observation"):
        shape = (SIZE, *spec.observation_shape)
        columns[name] = rng.integers(0, 256, size=shape, dtype=np.uint8)
    before = snapshot(state.policy), snapshot(state.critic)
    batch = type(sample.batch).from_columns(columns)
    result = algorithm.update(state, Sample(batch, sample.keys, sample.weights))
    assert np.isfinite(float(result.metrics["critic_loss"]))
    for module, old in zip((state.policy, state.critic), before, strict=True):
        assert all((a != b).any() for a, b in zip(snapshot(module), old, strict=True))


def single_precision(sample: Sample) -> Sample:
    columns = {
        name: column.astype(np.float32) if column.dtype == np.float64 else column
        for name, column in sample.batch.columns().items()
    }
    batch = type(sample.batch).from_columns(columns)
    return Sample(batch, sample.keys, sample.weights.astype(np.float32))


def continuous_pixel_spec() -> EnvSpec:
    vector, pixels = continuous_spec().to_json(), pixel_spec().to_json()
    of_observations = {name: pixels[name] for name in pixels if name.startswith("observation")}
    return EnvSpec.from_json(vector | of_observations)
