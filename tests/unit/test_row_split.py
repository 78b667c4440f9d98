"""What of a step goes by parts of its rows: levels, refusals, and the same numbers in the end.

Pieces are run here as torch runs them; compiled they are in tests/integration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from learner.ahead_of_time import _recorded
from learner.compiler.row_split import NotSplit, Piece, SplitGraph, of_part, row_axis, split
from learner.optimization import Adam, adam, gradient_step, polyak_update, target_copy
from learner.steps import Step, tensors_in, tensors_of_state

ROWS, PARTS = 8, 2


@dataclass
class State:
    policy: nn.Linear
    critic: nn.Linear
    target: nn.Linear
    temperature: nn.Parameter
    policy_optimizer: Adam
    critic_optimizer: Adam
    temperature_optimizer: Adam


@dataclass(frozen=True)
class Batch:
    observation: Tensor  # [B, 3]
    reward: Tensor  # [B]


def made_state() -> State:
    torch.manual_seed(0)
    policy, critic = nn.Linear(3, 1), nn.Linear(4, 1)
    temperature = nn.Parameter(torch.tensor(0.3))
    return State(
        policy,
        critic,
        target_copy(critic),
        temperature,
        adam(0.1, policy),
        adam(0.1, critic),
        adam(0.1, temperature),
    )


def batch(seed: int = 0, rows: int = ROWS) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return Batch(torch.randn(rows, 3, generator=generator), torch.randn(rows, generator=generator))


def value(network: nn.Linear, observation: Tensor, action: Tensor) -> Tensor:
    return network(torch.cat([observation, action], -1)).squeeze(-1)


def actor_critic(
    state: State, given: Batch, noise: Tensor, *, clip: float | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """Of all kinds: a value of the state alone, three optimisers, a target, clipping, rows out."""
    alpha = state.temperature.detach().exp()
    with torch.no_grad():
        action = state.policy(given.observation) + noise[1]
        target = given.reward + value(state.target, given.observation, action) - alpha
    q = value(state.critic, given.observation, noise[0])
    critic_loss = (q - target).square().mean()
    norm = gradient_step(state.critic_optimizer, critic_loss, clip)
    action = state.policy(given.observation)
    policy_loss = (
        alpha * action.squeeze(-1) - value(state.critic, given.observation, action)
    ).mean()
    gradient_step(state.policy_optimizer, policy_loss, clip)
    temperature_loss = (state.temperature * action.detach()).mean()
    gradient_step(state.temperature_optimizer, temperature_loss)
    polyak_update(state.target, state.critic, 0.1)
    metrics = {"critic": critic_loss.detach(), "policy": policy_loss.detach(), "alpha": alpha}
    return metrics | {"norm": norm}, (q.detach() - target).abs()


def arguments(seed: int = 0) -> tuple[State, Batch, Tensor]:
    noise = torch.randn(2, ROWS, 1, generator=torch.Generator().manual_seed(seed + 100))
    return made_state(), batch(seed), noise


def split_of(function: Callable[..., Any], given: tuple[Any, ...]) -> SplitGraph:
    inputs = [*tensors_in(given[1:])]
    axes = [row_axis(tensor, ROWS) for tensor in inputs]
    part = [
        tensor.chunk(PARTS, axis)[0].contiguous() for tensor, axis in zip(inputs, axes, strict=True)
    ]
    graph = _recorded(Step(function), given, part, joined=True)
    return split(graph, len(tensors_of_state(given[0])), axes, ROWS // PARTS, PARTS)


def run_split(made: SplitGraph, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The pieces as torch runs them, one part after the other."""
    shared = dict(zip(made.state, tensors, strict=False))
    parts: list[dict[str, Tensor]] = [{} for _ in range(made.parts)]
    for one, tensor in zip(made.inputs, tensors[len(made.state) :], strict=True):
        for part, rows in zip(parts, tensor.chunk(made.parts, one.axis), strict=True):
            part[one.name] = rows
    for level in made.levels:
        if level.whole is not None:
            run_piece(level.whole, shared, shared)
        if level.rows is not None:
            for part in parts:
                run_piece(level.rows, shared, part)
        for join, gradient in level.joins.items():
            for number, part in enumerate(parts):
                shared[of_part(join, number)] = part[gradient]
    return [
        torch.cat([part[one.name] for part in parts], one.axis)
        if one.kind == "rows"
        else shared.get(one.name, parts[0].get(one.name))
        for one in made.outputs
    ]


@torch.no_grad()
def run_piece(piece: Piece, shared: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    given = [shared[name] if name in shared else own[name] for name in piece.takes]
    results = GraphModule(nn.Module(), piece.graph)(*given)
    own.update(zip(piece.gives, results, strict=True))


@pytest.mark.parametrize("clip", [None, 0.01])
def test_parts_of_the_rows_learn_what_the_whole_batch_does(
    clip: float | None,
) -> None:
    def function(state: State, given: Batch, noise: Tensor) -> Any:
        return actor_critic(state, given, noise, clip=clip)

    made = split_of(function, arguments())
    state, other = made_state(), made_state()
    for seed in range(4):
        _, *given = arguments(seed)
        wanted = [*tensors_in(function(other, *given))]
        got = run_split(made, [*tensors_of_state(state), *tensors_in(given)])
        for mine, theirs in zip(got, wanted, strict=True):
            # Sums of eight numbers, in another order.
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(tensors_of_state(state), tensors_of_state(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_rows_wait_for_what_they_read_and_for_nothing_else() -> None:
    plan = split_of(actor_critic, arguments())
    first, second, third = plan.levels
    # The critic's and the temperature's gradients need nothing that changes before them; the
    # policy's goes through the critic as it is after its step.
    assert first.whole is None
    assert first.rows is not None
    assert second.whole is not None
    assert second.rows is not None
    assert third.whole is not None
    assert third.rows is None
    joined = {level: len(one.joins) for level, one in enumerate(plan.levels)}
    assert joined == {0: 2 + 1 + 1, 1: 2 + 1, 2: 0}  # weights and biases, and losses


def test_the_axis_of_rows_is_that_of_each_input() -> None:
    made = split_of(actor_critic, arguments())
    assert [one.axis for one in made.inputs] == [0, 0, 1], "noise is [2, B, A]"


def test_a_step_that_changes_its_state_by_rows_is_not_split() -> None:
    def counting(state: State, given: Batch) -> Tensor:
        with torch.no_grad():
            state.temperature.add_(given.reward.mean())
        return given.reward

    with pytest.raises(NotSplit, match="by single rows"):
        split_of(counting, (made_state(), batch()))


def test_a_step_that_learns_nothing_is_not_split() -> None:
    with pytest.raises(NotSplit, match="no gradients"):
        split_of(lambda state, given: given.reward * 2, (made_state(), batch()))


def test_a_step_that_gives_its_state_away_is_not_split() -> None:
    def telling(state: State, given: Batch) -> Tensor:
        loss = (value(state.critic, given.observation, given.reward[:, None])).mean()
        gradient_step(state.critic_optimizer, loss)
        return state.temperature.detach()

    with pytest.raises(NotSplit, match="part of its state"):
        split_of(telling, (made_state(), batch()))


def test_an_input_without_rows_is_named() -> None:
    with pytest.raises(NotSplit, match=r"\(3, 5\) has no axis of 8 rows"):
        row_axis(torch.zeros(3, 5), ROWS)
