"""Which learners get compiled steps, and which of them are worth a compiler."""

from __future__ import annotations

import pytest
import torch

from repertory.config import EnvConfig, RunConfig, resolve
from repertory.envs import probe
from repertory.parts import lookup
from services.step_compilation import StepCompilation, compilation_for

SPEC = probe(EnvConfig(id="CartPole-v1"))


def made(algo: str, *, local: bool = False, **overrides: object) -> StepCompilation | None:
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    config: RunConfig = resolve("CartPole-v1", [algo], overrides=dotted)
    own = config.learners[algo]
    algorithm = lookup("algorithm", algo)(own, device=torch.device("cpu"), seed=0)
    return compilation_for(config, algo, algorithm, SPEC, local=local)


def test_a_local_run_is_compiled_only_where_that_is_asked_for() -> None:
    assert made("dqn", local=True) is None
    asked = made("dqn", local=True, compile=True)
    assert asked is not None
    assert asked._wait


def test_nothing_is_compiled_where_it_is_switched_off_or_shared() -> None:
    assert made("dqn", compile=False) is None
    assert made("dqn", topology__replicas=2) is None


@pytest.mark.parametrize(
    ("algo", "settings", "short"),
    [
        ("dqn", {"steps": 4_000, "learner__updates_per_step": 0.5}, False),
        ("dqn", {"steps": 3_999, "learner__updates_per_step": 0.5}, True),
        ("ppo", {"steps": 12_800, "learner__epochs": 10, "learner__batch_size": 64}, False),
        ("ppo", {"steps": 12_799, "learner__epochs": 10, "learner__batch_size": 64}, True),
    ],
)
def test_a_short_run_starts_no_compiler(
    algo: str, settings: dict[str, object], short: bool
) -> None:
    compilation = made(algo, **settings)
    assert compilation is not None
    assert compilation._only_cached == short


def test_who_asked_for_it_gets_it_in_a_short_run_too() -> None:
    compilation = made("dqn", steps=100, compile=True)
    assert compilation is not None
    assert not compilation._only_cached
    assert not compilation._wait, "a supervisor would take the learner for dead"


def test_an_algorithm_without_steps_has_nothing_to_do() -> None:
    compilation = made("q_learning", learner__low=[-3, -3, -1, -3], learner__high=[3, 3, 1, 3])
    assert compilation is not None
    assert compilation.done
