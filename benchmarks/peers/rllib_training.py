"""RLlib trains: `python -m benchmarks.peers.rllib_training` in benchmarks/.venv-rllib.

The new API stack, steps and updates in turn in one process: its off-policy algorithms wait for
their samples anyway, and PPO must. TD3 is no longer part of RLlib. It imports nothing of what it
is compared with.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

import ray
import torch
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.peers.training import Narrator, TrainingJob, read_job

# Steps that are taken together before as many updates: fewer hand-overs than one by one.
FRAGMENT_STEPS = 16


def config_of(job: TrainingJob) -> Any:
    """`training_intensity` is samples replayed per step taken."""
    model = DefaultModelConfig(
        fcnet_hiddens=list(job.hidden),
        fcnet_activation="tanh" if job.on_policy else "relu",
        head_fcnet_hiddens=[],
    )
    config: Any
    shared: dict[str, Any]
    if job.on_policy:
        config = PPOConfig()  # type: ignore[no-untyped-call]
        config.training(
            lr=job.lr,
            gamma=job.gamma,
            lambda_=job.gae_lambda,
            train_batch_size_per_learner=job.iteration_steps,
            minibatch_size=job.batch,
            num_epochs=job.epochs,
            clip_param=0.2,
            vf_loss_coeff=0.5,
            entropy_coeff=0.0,
            grad_clip=0.5,
            use_kl_loss=False,
        )
        fragment: int | str = job.iteration_steps // job.copies
    else:
        buffer = {"type": "EpisodeReplayBuffer", "capacity": job.replay}
        shared = {
            "gamma": job.gamma,
            "train_batch_size_per_learner": job.batch,
            "replay_buffer_config": buffer,
            "num_steps_sampled_before_learning_starts": job.learning_starts,
            "training_intensity": job.updates_per_step * job.batch,
        }
        if job.algorithm == "sac":
            config = SACConfig()  # type: ignore[no-untyped-call]
            config.training(
                actor_lr=job.lr,
                critic_lr=job.lr,
                alpha_lr=job.lr,
                tau=0.005,
                target_entropy="auto",
                n_step=1,
                twin_q=True,
                **shared,
            )
            fragment = FRAGMENT_STEPS
        elif job.algorithm == "dqn":
            start, final, steps = job.epsilon
            config = DQNConfig()  # type: ignore[no-untyped-call]
            config.training(
                lr=job.lr,
                epsilon=[[0, start], [steps, final]],
                double_q=False,
                dueling=False,
                num_atoms=1,
                n_step=1,
                target_network_update_freq=job.train_every,
                **shared,
            )
            fragment = job.train_every
        else:
            raise SystemExit(f"RLlib {ray.__version__} has no {job.algorithm}")
    return (
        config.environment(job.env_id)
        .framework("torch")
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=job.copies,
            rollout_fragment_length=fragment,
            explore=True,
        )
        .learners(num_learners=0, num_gpus_per_learner=0)
        .rl_module(model_config=model)
        .reporting(
            min_time_s_per_iteration=0,
            min_sample_timesteps_per_iteration=0,
            min_train_timesteps_per_iteration=0,
            metrics_num_episodes_for_smoothing=5,
        )
        .debugging(seed=job.seed, log_level="ERROR")
    )


def counters_of(algorithm: Any, job: TrainingJob) -> tuple[int, int]:
    """Steps taken and updates made so far, by RLlib's own metrics."""
    steps = algorithm.metrics.peek(("env_runners", "num_env_steps_sampled_lifetime"), default=0)
    trained = algorithm.metrics.peek(
        ("learners", "default_policy", "num_module_steps_trained_lifetime"), default=0
    )
    return int(steps), int(trained) // job.batch


def main() -> None:
    narrator, job = Narrator(), read_job()
    names = ("ray", "torch", "numpy", "gymnasium", "mujoco")
    narrator.versions({name: importlib.metadata.version(name) for name in names})
    if job.threads:
        torch.set_num_threads(job.threads)
    # A Ray of its own, whatever else runs on this machine.
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    algorithm = config_of(job).build_algo()
    steps = 0
    while steps < job.steps:
        algorithm.train()
        steps, updates = counters_of(algorithm, job)
        narrator.progress(steps, updates)
    ray.shutdown()


if __name__ == "__main__":
    main()
