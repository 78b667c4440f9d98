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

    def step(self, name: str) -> CompiledStep:
        return CompiledStep(self, getattr(self._library, f"step_{name}"), self._steps[name])


class CompiledStep:
    """Called with the tensors of a state and with inputs, of the shapes it was compiled for."""

    def __init__(self, library: CompiledSteps, function: Any, contents: Any) -> None:
        self.library = library  # whose threads are needed
        function.argtypes, function.restype = [c_void_p, c_void_p], None
        self._function = function
        self._outputs = [
            (tuple(one["shape"]), getattr(torch, one["dtype"].removeprefix("torch.")))
            for one in contents["outputs"]
        ]
        self._of_state: list[Tensor] | None = None  # mostly the same from call to call
        self._given: ctypes.Array[c_void_p] = (c_void_p * 0)()

    def __call__(self, of_state: list[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        if of_state is not self._of_state:
            self._of_state = of_state
            self._given = (c_void_p * (len(of_state) + len(inputs) + len(self._outputs)))(
                *(tensor.data_ptr() for tensor in of_state)
            )
        in_order = [one if one.is_contiguous() else one.contiguous() for one in inputs]
        outputs = [torch.empty(shape, dtype=dtype) for shape, dtype in self._outputs]
        given = self._given
        for place, tensor in enumerate((*in_order, *outputs), len(of_state)):
            given[place] = tensor.data_ptr()
        self._function(self.library.crew, ctypes.addressof(given))
        return outputs
