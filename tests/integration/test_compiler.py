"""What is compiled gives the same numbers as torch: products of all shapes, functions, sums.

Every case is a function of tensors; all of them are one library, so that the compiler starts once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from learner.ahead_of_time import _apart, _build
from learner.compiled_steps import CompiledSteps
from learner.compiler.program import function_of, source_of
from learner.compiler.values import Untranslated

# (M, K, N): whole tiles and their edges, single rows and columns, a depth of one.
SHAPES = [
    (28, 16, 64), (256, 256, 256), (13, 17, 33), (1, 5, 1), (1, 64, 40), (50, 7, 1), (15, 1, 31),
    (37, 23, 6), (3, 300, 16), (29, 40, 48), (14, 3, 32), (64, 33, 17),
]  # fmt: skip
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "exp": torch.exp,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "relu": torch.relu,
    "clamp": lambda x: x.clamp(-0.5, 0.7),
    "square": torch.square,
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, 0.3 * x, reduction="none"),
    "std": lambda x: x.std(),
    "std_of_rows": lambda x: x.std(-1, keepdim=True),
    "mean_of_columns": lambda x: x.mean(0),
    "least": lambda x: x.amin(0),
    "greatest": lambda x: x.amax(-1),
    "argmax": lambda x: x.argmax(-1),
    "norm": torch.linalg.vector_norm,
    "picked": lambda x: x.gather(1, (x > 0).long()),
    "parts": lambda x: torch.cat([x[:, 3:], 2 * x[:, :3]], -1),
    "stack": lambda x: torch.stack([x, x + 1], 1),
    "turned": lambda x: (x.t() * 2).reshape(-1),
    "split": lambda x: x.split(3, dim=-1)[1] * 2,
    "sums": lambda x: x.sum(-1).exp().sum(),
    "where": lambda x: torch.where(x > 0, x, x.exp()),
    "counted": lambda x: torch.arange(len(x)).to(torch.float32)[:, None] * x,
}

# (rows, depth, columns) of products with a gradient behind a ReLU, in whole tables and not.
GATED_SHAPES = [
    (256, 256, 256),
    (32, 64, 16),
    (48, 37, 80),
    (128, 300, 400),
    (64, 3, 192),
    (100, 256, 256),
]


@dataclass(frozen=True)
class Case:
    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def cases() -> dict[str, Case]:
    x = 3 * random(9, 7)
    found = {name: Case(function, (x,)) for name, function in FUNCTIONS.items()}
    for number, (m, k, n) in enumerate(SHAPES):
        left, right = random(m, k), random(k, n, seed=1)
        turned = random(k, m), random(n, k, seed=1)
        found |= {
            f"product_{number}": Case(torch.mm, (left, right)),
            f"left_turned_{number}": Case(lambda a, b: a.t() @ b, (turned[0], right)),
            f"right_turned_{number}": Case(lambda a, b: a @ b.t(), (left, turned[1])),
            f"twins_{number}": Case(
                lambda a, b, c: torch.relu(a.expand(2, -1, -1) @ b + c) * 2,
                (left, random(2, k, n), random(2, 1, n)),
            ),
        }
    return found | gated_cases()


def behind_relu(rows: Tensor, columns: Tensor, output: Tensor) -> Tensor:
    """The gradient of one number a row, at the layer below."""
    gradient: Tensor = torch.ops.aten.threshold_backward(rows @ columns, output, 0)
    return gradient


def gated_cases() -> dict[str, Case]:
    """As left factor, as right factor, the transposes of both, for one network and for twins."""
    found = {}
    for number, (m, k, n) in enumerate(GATED_SHAPES):
        for twins in ((), (2,)):
            outer = random(*twins, m, 1), random(*twins, 1, k, seed=1)
            output = torch.relu(random(*twins, m, k, seed=2))
            below, turned = random(*twins, k, n, seed=3), random(*twins, n, k, seed=4)
            above = random(*twins, n, m, seed=5)
            name = f"gated_{len(twins)}_{number}"
            found |= {
                f"{name}_left": Case(
                    lambda r, c, o, b: behind_relu(r, c, o) @ b, (*outer, output, below)
                ),
                f"{name}_left_of_a_turned_one": Case(
                    lambda r, c, o, b: torch.relu(behind_relu(r, c, o) @ b.mT + 1),
                    (*outer, output, turned),
                ),
                f"{name}_right": Case(
                    lambda r, c, o, b: 2 * (b @ behind_relu(r, c, o)), (*outer, output, above)
                ),
                f"{name}_turned": Case(
                    lambda r, c, o, b: behind_relu(r, c, o).mT @ b.mT, (*outer, output, above)
                ),
                f"{name}_all": Case(_everything_of_a_layer, (*outer, output, above, turned)),
            }
    return found


def _everything_of_a_layer(
    rows: Tensor, columns: Tensor, output: Tensor, inputs: Tensor, weights: Tensor
) -> Tensor:
    gradient = behind_relu(rows, columns, output)
    below = (gradient @ weights.mT).mean(-2)
    return torch.cat([below, (inputs @ gradient).mean(-1), gradient.mean(-2)], -1)


CASES = cases()


def compiled(made: dict[str, Case], folder: Path) -> CompiledSteps:
    functions = [function_of(name, recorded(case)) for name, case in made.items()]
    (folder / "steps.cpp").write_text(source_of(functions, 1))
    contents = {
        "threads": 1,
        "steps": {
            one.name: {"outputs": [asdict(output) for output in one.outputs]} for one in functions
        },
    }
    (folder / CompiledSteps.CONTENTS).write_text(json.dumps(contents))
    _build(folder)
    return CompiledSteps(folder)


def recorded(case: Case) -> Graph:
    def call(inputs: list[Tensor]) -> list[Tensor]:
        return [case.function(*inputs)]

    return make_fx(call, _apart(), tracing_mode="fake")(list(case.inputs)).graph


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> CompiledSteps:
    return compiled(CASES, tmp_path_factory.mktemp("compiled"))


@pytest.mark.parametrize("name", CASES)
def test_the_same_numbers_as_torch(library: CompiledSteps, name: str) -> None:
    case = CASES[name]
    (got,) = library.step(name)([], list(case.inputs))
    wanted = case.function(*case.inputs)
    # Products of up to 300 terms in another order; functions within some units of the last place.
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize(
    ("rows", "width", "below", "count"),
    [(64, 48, 32, 2), (100, 48, 32, 2), (16, 48, 32, 0), (64, 48, 50, 0), (64, 40, 32, 0)],
)
def test_which_products_are_done_by_gates(rows: int, width: int, below: int, count: int) -> None:
    """Results of whole vectors, with rows enough to pay for the sums; both products or none."""
    inputs = (random(rows, 1), random(1, width), torch.relu(random(rows, width)))
    more = (random(below, rows), random(below, width))
    graph = recorded(Case(_everything_of_a_layer, (*inputs, *more)))
    assert source_of([function_of("step", graph)], 1).count("gated_product<") == count


def test_gates_are_those_before_a_change(tmp_path: Path) -> None:
    """What the gradient is made of may be changed before a product reads it."""

    def function(rows: Tensor, columns: Tensor, output: Tensor, below: Tensor) -> Tensor:
        gradient = behind_relu(rows, columns, output)
        columns.mul_(3)
        return gradient @ below

    columns = random(1, 64, seed=1)
    inputs = random(64, 1), torch.relu(random(64, 64)), random(64, 32)
    case = Case(function, (inputs[0], columns.clone(), *inputs[1:]))
    step = compiled({"step": case}, tmp_path).step("step")
    changed = columns.clone()
    (got,) = step([], [inputs[0], changed, *inputs[1:]])
    torch.testing.assert_close(got, behind_relu(inputs[0], columns, inputs[1]) @ inputs[2])
    torch.testing.assert_close(changed, 3 * columns)


def test_closed_gates_let_nothing_through(tmp_path: Path) -> None:
    """Units that no row opens have no gradient at all; what is not a number passes open gates."""

    def function(rows: Tensor, columns: Tensor, output: Tensor, inputs: Tensor) -> Tensor:
        return inputs @ behind_relu(rows, columns, output)

    rows, columns, inputs = random(64, 1), random(1, 64), random(32, 64)
    output = torch.relu(random(64, 64))
    output[:, 5] = 0
    case = Case(function, (rows, columns, output, inputs))
    step = compiled({"step": case}, tmp_path).step("step")
    (got,) = step([], list(case.inputs))
    assert (got[:, 5] == 0).all()
    assert (got[:, 6] != 0).all()
    rows[3] = math.nan
    (got,) = step([], list(case.inputs))
    assert torch.equal(got.isnan(), function(*case.inputs).isnan())
    assert got.isnan().any()
    assert not got.isnan().all()


EDGES = [
    0.0, -0.0, 1e-30, -1e-6, 0.1, 0.624, 0.626, -3.0, 9.0, 20.0, -50.0, 86.9, 88.5, 100.0, -120.0,
    math.inf, -math.inf, math.nan,
]  # fmt: skip


@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid", "softplus", "relu", "clamp"])
def test_functions_at_their_edges(tmp_path: Path, name: str) -> None:
    """Overflow is infinite, and what is not a number stays so: learners look for it."""
    x = torch.tensor(EDGES)
    (got,) = compiled({name: Case(FUNCTIONS[name], (x,))}, tmp_path).step(name)([], [x])
    torch.testing.assert_close(got, FUNCTIONS[name](x), rtol=1e-5, atol=1e-30, equal_nan=True)


def test_memory_is_read_before_it_is_changed(tmp_path: Path) -> None:
    """Values that were made of a tensor before it was changed in place keep what it had."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        before = x * 2
        x.add_(y)
        x.mul_(x.sum())
        return before + x.t().contiguous()

    x, y = random(6, 6), random(6, 6, seed=1)
    step = compiled({"step": Case(function, (x.clone(), y))}, tmp_path).step("step")
    changed, expected = x.clone(), x.clone()
    (got,) = step([], [changed, y])
    torch.testing.assert_close(got, function(expected, y))
    torch.testing.assert_close(changed, expected)


def test_what_has_no_translation_is_named(tmp_path: Path) -> None:
    x, kernel = random(1, 1, 8, 8), random(1, 1, 3, 3)
    with pytest.raises(Untranslated, match="convolution"):
        compiled({"step": Case(F.conv2d, (x, kernel))}, tmp_path)
