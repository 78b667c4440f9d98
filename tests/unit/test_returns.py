"""GAE and V-trace against their definitions as sums, and against hand-made cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference.from_torch import assert_close
from reference.ppo import advantage_by_double_sum, v_trace_by_products
from reference.samples import GAMMA, ending

from learner.returns import generalized_advantage, v_trace_advantage

ROWS, STEPS = 3, 9
COLUMNS = ("reward", "discount", "boundary", "value", "next_value")


def columns(seed: int = 0) -> dict[str, np.ndarray]:
    """Row 0 terminates halfway, row 1 runs through, row 2 is truncated and then terminates."""
    rng = np.random.default_rng(seed)
    ends, terminated = ending(ROWS, STEPS)
    reward, value, next_value = rng.normal(size=(3, ROWS, STEPS))
    return {
        "reward": reward,
        "discount": GAMMA * ~terminated,
        "boundary": ends,
        "value": value,
        "next_value": next_value,
    }


def advantage(case: dict[str, np.ndarray], lambda_: float) -> torch.Tensor:
    return generalized_advantage(*(torch.from_numpy(case[name]) for name in COLUMNS), lambda_)


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.95, 1.0])
def test_equals_the_double_sum(lambda_: float) -> None:
    """Float64 on both sides; only the order of sums differs (`reference.from_torch`)."""
    case = columns()
    expected = advantage_by_double_sum(*(case[name] for name in COLUMNS), lambda_)
    assert_close(advantage(case, lambda_), expected)


def test_lambda_zero_is_the_one_step_error() -> None:
    case = columns()
    delta = case["reward"] + case["discount"] * case["next_value"] - case["value"]
    assert_close(advantage(case, 0.0), delta)


def test_lambda_one_is_the_discounted_return_minus_the_value() -> None:
    """In an episode whose V(s'_t) is V(s_{t+1}), the values in between cancel out."""
    rng = np.random.default_rng(1)
    reward, values = rng.normal(size=(1, STEPS)), rng.normal(size=(1, STEPS + 1))
    case = {
        "reward": reward,
        "discount": np.full((1, STEPS), GAMMA),
        "boundary": np.zeros((1, STEPS), bool),
        "value": values[:, :-1],
        "next_value": values[:, 1:],
    }
    returns = np.zeros((1, STEPS))
    for t in range(STEPS):
        rest = np.arange(STEPS - t)
        bootstrap = GAMMA ** (STEPS - t) * values[0, -1]
        returns[0, t] = (GAMMA**rest * reward[0, t:]).sum() + bootstrap
    assert_close(advantage(case, 1.0), returns - values[:, :-1])


def test_nothing_crosses_an_episodes_end() -> None:
    """Whatever happens after an end, terminated or truncated, the steps up to it stay the same."""
    case, other = columns(), columns()
    for row in range(ROWS):
        if case["boundary"][row].any():
            first_end = int(case["boundary"][row].argmax())
            other["reward"][row, first_end + 1 :] += 100.0
            other["value"][row, first_end + 1 :] -= 50.0
    left, right = advantage(case, 0.95), advantage(other, 0.95)
    for row in range(ROWS):
        stop = int(case["boundary"][row].argmax()) + 1 if case["boundary"][row].any() else STEPS
        assert torch.equal(left[row, :stop], right[row, :stop])


@pytest.mark.parametrize(
    ("discount", "boundary", "expected"),
    [
        (0.5, False, [1.25, 1.0]),  # goes on: 1 + 4/2 - 2, and the next error times 1/2 times 1/2
        (0.0, True, [-1.0, 1.0]),  # terminated: 1 - 2, nothing follows
        (0.5, True, [1.0, 1.0]),  # truncated: V(s') stands in for what was not seen
    ],
)
def test_value_of_the_next_state_counts_unless_terminated(
    discount: float, boundary: bool, expected: list[float]
) -> None:
    """r = 1, V = 2, V' = 4 at first; then r = 2, V = 1 and the end, so an error of 1."""
    case = {
        "reward": np.array([[1.0, 2.0]]),
        "discount": np.array([[discount, 0.0]]),
        "boundary": np.array([[boundary, True]]),
        "value": np.array([[2.0, 1.0]]),
        "next_value": np.array([[4.0, 9.0]]),
    }
    assert advantage(case, 0.5).tolist() == [expected]


def test_rows_do_not_mix() -> None:
    case = columns()
    for row in range(ROWS):
        alone = {name: column[row : row + 1] for name, column in case.items()}
        assert torch.equal(advantage(alone, 0.95)[0], advantage(case, 0.95)[row])


def test_shape_stays_rows_by_steps() -> None:
    assert advantage(columns(), 0.95).shape == (ROWS, STEPS)


def test_inputs_are_not_written_to() -> None:
    case, untouched = columns(), columns()
    advantage(case, 0.95)
    for name, column in case.items():
        np.testing.assert_array_equal(column, untouched[name])


# V-trace


def v_trace(
    case: dict[str, np.ndarray],
    ratio: np.ndarray,
    lambda_: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> torch.Tensor:
    tensors = (torch.from_numpy(case[name]) for name in COLUMNS)
    return v_trace_advantage(*tensors, lambda_, torch.from_numpy(ratio), rho_clip, c_clip)


def ratios(seed: int = 5) -> np.ndarray:
    """Around 1, from a fifth to five."""
    return np.exp(np.random.default_rng(seed).normal(scale=0.7, size=(ROWS, STEPS)))


@pytest.mark.parametrize("clips", [(1.0, 1.0), (2.0, 0.5), (0.7, 1.5), (np.inf, np.inf)])
@pytest.mark.parametrize("lambda_", [0.0, 0.9, 1.0])
def test_v_trace_equals_the_papers_sum(lambda_: float, clips: tuple[float, float]) -> None:
    case, ratio = columns(), ratios()
    expected = v_trace_by_products(*(case[name] for name in COLUMNS), lambda_, ratio, *clips)
    assert_close(v_trace(case, ratio, lambda_, *clips), expected)


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.95, 1.0])
def test_v_trace_on_policy_is_gae(lambda_: float) -> None:
    case = columns()
    assert torch.equal(v_trace(case, np.ones((ROWS, STEPS)), lambda_), advantage(case, lambda_))


def test_v_trace_by_hand() -> None:
    """lambda 1, discount 1/2, both clips 1; r = 1, 2, V = 2, 1, V' = 4 and then the end.

    t=1: ratio 3 is clipped to 1: 1 (2 - 1) = 1.
    t=0: ratio 1/2: 1/2 (1 + 4/2 - 2) + 1/2 1/2 1 = 0.75.
    """
    case = {
        "reward": np.array([[1.0, 2.0]]),
        "discount": np.array([[0.5, 0.0]]),
        "boundary": np.array([[False, True]]),
        "value": np.array([[2.0, 1.0]]),
        "next_value": np.array([[4.0, 9.0]]),
    }
    assert v_trace(case, np.array([[0.5, 3.0]])).tolist() == [[0.75, 1.0]]


def test_nothing_of_v_trace_crosses_an_episodes_end() -> None:
    case, ratio = columns(), ratios()
    other = ratio.copy()
    end = int(case["boundary"][0].argmax())
    other[0, end + 1 :] *= 3.0
    left, right = v_trace(case, ratio, 0.95, 9.0, 9.0), v_trace(case, other, 0.95, 9.0, 9.0)
    assert torch.equal(left[0, : end + 1], right[0, : end + 1])
    assert not torch.equal(left[0, end + 1 :], right[0, end + 1 :])


def test_v_trace_finds_the_value_of_the_policy_that_did_not_act() -> None:
    """A bandit with two arms that pay 1 and 0, in all its outcomes, each as often as it happens.

    mu takes the first arm 1 time in 4, pi 3 times in 4: from mu's pulls and V = 0.2, GAE expects
    mu's value 0.25, V-trace without clipping pi's 0.75. With rho clipped at 1 it finds the policy
    in between that the paper names: min(mu, pi) over its sum = (1/4, 1/4)/(1/2), of value 0.5; the
    fixed point of V is where the expected advantage is 0.
    """
    mu, pi = np.array([0.25, 0.75]), np.array([0.75, 0.25])
    pulls = np.array([0, 1, 1, 1])

    def expected_advantage(value: float, rho_clip: float | None) -> float:
        case = {
            "reward": np.where(pulls == 0, 1.0, 0.0)[:, None],
            "discount": np.zeros((4, 1)),
            "boundary": np.ones((4, 1), bool),
            "value": np.full((4, 1), value),
            "next_value": np.zeros((4, 1)),
        }
        if rho_clip is None:
            return float(advantage(case, 1.0).mean())
        return float(v_trace(case, (pi / mu)[pulls][:, None], 1.0, rho_clip).mean())

    assert 0.2 + expected_advantage(0.2, None) == pytest.approx(0.25)
    assert 0.2 + expected_advantage(0.2, 10.0) == pytest.approx(0.75)
    assert expected_advantage(0.5, 1.0) == pytest.approx(0.0)
    assert expected_advantage(0.25, 1.0) > 0.1
