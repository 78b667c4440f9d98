"""Updates of C51, QR-DQN and noisy networks, with every switch, against the NumPy reference.

Both sides run in float64; the tolerance is explained in `reference.from_torch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from reference.distributional import DistributionalReference, Layer, Network
from reference.from_torch import (
    assert_all_close,
    assert_close,
    double_precision,
    linear_gradients,
    linear_parameters,
    scramble,
    snapshot,
)
from reference.samples import discrete_spec, pixel_spec, transitions
from torch import nn

from learner.algorithms.c51 import target_distribution
from learner.algorithms.dqn import q_target
from learner.algorithms.qr_dqn import target_quantiles
from learner.dqn_family import chosen, weighted
from learner.tensors import to_tensors
from repertory.parts import lookup
from repertory.types import Sample

SEED, SIZE, ACTIONS = 3, 16, 4
CPU = torch.device("cpu")
KINDS: dict[str, dict[str, Any]] = {
    "dqn": {},
    "c51": {"atoms": 7, "v_min": -3.0, "v_max": 2.0},
    "qr_dqn": {"quantiles": 5, "kappa": 0.7},
}
TARGETS = {"dqn": q_target, "c51": target_distribution, "qr_dqn": target_quantiles}
SWITCHES = {
    "plain": {},
    "one network": {"target_network": False},
    "double": {"double": True},
    "dueling": {"dueling": True},
    "noisy": {"noisy": True},
    "noisy, one network": {"noisy": True, "target_network": False},
    "all": {"double": True, "dueling": True, "noisy": True},
    "clipped gradients": {"max_grad_norm": 0.05},
    "target moves part of the way, every third": {"target_period": 3, "tau": 0.3},
}


@pytest.fixture(autouse=True)
def _float64():
    with double_precision():
        yield


def layer_of(module: nn.Module) -> Layer:
    return Layer(linear_parameters(module))


def network_of(policy: Any) -> Network:
    dense = [layer for layer in policy.torso.dense if not isinstance(layer, nn.ReLU)]
    value = None if policy.value is None else layer_of(policy.value)
    return Network([layer_of(layer) for layer in dense], layer_of(policy.advantage), value, ACTIONS)


def make(kind: str, **switches: Any) -> tuple[Any, Any, DistributionalReference]:
    """Our learner and the reference with the same weights; the target differs from the network."""
    cls = lookup("algorithm", kind)
    config = cls.Config(hidden_sizes=(8, 7), **({"lr": 1e-2} | KINDS[kind] | switches))
    algorithm = cls(config, device=CPU, seed=SEED)
    state = algorithm.initial_state(discrete_spec(ACTIONS))
    scramble(state.policy, seed=0, scale=0.8)
    scramble(state.target, seed=1, scale=0.8)
    reference = DistributionalReference(
        kind=kind,  # type: ignore[arg-type]
        online=network_of(state.policy),
        frozen=network_of(state.target),
        lr=config.lr,
        tau=config.tau,
        target_period=config.target_period,
        target_network=config.target_network,
        double=config.double,
        v_min=getattr(config, "v_min", 0.0),
        v_max=getattr(config, "v_max", 0.0),
        kappa=getattr(config, "kappa", 1.0),
        max_grad_norm=config.max_grad_norm,
    )
    return algorithm, state, reference


def sample_of(seed: int = 0, **options: int) -> Sample:
    return transitions(discrete_spec(ACTIONS), SIZE, seed, **options)


def noise_to_come(state: Any) -> Callable[[Sequence[int]], np.ndarray]:
    """What the learner will draw, for the reference, without drawing it."""
    generator = torch.Generator()
    generator.set_state(state.generator.get_state())
    return lambda shape: torch.randn(tuple(shape), generator=generator).numpy()


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_four_updates_equal_the_reference(kind: str, switches: dict[str, Any]) -> None:
    algorithm, state, reference = make(kind, **switches)
    for step in range(4):
        sample = sample_of(step, n_step=1 + step % 3)
        expected = reference.update(sample, noise_to_come(state))
        generator = state.generator.get_state()
        batch = to_tensors(sample, state.policy.normalizer, CPU, learn_moments=False)
        target = TARGETS[kind](state, batch, algorithm.config)
        state.generator.set_state(generator)
        result = algorithm.update(state, sample)

        assert not target.requires_grad
        assert_close(target.reshape(SIZE, -1), expected.target, "target")
        assert_close(result.metrics["loss"], expected.loss, "loss")
        assert_close(result.metrics["grad_norm"], expected.norm, "norm")
        assert_close(result.priorities, expected.priorities, "priorities")
        assert_all_close(linear_gradients(state.policy), expected.gradients, "gradient")
        assert_all_close(
            linear_parameters(state.policy), reference.online.parameters, "network after Adam"
        )
        assert_all_close(
            linear_parameters(state.target), reference.frozen.parameters, "target network"
        )


@pytest.mark.parametrize("kind", ["c51", "qr_dqn"])
def test_switches_change_the_target(kind: str) -> None:
    """Else the equality above would not tell them apart."""
    sample = sample_of()
    targets = [
        make(kind, **switches)[2].target(sample, None)
        for switches in ({}, {"target_network": False}, {"double": True}, {"dueling": True})
    ]
    for place, one in enumerate(targets):
        assert not any(np.allclose(one, other) for other in targets[:place])


@pytest.mark.parametrize("kind", KINDS)
def test_target_looks_at_the_next_observation_only(kind: str) -> None:
    algorithm, state, _ = make(kind, double=True)
    targets = []
    for moved in (0, 1):
        sample = sample_of()
        columns = sample.batch.columns()
        columns["observation"] = columns["observation"] + moved
        columns["action"] = (columns["action"] + moved) % ACTIONS
        moved_sample = Sample(type(sample.batch).from_columns(columns), sample.keys, sample.weights)
        batch = to_tensors(moved_sample, state.policy.normalizer, CPU, learn_moments=False)
        targets.append(TARGETS[kind](state, batch, algorithm.config))
    assert torch.equal(*targets)


@pytest.mark.parametrize("kind", KINDS)
def test_noisy_policy_explores_with_a_generator_and_is_certain_without(kind: str) -> None:
    _, state, _ = make(kind, noisy=True, dueling=True)
    observation = np.random.default_rng(0).normal(size=(64, 3))
    certain = [state.policy.act(observation, None).action for _ in range(2)]
    exploring = [
        state.policy.act(observation, np.random.default_rng(seed)).action for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(*certain)
    np.testing.assert_array_equal(*exploring[:2])
    assert (exploring[0] != exploring[2]).any()
    assert (exploring[0] != certain[0]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_copies_explore_each_with_noise_of_its_own(kind: str) -> None:
    _, state, _ = make(kind, noisy=True)
    same = np.repeat(np.random.default_rng(0).normal(size=(1, 3)), 64, axis=0)
    assert len(np.unique(state.policy.act(same, np.random.default_rng(1)).action)) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_policy_that_is_not_noisy_takes_nothing_from_the_generator(kind: str) -> None:
    _, state, _ = make(kind)
    rng = np.random.default_rng(1)
    state.policy.act(np.zeros((2, 3)), rng)
    assert rng.bit_generator.state == np.random.default_rng(1).bit_generator.state


@pytest.mark.parametrize("kind", ["c51", "qr_dqn"])
def test_dueling_is_unchanged_by_a_constant_added_to_every_advantage(kind: str) -> None:
    """Atom by atom: for each of them a constant of its own."""
    _, state, _ = make(kind, dueling=True)
    observation = torch.from_numpy(sample_of().batch.observation)
    with torch.no_grad():
        before = state.policy(observation)
        constants = torch.linspace(-5, 5, state.policy.atoms).repeat(ACTIONS)
        state.policy.advantage.bias += constants
        assert_close(state.policy(observation), before.numpy())


def test_chosen_takes_the_atoms_of_the_action_of_its_own_row() -> None:
    outputs = torch.arange(12.0).reshape(2, 3, 2)
    assert chosen(outputs, torch.tensor([2, 0])).tolist() == [[4.0, 5.0], [6.0, 7.0]]


def test_weights_never_broadcast() -> None:
    with pytest.raises(AssertionError):
        weighted(torch.zeros(4), torch.zeros(4, 1))


@pytest.mark.parametrize("kind", ["c51", "qr_dqn"])
def test_double_without_a_target_network_is_refused(kind: str) -> None:
    with pytest.raises(ValidationError, match="two networks"):
        lookup("algorithm", kind).Config(double=True, target_network=False)


@pytest.mark.parametrize("kind", ["c51", "qr_dqn"])
def test_update_on_pixels_moves_every_layer(kind: str) -> None:
    torch.set_default_dtype(torch.float32)
    spec, rng = pixel_spec(ACTIONS), np.random.default_rng(0)
    cls = lookup("algorithm", kind)
    config = cls.Config(hidden_sizes=(8,), dueling=True, noisy=True, **KINDS[kind])
    algorithm = cls(config, device=CPU, seed=SEED)
    state = algorithm.initial_state(spec)
    sample, before = sample_of(), snapshot(state.policy)
    columns = sample.batch.columns()
    for name in ("observation", "next_observation"):
        shape = (SIZE, *spec.observation_shape)
        columns[name] = rng.integers(0, 256, size=shape, dtype=np.uint8)
    for name in ("reward", "discount"):
        columns[name] = columns[name].astype(np.float32)
    batch = type(sample.batch).from_columns(columns)
    result = algorithm.update(state, Sample(batch, sample.keys, sample.weights.astype(np.float32)))
    assert np.isfinite(float(result.metrics["loss"]))
    assert all((a != b).any() for a, b in zip(snapshot(state.policy), before, strict=True))
