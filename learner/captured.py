"""A step of learning as a CUDA graph: recorded once on the GPU, then launched as a whole.

On a GPU the hundred small kernels of an update take less time than Python needs to launch them. A
graph launches them all with one call; its inputs are always at the same place, so each call copies
its own there first, and outputs are copied before the next call overwrites them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learner.steps import Step, put_back, tensors_in, tensors_of_state

WARM_UPS = 3  # kernels are chosen and memory is reserved before anything is recorded


class CapturedStep:
    """Called with the tensors of the state, which it knows, and with inputs."""

    def __init__(self, step: Step[Any, Any], arguments: tuple[Any, ...]) -> None:
        state, *given = arguments
        self._inputs = [tensor.clone() for tensor in tensors_in(given)]
        inputs = put_back(tuple(given), iter(self._inputs))
        own = tensors_of_state(state)
        before = [tensor.detach().clone() for tensor in own]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                step.function(state, *inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._outputs = tensors_in(step.function(state, *inputs))
        with torch.no_grad():  # nothing of this was an update
            for tensor, value in zip(own, before, strict=True):
                tensor.copy_(value)

    def __call__(self, of_state: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        for place, tensor in zip(self._inputs, inputs, strict=True):
            place.copy_(tensor, non_blocking=True)
        self._graph.replay()
        return [output.clone() for output in self._outputs]


def capture_step(step: Step[Any, Any], arguments: tuple[Any, ...]) -> None:
    step.replace(CapturedStep(step, arguments))
