"""Plays whole episodes in environments of its own, without noise and without learning anything."""

from __future__ import annotations

import numpy as np

from actors.stepper import Stepper
from repertory.config import EnvConfig
from repertory.envs import Role, make_vector_env
from repertory.protocols import Policy
from repertory.specs import EnvSpec

MAX_COPIES = 10


def evaluate(
    policy: Policy,
    config: EnvConfig,
    spec: EnvSpec,
    *,
    episodes: int,
    seed: int,
    role: Role = "evaluation",
    max_steps_per_episode: int = 1_000_000,
) -> list[float]:
    """The returns of `episodes` episodes with the policy's deterministic action.

    Every copy plays a fixed number of episodes: taking the first to finish would favour short ones.
    """
    copies = min(episodes, MAX_COPIES)
    quota = np.array([len(range(copy, episodes, copies)) for copy in range(copies)])
    env = make_vector_env(
        config.model_copy(update={"vector": "sync"}), copies=copies, seed=seed, role=role
    )
    try:
        stepper = Stepper(env)
        observation = stepper.reset()
        finished: list[list[float]] = [[] for _ in range(copies)]
        episode_return, length = np.zeros(copies), np.zeros(copies, np.int64)
        while quota.any():
            acted = policy.act(observation, None)
            step = stepper.step(spec.to_env_action(acted.action))
            observation = step.observation
            episode_return += np.where(step.valid, step.reward, 0)
            length += step.valid
            ended = step.valid & (step.boundary | (length >= max_steps_per_episode))
            for copy in np.flatnonzero(ended):
                if quota[copy]:
                    finished[copy].append(float(episode_return[copy]))
                    quota[copy] -= 1
            episode_return[ended], length[ended] = 0, 0
        return [value for of_copy in finished for value in of_copy]
    finally:
        env.close()
