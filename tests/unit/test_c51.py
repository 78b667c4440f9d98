"""C51's projection and divergence; whole updates are in test_dqn_family."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from reference.distributional import c51_projection
from reference.from_torch import assert_close, double_precision

from learner.algorithms.c51 import C51, kl_divergence, projected


@pytest.fixture(autouse=True)
def _float64():
    with double_precision():
        yield


def both(probabilities, reward, discount, v_min, v_max):
    support = torch.linspace(v_min, v_max, probabilities.shape[1])
    places = torch.from_numpy(reward)[:, None] + torch.from_numpy(discount)[:, None] * support
    ours = projected(torch.from_numpy(probabilities), places, support)
    return ours, c51_projection(probabilities, reward, discount, v_min, v_max)


@pytest.mark.parametrize(
    ("atoms", "v_min", "v_max"), [(2, -1.0, 1.0), (51, -10.0, 10.0), (7, 3.0, 4.5)]
)
def test_projection_equals_the_loop_of_the_paper(atoms: int, v_min: float, v_max: float) -> None:
    """Rewards that carry everything off either end, discounts of 0 and 1 included."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(atoms), size=40)
    reward = rng.normal(scale=v_max - v_min, size=40)
    discount = rng.choice([0.0, 0.5, 0.99, 1.0], size=40)
    assert_close(*both(probabilities, reward, discount, v_min, v_max))


def test_projection_by_hand() -> None:
    """Atoms 0, 1, 2. Places 0.25, 1, 5: the first shared 3/4 to 1/4, the last clipped to 2."""
    ours = projected(
        torch.tensor([[0.4, 0.5, 0.1]]),
        torch.tensor([[0.25, 1.0, 5.0]]),
        torch.tensor([0.0, 1.0, 2.0]),
    )
    assert_close(ours, [[0.3, 0.6, 0.1]])


def test_projection_keeps_all_mass_and_inside_the_range_the_mean() -> None:
    rng = np.random.default_rng(1)
    probabilities = torch.from_numpy(rng.dirichlet(np.ones(51), size=20))
    support = torch.linspace(-10, 10, 51)
    places = torch.from_numpy(rng.uniform(-10, 10, size=(20, 51)))
    ours = projected(probabilities, places, support)
    assert_close(ours.sum(-1), np.ones(20))
    assert_close(ours @ support, (probabilities * places).sum(-1).numpy())


def test_terminated_row_is_its_reward_alone() -> None:
    ours, _ = both(np.full((1, 5), 0.2), np.array([1.0]), np.array([0.0]), -2.0, 2.0)
    assert_close(ours, [[0.0, 0.0, 0.0, 1.0, 0.0]])


def test_divergence_by_hand() -> None:
    """Of (1, 0) from (1/2, 1/2) it is log 2, of a distribution from itself 0."""
    target = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    logits = torch.tensor([[3.0, 3.0], [0.0, np.log(3.0)]])
    assert_close(kl_divergence(target, logits), [np.log(2), 0.0])


def test_shapes_never_broadcast() -> None:
    with pytest.raises(AssertionError):
        kl_divergence(torch.ones(2, 3), torch.ones(2, 1))
    with pytest.raises(AssertionError):
        projected(torch.ones(2, 3), torch.ones(3), torch.arange(3.0))


def test_range_of_nothing_is_refused_with_a_remedy() -> None:
    with pytest.raises(ValidationError, match=r"v_min = 3 is refused: .* below .*v_max = 3"):
        C51.Config(v_min=3.0, v_max=3.0)
