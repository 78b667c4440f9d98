"""Runs of a few seconds for tests of what surrounds the learning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from repertory.api import RunResult, train
from repertory.checkpoints import CheckpointStore

ENVS = {
    "actor_critic": "CartPole-v1",
    "dqn": "CartPole-v1",
    "npg": "Pendulum-v1",
    "h_dqn": "repertory.environments.chain:Chain",
    "option_critic": "CartPole-v1",
    "ppo": "CartPole-v1",
    "sac": "Pendulum-v1",
    "td3": "Pendulum-v1",
    "trpo": "CartPole-v1",
    "vpg": "Pendulum-v1",
    "qr_dqn": "CartPole-v1",
    "rainbow": "CartPole-v1",
    "dqn,ppo": "CartPole-v1",
    "td3,sac,ppo": "Pendulum-v1",
    "ddpg": "Pendulum-v1",
    "sac_discrete": "CartPole-v1",
    "q_learning": "CartPole-v1",
}

# Small, and with as many parts as there are: several copies, n-step windows that a checkpoint cuts,
# noise with a memory, priorities, normalisers.
SEGMENTS: dict[str, Any] = {"learner.segment_length": 64, "learner.normalize_observation": True}
SETTINGS: dict[str, dict[str, Any]] = {
    "actor_critic": SEGMENTS,
    "dqn": {"learner.n_step": 3, "replay.sampler": "prioritized", "learner.double": True},
    "npg": SEGMENTS,
    "ppo": SEGMENTS,
    "h_dqn": {"learner.goal_steps": 20, "learner.normalize_observation": True},
    "option_critic": {"learner.normalize_observation": True},
    "td3": {"learner.exploration": "ornstein_uhlenbeck", "learner.n_step": 2},
    "sac": {"learner.normalize_observation": True, "learner.normalize_reward": True},
    "ddpg": {"learner.normalize_observation": True, "learner.exploration": "ornstein_uhlenbeck"},
    "sac_discrete": {"learner.normalize_reward": True, "replay.sampler": "prioritized"},
    "q_learning": {"learner.n_step": 3, "replay.sampler": "prioritized"},
    "trpo": SEGMENTS,
    "vpg": SEGMENTS,
    "qr_dqn": {"learner.quantiles": 5, "learner.dueling": True},
    "rainbow": {"learner.atoms": 11},  # noisy networks by its preset
}
SHARED: dict[str, Any] = {
    "steps": 1000,
    "env.copies": 2,
    "learner.hidden_sizes": [16, 16],
    "log.every": 100,
    "evaluation.every": 400,
    "evaluation.episodes": 2,
    "checkpoint.every": 300,
}
OFF_POLICY: dict[str, Any] = {
    "learner.batch_size": 16,
    "learner.random_steps": 100,
    "learner.learning_starts": 100,
    "learner.train_every": 2,
    "learner.updates_per_step": 0.25,
}

# Not a name of an algorithm: hindsight, with episodes that a checkpoint cuts.
HINDSIGHT_ENV = "repertory.environments.bit_flip:BitFlip"
HINDSIGHT: dict[str, Any] = {
    **SHARED,
    **OFF_POLICY,
    "env.kwargs.bits": 7,
    "learner.relabel": "future",
    "replay.sampler": "prioritized",
}


# Portfolios: several tables, hand-overs within episodes, learner time by choice.
SETTINGS["dqn,ppo"] = {
    **{key.replace("learner.", "learners.dqn."): value for key, value in OFF_POLICY.items()},
    "learners.dqn.n_step": 3,
    "learners.ppo.segment_length": 16,
    "director.strategy": "thompson",
    "director.switch_every": 7,
    "director.learner_share": "by_choice",
    "director.updates": "shared",
}
SETTINGS["td3,sac,ppo"] = {
    **{key.replace("learner.", "learners.td3."): value for key, value in OFF_POLICY.items()},
    **{key.replace("learner.", "learners.sac."): value for key, value in OFF_POLICY.items()},
    "env.max_episode_steps": 25,
    "learners.td3.gamma": 0.9,
    "learners.td3.max_age": 20,
    "learners.ppo.segment_length": 16,
    "director.strategy": "exp3",
}


def settings(algo: str, **changes: Any) -> dict[str, Any]:
    alone = algo in SETTINGS and "," not in algo
    off_policy = OFF_POLICY if alone and SETTINGS[algo] is not SEGMENTS else {}
    return {**SHARED, **off_policy, **SETTINGS[algo], **changes}


def small_run(algo: str, run_dir: Path, seed: int = 3, **changes: Any) -> RunResult:
    return train(
        ENVS[algo],
        algo,
        seed=seed,
        run_dir=run_dir,
        settings=settings(algo, **changes),
        progress=False,
    )


def timeless_metrics(run_dir: Path) -> list[dict[str, float]]:
    """The rows of metrics.jsonl without what depends on the clock."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [
        {
            name: value
            for name, value in row.items()
            if not name.startswith("time/") and name != "charts/SPS"
        }
        for row in rows
    ]


def final_weights(run_dir: Path, sections: str = "learner-*") -> dict[str, np.ndarray]:
    """Every array of these sections of the last checkpoint; by default those of the learners:
    networks, targets, optimisers, generators.
    """
    checkpoint = CheckpointStore(run_dir / "checkpoints").newest_valid()
    flat: dict[str, np.ndarray] = {}

    def walk(tree: Any, path: str) -> None:
        if isinstance(tree, dict):
            for key, value in tree.items():
                walk(value, f"{path}/{key}")
        elif isinstance(tree, np.ndarray):
            flat[path] = tree

    for file in sorted(checkpoint.path.glob(f"{sections}.json")):
        walk(checkpoint.load(file.stem), file.stem)
    assert flat
    return flat
