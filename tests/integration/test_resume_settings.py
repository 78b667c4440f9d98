"""A run that goes on with other settings than it began with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from repertory.api import resume, train
from repertory.errors import CheckpointError, UsageError
from services.run_directory import RunDirectory

SETTINGS = {
    "learner.lr": 0.0,
    "learner.learning_starts": 50,
    "learner.hidden_sizes": [16],
    "evaluation.every": 1000,
    "evaluation.episodes": 1,
}


def weights(run_dir: Path) -> np.ndarray:
    checkpoint = RunDirectory.open(run_dir).checkpoints.newest_valid()
    policy = checkpoint.load("learner-dqn")["policy"]
    return np.concatenate([array.ravel() for array in policy.values()])


@pytest.fixture
def standing_still(tmp_path: Path) -> Path:
    """Of a learner that learns nothing."""
    run_dir = tmp_path / "run"
    train("CartPole-v1", "dqn", steps=200, settings=SETTINGS, run_dir=run_dir, progress=False)
    return run_dir


def test_another_learning_rate_counts_from_there_on(standing_still: Path) -> None:
    before = weights(standing_still)
    resume(standing_still, steps=300, progress=False)
    np.testing.assert_array_equal(weights(standing_still), before)
    resume(standing_still, steps=400, settings={"learner.lr": 0.01}, progress=False)
    assert np.abs(weights(standing_still) - before).max() > 0.01
    assert RunDirectory.open(standing_still).config.learners["dqn"].lr == 0.01


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"env.id": "Acrobot-v1"}, r"stays CartPole-v1"),
        ({"learners.dqn.algorithm": "c51"}, r"learners of a run that is resumed stay dqn"),
        ({"learner.lrr": 1.0}, r"did you mean learner\.lr"),
    ],
)
def test_what_a_run_is_cannot_change(
    settings: dict[str, object], words: str, standing_still: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        resume(standing_still, steps=300, settings=settings, progress=False)


def test_settings_that_do_not_fit_what_was_learned_leave_the_run_as_it_was(
    standing_still: Path,
) -> None:
    with pytest.raises(CheckpointError, match="does not fit"):
        resume(standing_still, steps=300, settings={"learner.hidden_sizes": [8]}, progress=False)
    assert resume(standing_still, steps=300, progress=False).env_steps == 300
