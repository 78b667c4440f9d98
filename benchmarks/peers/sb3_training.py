"""Stable-Baselines3 trains: `python -m benchmarks.peers.sb3_training` in benchmarks/.venv-sb3.

As its documentation and its zoo do it, with the settings of the job. The tuned settings of the zoo
that are in no job are here: Stable-Baselines3's own defaults for everything else.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN, PPO, SAC, TD3  # type: ignore[import-not-found]
from stable_baselines3.common.callbacks import (  # type: ignore[import-not-found]
    BaseCallback,
    CallbackList,
    EvalCallback,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.env_util import make_vec_env  # type: ignore[import-not-found]
from stable_baselines3.common.noise import NormalActionNoise  # type: ignore[import-not-found]
from stable_baselines3.common.vec_env import VecNormalize  # type: ignore[import-not-found]

from benchmarks.peers.training import Narrator, TrainingJob, read_job

# From the zoo's DQN on CartPole: in environment steps. With bursts of 128 updates after every 256
# steps the target is thus copied between any two bursts.
DQN_TARGET_STEPS = 10


class Telling(BaseCallback):  # type: ignore[misc]
    """Says how far it is, at each step and after each iteration."""

    def __init__(self, narrator: Narrator, job: TrainingJob) -> None:
        super().__init__()
        self._narrator = narrator
        # PPO counts epochs.
        minibatches = -(-job.iteration_steps // job.batch)
        self._factor = minibatches if job.on_policy else 1

    def _tell(self) -> None:
        self._narrator.progress(self.num_timesteps, self._factor * self.model._n_updates)

    def _on_step(self) -> bool:
        self._tell()
        return True

    def _on_rollout_start(self) -> None:
        self._tell()


class Judging(EvalCallback):  # type: ignore[misc]
    """Also says what it found."""

    def __init__(self, narrator: Narrator, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._narrator = narrator

    def _on_step(self) -> bool:
        going_on = bool(super()._on_step())
        # `last_mean_reward` stays: only a call that evaluated has a new one.
        if self.eval_freq > 0 and self.n_calls % self.eval_freq == 0:
            self._narrator.judged(self.num_timesteps, float(self.last_mean_reward))
        return going_on


def environment_of(job: TrainingJob) -> Any:
    env = make_vec_env(job.env_id, n_envs=job.copies, seed=job.seed)
    return VecNormalize(env, gamma=job.gamma) if job.normalize else env


def model_of(job: TrainingJob, env: Any) -> Any:
    shared = {
        "gamma": job.gamma,
        "batch_size": job.batch,
        "policy_kwargs": {"net_arch": list(job.hidden)},
        "seed": job.seed,
        "device": "cpu",
    }
    if job.on_policy:
        linear = job.linear_schedules
        return PPO(
            "MlpPolicy",
            env,
            learning_rate=(lambda left: job.lr * left) if linear else job.lr,
            clip_range=(lambda left: 0.2 * left) if linear else 0.2,
            n_steps=job.iteration_steps // job.copies,
            n_epochs=job.epochs,
            gae_lambda=job.gae_lambda,
            **shared,
        )
    shared |= {
        "learning_rate": job.lr,
        "buffer_size": job.replay,
        "learning_starts": job.learning_starts,
        "train_freq": max(1, job.train_every // job.copies),  # steps of each copy
        "gradient_steps": round(job.updates_per_step * job.train_every),
    }
    if job.algorithm == "dqn":
        start, final, steps = job.epsilon
        return DQN(
            "MlpPolicy",
            env,
            exploration_initial_eps=start,
            exploration_final_eps=final,
            exploration_fraction=steps / job.steps,
            target_update_interval=DQN_TARGET_STEPS,
            **shared,
        )
    if job.algorithm == "td3":
        actions = env.action_space.shape
        noise = NormalActionNoise(np.zeros(actions), np.full(actions, job.noise))
        return TD3("MlpPolicy", env, action_noise=noise, **shared)
    return SAC("MlpPolicy", env, **shared)


def main() -> None:
    narrator, job = Narrator(), read_job()
    names = ("stable-baselines3", "torch", "numpy", "gymnasium", "mujoco")
    narrator.versions({name: importlib.metadata.version(name) for name in names})
    if job.threads:
        torch.set_num_threads(job.threads)
    env = environment_of(job)
    model = model_of(job, env)
    callbacks: list[BaseCallback] = [Telling(narrator, job)]
    if job.evaluate_every:
        judged = make_vec_env(job.env_id, n_envs=1, seed=job.seed + 1000)
        if job.normalize:
            judged = VecNormalize(judged, gamma=job.gamma, training=False, norm_reward=False)
        stop = None
        if job.threshold is not None:
            stop = StopTrainingOnRewardThreshold(job.threshold)
        callbacks.append(
            Judging(
                narrator,
                judged,
                callback_on_new_best=stop,
                n_eval_episodes=job.episodes,
                eval_freq=max(1, job.evaluate_every // job.copies),
                deterministic=True,
                verbose=0,
            )
        )
    model.learn(job.steps, callback=CallbackList(callbacks))


if __name__ == "__main__":
    main()
