"""Steps that are compiled while a run starts are those that its learners look for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed_runs import Train

from repertory.config import EnvConfig, RunConfig, resolve
from repertory.envs import probe
from services.compile_process import CACHE_VARIABLE
from services.early_compilation import EarlyCompilation

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    return folder


@pytest.fixture
def train(tmp_path: Path, cache: Path) -> Iterator[Train]:
    made = Train(tmp_path)
    yield made
    made.end()


def looked_for(cache: Path) -> list[str]:
    """Everything that anybody has begun to compile."""
    return sorted(path.name.partition("-")[0] for path in cache.glob("*.lock"))


def test_a_learner_takes_what_was_compiled_before_it_was_there(train: Train, cache: Path) -> None:
    train.start(
        "train", "CartPole-v1", "--algo", "dqn,sac_discrete", "--steps", "6000",
        "--run-dir", str(train.run_dir), "--set", "compile=true",
        "--set", "learner.hidden_sizes=[16,16]", "--set", "learner.normalize_reward=true",
        "--set", "evaluation.episodes=1", "--set", "evaluation.every=1000000",
    )  # fmt: skip
    train.finish()
    # Another name, and it would not have been found: the learner would have made its own.
    assert looked_for(cache) == ["dqn", "sac_discrete"]
    logs = {path.name: path.read_text() for path in (train.run_dir / "logs").iterdir()}
    for algo in ("dqn", "sac_discrete"):
        assert any(f"the steps of {algo} are compiled now" in text for text in logs.values())


def begun(config: RunConfig, cache: Path) -> list[str]:
    with EarlyCompilation(config, probe(EnvConfig(id="CartPole-v1"))) as early:
        assert len(early.processes) == len(looked_for(cache))
    assert not any(process.running for process in early.processes)
    return looked_for(cache)


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("dqn", {"compile": False}),
        ("dqn", {"steps": 100}),
        ("dqn", {"topology.replicas": 2}),
        ("ppo", {}),
        ("option_critic", {}),
    ],
    ids=["switched off", "short", "replicas", "segments", "more than transitions"],
)
def test_what_is_not_compiled_early(algo: str, settings: dict[str, object], cache: Path) -> None:
    config = resolve("CartPole-v1", [algo], overrides={"steps": 100_000, **settings})
    assert begun(config, cache) == []


def test_it_ends_with_the_run_and_nobody_else_is_kept_from_it(cache: Path) -> None:
    config = resolve("CartPole-v1", ["dqn"], overrides={"steps": 100_000})
    for _ in range(2):
        assert begun(config, cache) == ["dqn"]
    assert not [
        name
        for name in os.listdir(cache)
        if not name.endswith(".lock") and not name.startswith("known-")
    ]
