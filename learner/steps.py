"""A step of learning as one function of tensors, which a compiled form of itself can replace.

A step takes a learner's state, tensors and batches of them. It changes the state's tensors in place
and returns tensors; besides that it does nothing: no counters, no random numbers, no decision that
depends on a value. So it can be recorded once and compiled (`learner.ahead_of_time`), and an
algorithm's file still reads as the paper: a step is written as any other function.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from learner.adam import Adam
from learner.data_parallel import replicas

Inputs = ParamSpec("Inputs")
Outputs = TypeVar("Outputs")
Run = Callable[[list[Tensor], list[Tensor]], Sequence[Tensor]]  # of the state, then inputs
Shapes = tuple[tuple[torch.Size, torch.dtype], ...]


class Step(Generic[Inputs, Outputs]):
    """Called as the function is: `step(state, ...)`."""

    def __init__(self, function: Callable[Inputs, Outputs]) -> None:
        self.function = function
        self._run: Run | None = None
        self.arguments: tuple[Any, ...] | None = None  # of the first call
        self._shapes: Shapes | None = None  # of its inputs
        self._outputs: Any = None  # what came of it
        self._state: Any = None
        self._of_state: list[Tensor] = []

    @property
    def compiled(self) -> bool:
        return self._run is not None

    @property
    def called(self) -> bool:
        return self._shapes is not None

    def replace(self, run: Run) -> None:
        """From here on `run` is called, for inputs as those of the first call."""
        assert self.called
        self._run, self.arguments = run, None

    def __call__(self, *args: Inputs.args, **kwargs: Inputs.kwargs) -> Outputs:
        state, *given = args
        if self._run is None or replicas() > 1:
            outputs = self.function(*args, **kwargs)
            if self._shapes is None:
                self.arguments, self._outputs = args, outputs
                self._shapes = shapes_of(tensors_in(given))
            return outputs
        if state is not self._state:
            self._state, self._of_state = state, tensors_of_state(state)
        inputs = tensors_in(given)
        if shapes_of(inputs) != self._shapes:  # the last minibatch of an epoch
            return self.function(*args, **kwargs)
        replaced: Outputs = put_back(self._outputs, iter(self._run(self._of_state, inputs)))
        return replaced


def shapes_of(tensors: Sequence[Tensor]) -> Shapes:
    return tuple((tensor.shape, tensor.dtype) for tensor in tensors)


def tensors_in(tree: Any) -> list[Tensor]:
    """Those of sequences, mappings and dataclasses, in order."""
    found: list[Tensor] = []
    _collect(tree, found)
    return found


def _collect(tree: Any, found: list[Tensor]) -> None:
    if isinstance(tree, Tensor):
        found.append(tree)
    elif isinstance(tree, Mapping):
        for value in tree.values():
            _collect(value, found)
    elif isinstance(tree, tuple | list):
        for value in tree:
            _collect(value, found)
    elif is_dataclass(tree):
        for field in fields(tree):
            _collect(getattr(tree, field.name), found)


def put_back(tree: Any, tensors: Iterator[Tensor]) -> Any:
    """The same tree with these tensors in place of its own."""
    if isinstance(tree, Tensor):
        return next(tensors)
    if isinstance(tree, Mapping):
        return {name: put_back(value, tensors) for name, value in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(put_back(value, tensors) for value in tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        return type(tree)(*(put_back(getattr(tree, f.name), tensors) for f in fields(tree)))
    return tree


def tensors_of_state(state: Any) -> list[Tensor]:
    """Everything a step may read or change, each tensor once, always in the same order."""
    found: dict[int, Tensor] = {}
    for field in fields(state):
        for tensor in _tensors_of_field(getattr(state, field.name)):
            found.setdefault(id(tensor), tensor)
    return list(found.values())


def state_on(state: Any, tensors: Sequence[Tensor]) -> Any:
    """The same state on other tensors, given in the order of `tensors_of_state`."""
    own = tensors_of_state(state)
    memo: dict[int, Any] = {id(old): new for old, new in zip(own, tensors, strict=True)}
    memo |= {
        id(value): value
        for field in fields(state)
        if isinstance(value := getattr(state, field.name), torch.Generator)
    }
    return copy.deepcopy(state, memo)


def _tensors_of_field(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif isinstance(value, Adam):
        yield from value.tensors()


def steps_of(algorithm: Any) -> dict[str, Step[Any, Any]]:
    """The steps that an algorithm has among its attributes."""
    return {name: value for name, value in vars(algorithm).items() if isinstance(value, Step)}
