"""Steps of learning as machine code: recorded with their gradients, compiled by Inductor, checked.

A step is recorded on tensors that only know their shapes, below autograd: what is left are the
products and element-wise operations of forward pass, backward pass and optimiser, which Inductor
joins into few loops. The result is a file that any process loads in milliseconds and runs without
Python in between. Compiling takes half a minute, so a process of its own does it, once
(`services.step_compilation`).

A compiled step is compared with the function it was made of, on copies of the state. The order of
additions differs, so equality is to some units of the last place of float32.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from learner.adam import Adam
from learner.steps import Run, Step, put_back, state_on, tensors_in, tensors_of_state
from repertory.errors import RepertoryError

SUFFIX = ".so"
RELATIVE, ABSOLUTE = 1e-3, 1e-5


class CompilationError(RepertoryError):
    """A step cannot be compiled here, or its compiled form does something else."""


def compile_step(step: Step[Any, Any], arguments: tuple[Any, ...], known: Path) -> Path:
    """The file of the compiled step among those that are `known`, by what was recorded of it.

    Settings that a step does not use make no other file. A new one is there once its results have
    been found to be those of the step itself.
    """
    state, *given = arguments
    own, inputs = tensors_of_state(state), [*tensors_in(given)]

    def recorded(of_state: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
        return _call(step, _on(state, own, of_state), given, inputs)

    example = ([_plain(tensor) for tensor in own], [_plain(tensor) for tensor in inputs])
    graph = make_fx(recorded, _APART, tracing_mode="fake")(*example)
    path = known / f"{_digest(graph, example)}{SUFFIX}"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=known) as folder:
        program = torch.export.export(graph, example, strict=False)
        package, library = Path(folder) / "step.pt2", Path(folder) / path.name
        torch._inductor.aoti_compile_and_package(program, package_path=str(package))
        with zipfile.ZipFile(package) as files:
            (name,) = (name for name in files.namelist() if name.endswith(SUFFIX))
            library.write_bytes(files.read(name))
        _check(step, arguments, library)
        os.replace(library, path)
    return path


def _digest(graph: torch.fx.GraphModule, example: Sequence[Sequence[Tensor]]) -> str:
    digest = hashlib.sha256(graph.code.encode())
    for tensor in itertools.chain(*example):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}".encode())
    for name, constant in graph.named_buffers():
        digest.update(name.encode() + constant.numpy().tobytes())
    return digest.hexdigest()[:32]


def load_step(step: Step[Any, Any], path: Path) -> None:
    """From here on the step is what was compiled for arguments as those of its first call."""
    step.replace(_loaded(path))


def _loaded(path: Path) -> Run:
    # Not by `torch._inductor`, which is the whole compiler: two seconds to import.
    run: Run = torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1).run
    return run


def _product_then_bias(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight + bias


# Else the bias is copied to where the product goes before it is made; apart from it, the addition
# is joined with the activation that follows.
_APART = {
    torch.ops.aten.addmm.default: _product_then_bias,
    torch.ops.aten.baddbmm.default: _product_then_bias,
}


def _call(step: Step[Any, Any], state: Any, given: Sequence[Any], inputs: list[Tensor]) -> Any:
    arguments = put_back(tuple(given), iter(inputs))
    with torch.enable_grad():
        return [*tensors_in(step.function(state, *arguments))]


def _on(state: Any, own: list[Tensor], tensors: Sequence[Tensor]) -> Any:
    """The state on these tensors, with its optimisers written out."""
    for mine, other in zip(own, tensors, strict=True):
        other.requires_grad_(mine.requires_grad)
    other_state = state_on(state, tensors)
    for field in fields(other_state):
        if isinstance(value := getattr(other_state, field.name), Adam):
            value.fused = False
    return other_state


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _check(step: Step[Any, Any], arguments: tuple[Any, ...], library: Path) -> None:
    state, *given = arguments
    own, inputs = tensors_of_state(state), [*tensors_in(given)]
    expected = [_plain(tensor) for tensor in own]
    wanted = _call(step, _on(state, own, expected), given, inputs)
    changed = [_plain(tensor) for tensor in own]
    got = _loaded(library)([*changed, *inputs])
    for mine, theirs in zip([*expected, *wanted], [*changed, *got], strict=True):
        if not torch.allclose(mine, theirs, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True):
            worst = float((mine.detach() - theirs).abs().max())
            raise CompilationError(
                f"what was compiled differs by {worst:.1e} from the step it was made of: "
                "it is not used"
            )
