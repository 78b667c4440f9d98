"""Whole runs by the presets, through the command line's own path, judged by fresh episodes.

The protocol: the best policy by evaluated mean, 20 episodes with seeds of their own. One seed in
`make test`; two of the seeds 1, 2, 3 in `make test-all`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from repertory.api import evaluate, train

# (algorithm, environment, environment steps, the return to reach)
TASKS = [
    ("sac", "Pendulum-v1", 15_000, -200),
    ("td3", "Pendulum-v1", 15_000, -200),
    ("dqn", "CartPole-v1", 50_000, 450),
    ("ppo", "CartPole-v1", 100_000, 450),
]
# Without a target network Q runs away at the preset's pace: small steps, a small network.
ONE_NETWORK = {
    "learner.target_network": False,
    "learner.lr": 1e-4,
    "learner.hidden_sizes": [64, 64],
    "learner.train_every": 4,
    "learner.loss": "squared",
}
LONG_TASKS = [
    ("td3", "HalfCheetah-v5", 50_000, 2500),
    ("sac", "HalfCheetah-v5", 50_000, 2500),
]


def learned_return(algo: str, env: str, steps: int, seed: int, run_dir: Path) -> float:
    result = train(env, algo, steps=steps, seed=seed, run_dir=run_dir, progress=False)
    return evaluate(result.run_dir, "best", episodes=20).mean_return


@pytest.mark.learning
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("algo", "env", "steps", "threshold"), TASKS)
def test_one_seed_reaches_the_threshold(
    algo: str, env: str, steps: int, threshold: float, tmp_path: Path
) -> None:
    assert learned_return(algo, env, steps, 1, tmp_path / "run") >= threshold


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("algo", "env", "steps", "threshold"), TASKS)
def test_two_of_three_seeds_reach_the_threshold(
    algo: str, env: str, steps: int, threshold: float, tmp_path: Path
) -> None:
    returns = [learned_return(algo, env, steps, seed, tmp_path / str(seed)) for seed in (1, 2, 3)]
    assert sum(value >= threshold for value in returns) >= 2, returns


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("algo", "env", "steps", "threshold"), LONG_TASKS)
def test_a_locomotion_task_is_learned(
    algo: str, env: str, steps: int, threshold: float, tmp_path: Path
) -> None:
    assert learned_return(algo, env, steps, 1, tmp_path / "run") >= threshold


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("switches", "threshold"),
    [
        # 397 was measured with these settings, 386 and 389 with two others: the weakest of them.
        (ONE_NETWORK, 350),
        ({"learner.double": True}, 400),
        ({"learner.dueling": True, "learner.double": True}, 400),
        ({"learner.n_step": 3}, 400),
        ({"replay.sampler": "prioritized"}, 400),
    ],
    ids=["one network", "double", "double and dueling", "three steps", "prioritised"],
)
def test_every_dqn_variant_learns_cartpole(
    switches: dict[str, object], threshold: float, tmp_path: Path
) -> None:
    result = train(
        "CartPole-v1", "dqn", seed=1, run_dir=tmp_path / "run", settings=switches, progress=False
    )
    assert evaluate(result.run_dir, "best", episodes=20).mean_return >= threshold


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("algo", ["c51", "qr_dqn", "rainbow"])
def test_distributional_variants_learn_cartpole(algo: str, tmp_path: Path) -> None:
    assert learned_return(algo, "CartPole-v1", 50_000, 1, tmp_path / "run") >= 400


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.timeout(1200)
def test_full_batch_ppo_learns_cartpole(tmp_path: Path) -> None:
    settings = {
        "learner.mode": "full_batch", "learner.lr": 3e-4, "learner.segment_length": 500,
        "learner.gamma": 0.99, "learner.gae_lambda": 0.97,
    }  # fmt: skip
    result = train(
        "CartPole-v1", "ppo", seed=1, run_dir=tmp_path / "run", settings=settings, progress=False
    )
    assert evaluate(result.run_dir, "best", episodes=20).mean_return >= 400
