"""What is trained in `benchmarks.end_to_end`: the same settings for all systems. Pure data.

`throughput`: as fast as it goes, at equal updates per step. `time_to_threshold`: until an
evaluation reaches a return, by the settings of Stable-Baselines3's zoo. `returns`: what is reached
after equal steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from benchmarks.peers.training import TrainingJob

# `repertory_first` is the first run of its kind on a machine, which finds no compiled steps.
# `sb3_vector` is Stable-Baselines3 with as many copies of the environment as ours has in all.
System = Literal["repertory", "repertory_first", "repertory_local", "sb3", "sb3_vector", "rllib"]
OURS: tuple[System, ...] = ("repertory", "repertory_first", "repertory_local")
DISTRIBUTED: tuple[System, ...] = ("repertory", "repertory_first")
Part = Literal["throughput", "time_to_threshold", "returns"]
CaseName = Literal["td3", "sac", "dqn", "ppo"]
CASES: tuple[CaseName, ...] = ("td3", "sac", "dqn", "ppo")
NEVER = 1_000_000_000  # steps: a throughput run is ended from outside

CHEETAH = "HalfCheetah-v5"
TD3 = TrainingJob("td3", CHEETAH, (256, 256), batch=256, lr=1e-3, steps=NEVER, replay=100_000)
SAC = TrainingJob("sac", CHEETAH, (256, 256), batch=256, lr=3e-4, steps=NEVER, replay=100_000)
DQN = TrainingJob(
    "dqn", "CartPole-v1", (256, 256), batch=64, lr=2.3e-3, steps=50_000, replay=100_000,
    train_every=256, updates_per_step=0.5,
)  # fmt: skip
PPO = TrainingJob("ppo", CHEETAH, (64, 64), batch=64, lr=3e-4, steps=NEVER)

JOBS: Mapping[Part, Mapping[CaseName, TrainingJob]] = {
    "throughput": {"td3": TD3, "sac": SAC, "dqn": replace(DQN, steps=NEVER), "ppo": PPO},
    "time_to_threshold": {
        "td3": TrainingJob(
            "td3", "Pendulum-v1", (400, 300), batch=256, lr=1e-3, gamma=0.98, steps=20_000,
            replay=200_000, learning_starts=10_000, evaluate_every=1000, threshold=-200.0,
        ),
        "sac": TrainingJob(
            "sac", "Pendulum-v1", (256, 256), batch=256, lr=1e-3, steps=20_000,
            replay=20_000, learning_starts=100, evaluate_every=1000, threshold=-200.0,
        ),
        "dqn": replace(DQN, evaluate_every=2500, threshold=475.0),
        "ppo": TrainingJob(
            "ppo", "CartPole-v1", (64, 64), batch=256, lr=1e-3, gamma=0.98, steps=100_000,
            copies=8, iteration_steps=256, epochs=20, gae_lambda=0.8, linear_schedules=True,
            evaluate_every=2500, threshold=475.0,
        ),
    },
    "returns": {
        "td3": replace(TD3, steps=20_000, evaluate_every=20_000),
        "sac": replace(SAC, steps=20_000, evaluate_every=20_000),
        "dqn": replace(DQN, evaluate_every=50_000),
        "ppo": replace(PPO, steps=20_480, evaluate_every=20_480, normalize=True),
    },
}  # fmt: skip

SYSTEMS: Mapping[Part, tuple[System, ...]] = {
    "throughput": ("repertory", "sb3", "sb3_vector", "rllib"),
    "time_to_threshold": ("repertory", "repertory_first", "repertory_local", "sb3"),
    "returns": ("repertory", "sb3"),
}


def systems_of(part: Part, case: CaseName) -> tuple[System, ...]:
    """Those that can."""
    absent: set[System] = set()
    if case == "td3":
        absent.add("rllib")  # it no longer has TD3
    if LAYOUTS[case].all_copies == 1:
        absent.add("sb3_vector")  # it would be the same as `sb3`
    if part == "time_to_threshold":  # a few seconds of work are not what a fleet is for
        absent.update(DISTRIBUTED if case == "ppo" else {"repertory_local"})
    return tuple(system for system in SYSTEMS[part] if system not in absent)


@dataclass(frozen=True)
class Layout:
    """How a distributed run of ours is laid out."""

    actors: int = 1
    copies: int = 1

    @property
    def all_copies(self) -> int:
        return self.actors * self.copies


# PPO's 2048 steps are split over actors and copies.
LAYOUTS: Mapping[CaseName, Layout] = {
    "td3": Layout(),
    "sac": Layout(),
    "dqn": Layout(copies=4),
    "ppo": Layout(actors=2, copies=8),
}


def our_settings(job: TrainingJob, layout: Layout | None) -> dict[str, Any]:
    """Dotted keys as `--set` takes them; without a layout for `--local`."""
    copies = job.copies if layout is None else layout.copies
    settings: dict[str, Any] = {
        "threads": job.threads or "auto",
        "device": "cpu",
        "env.copies": copies,
        "replay.capacity": job.replay,
        "learner.lr": job.lr,
        "learner.gamma": job.gamma,
        "learner.hidden_sizes": list(job.hidden),
        "learner.batch_size": job.batch,
        "evaluation.every": job.evaluate_every or NEVER,
        "evaluation.episodes": job.episodes if job.evaluate_every else 1,
        "checkpoint.every": NEVER,
        "checkpoint.replay": False,
        "log.every": 250,
        "log.tensorboard": False,
    }
    if layout is not None:
        settings |= {"topology.actors": layout.actors, "topology.shards": 1, "log.dashboard": False}
    if job.on_policy:
        parts = copies * (1 if layout is None else layout.actors)
        settings |= {
            "learner.segment_length": job.iteration_steps // parts,
            "learner.epochs": job.epochs,
            "learner.gae_lambda": job.gae_lambda,
            "learner.normalize_observation": job.normalize,
            "learner.normalize_reward": job.normalize,
        }
        return settings
    settings |= {
        "learner.learning_starts": job.learning_starts,
        "learner.train_every": job.train_every,
        "learner.updates_per_step": job.updates_per_step,
    }
    if job.algorithm == "dqn":
        start, final, steps = job.epsilon
        # Stable-Baselines3's target is copied between any two bursts.
        settings["learner.target_period"] = round(job.train_every * job.updates_per_step)
        settings["learner.exploration"] = {
            "name": "epsilon_greedy",
            "epsilon": {"start": start, "final": final, "steps": steps},
        }
    else:
        settings["learner.random_steps"] = job.learning_starts
    if job.algorithm == "td3":
        settings["learner.exploration"] = {"name": "gaussian", "std": {"start": job.noise}}
    return settings
