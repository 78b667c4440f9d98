"""What all on-policy algorithms have in common, whatever their update is."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from reference.from_torch import scramble, snapshot
from reference.samples import (
    as_sample,
    continuous_spec,
    discrete_spec,
    multi_discrete_spec,
    pixel_spec,
)
from reference.stochastic import played

from repertory.parts import lookup
from repertory.specs import EnvSpec

SEED, ROWS, STEPS = 7, 3, 9
SPECS = {
    "continuous": continuous_spec(2),
    "discrete": discrete_spec(4),
    "multi_discrete": multi_discrete_spec((3, 2)),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"epochs": 2, "batch_size": 9},
    "vpg": {"value_steps": 2},
    "trpo": {"value_steps": 2, "cg_steps": 3},
    "npg": {"value_steps": 2, "cg_steps": 3},
    "actor_critic": {"target_updates": 2, "gradient_steps_per_target_update": 2},
}


def made(algo: str, spec: EnvSpec, **switches: Any) -> tuple[Any, Any]:
    kind = lookup("algorithm", algo)
    config = kind.Config(**({"hidden_sizes": (8, 7)} | SETTINGS[algo] | switches))
    algorithm = kind(config, device=torch.device("cpu"), seed=SEED)
    state = algorithm.initial_state(spec)
    scramble(state.policy, seed=0)
    return algorithm, state


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("algo", SETTINGS)
def test_constant_rewards_stay_finite(algo: str, spec: EnvSpec) -> None:
    """All advantages equal: their deviation is exactly 0, and the policy has nothing to learn."""
    algorithm, state = made(algo, spec)
    with torch.no_grad():
        for parameter in state.value.parameters():
            parameter.zero_()
    for optimizer in ("value_optimizer", "optimizer"):  # V stays 0 while it learns
        if optimizer == "value_optimizer" or algo == "ppo":
            getattr(state, optimizer, state.value_optimizer).lr = 0.0
    columns = played(state.policy, ROWS, STEPS, seed=0)
    constant = dataclasses.replace(
        columns, reward=np.ones_like(columns.reward), discount=np.zeros_like(columns.discount)
    )
    before = snapshot(state.policy)
    metrics = algorithm.update(state, as_sample(constant)).metrics
    assert all(np.isfinite(float(value)) for value in metrics.values())
    for left, right in zip(snapshot(state.policy), before, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("algo", SETTINGS)
def test_statistics_move_after_the_update_and_not_before(algo: str) -> None:
    """Densities hold for the statistics that were acted with, and at first these change nothing.

    But for float32's last bit: a variance of 1 has an epsilon added. Statistics of these
    observations would scale them by 2 and shift them by more than a half.
    """
    algorithm, plain = made(algo, SPECS["continuous"])
    columns = played(plain.policy, ROWS, STEPS, seed=0)
    near = dataclasses.replace(  # where a normaliser clips nothing
        columns,
        observation=columns.observation / 10,
        next_observation=columns.next_observation / 10,
    )
    algorithm.update(plain, as_sample(near))
    algorithm, normalising = made(algo, SPECS["continuous"], normalize_observation=True)
    algorithm.update(normalising, as_sample(near))
    for left, right in zip(snapshot(plain.policy), snapshot(normalising.policy), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)
    assert float(normalising.policy.normalizer.observation_moments.count) == ROWS * STEPS


@pytest.mark.parametrize("algo", SETTINGS)
def test_an_age_of_zero_changes_nothing_to_the_bit(algo: str) -> None:
    results = []
    for extras in ({}, {"age": np.zeros((ROWS, STEPS), np.int64)}):
        algorithm, state = made(algo, SPECS["discrete"])
        columns = played(state.policy, ROWS, STEPS, seed=0)
        metrics = algorithm.update(state, as_sample(columns, extras)).metrics
        results.append(({name: float(value) for name, value in metrics.items()}, state))
    (metrics, state), (others, other) = results
    assert metrics == others
    assert "age" not in metrics
    for module in ("policy", "value"):
        pair = (snapshot(getattr(one, module)) for one in (state, other))
        for left, right in zip(*pair, strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("algo", SETTINGS)
def test_update_on_pixels_moves_every_layer(algo: str) -> None:
    kind = lookup("algorithm", algo)
    config = kind.Config(hidden_sizes=(8,), **SETTINGS[algo])
    algorithm = kind(config, device=torch.device("cpu"), seed=SEED)
    state = algorithm.initial_state(pixel_spec(4))
    modules = (state.policy, state.value)
    before = [snapshot(module) for module in modules]
    algorithm.update(state, as_sample(played(state.policy, ROWS, STEPS, seed=0)))
    for module, old in zip(modules, before, strict=True):
        assert all((a != b).any() for a, b in zip(snapshot(module), old, strict=True))


@pytest.mark.parametrize("algo", SETTINGS)
def test_gaussian_begins_at_the_configured_deviation(algo: str) -> None:
    kind = lookup("algorithm", algo)
    algorithm = kind(kind.Config(initial_log_std=-0.5), device=torch.device("cpu"), seed=SEED)
    assert algorithm.initial_state(SPECS["continuous"]).policy.log_std.tolist() == [-0.5, -0.5]
