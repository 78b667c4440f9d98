"""NPG and TRPO against the NumPy reference, and each part against what it stands for.

Both sides run in float64 (where not said otherwise); the tolerance is in `reference.from_torch`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from reference.from_torch import (
    assert_all_close,
    assert_close,
    double_precision,
    linear_parameters,
    mlp_of,
    scramble,
    snapshot,
)
from reference.natural_gradient import NaturalGradientReference, fisher, krylov_solution, mean_kl
from reference.ppo import PpoReference, Segments
from reference.samples import (
    as_sample,
    continuous_spec,
    discrete_spec,
    multi_discrete_spec,
    segments,
)
from reference.stochastic import distribution_of, policy_parameters

from learner.algorithms import natural_gradient
from learner.algorithms.natural_gradient import (
    NPG,
    TRPO,
    Curvature,
    State,
    assign,
    conjugate_gradient,
    flat,
    full_step,
    surrogate_and_entropy,
)
from learner.experience import Experience
from repertory.policies.stochastic import StochasticPolicy
from repertory.specs import EnvSpec

SEED, ROWS, STEPS = 7, 3, 9
SIZE = ROWS * STEPS
CPU = torch.device("cpu")
SPECS = {
    "continuous": continuous_spec(2),
    "discrete": discrete_spec(4),
    "multi_discrete": multi_discrete_spec((3, 2)),
}
SWITCHES = {
    "defaults": {},
    "advantage as it is": {"normalize_advantage": False},
    "short lambda, little damping": {"gae_lambda": 0.3, "cg_damping": 0.03, "cg_steps": 4},
}
AGED = {"age": np.ones((ROWS, STEPS), np.int64)}


@pytest.fixture(autouse=True)
def _float64():
    with double_precision():
        yield


def made(spec: EnvSpec, algo: str = "trpo", **switches: Any) -> tuple[TRPO, State]:
    settings = {"hidden_sizes": (6, 5), "lr": 3e-2, "value_steps": 2, "cg_steps": 6}
    kind = {"trpo": TRPO, "npg": NPG}[algo]
    algorithm = kind(kind.Config(**(settings | switches)), device=CPU, seed=SEED)
    state = algorithm.initial_state(spec)
    scramble(state.policy, seed=0)
    scramble(state.value, seed=1)
    return algorithm, state


def reference_of(
    config: TRPO.Config, state: State, *, stale: bool = False
) -> NaturalGradientReference:
    policy = distribution_of(state.policy)
    return NaturalGradientReference(
        policy=policy,
        base=PpoReference(
            policy=policy,
            value=mlp_of(state.value, "tanh"),
            clip=0.2,
            gae_lambda=config.gae_lambda,
            lr=0.0,
            max_grad_norm=config.max_grad_norm,
            value_lr=config.lr,
            v_trace_clips=(config.rho_clip, config.c_clip) if stale else None,
        ),
        max_kl=config.max_kl,
        damping=config.cg_damping,
        cg_steps=config.cg_steps,
        backtrack=config.backtrack,
        tries=config.line_search_tries,
        searching=config.mode == "trpo",
        normalize_advantage=config.normalize_advantage,
    )


def segments_of(
    reference: NaturalGradientReference, spec: EnvSpec, seed: int = 0, drift: float = 0.3
) -> Segments:
    return segments(spec, reference.policy, ROWS, STEPS, seed, drift=drift)


def assert_same_iteration(
    metrics: Any, state: State, reference: NaturalGradientReference, *, searching: bool
) -> None:
    value_losses = reference.base.value_losses
    expected = {
        "policy_loss": -reference.before,
        "kl": reference.kl,
        "surrogate_improvement": reference.improvement,
        "expected_improvement": reference.fraction * (reference.gradient @ reference.full_step),
        "value_loss": value_losses[-1],
        "value_loss_change": value_losses[-1] - value_losses[0],
    }
    for name, value in expected.items():
        # The KL and both improvements are small differences of numbers of about one.
        assert float(metrics[name]) == pytest.approx(value, rel=1e-7, abs=1e-11), name
    # The residual itself is a difference that all but vanishes where CG is done.
    assert float(metrics["cg_residual"]) == pytest.approx(reference.residual, rel=1e-5, abs=1e-9)
    if searching:
        assert metrics["line_search_steps"] == reference.tried
        assert metrics["step_fraction"] == pytest.approx(reference.fraction)
    else:
        assert "line_search_steps" not in metrics
    assert_all_close(policy_parameters(state.policy), reference.policy.parameters, "policy")
    assert_all_close(linear_parameters(state.value), reference.base.value.parameters, "value")


@pytest.mark.parametrize("stale", [False, True], ids=["fresh", "stale"])
@pytest.mark.parametrize("mode", ["trpo", "npg"])
@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_iterations_equal_the_reference(
    spec: EnvSpec, switches: dict[str, Any], mode: str, stale: bool
) -> None:
    algorithm, state = made(spec, mode, **switches)
    reference = reference_of(algorithm.config, state, stale=stale)
    for iteration in range(2):
        columns = segments_of(reference, spec, iteration)
        entropy = reference.policy.entropy(columns.observation.reshape(SIZE, -1)).mean()
        metrics = algorithm.update(state, as_sample(columns, AGED if stale else None)).metrics
        reference.iterate(columns, value_steps=2)
        assert reference.fraction > 0  # it has moved
        assert_close(metrics["entropy"], entropy, "entropy before the step")
        assert_same_iteration(metrics, state, reference, searching=mode == "trpo")
        assert ("age" in metrics) == stale


# The parts


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_product_equals_the_explicit_hessian(spec: EnvSpec) -> None:
    """Column by column: with that of the KL written out by autograd, and with the Fisher matrix."""
    _, state = made(spec)
    policy, damping = state.policy, 0.1
    observation = torch.from_numpy(np.random.default_rng(0).normal(size=(SIZE, 3)))
    curvature = Curvature(policy, observation, damping)
    size = sum(parameter.numel() for parameter in policy.parameters())
    ours = torch.stack([curvature(one) for one in torch.eye(size)], dim=1).numpy()

    names = [name for name, _ in policy.named_parameters()]
    shapes = [parameter.shape for parameter in policy.parameters()]
    with torch.no_grad():
        old = policy.distribution(observation)

    def kl(vector: torch.Tensor) -> torch.Tensor:
        parts = vector.split([shape.numel() for shape in shapes])
        replaced = {n: p.view(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        return torch.func.functional_call(_MeanKL(policy, old), _prefixed(replaced), observation)

    here = flat(list(policy.parameters())).detach()
    explicit = torch.autograd.functional.hessian(kl, here).numpy() + damping * np.eye(size)
    np.testing.assert_allclose(ours, explicit, rtol=1e-9, atol=1e-12)

    information = fisher(distribution_of(policy), observation.numpy()) + damping * np.eye(size)
    # The same matrix with its rows in another order: eigenvalues do not know about it.
    np.testing.assert_allclose(
        np.linalg.eigvalsh(ours), np.linalg.eigvalsh(information), rtol=1e-9, atol=1e-12
    )


class _MeanKL(torch.nn.Module):
    def __init__(self, policy: StochasticPolicy, old: torch.Tensor) -> None:
        super().__init__()
        self.policy, self.old = policy, old

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.policy.divergence(self.old, self.policy.distribution(observation)).mean()


def _prefixed(parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"policy.{name}": value for name, value in parameters.items()}


def positive_matrix(size: int, seed: int) -> np.ndarray:
    factor = np.random.default_rng(seed).normal(size=(size, size))
    return factor @ factor.T / size + 0.1 * np.eye(size)


def test_conjugate_gradients_solve_what_numpy_solves() -> None:
    matrix, b = positive_matrix(12, 0), np.random.default_rng(1).normal(size=12)
    product = torch.from_numpy(matrix)
    # In exact arithmetic 12 steps would do; rounding costs a few more.
    x = conjugate_gradient(lambda v: product @ v, torch.from_numpy(b), 40, tolerance=0.0)
    np.testing.assert_allclose(x.numpy(), np.linalg.solve(matrix, b), rtol=1e-8)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_k_steps_are_the_best_of_the_krylov_space(steps: int) -> None:
    matrix, b = positive_matrix(12, 2), np.random.default_rng(3).normal(size=12)
    product = torch.from_numpy(matrix)
    x = conjugate_gradient(lambda v: product @ v, torch.from_numpy(b), steps)
    np.testing.assert_allclose(x.numpy(), krylov_solution(matrix, b, steps), rtol=1e-10)


def test_conjugate_gradients_of_nothing_are_nothing() -> None:
    x = conjugate_gradient(lambda v: 2 * v, torch.zeros(4), 10)
    assert x.tolist() == [0.0] * 4
    assert full_step(x, 2 * x, 0.01).tolist() == [0.0] * 4


def test_full_step_is_as_long_as_the_quadratic_allows() -> None:
    matrix, b = positive_matrix(5, 0), np.ones(5)
    x = np.linalg.solve(matrix, b)
    step = full_step(torch.from_numpy(x), torch.from_numpy(matrix @ x), 0.02).numpy()
    assert 0.5 * step @ matrix @ step == pytest.approx(0.02)
    np.testing.assert_allclose(step / np.linalg.norm(step), x / np.linalg.norm(x))


def test_assign_writes_back_what_flat_has_read() -> None:
    _, state = made(SPECS["continuous"])
    parameters = list(state.policy.parameters())
    vector, before = flat(parameters).detach(), snapshot(state.policy)
    assign(parameters, vector + 1)
    for now, then in zip(snapshot(state.policy), before, strict=True):
        np.testing.assert_allclose(now, then + 1)
    assign(parameters, vector)
    for now, then in zip(snapshot(state.policy), before, strict=True):
        np.testing.assert_array_equal(now, then)


# The line search


def whole_steps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How far from where each update began every candidate was, in units of the whole step."""
    lengths: list[float] = []
    begun: dict[str, Any] = {}

    def watched_step(*arguments: Any) -> torch.Tensor:
        begun["step"] = full_step(*arguments)
        begun.pop("from", None)
        return begun["step"]

    def watched_flat(tensors: Any) -> torch.Tensor:
        vector = flat(tensors)
        if "step" in begun and "from" not in begun:
            begun["from"] = vector
        return vector

    def watched_assign(parameters: Any, vector: torch.Tensor) -> None:
        lengths.append(float((vector - begun["from"]).norm() / begun["step"].norm()))
        assign(parameters, vector)

    for name, watched in (
        ("full_step", watched_step), ("flat", watched_flat), ("assign", watched_assign),
    ):  # fmt: skip
        monkeypatch.setattr(natural_gradient, name, watched)
    return lengths


def test_after_a_backtrack_the_next_update_begins_with_the_whole_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So large a delta that its quadratic says nothing: the first update has to come back.

    The reference knows no update before this one, so its expected improvement, too, is that of
    c^j alone.
    """
    spec = SPECS["discrete"]
    lengths = whole_steps(monkeypatch)
    algorithm, state = made(spec, max_kl=2.0, backtrack=0.5, cg_damping=1e-3)
    reference = reference_of(algorithm.config, state)
    counts = []
    for iteration in range(3):
        lengths.clear()
        columns = segments_of(reference, spec, iteration, drift=0.0)
        metrics = algorithm.update(state, as_sample(columns)).metrics
        reference.iterate(columns, value_steps=2)
        assert_same_iteration(metrics, state, reference, searching=True)
        assert lengths == pytest.approx([0.5**j for j in range(len(lengths))])
        counts.append(len(lengths))
    assert counts[0] > 1  # it came back, and whoever comes after it begins at 1 again
    assert len(counts) == 3


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_search_that_finds_nothing_restores_every_bit(
    spec: EnvSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upwards is downwards here: no candidate improves, and every one was tried.

    Float32, as in a run, where theta + step - step is not theta.
    """
    torch.set_default_dtype(torch.float32)
    algorithm, state = made(spec, line_search_tries=4)
    lengths = whole_steps(monkeypatch)
    monkeypatch.setattr(
        natural_gradient, "conjugate_gradient", lambda *given: -conjugate_gradient(*given)
    )
    columns = segments(spec, distribution_of(state.policy), ROWS, STEPS, 0)
    sample = as_sample(columns)
    narrow = type(sample.batch).from_columns(
        {
            name: column.astype(np.float32) if column.dtype == np.float64 else column
            for name, column in sample.batch.columns().items()
        }
    )
    before = snapshot(state.policy)
    metrics = algorithm.update(state, type(sample)(narrow, sample.keys, sample.weights)).metrics
    for now, then in zip(snapshot(state.policy), before, strict=True):
        np.testing.assert_array_equal(now, then)
    assert metrics["line_search_steps"] == 4
    assert metrics["step_fraction"] == 0.0
    assert lengths == pytest.approx([1.0, 0.8, 0.64, 0.512, 0.0])
    for name in ("kl", "surrogate_improvement", "expected_improvement"):
        assert float(metrics[name]) == 0.0, name


def test_a_step_that_improves_and_goes_too_far_is_refused() -> None:
    """KL alone is reason enough; NPG, which does not look, takes the same step whole."""
    spec = SPECS["discrete"]
    settings = {"max_kl": 2.0, "cg_damping": 1e-3, "line_search_tries": 1}
    kls = {}
    for mode in ("trpo", "npg"):
        algorithm, state = made(spec, mode, **settings)
        before = distribution_of(state.policy)
        columns = segments(spec, before, ROWS, STEPS, 0)
        metrics = algorithm.update(state, as_sample(columns)).metrics
        kls[mode] = float(metrics["kl"])
        flat_observation = columns.observation.reshape(SIZE, -1)
        moved = mean_kl(before, distribution_of(state.policy), flat_observation)
        assert kls[mode] == pytest.approx(moved, rel=1e-9, abs=1e-12)
        if mode == "npg":
            assert float(metrics["surrogate_improvement"]) > 0
    assert kls["trpo"] == 0.0
    assert kls["npg"] > 2.0


def test_shapes_never_broadcast() -> None:
    spec = SPECS["discrete"]
    algorithm, state = made(spec)
    reference = reference_of(algorithm.config, state)
    columns = reference.base.flatten(segments_of(reference, spec))
    observation, action, log_prob, advantage, target = (torch.from_numpy(c) for c in columns)
    for wrong in (
        Experience(observation, action, log_prob, advantage[:, None], target),
        Experience(observation, action, log_prob[:, None], advantage, target),
    ):
        with pytest.raises(AssertionError):
            surrogate_and_entropy(state.policy, wrong)


def test_mode_is_a_setting() -> None:
    assert TRPO.Config().mode == "trpo"
    assert NPG.Config().mode == "npg"
    spec = SPECS["continuous"]
    states = []
    for algorithm, state in (made(spec, "trpo", mode="npg"), made(spec, "npg")):
        columns = segments(spec, distribution_of(state.policy), ROWS, STEPS, 0)
        algorithm.update(state, as_sample(columns))
        states.append(snapshot(state.policy))
    for left, right in zip(*states, strict=True):
        np.testing.assert_array_equal(left, right)
