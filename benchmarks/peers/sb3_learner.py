"""Stable-Baselines3's learners: `python -m benchmarks.peers.sb3_learner` in benchmarks/.venv-sb3.

Its own `train` on its own buffer, which is filled without an environment. It imports nothing of
what it is compared with.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import DQN, PPO, SAC, TD3  # type: ignore[import-not-found]
from stable_baselines3.common.logger import Logger  # type: ignore[import-not-found]

from benchmarks.peers.updates import UpdateJob, Updates, answer_updates, transitions

UPDATES_AT_ONCE = 5
OFF_POLICY = {"td3": TD3, "sac": SAC, "dqn": DQN}
QUIET = Logger(folder=None, output_formats=[])


class OffPolicyUpdates:
    def __init__(self, job: UpdateJob) -> None:
        self._batch = job.batch
        env = gym.make(job.env_id)
        self._model: Any = OFF_POLICY[job.algorithm](
            "MlpPolicy",
            env,
            buffer_size=job.items,
            batch_size=job.batch,
            policy_kwargs={"net_arch": list(job.hidden)},
            device="cpu",
            seed=0,
            **job.settings,
        )
        self._model.set_logger(QUIET)
        made, buffer = transitions(job), self._model.replay_buffer
        buffer.observations[:] = made.observation[:, None]
        buffer.next_observations[:] = made.next_observation[:, None]
        buffer.actions[:] = made.action.reshape(job.items, 1, -1)
        buffer.rewards[:] = made.reward[:, None]
        buffer.dones[:] = made.terminated[:, None]
        buffer.full = True

    def run(self) -> int:
        self._model.train(gradient_steps=UPDATES_AT_ONCE, batch_size=self._batch)
        return UPDATES_AT_ONCE


class PPOUpdates:
    """An iteration is advantages, then epochs of minibatches.

    Values and log probabilities are there, since collecting has made them.
    """

    def __init__(self, job: UpdateJob) -> None:
        self._job = job
        self._model: Any = PPO(
            "MlpPolicy",
            gym.make(job.env_id),
            n_steps=job.items,
            batch_size=job.batch,
            n_epochs=job.epochs,
            policy_kwargs={"net_arch": list(job.hidden)},
            device="cpu",
            seed=0,
            **job.settings,
        )
        self._model.set_logger(QUIET)
        self._made = transitions(job)

    def run(self) -> int:
        job, made, buffer = self._job, self._made, self._model.rollout_buffer
        buffer.reset()
        buffer.observations[:] = made.observation[:, None]
        buffer.actions[:] = made.action.reshape(job.items, 1, -1)
        buffer.rewards[:] = made.reward[:, None]
        buffer.episode_starts[1:] = made.terminated[:-1, None]
        buffer.log_probs[:] = -6.5
        buffer.full = True
        buffer.compute_returns_and_advantage(torch.zeros(1), np.zeros(1))
        self._model.train()
        return job.epochs * -(-job.items // job.batch)


def build(job: UpdateJob) -> Updates:
    torch.set_num_threads(job.threads)
    return PPOUpdates(job) if job.on_policy else OffPolicyUpdates(job)


def versions() -> dict[str, str]:
    names = ("stable-baselines3", "torch", "numpy", "gymnasium", "mujoco")
    return {name: importlib.metadata.version(name) for name in names}


if __name__ == "__main__":
    answer_updates(build, versions)
