"""Learners' steps, really compiled: the same learning, the cache, and what happens without one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner.compiled_steps import CompiledStep
from learner.steps import steps_of
from repertory.config import EnvConfig
from repertory.envs import probe
from repertory.parts import lookup
from repertory.specs import EnvSpec
from repertory.types import Sample, TransitionBatch
from services.compile_process import CACHE_VARIABLE, CompileProcess, CompileTask, cache_folder
from services.step_compilation import DEADLINE_SECONDS, StepCompilation

SPECS = {
    "discrete": probe(EnvConfig(id="CartPole-v1")),
    "continuous": probe(EnvConfig(id="Pendulum-v1")),
}
ROWS = 16
CONTINUOUS = ("td3", "sac", "ddpg")
SMALL: dict[str, Any] = {"hidden_sizes": (16, 16)}
WIDE: dict[str, Any] = {"hidden_sizes": (32, 48)}  # as many as products behind gates need
WIDE_ROWS = 64


def sample_for(spec: EnvSpec, seed: int = 0, rows: int = ROWS) -> Sample:
    rng = np.random.default_rng(seed)
    discrete = spec.action_kind == "discrete"

    def observation() -> np.ndarray:
        shape = (rows, *spec.observation_shape)
        if spec.observation_kind == "pixels":
            return rng.integers(0, 256, shape, np.uint8)
        return rng.standard_normal(shape, np.float32)

    columns = {
        "observation": observation(),
        "action": rng.integers(0, spec.num_actions, rows)
        if discrete
        else rng.uniform(-1, 1, (rows, spec.action_size)).astype(np.float32),
        "reward": rng.standard_normal(rows, np.float32),
        "discount": np.full(rows, 0.99, np.float32),
        "next_observation": observation(),
        "policy_id": np.zeros(rows, np.int32),
        "policy_version": np.zeros(rows, np.int64),
    }
    return Sample(TransitionBatch.from_columns(columns), np.arange(rows), np.ones(rows, np.float32))


def made(algo: str, spec: EnvSpec, settings: dict[str, Any] = SMALL) -> tuple[Any, Any]:
    kind = lookup("algorithm", algo)
    algorithm = kind(kind.Config(**settings), device=torch.device("cpu"), seed=3)
    return algorithm, algorithm.initial_state(spec)


def compilation(algorithm: Any, spec: EnvSpec, cache: Path, **more: Any) -> StepCompilation:
    settings = {"threads": 1, "cache": cache, **more}
    return StepCompilation(algorithm, algorithm.config, spec, **settings)


def check_learns_the_same(
    algo: str,
    spec: EnvSpec,
    cache: Path,
    threads: int = 1,
    settings: dict[str, Any] = SMALL,
    rows: int = ROWS,
) -> Any:
    """Returns the algorithm with its compiled steps."""
    plain, plain_state = made(algo, spec, settings)
    algorithm, state = made(algo, spec, settings)
    compiling = compilation(algorithm, spec, cache, wait=True, threads=threads)
    for seed in range(12):
        sample = sample_for(spec, seed, rows)
        wanted = plain.update(plain_state, sample)
        got = algorithm.update(state, sample)
        compiling.attend(sample)
        assert got.metrics.keys() == wanted.metrics.keys()
        for name, value in wanted.metrics.items():
            # float32 in another order of additions, over a dozen updates.
            assert float(got.metrics[name]) == pytest.approx(float(value), rel=1e-3, abs=1e-5)
        np.testing.assert_allclose(got.priorities, wanted.priorities, rtol=1e-3, atol=1e-5)
    assert all(step.compiled for step in steps_of(algorithm).values())
    for name, value in plain_state.policy.state_dict().items():
        torch.testing.assert_close(state.policy.state_dict()[name], value, rtol=1e-3, atol=1e-5)
    return algorithm


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_compiled_learner_learns_the_same_and_the_next_one_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = check_learns_the_same("dqn", SPECS["discrete"], tmp_path)
    check_another_state_learns_too(first)
    # Another learner takes what is there: nothing may be started for it.
    monkeypatch.setattr(StepCompilation, "_start", lambda *given: pytest.fail("compiled again"))
    algorithm, state = made("dqn", SPECS["discrete"])
    sample = sample_for(SPECS["discrete"])
    algorithm.update(state, sample)
    found = compilation(algorithm, SPECS["discrete"], tmp_path)
    found.attend(sample)
    assert found.done
    assert algorithm.step.compiled


def test_settings_that_a_step_does_not_use_compile_nothing_new(tmp_path: Path) -> None:
    spec, kind = SPECS["discrete"], lookup("algorithm", "dqn")
    for learning_starts in (10, 20):
        config = kind.Config(**SMALL, learning_starts=learning_starts)
        algorithm = kind(config, device=torch.device("cpu"), seed=3)
        state, sample = algorithm.initial_state(spec), sample_for(spec)
        algorithm.update(state, sample)
        compilation(algorithm, spec, tmp_path, wait=True).attend(sample)
        assert algorithm.step.compiled
    assert len(list(tmp_path.glob("known-*/*/steps.so"))) == 1
    assert len(list(tmp_path.glob("dqn-*/steps.so"))) == 2


def test_threads_that_share_the_rows_learn_the_same(tmp_path: Path) -> None:
    algorithm = check_learns_the_same("dqn", SPECS["discrete"], tmp_path, threads=2)
    assert threads_of(algorithm) == {2}
    assert torch.get_num_threads() == 1, "of each of the two"
    check_another_state_learns_too(algorithm)


@pytest.mark.parametrize(
    ("algo", "threads", "count"),
    # The critic's weights, what is below them, and the policy's way down through the critic;
    # a policy whose one output is the one action has the first two of its own.
    [("td3", 1, 5), ("sac", 2, 3), ("ddpg", 1, 5)],
)
def test_critics_behind_gates_learn_the_same(
    tmp_path: Path, algo: str, threads: int, count: int
) -> None:
    """With products that are made of sums (gated_products.h): twins, and one critic alone."""
    spec = SPECS["continuous"]
    check_learns_the_same(algo, spec, tmp_path, threads, settings=WIDE, rows=WIDE_ROWS)
    (source,) = tmp_path.glob("known-*/*/steps.cpp")
    assert source.read_text().count("gated_product<") == count


def check_another_state_learns_too(algorithm: Any) -> None:
    """Compiled steps keep hold of a state's tensors: they have to notice when it is another."""
    spec, (plain, wanted) = SPECS["discrete"], made("dqn", SPECS["discrete"])
    other = algorithm.initial_state(spec)
    for seed in range(3):
        plain.update(wanted, sample_for(spec, seed))
        algorithm.update(other, sample_for(spec, seed))
    for name, value in wanted.policy.state_dict().items():
        torch.testing.assert_close(other.policy.state_dict()[name], value, rtol=1e-3, atol=1e-5)


def threads_of(algorithm: Any) -> set[int]:
    """Of its compiled steps."""
    runs = [step._run for step in steps_of(algorithm).values()]
    assert all(isinstance(run, CompiledStep) for run in runs)
    return {run.library.threads for run in runs if isinstance(run, CompiledStep)}


def test_rows_that_cannot_be_shared_are_one_threads(tmp_path: Path) -> None:
    algorithm = check_learns_the_same("dqn", SPECS["discrete"], tmp_path, threads=3)
    assert threads_of(algorithm) == {1}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("algo", ["td3", "sac", "ddpg", "sac_discrete", "c51", "qr_dqn"])
def test_every_algorithm_with_steps_learns_the_same(
    algo: str, threads: int, tmp_path: Path
) -> None:
    spec = SPECS["continuous" if algo in CONTINUOUS else "discrete"]
    algorithm = check_learns_the_same(algo, spec, tmp_path, threads)
    assert threads_of(algorithm) == {threads}


@pytest.mark.slow
def test_convolutions_are_compiled_by_inductor(tmp_path: Path) -> None:
    spec = replace(
        SPECS["discrete"],
        observation_kind="pixels",
        observation_shape=(4, 36, 36),
        observation_dtype="|u1",
        observation_low=(),
        observation_high=(),
    )
    algorithm = check_learns_the_same("dqn", spec, tmp_path)
    assert not isinstance(algorithm.step._run, CompiledStep)


def test_other_settings_and_other_shapes_are_other_files() -> None:
    spec = SPECS["discrete"]
    config = lookup("algorithm", "dqn").Config
    sample = sample_for(spec)
    half = Sample(sample.batch.select(slice(0, ROWS // 2)), sample.keys[::2], sample.weights[::2])
    name = CompileTask(config(**SMALL), spec, 1, sample).name
    assert name == CompileTask(config(**SMALL), spec, 1, sample_for(spec, seed=1)).name
    others = {
        CompileTask(config(**SMALL), spec, 1, half).name,
        CompileTask(config(**SMALL), spec, 2, sample).name,
        CompileTask(config(**SMALL, lr=0.5), spec, 1, sample).name,
    }
    assert len(others | {name}) == 4


def test_without_a_compiler_it_goes_on_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    algorithm, state = made("dqn", SPECS["discrete"])
    compiling = compilation(algorithm, SPECS["discrete"], tmp_path, wait=True)
    with caplog.at_level(logging.WARNING):
        for seed in range(3):
            sample = sample_for(SPECS["discrete"], seed)
            algorithm.update(state, sample)
            compiling.attend(sample)
    assert compiling.done
    assert not algorithm.step.compiled
    (said,) = [record.message for record in caplog.records if "stay uncompiled" in record.message]
    assert "compiler" in said.lower()
    assert not list(tmp_path.rglob("*.so"))


def test_a_spoilt_file_in_the_cache_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm, state = made("dqn", SPECS["discrete"])
    sample = sample_for(SPECS["discrete"])
    compiling = compilation(algorithm, SPECS["discrete"], tmp_path)
    folder = tmp_path / CompileTask(algorithm.config, SPECS["discrete"], 1, sample).name
    folder.mkdir(parents=True)
    (folder / "steps.json").write_text('{"threads": 1, "steps": {}}')
    (folder / "steps.so").write_bytes(b"garbage")
    algorithm.update(state, sample)
    compiling.attend(sample)
    assert compiling.done
    assert not algorithm.step.compiled
    assert "stay uncompiled" in caplog.text


def test_a_short_run_only_takes_what_is_there(tmp_path: Path) -> None:
    algorithm, state = made("dqn", SPECS["discrete"])
    compiling = compilation(algorithm, SPECS["discrete"], tmp_path, only_cached=True)
    sample = sample_for(SPECS["discrete"])
    algorithm.update(state, sample)
    compiling.attend(sample)
    assert compiling.done
    assert not algorithm.step.compiled


def test_closing_ends_the_process(tmp_path: Path) -> None:
    algorithm, state = made("dqn", SPECS["discrete"])
    compiling = compilation(algorithm, SPECS["discrete"], tmp_path)
    sample = sample_for(SPECS["discrete"])
    algorithm.update(state, sample)
    compiling.attend(sample)
    process = compiling._process
    assert process is not None
    assert process.running
    compiling.close()
    assert not process.running


def task_of(algorithm: Any, sample: Sample) -> CompileTask:
    return CompileTask(algorithm.config, SPECS["discrete"], 1, sample)


def test_only_one_compiles_the_same_steps_and_others_take_them_from_it(tmp_path: Path) -> None:
    algorithm, state = made("dqn", SPECS["discrete"])
    sample = sample_for(SPECS["discrete"])
    task = task_of(algorithm, sample)
    folder = tmp_path / task.name
    first = CompileProcess.start(task, folder)
    assert first is not None
    assert CompileProcess.start(task, folder) is None
    algorithm.update(state, sample)
    waiting = compilation(algorithm, SPECS["discrete"], tmp_path)
    waiting.attend(sample)
    assert waiting._process is None
    assert not waiting.done
    first.wait(DEADLINE_SECONDS)
    assert first.failure is None
    first.close()
    waiting._look_at = 0.0
    waiting.attend(sample)
    assert waiting.done
    assert algorithm.step.compiled


def test_who_waits_for_a_process_that_dies_compiles_by_itself(tmp_path: Path) -> None:
    algorithm, state = made("dqn", SPECS["discrete"])
    sample = sample_for(SPECS["discrete"])
    task = task_of(algorithm, sample)
    first = CompileProcess.start(task, tmp_path / task.name)
    assert first is not None
    algorithm.update(state, sample)
    waiting = compilation(algorithm, SPECS["discrete"], tmp_path)
    waiting.attend(sample)
    assert waiting._process is None
    first.close()  # killed
    waiting._look_at = 0.0
    waiting.attend(sample)
    assert waiting._process is not None
    waiting.close()


def test_the_cache_can_be_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/repertory/steps")
