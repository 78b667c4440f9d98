"""The thresholds of `test_learning`, reached by runs that are spread over processes.

Two actors and two shards each; the best policy by evaluated mean, 20 episodes of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from repertory.api import evaluate

# (algorithm, environment, environment steps, the return to reach)
TASKS = [
    ("dqn", "CartPole-v1", 50_000, 450),
    ("ppo", "CartPole-v1", 100_000, 450),
    ("td3", "Pendulum-v1", 15_000, -200),
    ("sac", "Pendulum-v1", 15_000, -200),
]


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("algo", "env", "steps", "threshold"), TASKS)
def test_a_distributed_run_reaches_the_threshold(
    algo: str, env: str, steps: int, threshold: float, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    command = [
        sys.executable, "-m", "services.cli", "train", env, "--algo", algo, "--seed", "1",
        "--steps", str(steps), "--actors", "2", "--shards", "2", "--run-dir", str(run_dir),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700, check=False)
    assert done.returncode == 0, done.stderr
    assert evaluate(run_dir, "best", episodes=20).mean_return >= threshold
