"""What of a step goes by parts of its rows: levels, refusals, and the same numbers in the end.

Pieces are run here as torch runs them; compiled they are in tests/integration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from learner.ahead_of_time import _marked, _recorded
from learner.optimization import Adam, adam, gradient_step, polyak_update, target_copy
from learner.row_split import NotSplit, SplitGraph, row_axis, split
from learner.split_step import Plan, SplitStep
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
    graph, example = _recorded(Step(function), given, part, _marked)
    return split(graph, len(example[0]), axes, ROWS // PARTS, PARTS)


class Interpreted:
    """Stands in for a compiled library: the graph as torch runs it, one part after the other."""

    graphs: dict[str, GraphModule]

    def __init__(self, path: Path, kept: int, callers: int) -> None:
        self._graph = self.graphs[path.name]

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            return list(self._graph(*tensors))

    def prepare(self, tensors: Sequence[Tensor]) -> Any:
        return type("Prepared", (), {"call": tensors})

    def results(self, prepared: Any) -> list[Tensor]:
        return self(prepared.call)


class NoHelpers:
    def share(self, calls: Sequence[Any]) -> None:
        """`results` makes them."""


@pytest.fixture
def run_split(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[SplitGraph], SplitStep]:
    def made(graph: SplitGraph) -> SplitStep:
        Interpreted.graphs = graph.pieces
        monkeypatch.setattr("learner.split_step.CompiledLibrary", Interpreted)
        graph.plan.write(tmp_path)
        return SplitStep(tmp_path, NoHelpers())  # type: ignore[arg-type]

    return made


@pytest.mark.parametrize("clip", [None, 0.01])
def test_parts_of_the_rows_learn_what_the_whole_batch_does(
    clip: float | None, run_split: Callable[[SplitGraph], SplitStep]
) -> None:
    def function(state: State, given: Batch, noise: Tensor) -> Any:
        return actor_critic(state, given, noise, clip=clip)

    run = run_split(split_of(function, arguments()))
    state, other = made_state(), made_state()
    for seed in range(4):
        _, *given = arguments(seed)
        wanted = [*tensors_in(function(other, *given))]
        got = run([*tensors_of_state(state), *tensors_in(given)])
        for mine, theirs in zip(got, wanted, strict=True):
            # Sums of eight numbers, in another order.
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(tensors_of_state(state), tensors_of_state(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_rows_wait_for_what_they_read_and_for_nothing_else() -> None:
    plan = split_of(actor_critic, arguments()).plan
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


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = split_of(actor_critic, arguments()).plan
    plan.write(tmp_path)
    read = Plan.read(tmp_path)
    assert [one.name for one in read.outputs] == [one.name for one in plan.outputs]
    assert [len(one.joins) for one in read.levels] == [len(one.joins) for one in plan.levels]
    assert [(one.name, one.axis) for one in read.inputs] == [
        (one.name, one.axis) for one in plan.inputs
    ]
    assert read.inputs[-1].axis == 1, "of noise [2, B, A]"


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
