"""Steps of learning as machine code: recorded with their gradients, compiled by Inductor, checked.

A step is recorded on tensors that only know their shapes, below autograd: what is left are the
products and element-wise operations of forward pass, backward pass and optimiser, which Inductor
joins into few loops. The result is a folder that any process loads in milliseconds and runs without
Python in between. Compiling takes half a minute, so a process of its own does it, once
(`services.step_compilation`).

For one thread a step is one library. For several its rows are split into as many parts
(`learner.row_split`), if that can be; else it is one library with threads inside.

A compiled step is compared with the function it was made of, on copies of the state. The order of
additions differs, so equality is to some units of the last place of float32.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from learner import calls
from learner.adam import Adam
from learner.compiled_library import CompiledLibrary
from learner.helper_threads import HelperThreads
from learner.row_split import NotSplit, SplitGraph, join, row_axis, split
from learner.split_step import PLAN, SplitStep
from learner.steps import Run, Step, put_back, state_on, tensors_in, tensors_of_state
from repertory.errors import RepertoryError

logger = logging.getLogger(__name__)

FORM = 5  # of what is in a folder: another number, and nothing older is taken for it
LIBRARY = "step.so"
RELATIVE, ABSOLUTE = 1e-3, 1e-5
NOTHING = 1e-7  # what is smaller as a whole is not compared


class CompilationError(RepertoryError):
    """A step cannot be compiled here, or its compiled form does something else."""


def compile_step(
    step: Step[Any, Any], arguments: tuple[Any, ...], known: Path, threads: int = 1
) -> Path:
    """The folder of the compiled step among those that are `known`, by what was recorded of it.

    Settings that a step does not use make no other folder. A new one is there once its results have
    been found to be those of the step itself.
    """
    if threads > 1:
        try:
            return _compile_split(step, arguments, known, threads)
        except (NotSplit, CompilationError) as error:
            logger.warning("threads do not share its rows: %s", error)
    torch.set_num_threads(threads)
    _, *given = arguments
    graph, example = _recorded(step, arguments, [*tensors_in(given)], _written_out)
    path = known / _digest(graph, example)
    if not path.exists():
        with tempfile.TemporaryDirectory(prefix="compiling-", dir=known) as folder:
            _build_calls(Path(folder))
            _compile(graph, example, Path(folder) / LIBRARY)
            _check(step, arguments, Path(folder))
            keep(Path(folder), path)
    return path


def _compile_split(
    step: Step[Any, Any], arguments: tuple[Any, ...], known: Path, parts: int
) -> Path:
    _, *given = arguments
    inputs = [*tensors_in(given)]
    rows = _rows_of(inputs)
    if rows % parts:
        raise NotSplit(f"{rows} rows cannot be shared by {parts} threads")
    torch.set_num_threads(1)  # of each part
    axes = [row_axis(tensor, rows) for tensor in inputs]
    of_a_part = [
        tensor.chunk(parts, axis)[0].contiguous() for tensor, axis in zip(inputs, axes, strict=True)
    ]
    graph, example = _recorded(step, arguments, of_a_part, _marked)
    path = known / f"{_digest(graph, example)}-{parts}"
    if not path.exists():
        made = split(graph, len(example[0]), axes, rows // parts, parts)
        with tempfile.TemporaryDirectory(prefix="compiling-", dir=known) as folder:
            _build_calls(Path(folder))
            _compile_pieces(made, Path(folder))
            _check(step, arguments, Path(folder))
            keep(Path(folder), path)
    return path


def _build_calls(folder: Path) -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler  # imports all of the compiler

    calls.build(folder, get_cpp_compiler())


def _compile_pieces(made: SplitGraph, folder: Path) -> None:
    for name, piece in made.pieces.items():
        values = [node.meta["val"] for node in piece.graph.nodes if node.op == "placeholder"]
        example = tuple(
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).zero_()
            for value in values
        )
        _compile(piece, example, folder / name)
    made.plan.write(folder)


def _rows_of(inputs: Sequence[Tensor]) -> int:
    """Of the batch: the length of its columns of single numbers."""
    for tensor in inputs:
        if tensor.ndim == 1:
            return len(tensor)
    raise NotSplit("no input has one number a row")


def load_steps(steps: Mapping[str, Step[Any, Any]], folder: Path) -> bool:
    """From here on the steps are what was compiled, for arguments as those of their first call.

    Returns whether threads share the rows of all of them, and so torch needs one alone.
    """
    runs: dict[str, Run] = {}
    helpers: HelperThreads | None = None
    for name in steps:
        run = runs[name] = _loaded(folder / name, steps[name].state_tensors, helpers)
        helpers = run.helpers if isinstance(run, SplitStep) else helpers
    for name, step in steps.items():
        step.replace(runs[name])
    return all(isinstance(run, SplitStep) for run in runs.values())


def _loaded(folder: Path, state_tensors: int, helpers: HelperThreads | None = None) -> Run:
    if (folder / PLAN).exists():
        return SplitStep(folder, helpers)
    return CompiledLibrary(folder / LIBRARY, state_tensors)


def _recorded(
    step: Step[Any, Any],
    arguments: tuple[Any, ...],
    inputs: Sequence[Tensor],
    prepare: Callable[[Adam], None],
) -> tuple[GraphModule, tuple[list[Tensor], list[Tensor]]]:
    """The step on these inputs, with its optimisers prepared; and an example of what it takes."""
    state, *given = arguments
    own = tensors_of_state(state)

    def call(of_state: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
        return _call(step, _on(state, own, of_state, prepare), given, inputs)

    example = ([_plain(tensor) for tensor in own], [_plain(tensor) for tensor in inputs])
    return make_fx(call, _APART, tracing_mode="fake")(*example), example


def _written_out(optimizer: Adam) -> None:
    """For a compiler, which joins it with what makes the gradients."""
    optimizer.fused = False


def _marked(optimizer: Adam) -> None:
    _written_out(optimizer)
    optimizer.join = join


def _compile(graph: GraphModule, example: tuple[Any, ...], library: Path) -> None:
    program = torch.export.export(graph, example, strict=False)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        package = Path(folder) / "step.pt2"
        torch._inductor.aoti_compile_and_package(program, package_path=str(package))
        with zipfile.ZipFile(package) as files:
            (name,) = (name for name in files.namelist() if name.endswith(".so"))
            library.write_bytes(files.read(name))


def keep(folder: Path, path: Path) -> None:
    """A copy under its name, all of it at once, unless another process was faster."""
    with tempfile.TemporaryDirectory(prefix="arriving-", dir=path.parent) as arriving:
        copy = shutil.copytree(folder, Path(arriving) / path.name)
        try:
            os.rename(copy, path)
        except OSError:
            if not path.exists():
                raise


def _digest(graph: GraphModule, example: Sequence[Sequence[Tensor]]) -> str:
    digest = hashlib.sha256(graph.code.encode())
    for tensor in itertools.chain(*example):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}".encode())
    for name, constant in graph.named_buffers():
        digest.update(name.encode() + constant.numpy().tobytes())
    return digest.hexdigest()[:32]


def _product_then_bias(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight + bias


# Else the bias is copied to where the product goes before it is made; apart from it, the addition
# is joined with the activation that follows.
_APART = {
    torch.ops.aten.addmm.default: _product_then_bias,
    torch.ops.aten.baddbmm.default: _product_then_bias,
}


def _call(step: Step[Any, Any], state: Any, given: Sequence[Any], inputs: Sequence[Tensor]) -> Any:
    arguments = put_back(tuple(given), iter(inputs))
    with torch.enable_grad():
        return [*tensors_in(step.function(state, *arguments))]


def _on(
    state: Any, own: list[Tensor], tensors: Sequence[Tensor], prepare: Callable[[Adam], None]
) -> Any:
    """The state on these tensors, its optimisers prepared."""
    for mine, other in zip(own, tensors, strict=True):
        other.requires_grad_(mine.requires_grad)
    other_state = state_on(state, tensors)
    for field in fields(other_state):
        if isinstance(value := getattr(other_state, field.name), Adam):
            prepare(value)
    return other_state


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _check(step: Step[Any, Any], arguments: tuple[Any, ...], folder: Path) -> None:
    state, *given = arguments
    own, inputs = tensors_of_state(state), [*tensors_in(given)]
    expected = [_plain(tensor) for tensor in own]
    wanted = _call(step, _on(state, own, expected, _written_out), given, inputs)
    changed = [_plain(tensor) for tensor in own]
    got = _loaded(folder, len(own))([*changed, *inputs])
    for mine, theirs in zip([*expected, *wanted], [*changed, *got], strict=True):
        if not torch.allclose(mine, theirs, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True):
            raise CompilationError(_differs(mine, theirs))
    # And as wholes: moments of small gradients are within the absolute tolerance whatever they are.
    for mine, theirs in zip(expected, changed, strict=True):
        size = float(mine.detach().float().norm())
        if float((mine.detach() - theirs).float().norm()) > RELATIVE * size + NOTHING:
            raise CompilationError(_differs(mine, theirs))


def _differs(mine: Tensor, theirs: Tensor) -> str:
    worst = float((mine.detach() - theirs).abs().max())
    return f"what was compiled differs by {worst:.1e} from the step it was made of: it is not used"
