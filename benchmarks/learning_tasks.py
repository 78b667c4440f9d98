"""What the table of learning results has: an algorithm, an environment, a budget, who else did it.

Budgets are for a CPU, a minute or a few for each seed. All settings are the presets, unless said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class LearningTask:
    algorithm: str
    env_id: str
    steps: int
    elsewhere: str = ""  # a published number, with its own budget
    episodes: int = 20  # fresh ones, by which the best policy is judged
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        short = self.env_id.rpartition(":")[2]
        return f"{self.algorithm}-{short}-{self.steps}"


CARTPOLE, PENDULUM, CHEETAH = "CartPole-v1", "Pendulum-v1", "HalfCheetah-v5"
CHAIN = "repertory.environments.chain:Chain"
ZOO = "RL Baselines3 Zoo"

TASKS = (
    LearningTask("dqn", CARTPOLE, 50_000, f"500 at 50k ({ZOO})"),
    LearningTask("c51", CARTPOLE, 50_000),
    LearningTask("qr_dqn", CARTPOLE, 50_000, f"500 at 50k ({ZOO})"),
    LearningTask("rainbow", CARTPOLE, 50_000),
    LearningTask("sac_discrete", CARTPOLE, 10_000),
    LearningTask("q_learning", CARTPOLE, 20_000),
    LearningTask("option_critic", CARTPOLE, 30_000),
    # Returns are 1 or .01: few episodes tell nothing.
    LearningTask("h_dqn", CHAIN, 20_000, "0.12 to 0.13 (arXiv 1604.06057)", episodes=500),
    LearningTask("ppo", CARTPOLE, 100_000, f"500 at 100k ({ZOO})"),
    LearningTask("vpg", CARTPOLE, 50_000),
    LearningTask("npg", CARTPOLE, 50_000),
    LearningTask("trpo", CARTPOLE, 50_000, f"500 at 100k ({ZOO})"),
    LearningTask("actor_critic", CARTPOLE, 50_000),
    LearningTask("td3", PENDULUM, 15_000, f"-152 at 20k ({ZOO})"),
    LearningTask("sac", PENDULUM, 15_000, f"-157 at 20k ({ZOO})"),
    LearningTask("ddpg", PENDULUM, 15_000, f"-152 at 20k ({ZOO})"),
    LearningTask("trpo", PENDULUM, 100_000, f"-175 at 100k ({ZOO})"),
    LearningTask("td3", "InvertedDoublePendulum-v5", 25_000),
    LearningTask("ppo", "LunarLander-v3", 100_000, f"242 at 1M ({ZOO})"),
    LearningTask("dqn", "LunarLander-v3", 100_000, f"154 at 100k ({ZOO})"),
    LearningTask("td3", CHEETAH, 50_000, "3352, mean of the authors' ten seeds on v1"),
    LearningTask("sac", CHEETAH, 50_000),
)
