"""One iteration of VPG against the NumPy reference, and against PPO's first step.

Both sides run in float64 (where not said otherwise); the tolerance is in `reference.from_torch`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from reference.from_torch import (
    assert_all_close,
    assert_close,
    double_precision,
    linear_parameters,
    mlp_of,
    scramble,
)
from reference.policy_gradient import PolicyStep, VpgReference
from reference.ppo import PpoReference
from reference.samples import (
    as_sample,
    continuous_spec,
    discrete_spec,
    multi_discrete_spec,
    segments,
)
from reference.stochastic import distribution_of, played, policy_gradients, policy_parameters

from learner.algorithms.ppo import PPO
from learner.algorithms.vpg import VPG
from learner.experience import Experience, standardized
from learner.policy_gradient import State, policy_loss
from learner.value_regression import value_loss
from repertory.specs import EnvSpec

SEED, ROWS, STEPS = 7, 3, 9
SIZE = ROWS * STEPS
CPU = torch.device("cpu")
SPECS = {
    "continuous": continuous_spec(2),
    "discrete": discrete_spec(4),
    "multi_discrete": multi_discrete_spec((3, 2)),
}
SWITCHES = {
    "defaults": {},
    "advantage as it is": {"normalize_advantage": False},
    "gradients clipped hard, short lambda": {"max_grad_norm": 0.01, "gae_lambda": 0.3},
}
AGED = {"age": np.ones((ROWS, STEPS), np.int64)}


@pytest.fixture(autouse=True)
def _float64():
    with double_precision():
        yield


def made(spec: EnvSpec, **switches: object) -> tuple[VPG, State]:
    settings = {"hidden_sizes": (8, 7), "lr": 1e-2, "value_lr": 3e-2, "value_steps": 2}
    algorithm = VPG(VPG.Config(**(settings | switches)), device=CPU, seed=SEED)
    state = algorithm.initial_state(spec)
    scramble(state.policy, seed=0)
    scramble(state.value, seed=1)
    return algorithm, state


def reference_of(config: VPG.Config, state: State, *, stale: bool = False) -> VpgReference:
    policy = distribution_of(state.policy)
    base = PpoReference(
        policy=policy,
        value=mlp_of(state.value, "tanh"),
        clip=0.2,
        gae_lambda=config.gae_lambda,
        lr=0.0,
        max_grad_norm=config.max_grad_norm,
        value_lr=config.value_lr,
        v_trace_clips=(config.rho_clip, config.c_clip) if stale else None,
    )
    step = PolicyStep(policy, config.lr, config.normalize_advantage, config.max_grad_norm)
    return VpgReference(step, base)


def segments_of(reference: VpgReference, spec: EnvSpec, seed: int = 0, drift: float = 0.3):
    return segments(spec, reference.base.policy, ROWS, STEPS, seed, drift=drift)


@pytest.mark.parametrize("stale", [False, True], ids=["fresh", "stale"])
@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_iterations_equal_the_reference(
    spec: EnvSpec, switches: dict[str, object], stale: bool
) -> None:
    algorithm, state = made(spec, **switches)
    reference = reference_of(algorithm.config, state, stale=stale)
    for iteration in range(2):
        columns = segments_of(reference, spec, iteration)
        metrics = algorithm.update(state, as_sample(columns, AGED if stale else None)).metrics
        reference.iterate(columns, value_steps=2)

        step, value_losses = reference.step, reference.base.value_losses
        assert_close(metrics["policy_loss"], step.loss, "policy loss")
        assert_close(metrics["policy_loss_change"], step.loss_change, "policy loss change")
        assert_close(metrics["entropy"], step.entropy, "entropy")
        assert_close(metrics["kl"], step.kl, "KL")
        assert_close(metrics["value_loss"], value_losses[-1], "value loss")
        assert_close(metrics["value_loss_change"], value_losses[-1] - value_losses[0])
        assert_all_close(policy_gradients(state.policy), step.gradients, "policy gradient")
        assert_all_close(policy_parameters(state.policy), step.policy.parameters, "policy")
        assert_all_close(linear_parameters(state.value), reference.base.value.parameters, "value")
        assert ("age" in metrics) == stale


@pytest.mark.parametrize("normalize", [True, False], ids=["normalised", "as it is"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_first_gradient_of_ppo_is_that_of_vpg(spec: EnvSpec, normalize: bool) -> None:
    """Where the policy is still the one that acted: grad ratio = grad log pi."""
    algorithm, state = made(spec, normalize_advantage=normalize, gae_lambda=0.9)
    ppo = PPO(
        PPO.Config(
            hidden_sizes=(8, 7),
            mode="full_batch",
            policy_steps=1,
            value_steps=1,
            max_grad_norm=None,
            normalize_advantage=normalize,
            gae_lambda=0.9,
        ),
        device=CPU,
        seed=SEED,
    )
    ppo_state = ppo.initial_state(spec)
    ppo_state.policy.load_state_dict(state.policy.state_dict())
    ppo_state.value.load_state_dict(state.value.state_dict())
    columns = segments(spec, distribution_of(state.policy), ROWS, STEPS, seed=0)
    algorithm.update(state, as_sample(columns))
    ppo.update(ppo_state, as_sample(columns))
    gradients = policy_gradients(state.policy)
    assert_all_close(gradients, policy_gradients(ppo_state.policy))
    assert all((gradient != 0).any() for gradient in gradients)


def test_mean_of_the_gaussian_gets_a_score_function_gradient() -> None:
    """An action sampled with reparametrisation would move with the mean, and this would be zero.

    The actions are those of `act`, as an actor samples and records them.
    """
    torch.set_default_dtype(torch.float32)
    _, state = made(SPECS["continuous"])
    columns = played(state.policy, ROWS, STEPS, seed=0)
    experience = Experience(
        observation=torch.from_numpy(columns.observation).flatten(0, 1),
        action=torch.from_numpy(columns.action).flatten(0, 1),
        log_prob=torch.from_numpy(columns.log_prob).flatten(),
        advantage=torch.from_numpy(columns.reward).flatten(),
        value_target=torch.zeros(SIZE),
    )
    policy_loss(state.policy, experience)[0].backward()
    # d log pi/dm = (a - m) / std^2, and the head's bias is the mean's own offset.
    mean, std = state.policy(experience.observation), state.policy.log_std.exp()
    score = (experience.action - mean) / std**2
    expected = -(experience.advantage[:, None] * score).mean(0)
    assert (state.policy.head.bias.grad != 0).all()
    # Float32: sums of 27 terms of about one, in another order.
    torch.testing.assert_close(state.policy.head.bias.grad, expected, rtol=1e-4, atol=1e-5)


def test_a_single_advantage_stays_as_it_is() -> None:
    """The deviation of one number is not a number."""
    assert standardized(torch.tensor([3.0])).tolist() == [3.0]


def test_shapes_never_broadcast() -> None:
    spec = SPECS["discrete"]
    algorithm, state = made(spec)
    reference = reference_of(algorithm.config, state)
    columns = reference.base.flatten(segments_of(reference, spec))
    experience = Experience(*(torch.from_numpy(column) for column in columns))
    standing = experience.advantage[:, None]
    with pytest.raises(AssertionError):
        policy_loss(state.policy, dataclasses.replace(experience, advantage=standing))
    with pytest.raises(AssertionError):
        value_loss(state.value, dataclasses.replace(experience, value_target=standing))
