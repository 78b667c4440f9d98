"""What the study of portfolios compares: tasks with their members, and the arms on each task.

An arm is one way to spend a task's budget: a member alone (`single-NAME`), or the portfolio of all
members under one strategy. Every arm of a task has the same environment, copies, environment steps,
networks and batches.

Gradient steps are equal too, and the tables say what it came to. An off-policy member makes
`updates_per_step` of them for each environment step, an on-policy one `epochs / batch_size`: in
each task the two are the same number. In a portfolio `updates: shared` with `learner_share:
by_choice` splits the off-policy ones by how much each member acts, and those of PPO follow how much
it acts anyway.

Budgets are about twice what the better members need to learn a task, so that a portfolio has room
for what trying costs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STRATEGIES = (
    "uniform",
    "round_robin",
    "epsilon_greedy",
    "ucb",
    "thompson",
    "exp3",
    "epochal",
    "roulette",
)
# The default strategy with one setting changed.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "ucb-separate": {"learner": {"own_share": 1.0}},
    "ucb-equal": {"director": {"learner_share": "equal"}},
    "ucb-evaluation": {"director": {"score": "evaluation"}},
}
SINGLE = "single-"
# These are run first; for the others a study that is short of time has fewer seeds.
FIRST = ("uniform", "ucb", "ucb-separate")
NEVER = 1_000_000_000  # steps


@dataclass(frozen=True, slots=True)
class Task:
    """One environment, who learns on it, and the budget that every arm has."""

    name: str
    env_id: str
    copies: int
    steps: int
    evaluate_every: int
    members: Mapping[str, Mapping[str, Any]]
    episodes: int = 5  # of each member in an evaluation
    fresh_episodes: int = 30  # by which the policy taken in the end is judged
    random_episodes: int = 50
    replay_capacity: int = 50_000

    @property
    def arms(self) -> tuple[str, ...]:
        return (*(SINGLE + member for member in self.members), *STRATEGIES, *VARIANTS)

    def members_of(self, arm: str) -> tuple[str, ...]:
        return (arm.removeprefix(SINGLE),) if arm.startswith(SINGLE) else tuple(self.members)

    def gradient_steps_per_update(self, member: str) -> int:
        """Of an on-policy member: minibatches of one pass over its segments, times the passes."""
        settings = self.members[member]
        if "segment_length" not in settings:
            return 1
        rows = int(settings["segment_length"]) * self.copies
        return int(settings["epochs"]) * (rows // int(settings["batch_size"]))

    def document(self, arm: str, seed: int) -> dict[str, Any]:
        """The settings of one run, as a config file has them."""
        members = self.members_of(arm)
        change = VARIANTS.get(arm, {})
        learners = {member: dict(self.members[member]) for member in members}
        for settings in learners.values():
            if "segment_length" not in settings:
                settings |= change.get("learner", {})
        document: dict[str, Any] = {
            "env": {"id": self.env_id, "copies": self.copies},
            "steps": self.steps,
            "seed": seed,
            "learners": learners,
            "replay": {"capacity": self.replay_capacity},
            # As many episodes in all for a member alone as for the portfolio.
            "evaluation": {
                "every": self.evaluate_every,
                "episodes": self.episodes * len(self.members) // len(members),
            },
            "checkpoint": {"every": NEVER, "replay": False},
            "log": {"every": self.evaluate_every, "tensorboard": False},
        }
        if len(members) > 1:
            document["director"] = {
                "strategy": arm.partition("-")[0],
                "updates": "shared",
                "learner_share": "by_choice",
                "lease": 1,
                **change.get("director", {}),
            }
        return document


def fingerprint(document: Mapping[str, Any]) -> str:
    """Of all settings of a run: with another one it is another run."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _epsilon(final: float, steps: int) -> dict[str, Any]:
    return {
        "name": "epsilon_greedy",
        "epsilon": {"start": 1.0, "final": final, "steps": steps},
    }


_CARTPOLE_DQN = {
    "algorithm": "dqn",
    "lr": 1e-3,
    "hidden_sizes": [64, 64],
    "batch_size": 64,
    "learning_starts": 500,
    "train_every": 8,
    "updates_per_step": 0.25,
    "target_period": 100,
    "exploration": _epsilon(0.04, 4000),
}
_CARTPOLE_PPO = {
    "algorithm": "ppo",
    "lr": 1e-3,
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "segment_length": 32,
    "epochs": 8,
    "batch_size": 32,
}
_LANDER_DQN = {
    "algorithm": "dqn",
    "lr": 6.3e-4,
    "hidden_sizes": [128, 128],
    "batch_size": 64,
    "learning_starts": 1000,
    "train_every": 8,
    "updates_per_step": 0.25,
    "target_period": 250,
    "exploration": _epsilon(0.1, 8000),
}
_LANDER_PPO = {
    "algorithm": "ppo",
    "lr": 1e-3,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "segment_length": 64,
    "epochs": 8,
    "batch_size": 32,
    "entropy_coefficient": 0.01,
}
_ACTOR_CRITIC = {
    "lr": 1e-3,
    "hidden_sizes": [64, 64],
    "batch_size": 64,
    "random_steps": 500,
    "learning_starts": 500,
}


TASKS = {
    task.name: task
    for task in (
        Task(
            name="cartpole",
            env_id="CartPole-v1",
            copies=8,
            steps=30_000,
            evaluate_every=3_000,
            members={"dqn": _CARTPOLE_DQN, "ppo": _CARTPOLE_PPO},
        ),
        Task(
            name="pendulum",
            env_id="Pendulum-v1",
            copies=1,
            steps=10_000,
            evaluate_every=1_000,
            members={
                "td3": {"algorithm": "td3", "gamma": 0.98, **_ACTOR_CRITIC},
                "sac": {"algorithm": "sac", **_ACTOR_CRITIC},
            },
        ),
        Task(
            name="lunarlander",
            env_id="LunarLander-v3",
            copies=8,
            steps=60_000,
            evaluate_every=6_000,
            episodes=4,
            fresh_episodes=20,
            members={
                "dqn": _LANDER_DQN,
                "dqn-dueling": {**_LANDER_DQN, "double": True, "dueling": True},
                "ppo": _LANDER_PPO,
            },
        ),
        Task(
            name="inverted-pendulum",
            env_id="InvertedPendulum-v5",
            copies=1,
            steps=12_000,
            evaluate_every=1_000,
            members={
                "td3": {"algorithm": "td3", **_ACTOR_CRITIC},
                "sac": {"algorithm": "sac", **_ACTOR_CRITIC},
            },
        ),
        Task(
            name="cartpole-crippled",
            env_id="CartPole-v1",
            copies=8,
            steps=30_000,
            evaluate_every=3_000,
            members={
                "dqn": _CARTPOLE_DQN,
                "ppo": _CARTPOLE_PPO,
                "dqn-lr0": {**_CARTPOLE_DQN, "lr": 0.0},
            },
        ),
    )
}
