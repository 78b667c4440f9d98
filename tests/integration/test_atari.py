"""Real Atari games; needs the extra `atari`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repertory.api import evaluate, train
from repertory.checkpoints import CheckpointStore
from repertory.config import EnvConfig
from repertory.envs import make_env, probe
from repertory.errors import UsageError

pytest.importorskip("ale_py")

SMALL: dict[str, Any] = {
    "steps": 200,
    "env.copies": 2,
    "learner.hidden_sizes": [16],
    "learner.batch_size": 4,
    "learner.learning_starts": 60,
    "evaluation.every": 100_000,
    "evaluation.episodes": 1,
    "env.max_episode_steps": 40,
    "replay.capacity": 1000,
    "checkpoint.every": 100_000,
    "log.tensorboard": False,
}


def test_game_looks_as_in_the_literature() -> None:
    spec = probe(EnvConfig(id="ALE/MsPacman-v5"))
    assert (spec.observation_kind, spec.observation_shape) == ("pixels", (4, 84, 84))
    assert spec.observation_dtype == "|u1"
    assert spec.num_actions == 9


def test_episode_can_be_played_again_from_its_seed() -> None:
    """Sticky actions and no-op starts are random, and repeat with the seed of the episode."""
    played = []
    for _ in range(2):
        env = make_env(EnvConfig(id="ALE/MsPacman-v5"), seed=5)
        first, _ = env.reset()
        steps = [env.step(action % 9) for action in range(60)]
        played.append((first, [o for o, *_ in steps], [r for _, r, *_ in steps]))
        env.close()
    (first, observations, rewards), again = played
    np.testing.assert_array_equal(first, again[0])
    np.testing.assert_array_equal(observations, again[1])
    assert rewards == again[2]
    assert not np.array_equal(observations[0], observations[-1])


def test_limit_counts_actions_and_not_frames() -> None:
    env = make_env(EnvConfig(id="ALE/MsPacman-v5", max_episode_steps=10))
    env.reset()
    ends = [env.step(0)[3] for _ in range(10)]
    assert ends == [False] * 9 + [True]
    env.close()


def test_game_as_it_is_has_colours_and_its_own_frame_skip() -> None:
    spec = probe(EnvConfig(id="ALE/MsPacman-v5", atari=None, frame_stack=1))
    assert spec.observation_shape == (3, 210, 160)


def test_unknown_game_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"ALE/MsPackman-v5.*did you mean ALE/MsPacman-v5"):
        probe(EnvConfig(id="ALE/MsPackman-v5"))


@pytest.mark.parametrize("algo", ["dqn", "rainbow"])
def test_replay_keeps_every_frame_once(algo: str, tmp_path: Path) -> None:
    """A stack takes 28224 bytes and a frame 7056; a transition is to take about one frame."""
    run = train(
        "ALE/MsPacman-v5", algo, seed=1, run_dir=tmp_path / "run", settings=SMALL, progress=False
    )
    assert run.updates > 0
    checkpoint = CheckpointStore(tmp_path / "run" / "checkpoints").newest_valid()
    saved = sum(file.stat().st_size for file in checkpoint.path.glob("replay*"))
    assert saved / 190 < 1.1 * 7056  # n-step windows are still open at the end
    assert len(evaluate(run.run_dir, "last", episodes=1).returns) == 1


def test_ppo_takes_the_same_frames(tmp_path: Path) -> None:
    settings = {
        key: value
        for key, value in SMALL.items()
        if key not in ("learner.learning_starts", "replay.capacity")
    }
    settings |= {"learner.segment_length": 50, "learner.epochs": 1, "learner.batch_size": 50}
    run = train(
        "ALE/MsPacman-v5", "ppo", seed=1, run_dir=tmp_path / "run", settings=settings,
        progress=False,
    )  # fmt: skip
    assert run.updates > 0
