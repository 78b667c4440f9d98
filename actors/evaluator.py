"""Plays whole episodes in environments of its own, without noise and without learning anything."""

from __future__ import annotations

from typing import Any

import numpy as np

from actors.stepper import Stepper
from repertory.config import EnvConfig
from repertory.envs import Role, make_vector_env
from repertory.policy_memory import PolicyMemory
from repertory.protocols import Acting
from repertory.specs import EnvSpec

MAX_COPIES = 10
MAX_EPISODE_STEPS = 100_000


def evaluate(
    policy: Acting,
    config: EnvConfig,
    spec: EnvSpec,
    *,
    episodes: int,
    seed: int,
    role: Role = "evaluation",
    step_limit: int = MAX_EPISODE_STEPS,
) -> list[float]:
    """The returns of `episodes` episodes with the policy's deterministic action.

    Every copy plays a fixed number of episodes: taking the first to finish would favour short ones.
    Where an environment sets no limit to its episodes, `step_limit` cuts them.
    """
    copies = min(episodes, MAX_COPIES)
    quota = np.array([len(range(copy, episodes, copies)) for copy in range(copies)])
    changes: dict[str, Any] = {"vector": "sync"}
    if spec.max_episode_steps is None:
        changes["max_episode_steps"] = step_limit
    env = make_vector_env(config.model_copy(update=changes), copies=copies, seed=seed, role=role)
    try:
        stepper, memory = Stepper(env), PolicyMemory(policy)
        observation = stepper.reset()
        finished: list[list[float]] = [[] for _ in range(copies)]
        episode_return = np.zeros(copies)
        memory.begin()
        while quota.any():
            acted = memory.act(observation, None)
            step = stepper.step(spec.to_env_action(acted.action))
            observation = step.observation
            episode_return += np.where(step.valid, step.reward, 0)
            ended = step.valid & step.boundary
            for copy in np.flatnonzero(ended):
                if quota[copy]:
                    finished[copy].append(float(episode_return[copy]))
                    quota[copy] -= 1
            episode_return[ended] = 0
            memory.begin(ended | ~step.valid)
        return [value for of_copy in finished for value in of_copy]
    finally:
        env.close()
