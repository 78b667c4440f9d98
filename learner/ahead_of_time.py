"""Steps of learning as machine code: recorded with their gradients, compiled, checked.

A step is recorded on tensors that only know their shapes, below autograd: what is left are the
products and element-wise operations of forward pass, backward pass and optimiser.
`learner.compiler` writes them as C++, with the shapes as constants, and a C++ compiler makes a
library of it in seconds, which any process loads in milliseconds. For several threads the rows of a
step are split into as many parts (`learner.compiler.row_split`), if that can be.

A step with an operation that has no translation, as convolutions, is compiled by Inductor.

A compiled step is compared with the function it was made of, on copies of the state. The order of
additions differs, so equality is to some units of the last place of float32.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from learner.adam import Adam
from learner.compiled_steps import CompiledSteps
from learner.compiler.operations import TAKEN_APART
from learner.compiler.program import StepFunction, function_of, shared_function_of, source_of
from learner.compiler.row_split import NotSplit, join, row_axis, split
from learner.compiler.values import Untranslated
from learner.steps import Run, Step, put_back, state_on, tensors_in, tensors_of_state
from repertory.errors import RepertoryError

logger = logging.getLogger(__name__)

FORM = 6  # of what is in a folder: another number, and nothing older is taken for it
HEADERS = Path(__file__).parent / "compiler"
PACKAGE = "{}.pt2"  # of one step, where Inductor made it
COMPILERS = ("g++", "clang++")
COMPILE_SECONDS = 300.0
# Sums in any order, but what is not a number stays so.
FLAGS = (
    "-O3", "-march=native", "-std=c++20", "-shared", "-fPIC", "-fno-math-errno",
    "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-pthread",
)  # fmt: skip
RELATIVE, ABSOLUTE = 1e-3, 1e-5
NOTHING = 1e-7  # what is smaller as a whole is not compared

Called = Mapping[str, tuple[Step[Any, Any], tuple[Any, ...]]]  # steps with arguments, by name


class CompilationError(RepertoryError):
    """A step cannot be compiled here, or its compiled form does something else."""


def compile_steps(called: Called, known: Path, threads: int = 1) -> Path:
    """The folder of the compiled steps among those that are `known`, by what was recorded of them.

    Settings that a step does not use make no other folder. A new one is there once its results have
    been found to be those of the steps themselves.
    """
    try:
        source, contents = _translated(called, threads)
    except Untranslated as error:
        logger.warning("no translation for %s: compiled by Inductor", error)
        return _by_inductor(called, known)
    headers = "".join(path.read_text() for path in sorted(HEADERS.glob("*.h")))
    path = known / hashlib.sha256((headers + source + contents).encode()).hexdigest()[:32]
    if not path.exists():
        with tempfile.TemporaryDirectory(prefix="compiling-", dir=known) as folder:
            (Path(folder) / "steps.cpp").write_text(source)
            (Path(folder) / CompiledSteps.CONTENTS).write_text(contents)
            _build(Path(folder))
            _check(called, Path(folder))
            keep(Path(folder), path)
    return path


def _translated(called: Called, threads: int) -> tuple[str, str]:
    """C++, and what its caller has to know of it."""
    functions: dict[str, StepFunction] = {}
    parts = threads
    if threads > 1:
        try:
            functions = {name: _shared(name, *one, threads) for name, one in called.items()}
        except NotSplit as error:
            logger.warning("threads do not share its rows: %s", error)
            functions, parts = {}, 1
    if not functions:
        for name, (step, arguments) in called.items():
            inputs = tensors_in(arguments[1:])
            functions[name] = function_of(name, _recorded(step, arguments, inputs).graph)
    contents = {
        "threads": parts,
        "steps": {
            name: {"outputs": [asdict(one) for one in function.outputs]}
            for name, function in functions.items()
        },
    }
    return source_of(list(functions.values()), parts), json.dumps(contents, indent=1)


def _shared(
    name: str, step: Step[Any, Any], arguments: tuple[Any, ...], parts: int
) -> StepFunction:
    inputs = tensors_in(arguments[1:])
    rows = _rows_of(inputs)
    if rows % parts:
        raise NotSplit(f"{rows} rows cannot be shared by {parts} threads")
    axes = [row_axis(tensor, rows) for tensor in inputs]
    of_a_part = [
        tensor.chunk(parts, axis)[0].contiguous() for tensor, axis in zip(inputs, axes, strict=True)
    ]
    graph = _recorded(step, arguments, of_a_part, joined=True)
    states = len(tensors_of_state(arguments[0]))
    return shared_function_of(name, split(graph, states, axes, rows // parts, parts))


def _rows_of(inputs: Sequence[Tensor]) -> int:
    """Of the batch: the length of its columns of single numbers."""
    for tensor in inputs:
        if tensor.ndim == 1:
            return len(tensor)
    raise NotSplit("no input has one number a row")


def find_compiler() -> str:
    wanted = os.environ.get("CXX")
    for compiler in [wanted] if wanted else COMPILERS:
        if path := shutil.which(compiler):
            return path
    looked_for = wanted or " or ".join(COMPILERS)
    raise CompilationError(f"no C++ compiler: {looked_for} not found; install it or set CXX")


def _build(folder: Path) -> None:
    compiler = find_compiler()
    command = [compiler, *FLAGS, f"-I{HEADERS}", "steps.cpp", "-o", CompiledSteps.LIBRARY]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
    )
    if done.returncode != 0:
        lines = done.stderr.splitlines()
        first = next((line for line in lines if "error" in line), "it does not say why")
        raise CompilationError(f"{compiler} refuses it: {first[:300]}")


def _by_inductor(called: Called, known: Path) -> Path:
    """Packages of Inductor, one for each step; threads are inside products."""
    recorded: dict[str, tuple[GraphModule, tuple[list[Tensor], list[Tensor]]]] = {}
    digest = hashlib.sha256(f"inductor {torch.get_num_threads()}".encode())
    for name, (step, arguments) in called.items():
        inputs = tensors_in(arguments[1:])
        graph = _recorded(step, arguments, inputs)
        example = ([*map(_plain, tensors_of_state(arguments[0]))], [*map(_plain, inputs)])
        recorded[name] = graph, example
        tensors = itertools.chain(*example)
        shapes = [(tensor.dtype, tensor.shape, tensor.stride()) for tensor in tensors]
        digest.update(f"{name} {graph.code} {shapes}".encode())
        for constant in graph.buffers():
            digest.update(constant.numpy().tobytes())
    path = known / digest.hexdigest()[:32]
    if not path.exists():
        with tempfile.TemporaryDirectory(prefix="compiling-", dir=known) as folder:
            for name, (graph, example) in recorded.items():
                program = torch.export.export(graph, example, strict=False)
                package = str(Path(folder) / PACKAGE.format(name))
                torch._inductor.aoti_compile_and_package(program, package_path=package)
            _check(called, Path(folder))
            keep(Path(folder), path)
    return path


def load_steps(steps: Mapping[str, Step[Any, Any]], folder: Path) -> bool:
    """From here on the steps are what was compiled, for arguments as those of their first call.

    Returns whether they have all the threads they need, so that torch can do with one.
    """
    for name, run in _runs(steps, folder).items():
        steps[name].replace(run)
    return (folder / CompiledSteps.CONTENTS).exists()


def is_complete(folder: Path, names: Iterable[str]) -> bool:
    """Whether all of these steps are there."""
    if (folder / CompiledSteps.CONTENTS).exists():
        return (folder / CompiledSteps.LIBRARY).exists()
    return all((folder / PACKAGE.format(name)).exists() for name in names)


def _runs(names: Iterable[str], folder: Path) -> dict[str, Run]:
    if (folder / CompiledSteps.CONTENTS).exists():
        library = CompiledSteps(folder)
        return {name: library.step(name) for name in names}
    return {
        name: torch._inductor.aoti_load_package(str(folder / PACKAGE.format(name)))
        for name in names
    }


def _recorded(
    step: Step[Any, Any], arguments: tuple[Any, ...], inputs: Sequence[Tensor], joined: bool = False
) -> GraphModule:
    """The step on these inputs; `joined`: with marks where gradients of parts become one."""
    state, *given = arguments
    own = tensors_of_state(state)

    def prepare(optimizer: Adam) -> None:
        _written_out(optimizer)
        if joined:
            optimizer.join = join

    def call(of_state: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
        return _call(step, _on(state, own, of_state, prepare), given, inputs)

    example = ([_plain(tensor) for tensor in own], [_plain(tensor) for tensor in inputs])
    return make_fx(call, _apart(), tracing_mode="fake")(*example)


def _written_out(optimizer: Adam) -> None:
    """For a compiler, which joins it with what makes the gradients."""
    optimizer.fused = False


def keep(folder: Path, path: Path) -> None:
    """A copy under its name, all of it at once, unless another process was faster."""
    with tempfile.TemporaryDirectory(prefix="arriving-", dir=path.parent) as arriving:
        copy = shutil.copytree(folder, Path(arriving) / path.name)
        try:
            os.rename(copy, path)
        except OSError:
            if not path.exists():
                raise


def _product_then_bias(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight + bias


def _apart() -> dict[Any, Callable[..., Any]]:
    """Operations that are recorded as others.

    A bias apart from its product is joined with the activation that follows.
    """
    return {
        **get_decompositions(TAKEN_APART),
        torch.ops.aten.addmm.default: _product_then_bias,
        torch.ops.aten.baddbmm.default: _product_then_bias,
    }


def _call(step: Step[Any, Any], state: Any, given: Sequence[Any], inputs: Sequence[Tensor]) -> Any:
    arguments = put_back(tuple(given), iter(inputs))
    with torch.enable_grad():
        return tensors_in(step.function(state, *arguments))


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


def _check(called: Called, folder: Path) -> None:
    runs = _runs(called, folder)
    for name, (step, (state, *given)) in called.items():
        own, inputs = tensors_of_state(state), tensors_in(given)
        expected = [_plain(tensor) for tensor in own]
        wanted = _call(step, _on(state, own, expected, _written_out), given, inputs)
        changed = [_plain(tensor) for tensor in own]
        got = runs[name](changed, inputs)
        for mine, theirs in zip([*expected, *wanted], [*changed, *got], strict=True):
            if not torch.allclose(mine, theirs, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True):
                raise CompilationError(_differs(name, mine, theirs))
        # And as wholes: moments of small gradients are within the tolerance whatever they are.
        for mine, theirs in zip(expected, changed, strict=True):
            size = float(mine.detach().float().norm())
            if float((mine.detach() - theirs).float().norm()) > RELATIVE * size + NOTHING:
                raise CompilationError(_differs(name, mine, theirs))


def _differs(name: str, mine: Tensor, theirs: Tensor) -> str:
    worst = float((mine.detach() - theirs).abs().max())
    return f"{name} as compiled differs by {worst:.1e} from the step itself: it is not used"
