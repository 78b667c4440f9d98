"""Torch's threads of a learner: by what its updates are made of, and one where bits count."""

from __future__ import annotations

import pytest

from repertory.config import RunConfig, resolve
from services.threads import local_threads, threads_of


def config(algo: str, env: str = "HalfCheetah-v5", **overrides: object) -> RunConfig:
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    return resolve(env, algo.split(","), overrides=dotted)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2), (3, 3), (64, 4)])
def test_large_products_at_every_step_get_the_cores(cores: int, threads: int) -> None:
    assert threads_of(config("sac"), "sac", cores) == threads


@pytest.mark.parametrize(
    "settings",
    [
        {"learner__batch_size": 32},
        {"learner__hidden_sizes": [64, 64]},
        {"learner__hidden_sizes": [256]},
        {"learner__updates_per_step": 0.25},
    ],
)
def test_small_or_rare_updates_get_one(settings: dict[str, object]) -> None:
    assert threads_of(config("sac", **settings), "sac", 2) == 1


def test_who_waits_for_the_actors_gets_one() -> None:
    assert threads_of(config("ppo"), "ppo", 8) == 1


def test_learners_share_the_cores() -> None:
    assert threads_of(config("sac,td3", learner__hidden_sizes=[256, 256]), "sac", 4) == 2


def test_what_was_asked_for_is_taken() -> None:
    assert threads_of(config("ppo", threads=3), "ppo", 2) == 3
    assert local_threads(config("sac", threads=3)) == 3


def test_a_local_run_has_one() -> None:
    assert local_threads(config("sac")) == 1
