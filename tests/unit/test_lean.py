"""A few rows through NumPy do what torch does, with whatever weights there are at the moment."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from repertory.policies import policy as policy_module
from repertory.policies.lean import MOST_ROWS, LeanNetwork
from repertory.policies.policy import build_policy
from repertory.policies.squashed_gaussian import SquashedGaussianPolicy
from repertory.specs import EnvSpec

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


def test_normalised_observations_go_through_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = gaussian(normalize_observation=True)
    policy.normalizer.update(torch.from_numpy(5 + rows(50)), None)
    few = policy.act(5 + rows(1), None).action
    monkeypatch.setattr(policy_module, "MOST_ROWS", 0)  # torch in any case
    np.testing.assert_array_equal(few, policy.act(5 + rows(1), None).action)
