"""One iteration of actor-critic against the NumPy reference, and how often its critic steps.

Both sides run in float64; the tolerance is in `reference.from_torch`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

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
from reference.policy_gradient import ActorCriticReference, PolicyStep
from reference.samples import (
    as_sample,
    continuous_spec,
    discrete_spec,
    multi_discrete_spec,
    segments,
)
from reference.stochastic import distribution_of, policy_gradients, policy_parameters

from learner.algorithms import actor_critic
from learner.algorithms.actor_critic import ActorCritic, Transitions, bootstrapped
from learner.policy_gradient import State
from repertory.specs import EnvSpec

SEED, ROWS, STEPS = 7, 3, 9
SIZE = ROWS * STEPS
SPECS = {
    "continuous": continuous_spec(2),
    "discrete": discrete_spec(4),
    "multi_discrete": multi_discrete_spec((3, 2)),
}
SWITCHES = {
    "defaults": {},
    "advantage as it is": {"normalize_advantage": False},
    "one target, clipped hard": {"target_updates": 1, "max_grad_norm": 0.01},
    "one step a target": {"gradient_steps_per_target_update": 1, "rho_clip": 2.0},
}
AGED = {"age": np.ones((ROWS, STEPS), np.int64)}


@pytest.fixture(autouse=True)
def _float64():
    with double_precision():
        yield


def made(spec: EnvSpec, **switches: Any) -> tuple[ActorCritic, State]:
    settings = {"hidden_sizes": (8, 7), "lr": 1e-2, "value_lr": 3e-2}
    steps = {"target_updates": 3, "gradient_steps_per_target_update": 2}
    config = ActorCritic.Config(**(settings | steps | switches))
    algorithm = ActorCritic(config, device=torch.device("cpu"), seed=SEED)
    state = algorithm.initial_state(spec)
    scramble(state.policy, seed=0)
    scramble(state.value, seed=1)
    return algorithm, state


def reference_of(
    config: ActorCritic.Config, state: State, *, stale: bool = False
) -> ActorCriticReference:
    policy = distribution_of(state.policy)
    return ActorCriticReference(
        step=PolicyStep(policy, config.lr, config.normalize_advantage, config.max_grad_norm),
        value=mlp_of(state.value, "tanh"),
        value_lr=config.value_lr,
        rho_clip=config.rho_clip if stale else None,
        max_grad_norm=config.max_grad_norm,
    )


@pytest.mark.parametrize("stale", [False, True], ids=["fresh", "stale"])
@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_iterations_equal_the_reference(
    spec: EnvSpec, switches: dict[str, Any], stale: bool
) -> None:
    algorithm, state = made(spec, **switches)
    config = algorithm.config
    reference = reference_of(config, state, stale=stale)
    for iteration in range(2):
        columns = segments(spec, reference.step.policy, ROWS, STEPS, iteration, drift=0.3)
        metrics = algorithm.update(state, as_sample(columns, AGED if stale else None)).metrics
        reference.iterate(columns, config.target_updates, config.gradient_steps_per_target_update)

        step, value_losses = reference.step, reference.value_losses
        assert_close(metrics["policy_loss"], step.loss, "policy loss")
        assert_close(metrics["policy_loss_change"], step.loss_change, "policy loss change")
        assert_close(metrics["entropy"], step.entropy, "entropy")
        assert_close(metrics["kl"], step.kl, "KL")
        assert_close(metrics["value_loss"], value_losses[-1], "value loss")
        assert_close(metrics["value_loss_change"], value_losses[-1] - value_losses[0])
        assert_all_close(policy_gradients(state.policy), step.gradients, "policy gradient")
        assert_all_close(policy_parameters(state.policy), step.policy.parameters, "policy")
        assert_all_close(linear_parameters(state.value), reference.value.parameters, "value")
        assert ("age" in metrics) == stale


def test_critic_steps_and_targets_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The critic: a target 4 times, 3 steps on each; the policy: one more look at V, one step."""
    algorithm, state = made(SPECS["discrete"], target_updates=4, gradient_steps_per_target_update=3)
    events: list[str] = []
    gradient_step = actor_critic.gradient_step

    def watched_target(*given: Any) -> Any:
        events.append("target")
        return bootstrapped(*given)

    def watched_step(optimizer: Any, *given: Any) -> Any:
        assert optimizer is state.value_optimizer
        events.append("step")
        return gradient_step(optimizer, *given)

    monkeypatch.setattr(actor_critic, "bootstrapped", watched_target)
    monkeypatch.setattr(actor_critic, "gradient_step", watched_step)
    columns = segments(SPECS["discrete"], distribution_of(state.policy), ROWS, STEPS, 0)
    algorithm.update(state, as_sample(columns))
    assert events == ["target", "step", "step", "step"] * 4 + ["target"]
    (moments, *_) = state.value_optimizer.state().values()
    assert int(moments["step"]) == 12
    (moments, *_) = state.optimizer.state().values()
    assert int(moments["step"]) == 1


def transitions(state: State, rho: float = 1.0) -> Transitions:
    rng = np.random.default_rng(0)

    def column(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=(4, *shape)))

    return Transitions(
        observation=column(3),
        action=torch.zeros(4, dtype=torch.int64),
        log_prob=column(),
        reward=torch.tensor([1.0, 2.0, 3.0, 4.0]),
        discount=torch.tensor([0.9, 0.0, 0.9, 0.0]),  # two terminate
        next_observation=column(3),
        rho=torch.full((4,), rho),
    )


def test_target_bootstraps_from_the_next_observation_unless_it_terminated() -> None:
    _, state = made(SPECS["discrete"])
    given = transitions(state)
    experience = bootstrapped(state.value, given)
    with torch.no_grad():
        now, following = state.value(given.observation), state.value(given.next_observation)
    expected = [1 + 0.9 * float(following[0]), 2.0, 3 + 0.9 * float(following[2]), 4.0]
    np.testing.assert_allclose(experience.value_target.numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(
        experience.advantage.numpy(), expected - now.numpy(), rtol=1e-9, atol=1e-12
    )
    assert not experience.value_target.requires_grad


def test_rho_pulls_the_target_towards_what_v_says_already() -> None:
    _, state = made(SPECS["discrete"])
    whole = bootstrapped(state.value, transitions(state))
    half = bootstrapped(state.value, transitions(state, rho=0.5))
    assert_close(half.advantage, (whole.advantage / 2).numpy())


def test_shapes_never_broadcast() -> None:
    _, state = made(SPECS["discrete"])
    given = transitions(state)
    with pytest.raises(AssertionError):
        bootstrapped(state.value, dataclasses.replace(given, reward=given.reward[:, None]))
    with pytest.raises(AssertionError):
        bootstrapped(state.value, dataclasses.replace(given, rho=given.rho[:, None]))
