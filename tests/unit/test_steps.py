"""Steps as functions of tensors: what they are made of, how they are replaced, CUDA graphs."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learner.captured import WARM_UPS, capture_step
from learner.optimization import Adam, adam, gradient_step, target_copy
from learner.steps import Step, put_back, state_on, steps_of, tensors_in, tensors_of_state


@dataclass
class State:
    network: nn.Linear
    target: nn.Linear
    optimizer: Adam
    temperature: nn.Parameter
    generator: torch.Generator
    updates: int = 0


@dataclass(frozen=True)
class Pair:
    inputs: Tensor
    wanted: Tensor


def made() -> State:
    torch.manual_seed(0)
    network = nn.Linear(3, 1)
    return State(
        network,
        target_copy(network),
        adam(0.1, network),
        nn.Parameter(torch.zeros(())),
        torch.Generator(),
    )


def fit(state: State, pair: Pair) -> tuple[dict[str, Tensor], Tensor]:
    error = state.network(pair.inputs).squeeze(-1) - pair.wanted
    loss = error.square().mean()
    norm = gradient_step(state.optimizer, loss)
    return {"loss": loss.detach(), "norm": norm}, error.detach().abs()


def pair(rows: int = 4) -> Pair:
    generator = torch.Generator().manual_seed(rows)
    return Pair(torch.randn(rows, 3, generator=generator), torch.ones(rows))


def test_a_state_has_every_tensor_once() -> None:
    state = made()
    tensors = tensors_of_state(state)
    assert len({id(tensor) for tensor in tensors}) == len(tensors)
    own = {id(tensor) for tensor in tensors}
    assert {id(p) for p in state.network.parameters()} <= own
    assert {id(p) for p in state.target.parameters()} <= own
    assert {id(moment) for moment in state.optimizer.means} <= own
    assert id(state.temperature) in own


def test_a_state_on_other_tensors_leaves_the_first_alone() -> None:
    state = made()
    before = [tensor.detach().clone() for tensor in tensors_of_state(state)]
    copies = [tensor.detach().clone() for tensor in tensors_of_state(state)]
    for tensor, one in zip(tensors_of_state(state), copies, strict=True):
        one.requires_grad_(tensor.requires_grad)
    other = state_on(state, copies)
    fit(other, pair())
    for tensor, old in zip(tensors_of_state(state), before, strict=True):
        assert torch.equal(tensor, old)
    # What changed are the tensors that were handed in, not copies of them.
    assert any(not torch.equal(one, old) for one, old in zip(copies, before, strict=True))
    assert other.generator is state.generator


def test_trees_are_taken_apart_and_put_together() -> None:
    tree = ({"a": torch.tensor(1.0)}, [torch.tensor(2.0)], pair(), "name")
    tensors = [*tensors_in(tree)]
    assert len(tensors) == 4
    doubled = put_back(tree, iter([2 * tensor for tensor in tensors]))
    assert float(doubled[0]["a"]) == 2
    assert float(doubled[1][0]) == 4
    assert torch.equal(doubled[2].wanted, 2 * torch.ones(4))
    assert doubled[3] == "name"


def test_what_replaces_a_step_gets_the_state_then_the_inputs() -> None:
    step, state = Step(fit), made()
    step(state, pair())
    seen = []

    def run(of_state: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
        seen.append((of_state, inputs))
        return [torch.tensor(5.0), torch.tensor(6.0), torch.full((4,), 7.0)]

    step.replace(run)
    metrics, errors = step(state, pair())
    assert (float(metrics["loss"]), float(metrics["norm"])) == (5.0, 6.0)
    assert errors.tolist() == [7.0] * 4
    ((of_state, inputs),) = seen
    assert all(a is b for a, b in zip(of_state, tensors_of_state(state), strict=True))
    assert torch.equal(inputs[0], pair().inputs)


def test_other_shapes_go_the_way_they_are_written() -> None:
    step, state = Step(fit), made()
    step(state, pair())
    step.replace(lambda of_state, inputs: pytest.fail("compiled for batches of four"))
    _, errors = step(state, pair(rows=3))
    assert errors.shape == (3,)


def test_another_state_is_noticed() -> None:
    step, first, second = Step(fit), made(), made()
    step(first, pair())
    seen = []
    step.replace(lambda of_state, inputs: seen.append(of_state[0]) or [torch.zeros(())] * 3)
    step(first, pair())
    step(second, pair())
    assert seen[0] is first.network.weight
    assert seen[1] is second.network.weight


def test_steps_are_found_among_the_attributes() -> None:
    class Algorithm:
        def __init__(self) -> None:
            self.learn = Step(fit)
            self.other = fit

    assert list(steps_of(Algorithm())) == ["learn"]


class FakeGraph:
    """Stands in for a CUDA graph where there is no GPU: it repeats what was done while recorded."""

    def replay(self) -> None:
        FakeGraph.recorded()

    recorded: Any = None


def test_a_captured_step_does_what_the_step_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logic around the graph: inputs are copied in, outputs out, capturing is no update."""
    calls: list[tuple[Any, ...]] = []
    results: list[Any] = []

    def watched(state: State, given: Pair) -> Any:
        result = fit(state, given)
        if not results or calls[-1][1] is not given:
            calls.append((state, given))
            results.append(result)
            return result
        for place, value in zip(tensors_in(results[-1]), tensors_in(result), strict=True):
            place.copy_(value)
        return results[-1]

    @contextmanager
    def graph(made: FakeGraph) -> Any:
        yield
        FakeGraph.recorded = staticmethod(lambda: watched(*calls[-1]))

    stream = type("Stream", (), {"wait_stream": lambda self, other: None})
    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda given: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", graph)

    state, reference = made(), made()
    step = Step(watched)
    step(state, pair())
    fit(reference, pair())
    before = [tensor.detach().clone() for tensor in tensors_of_state(state)]
    assert step.arguments is not None
    capture_step(step, step.arguments)
    for tensor, old in zip(tensors_of_state(state), before, strict=True):
        assert torch.equal(tensor, old), f"{WARM_UPS} warm-ups and a recording left a trace"
    for seed in range(3):
        inputs = Pair(pair().inputs + seed, pair().wanted)
        metrics, errors = step(state, inputs)
        wanted, wanted_errors = fit(reference, inputs)
        assert torch.equal(metrics["loss"], wanted["loss"])
        assert torch.equal(errors, wanted_errors)
    for one, other in zip(state.network.parameters(), reference.network.parameters(), strict=True):
        assert torch.equal(one, other)
