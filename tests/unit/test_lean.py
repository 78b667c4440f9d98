"""A few rows through NumPy do what torch does, with whatever weights there are at the moment."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from reference.from_torch import scramble
from reference.samples import continuous_spec, discrete_spec, multi_discrete_spec, pixel_spec
from torch import nn

from repertory.policies import policy as policy_module
from repertory.policies.categorical import CategoricalPolicy
from repertory.policies.deterministic import DeterministicPolicy
from repertory.policies.greedy_q import GreedyQPolicy
from repertory.policies.lean import MOST_ROWS, LeanNetwork
from repertory.policies.policy import TorchPolicy, build_policy
from repertory.policies.squashed_gaussian import SquashedGaussianPolicy
from repertory.policies.stochastic import StochasticPolicy
from repertory.specs import EnvSpec
from repertory.types import Acted

SPEC = EnvSpec(
    env_id="rows",
    observation_kind="vector",
    observation_shape=(5,),
    observation_dtype="<f4",
    action_kind="continuous",
    action_sizes=(2,),
    action_low=(-1.0, -1.0),
    action_high=(1.0, 1.0),
    action_shape=(2,),
    action_dtype="<f4",
    max_episode_steps=None,
)
# Sums of 16 products of about 1, in float32: another order of adding changes the last digits.
TOLERANCE = 1e-5


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, 5)).astype(np.float32)


def gaussian(**settings: object) -> SquashedGaussianPolicy:
    torch.manual_seed(1)
    made = build_policy(SquashedGaussianPolicy.Config(hidden_sizes=(16, 16), **settings), SPEC)
    assert isinstance(made, SquashedGaussianPolicy)
    return made


def by_torch(policy: SquashedGaussianPolicy, observation: np.ndarray, noise: np.ndarray) -> object:
    with torch.no_grad():
        return policy.sample(torch.from_numpy(observation), torch.from_numpy(noise))[0].numpy()


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_a_chain_of_layers_gives_what_torch_gives(activation: type[nn.Module]) -> None:
    chain = nn.Sequential(
        nn.Linear(5, 16), activation(), nn.Sequential(nn.Linear(16, 3), activation())
    )
    lean = LeanNetwork([chain, head := nn.Linear(3, 2)])
    observation = rows(4)
    expected = head(chain(torch.from_numpy(observation))).detach().numpy()
    np.testing.assert_allclose(lean(observation), expected, atol=TOLERANCE)


def test_what_it_is_given_stays_as_it_was() -> None:
    lean, observation = LeanNetwork([nn.Linear(5, 5), nn.ReLU()]), rows(2)
    lean(observation)
    np.testing.assert_array_equal(observation, rows(2))


@pytest.mark.parametrize("strange", [nn.LayerNorm(16), nn.Dropout()])
def test_what_it_does_not_know_is_left_to_torch(strange: nn.Module) -> None:
    assert LeanNetwork.possible([nn.Linear(5, 16), nn.ReLU()])
    assert not LeanNetwork.possible([nn.Linear(5, 16), strange])
    assert not LeanNetwork.possible([])


def test_a_policy_acts_alike_with_few_rows_and_with_many() -> None:
    policy, many = gaussian(), rows(2 * MOST_ROWS)
    few = np.concatenate([policy.act(many[:MOST_ROWS], None).action,
                          policy.act(many[MOST_ROWS:], None).action])  # fmt: skip
    np.testing.assert_allclose(policy.act(many, None).action, few, atol=TOLERANCE)


def test_the_noise_is_the_generators() -> None:
    policy, observation = gaussian(), rows(3)
    acted = policy.act(observation, np.random.default_rng(7))
    noise = np.random.default_rng(7).standard_normal((3, 2), dtype=np.float32)
    np.testing.assert_allclose(acted.action, by_torch(policy, observation, noise), atol=TOLERANCE)
    assert acted.action.dtype == np.float32


def test_new_weights_are_seen_at_once() -> None:
    policy, other = gaussian(), gaussian()
    before = policy.act(rows(1), None).action
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    policy.load_weights(other.weights())
    after = policy.act(rows(1), None).action
    assert not np.allclose(before, after)
    np.testing.assert_array_equal(after, other.act(rows(1), None).action)


def test_a_copy_has_a_view_of_its_own_parameters() -> None:
    policy = gaussian()
    policy.act(rows(1), None)
    copied = copy.deepcopy(policy)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(0.1)
    assert not np.allclose(policy.act(rows(1), None).action, copied.act(rows(1), None).action)


def test_parameters_that_were_replaced_are_looked_at_anew() -> None:
    policy = gaussian()
    policy.act(rows(1), None)
    policy.double().float()  # other memory
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1)
    zero = np.zeros((1, 2), np.float32)
    np.testing.assert_allclose(
        policy.act(rows(1), None).action, by_torch(policy, rows(1), zero), atol=TOLERANCE
    )


def test_parameters_that_were_given_other_memory_are_looked_at_anew() -> None:
    policy = gaussian()
    before = policy.act(rows(1), None).action
    for parameter in policy.parameters():
        parameter.data = parameter.data + 0.1
    assert not np.allclose(before, policy.act(rows(1), None).action)


def test_observations_are_normalised_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = gaussian(normalize_observation=True)
    policy.act(5 + rows(1), None)  # the statistics change after it has looked at them
    policy.normalizer.update(torch.from_numpy(5 + rows(50)), None)
    observation = 5 + rows(7)
    observation[0] = 1000  # clipped
    few = policy.act(observation, None).action
    monkeypatch.setattr(policy_module, "MOST_ROWS", 0)  # torch in any case
    np.testing.assert_allclose(few, policy.act(observation, None).action, atol=TOLERANCE)
    plain = gaussian()
    assert not np.allclose(few, plain.act(observation, None).action)


EVERY = {
    "deterministic": (DeterministicPolicy, continuous_spec(), {}),
    "squashed gaussian": (SquashedGaussianPolicy, continuous_spec(), {}),
    "greedy": (GreedyQPolicy, discrete_spec(), {}),
    "dueling": (GreedyQPolicy, discrete_spec(), {"dueling": True}),
    "all probabilities": (CategoricalPolicy, discrete_spec(), {}),
    "categorical": (StochasticPolicy, discrete_spec(), {}),
    "categoricals": (StochasticPolicy, multi_discrete_spec(), {}),
    "gaussian": (StochasticPolicy, continuous_spec(), {"initial_log_std": -0.3}),
    "unbounded gaussian": (StochasticPolicy, continuous_spec(bounded=False), {}),
}
TORCH_ONLY = {
    "noisy": (GreedyQPolicy, discrete_spec(), {"noisy": True}),
    "pixels": (GreedyQPolicy, pixel_spec(), {}),
    "stochastic pixels": (StochasticPolicy, pixel_spec(), {}),
}


def made(kind: type[TorchPolicy], spec: EnvSpec, settings: dict[str, Any]) -> TorchPolicy:
    policy = build_policy(kind.Config(hidden_sizes=(16, 16), **settings), spec)
    scramble(policy, seed=3)
    return policy


def seen(spec: EnvSpec, count: int) -> np.ndarray:
    observation = np.random.default_rng(count).normal(size=(count, *spec.observation_shape))
    return observation.astype(spec.observation_dtype)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("explores", [False, True])
@pytest.mark.parametrize(("kind", "spec", "settings"), EVERY.values(), ids=EVERY)
def test_every_plain_policy_does_without_torch_what_it_does_with_it(
    kind: type[TorchPolicy],
    spec: EnvSpec,
    settings: dict[str, Any],
    explores: bool,
    normalized: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = made(kind, spec, {**settings, "normalize_observation": normalized})
    policy.normalizer.update(torch.from_numpy(seen(spec, 40)), None)
    observation = seen(spec, 50)

    def act() -> Acted:
        return policy.act(observation, np.random.default_rng(5) if explores else None)

    with monkeypatch.context() as without_torch:
        without_torch.setattr(policy, "_act", None)
        lean = act()
    monkeypatch.setattr(policy_module, "MOST_ROWS", 0)  # torch in any case
    by_torch = act()
    np.testing.assert_allclose(lean.action, by_torch.action, atol=TOLERANCE)
    assert lean.action.dtype == by_torch.action.dtype == np.dtype(spec.action_column.dtype)
    assert lean.extras.keys() == by_torch.extras.keys() == policy.extras.keys()
    for name, column in policy.extras.items():
        np.testing.assert_allclose(lean.extras[name], by_torch.extras[name], atol=TOLERANCE)
        assert lean.extras[name].dtype == np.dtype(column.dtype)


@pytest.mark.parametrize(
    "spec",
    [discrete_spec(), multi_discrete_spec(), continuous_spec(), continuous_spec(bounded=False)],
)
def test_log_probabilities_are_those_that_the_learner_computes(spec: EnvSpec) -> None:
    policy = made(StochasticPolicy, spec, {"initial_log_std": -0.3})
    assert isinstance(policy, StochasticPolicy)
    observation = seen(spec, 50)
    extras = policy.act(observation, np.random.default_rng(5)).extras
    expected, _ = policy.log_prob_and_entropy(
        torch.from_numpy(observation), torch.from_numpy(extras["policy_action"])
    )
    np.testing.assert_allclose(extras["log_prob"], expected.numpy(), atol=TOLERANCE)


@pytest.mark.parametrize(("kind", "spec", "settings"), TORCH_ONLY.values(), ids=TORCH_ONLY)
def test_what_is_no_chain_of_dense_layers_is_left_to_torch(
    kind: type[TorchPolicy],
    spec: EnvSpec,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = made(kind, spec, settings)
    asked = []
    by_torch = policy._act
    monkeypatch.setattr(policy, "_act", lambda *given: asked.append(1) or by_torch(*given))
    policy.act(seen(spec, 2), np.random.default_rng(0))
    assert asked
