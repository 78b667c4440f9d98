"""Steps that were compiled by `learner.ahead_of_time`: a library, called without Python's lock.

Other threads of the process work meanwhile, as those that receive the next batches. The threads
that share a step's rows are the library's own: Python never hears of them.
"""

from __future__ import annotations

import ctypes
import json
import weakref
from collections.abc import Sequence
from ctypes import c_void_p
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from repertory.errors import RepertoryError


class LibraryError(RepertoryError):
    """Compiled steps that cannot be loaded."""


class CompiledSteps:
    """All steps of an algorithm; its threads end with it."""

    LIBRARY: ClassVar[str] = "steps.so"
    CONTENTS: ClassVar[str] = "steps.json"

    def __init__(self, folder: Path) -> None:
        path = folder / self.LIBRARY
        try:
            contents = json.loads((folder / self.CONTENTS).read_text())
            self._library = ctypes.CDLL(str(path))
        except (OSError, ValueError) as error:
            raise LibraryError(f"{path} cannot be loaded: {error}") from error
        self._steps: dict[str, Any] = contents["steps"]
        self.threads: int = contents["threads"]
        self._library.crew_create.restype = c_void_p
        self._library.crew_delete.argtypes = [c_void_p]
        self.crew = self._library.crew_create()
        weakref.finalize(self, self._library.crew_delete, self.crew)

    def step(self, name: str, state_tensors: int) -> CompiledStep:
        function = getattr(self._library, f"step_{name}")
        return CompiledStep(self, function, state_tensors, self._steps[name]["outputs"])


class CompiledStep:
    """Called with the tensors of a state, then inputs of the shapes it was compiled for."""

    def __init__(
        self, library: CompiledSteps, function: Any, states: int, outputs: Sequence[Any]
    ) -> None:
        self.library = library  # whose threads are needed
        function.argtypes, function.restype = [c_void_p, c_void_p], None
        self._function = function
        self._states = states
        self._of_state: list[Tensor] = []  # mostly the same from call to call
        self._given: ctypes.Array[c_void_p] = (c_void_p * 0)()
        self._outputs = [
            (tuple(one["shape"]), getattr(torch, one["dtype"].removeprefix("torch.")))
            for one in outputs
        ]

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        states = self._states
        if len(self._of_state) != states or any(
            mine is not given for mine, given in zip(self._of_state, tensors, strict=False)
        ):
            self._take_state(tensors)
        inputs = [one if one.is_contiguous() else one.contiguous() for one in tensors[states:]]
        outputs = [torch.empty(shape, dtype=dtype) for shape, dtype in self._outputs]
        given = self._given
        for place, tensor in enumerate((*inputs, *outputs), states):
            given[place] = tensor.data_ptr()
        self._function(self.library.crew, ctypes.addressof(given))
        return outputs

    def _take_state(self, tensors: Sequence[Tensor]) -> None:
        self._of_state = list(tensors[: self._states])
        self._given = (c_void_p * (len(tensors) + len(self._outputs)))()
        for place, tensor in enumerate(self._of_state):
            self._given[place] = tensor.data_ptr()
