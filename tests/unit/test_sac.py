"""One update of SAC against the NumPy reference, its temperature, and a bandit with a known answer.

Both sides run in float64; the tolerance is explained in `reference.from_torch`.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

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
from reference.sac import SacReference
from reference.samples import continuous_spec, transitions

from learner.algorithms.sac import (
    SAC,
    State,
    critic_loss,
    critic_target,
    policy_loss,
    temperature_loss,
)
from learner.optimization import adam, gradient_step
from learner.tensors import TensorBatch, to_tensors
from repertory.policies.squashed_gaussian import SquashedGaussianPolicy
from repertory.types import Sample

SEED, SIZE, ACTIONS = 5, 16, 2
CPU = torch.device("cpu")
SWITCHES = {
    "learned temperature": {},
    "learned temperature from 0.2": {"alpha": 0.2},
    "fixed temperature": {"alpha": 0.2, "learn_alpha": False},
    "target entropy set": {"target_entropy": 0.7},
    "target entropy zero": {"target_entropy": 0.0},
    "clipped gradients": {"max_grad_norm": 0.05},
    "targets copied": {"tau": 1.0},
}


@pytest.fixture(autouse=True)
def _float64():
    with double_precision():
        yield


def make(**switches: object) -> tuple[SAC, State, SacReference]:
    """Our learner and the reference with the same weights; the targets differ from the critics."""
    config = SAC.Config(hidden_sizes=(8, 7), **({"lr": 1e-2, "tau": 0.1} | switches))
    algorithm = SAC(config, device=CPU, seed=SEED)
    state = algorithm.initial_state(continuous_spec(ACTIONS))
    for seed, module in ((0, state.policy), (3, state.critic), (6, state.target_critic)):
        scramble(module, seed)
    reference = SacReference(
        policy=mlp_of(state.policy, "relu"),
        critics=critics_of(state.critic),
        target_critics=critics_of(state.target_critic),
        alpha=config.alpha,
        learn_alpha=config.learn_alpha,
        target_entropy=-ACTIONS if config.target_entropy is None else config.target_entropy,
        lr=config.lr,
        tau=config.tau,
        max_grad_norm=config.max_grad_norm,
    )
    return algorithm, state, reference


def sample_of(seed: int = 0, **options: int) -> Sample:
    return transitions(continuous_spec(ACTIONS), SIZE, seed, **options)


def tensors_of(state: State, sample: Sample) -> TensorBatch:
    return to_tensors(sample, state.policy.normalizer, CPU, learn_moments=False)


def policy_step(state: State, sample: Sample) -> None:
    batch = tensors_of(state, sample)
    noise = torch.randn(SIZE, ACTIONS, generator=torch.Generator().manual_seed(1))
    action, log_prob = state.policy.sample(batch.observation, noise)
    alpha = state.log_alpha.detach().exp()
    gradient_step(state.policy_optimizer, policy_loss(state, batch, action, log_prob, alpha))


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_three_updates_equal_the_reference(switches: dict[str, object], n_step: int) -> None:
    algorithm, state, reference = make(**switches)
    generator = torch.Generator().manual_seed(SEED)  # the learner's own, drawn from alike
    for step in range(3):
        sample = sample_of(step, n_step=n_step)
        noise, next_noise = torch.randn((2, SIZE, ACTIONS), generator=generator).numpy()
        target = critic_target(
            state,
            tensors_of(state, sample),
            torch.from_numpy(next_noise),
            state.log_alpha.detach().exp(),
        )
        result = algorithm.update(state, sample)
        expected = reference.update(sample, noise, next_noise)

        assert_close(target, expected.target, "target")
        assert_close(result.priorities, expected.priorities, "priorities")
        for name, value in (
            ("critic_loss", expected.critic_loss),
            ("critic_grad_norm", expected.critic_norm),
            ("policy_loss", expected.policy_loss),
            ("entropy", expected.entropy),
            ("alpha", expected.alpha),
        ):
            assert_close(result.metrics[name], value, name)
        assert ("alpha_loss" in result.metrics) == algorithm.config.learn_alpha
        if expected.alpha_loss is not None:
            assert_close(result.metrics["alpha_loss"], expected.alpha_loss, "alpha loss")
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
        assert_all_close(
            linear_gradients(state.policy), expected.policy_gradients, "policy gradient"
        )
        assert_all_close(
            linear_parameters(state.policy), reference.policy.parameters, "policy after Adam"
        )
        assert_close(state.log_alpha, reference.log_alpha, "log alpha after Adam")


def test_the_example_uses_either_critic_in_target_and_policy() -> None:
    """Otherwise taking the first critic for the smaller would go unnoticed above."""
    _, state, _ = make()
    batch = tensors_of(state, sample_of())
    for critic, observation in (
        (state.critic, batch.observation),
        (state.target_critic, batch.next_observation),
    ):
        first, second = critic(observation, torch.tanh(state.policy(observation)[0]))
        assert 0 < int((first < second).sum()) < SIZE


def test_clamped_log_deviation_takes_no_gradient() -> None:
    """Where the head asks for more than the largest deviation, as the reference has it.

    The noise is small here, so that actions do not saturate at the large deviation.
    """
    _, state, _ = make()
    with torch.no_grad():
        state.policy.head.bias[ACTIONS] = 50.0
    batch, noise = tensors_of(state, sample_of()), np.full((SIZE, ACTIONS), 0.05)
    _, _, reference = make()
    reference.policy = mlp_of(state.policy, "relu")
    expected_loss, expected = reference.policy_gradient(sample_of().batch.observation, noise, 0.3)

    action, log_prob = state.policy.sample(batch.observation, torch.from_numpy(noise))
    loss = policy_loss(state, batch, action, log_prob, torch.tensor(0.3))
    loss.backward()

    assert_close(loss, expected_loss)
    assert_all_close(linear_gradients(state.policy), expected)
    assert state.policy.head.bias.grad[ACTIONS] == 0


def test_target_looks_at_the_next_observation_only() -> None:
    _, state, _ = make()
    batch, noise = tensors_of(state, sample_of()), torch.randn(SIZE, ACTIONS)
    moved = TensorBatch(
        observation=batch.observation + 1,
        action=-batch.action,
        reward=batch.reward,
        discount=batch.discount,
        next_observation=batch.next_observation,
        weights=batch.weights,
        extras={},
    )
    alpha = torch.tensor(0.5)
    assert torch.equal(
        critic_target(state, batch, noise, alpha), critic_target(state, moved, noise, alpha)
    )


def test_target_is_the_reward_where_the_episode_terminated() -> None:
    """No entropy bonus of the next state either."""
    _, state, _ = make()
    batch = tensors_of(state, sample_of())
    target = critic_target(state, batch, torch.zeros(SIZE, ACTIONS), torch.tensor(0.5))
    terminated = batch.discount == 0
    assert 0 < terminated.sum() < SIZE
    assert torch.equal(target == batch.reward, terminated)


def test_shapes_never_broadcast() -> None:
    algorithm, state, _ = make()
    batch = tensors_of(state, sample_of())
    alpha = torch.tensor(0.5)
    action, log_prob = state.policy.sample(batch.observation, torch.zeros(SIZE, ACTIONS))
    target = critic_target(state, batch, torch.zeros(SIZE, ACTIONS), alpha)
    q = state.critic(batch.observation, batch.action)
    assert action.shape == (SIZE, ACTIONS)
    assert log_prob.shape == (SIZE,)
    assert target.shape == (SIZE,)
    assert q.shape == (2, SIZE)
    assert algorithm.update(state, sample_of()).priorities.shape == (SIZE,)
    with pytest.raises(AssertionError):
        critic_loss(q, target.unsqueeze(-1), batch.weights)
    with pytest.raises(AssertionError):
        policy_loss(state, batch, action, log_prob.unsqueeze(-1), alpha)


@pytest.mark.parametrize("alpha", [1.0, 0.2, 0.01])
@pytest.mark.parametrize("learn_alpha", [True, False])
def test_temperature_is_positive_and_as_configured_from_the_first_update(
    alpha: float, learn_alpha: bool
) -> None:
    algorithm, state, _ = make(alpha=alpha, learn_alpha=learn_alpha)
    first = algorithm.update(state, sample_of()).metrics["alpha"]
    assert float(first) == pytest.approx(alpha, rel=1e-12)


def test_fixed_temperature_stays() -> None:
    algorithm, state, _ = make(alpha=0.2, learn_alpha=False)
    for step in range(5):
        algorithm.update(state, sample_of(step))
    assert float(state.log_alpha.detach().exp()) == pytest.approx(0.2, rel=1e-12)


@pytest.mark.parametrize(("target_entropy", "rises"), [(50.0, True), (-50.0, False)])
def test_temperature_rises_when_entropy_is_below_its_target(
    target_entropy: float, rises: bool
) -> None:
    algorithm, state, _ = make(target_entropy=target_entropy)
    before = float(state.log_alpha.detach())
    algorithm.update(state, sample_of())
    assert (float(state.log_alpha.detach()) > before) == rises


def test_temperature_stays_positive_however_far_it_falls() -> None:
    algorithm, state, _ = make(target_entropy=-1000.0, lr=1.0)
    for step in range(20):
        algorithm.update(state, sample_of(step))
    assert 0 < float(state.log_alpha.detach().exp()) < 1e-3


def test_temperature_loss_by_hand() -> None:
    loss = temperature_loss(torch.tensor(0.5), torch.tensor([1.0, -4.0]), target_entropy=-2.0)
    assert float(loss) == 1.75  # -0.5 * ((1 - 2) + (-4 - 2)) / 2


def test_default_target_entropy_is_minus_the_action_dimensions() -> None:
    _, state, _ = make()
    assert state.target_entropy == -ACTIONS


def test_policy_step_leaves_the_critic_and_the_temperature_alone() -> None:
    algorithm, state, _ = make()
    algorithm.update(state, sample_of())
    weights, alpha = snapshot(state.critic), state.log_alpha.detach().clone()
    gradients = [member_gradients(state.critic, member) for member in (0, 1)]
    alpha_gradient = state.log_alpha.grad.clone()
    before = snapshot(state.policy)

    policy_step(state, sample_of())

    assert any((a != b).any() for a, b in zip(snapshot(state.policy), before, strict=True))
    for left, right in zip(snapshot(state.critic), weights, strict=True):
        np.testing.assert_array_equal(left, right)
    for member in (0, 1):
        for left, right in zip(
            member_gradients(state.critic, member), gradients[member], strict=True
        ):
            np.testing.assert_array_equal(left, right)
    assert torch.equal(state.log_alpha.detach(), alpha)
    assert torch.equal(state.log_alpha.grad, alpha_gradient)


def bandit(alpha: float, mean: float, std: float) -> SimpleNamespace:
    """A state with a linear policy and the critic Q(a) = alpha log p*(a), p* a squashed Gaussian.

    exp(Q/alpha) is then p* itself, a density that the policy can take on exactly.
    """
    spec = continuous_spec(actions=1)
    policy = SquashedGaussianPolicy(SquashedGaussianPolicy.Config(hidden_sizes=()), spec)

    def critic(observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        u = torch.atanh(action[:, 0])
        normal = -0.5 * ((u - mean) / std) ** 2 - math.log(std) - 0.5 * math.log(2 * math.pi)
        return (alpha * (normal - torch.log1p(-(action[:, 0] ** 2)))).expand(2, -1)

    return SimpleNamespace(policy=policy, critic=critic)


def bandit_loss(state: SimpleNamespace, alpha: float) -> torch.Tensor:
    """Over noise of mean 0 and variance 1 exactly, for which E[log pi - log p*] has no sampling
    error: in u it is a polynomial of degree two in the noise."""
    noise = torch.randn(64, 1, generator=torch.Generator().manual_seed(0))
    noise = (noise - noise.mean()) / noise.std(correction=0)
    batch = SimpleNamespace(observation=torch.ones(64, 3))
    action, log_prob = state.policy.sample(batch.observation, noise)
    return policy_loss(state, batch, action, log_prob, torch.tensor(alpha))


@pytest.mark.parametrize("alpha", [0.2, 2.0])
def test_policy_gradient_vanishes_at_the_boltzmann_policy(alpha: float) -> None:
    state = bandit(alpha, mean=0.4, std=0.6)
    with torch.no_grad():
        state.policy.head.weight.zero_()
        state.policy.head.bias.copy_(torch.tensor([0.4, math.log(0.6)]))
    bandit_loss(state, alpha).backward()
    # Rounding only: atanh of an action near 1 loses digits that tanh had.
    assert state.policy.head.bias.grad.abs().max() < 1e-9


@pytest.mark.parametrize("alpha", [0.2, 2.0])
def test_bandit_with_known_q_is_solved_by_the_boltzmann_policy(alpha: float) -> None:
    state = bandit(alpha, mean=0.4, std=0.6)
    optimizer = adam(0.03, state.policy.head)
    for _ in range(400):
        gradient_step(optimizer, bandit_loss(state, alpha))
    mean, log_std = (float(value) for value in state.policy.head(torch.ones(3)).detach())
    # Adam with a constant step settles to some 1e-5; a wrong weight of the entropy moves the
    # deviation by tens of percent.
    assert mean == pytest.approx(0.4, abs=1e-3)
    assert math.exp(log_std) == pytest.approx(0.6, abs=1e-3)


def test_update_takes_the_batch_into_the_statistics() -> None:
    """Float32, which normalised observations are; the statistics themselves are float64."""
    torch.set_default_dtype(torch.float32)
    algorithm, state, _ = make(normalize_observation=True)
    seen = []
    for step in range(2):
        sample = sample_of(step)
        columns = {
            name: column.astype(np.float32) if column.dtype == np.float64 else column
            for name, column in sample.batch.columns().items()
        }
        batch = type(sample.batch).from_columns(columns)
        algorithm.update(state, Sample(batch, sample.keys, sample.weights.astype(np.float32)))
        seen.append(batch.observation.astype(np.float64))
    moments, everything = state.policy.normalizer.observation_moments, np.concatenate(seen)
    assert_close(moments.mean, everything.mean(0))
    assert_close(moments.variance, everything.var(0))
