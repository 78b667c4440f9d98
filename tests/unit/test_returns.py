"""GAE against its definition as a double sum, and against hand-made cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference.from_torch import assert_close
from reference.ppo import advantage_by_double_sum
from reference.samples import GAMMA, ending

from learner.returns import generalized_advantage

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
