"""Whole runs by the presets, through the command line's own path, judged by fresh episodes.

The protocol: the best policy by evaluated mean, 20 episodes with seeds of their own. One seed in
`make test`; two of the seeds 1, 2, 3 in `make test-all`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from repertory.api import evaluate, train
from repertory.envs import make_env
from repertory.policy_memory import PolicyMemory
from services.run_policy import load_card

# (algorithm, environment, environment steps, the return to reach)
TASKS = [
    ("dqn", "CartPole-v1", 50_000, 450),
    ("ppo", "CartPole-v1", 100_000, 450),
]
# About a minute for each seed: in `make test-all` only.
MINUTE_TASKS = [
    ("sac", "Pendulum-v1", 15_000, -200),
    ("td3", "Pendulum-v1", 15_000, -200),
    ("ddpg", "Pendulum-v1", 15_000, -200),
    ("sac_discrete", "CartPole-v1", 10_000, 170),
    ("q_learning", "CartPole-v1", 20_000, 150),
    ("vpg", "CartPole-v1", 50_000, 400),
    ("trpo", "CartPole-v1", 50_000, 400),
    ("npg", "CartPole-v1", 50_000, 400),
    ("actor_critic", "CartPole-v1", 50_000, 180),
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
@pytest.mark.parametrize(("algo", "env", "steps", "threshold"), [*TASKS, *MINUTE_TASKS])
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


def reached_goals(relabel: str | None, run_dir: Path) -> float:
    """The share of 50 bit-flip goals of 15 bits that the best policy of DQN's preset reaches."""
    env = "repertory.environments.bit_flip:BitFlip"
    settings = {"learner.relabel": relabel, "steps": 4000}
    train(env, "dqn", seed=1, run_dir=run_dir, settings=settings, progress=False)
    returns = evaluate(run_dir, "best", episodes=50).returns
    return sum(value > -15 for value in returns) / len(returns)


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.timeout(1200)
def test_hindsight_reaches_goals_of_fifteen_bits(tmp_path: Path) -> None:
    assert reached_goals("future", tmp_path / "run") >= 0.9


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.timeout(1200)
def test_without_hindsight_goals_of_fifteen_bits_are_not_reached(tmp_path: Path) -> None:
    assert reached_goals(None, tmp_path / "run") <= 0.1


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


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.timeout(1200)
def test_option_critic_learns_cartpole_with_more_than_one_option(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert learned_return("option_critic", "CartPole-v1", 30_000, 1, run) >= 150
    card = load_card(run, "best")
    memory, env = PolicyMemory(card.build()), make_env(card.env_config, seed=9, role="play")
    options = []
    for _ in range(5):
        observation, _ = env.reset()
        memory.begin()
        ended = False
        while not ended:
            acted = memory.act(observation[None], None)
            options.append(int(acted.extras["option"][0]))
            action = card.spec.to_env_action(acted.action)[0]
            observation, _, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
    shares = np.bincount(options) / len(options)
    assert (shares > 0.05).sum() >= 2, shares


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.timeout(1200)
def test_h_dqn_finds_the_detour_of_its_chain(tmp_path: Path) -> None:
    """The optimum is .208, uniform play .018. Of 2000 returns that are 1 or .01, and 1 in a fifth,
    the mean is off by .009: the threshold is some ten of these below the optimum.
    """
    run = tmp_path / "run"
    train("repertory.environments.chain:Chain", "h_dqn", seed=1, run_dir=run, progress=False)
    assert evaluate(run, "last", episodes=2000).mean_return >= 0.12
