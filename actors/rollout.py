"""Environment + policy + exploration -> TransitionBatch. Knows no Ray, no gRPC and no learner."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from actors.assemblers import Assembler, NStep, Segments
from actors.stepper import Step, Stepper
from repertory.config import LearnerConfig, OffPolicyConfig, OnPolicyConfig, RunConfig
from repertory.envs import make_vector_env
from repertory.errors import CheckpointError
from repertory.parts import lookup
from repertory.protocols import Exploration, Policy
from repertory.seeding import derive_seed
from repertory.specs import EnvSpec
from repertory.types import Array, EpisodeOutcome, TransitionBatch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Collected:
    """What a stretch of acting brought."""

    batch: TransitionBatch | None  # None while every window or segment is still open
    outcomes: Sequence[EpisodeOutcome]
    env_steps: int


class Rollout:
    """Acts in every copy of a vector environment at once and assembles what it sees.

    `return_gamma` asks for `extras/discounted_return`, the running discounted sum of rewards that
    a learner which normalises rewards needs.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        spec: EnvSpec,
        policy: Policy,
        exploration: Exploration,
        assembler: Assembler,
        *,
        rng: np.random.Generator,
        policy_id: int = 0,
        random_steps: int = 0,
        return_gamma: float | None = None,
    ) -> None:
        self.policy = policy
        self.policy_version = 0
        self.env_steps = 0
        self.broken_episodes = 0  # lost because the environment broke
        self._spec = spec
        self._stepper = Stepper(env)
        self._exploration = exploration
        self._assembler = assembler
        self._rng = rng
        self._policy_id = policy_id
        self._random_steps = random_steps
        self._return_gamma = return_gamma
        copies = self._stepper.copies
        self._observation = self._stepper.reset()
        self._episode_return = np.zeros(copies, np.float64)
        self._episode_length = np.zeros(copies, np.int64)
        self._discounted_return = np.zeros(copies, np.float64)
        self._exploration.begin_episode(np.ones(copies, bool))

    def collect(self, env_steps: int) -> Collected:
        """Takes at least `env_steps` steps, counted over all copies."""
        start = self.env_steps
        batches: list[TransitionBatch] = []
        outcomes: list[EpisodeOutcome] = []
        while self.env_steps - start < env_steps:
            batch = self._step(outcomes)
            if batch is not None:
                batches.append(batch)
        joined = TransitionBatch.concatenate(batches) if batches else None
        return Collected(joined, outcomes, self.env_steps - start)

    def _step(self, outcomes: list[EpisodeOutcome]) -> TransitionBatch | None:
        observation = self._observation
        action, extras = self._choose(observation)
        step = self._stepper.step(self._spec.to_env_action(action))
        self.env_steps += int(step.valid.sum())
        self._observation = step.observation

        self._episode_return += np.where(step.valid, step.reward, 0)
        self._episode_length += step.valid
        if self._return_gamma is not None:
            running = self._return_gamma * self._discounted_return + step.reward
            self._discounted_return = np.where(step.valid, running, self._discounted_return)
            extras["discounted_return"] = self._discounted_return.astype(np.float32)

        copies = self._stepper.copies
        columns = {
            "observation": observation,
            "action": action,
            "reward": step.reward.astype(np.float32),
            "discount": np.zeros(copies, np.float32),  # the assembler knows how many steps it spans
            "next_observation": step.next_observation,
            "policy_id": np.full(copies, self._policy_id, np.int32),
            "policy_version": np.full(copies, self.policy_version, np.int64),
            **{f"extras/{name}": column for name, column in extras.items()},
        }
        if step.broken.any():
            self.broken_episodes += int(step.broken.sum())
            self._assembler.forget(step.broken)
            self._forget_episodes(step.broken)
        batch = self._assembler.add(columns, step.terminated, step.boundary, step.valid)
        if step.boundary.any():
            self._end_episodes(step, outcomes)
        return batch

    def _choose(self, observation: Array) -> tuple[Array, dict[str, Array]]:
        if self.env_steps < self._random_steps:
            return self._spec.random_actions(len(observation), self._rng), {}
        acted = self.policy.act(observation, self._rng)
        return self._exploration.explore(acted.action, self.env_steps, self._rng), dict(
            acted.extras
        )

    def _end_episodes(self, step: Step, outcomes: list[EpisodeOutcome]) -> None:
        ended = step.boundary & step.valid
        outcomes += [
            EpisodeOutcome(
                policy_id=self._policy_id,
                policy_version=self.policy_version,
                episode_return=float(self._episode_return[copy]),
                length=int(self._episode_length[copy]),
                terminated=bool(step.terminated[copy]),
                env_steps=self.env_steps,
            )
            for copy in np.flatnonzero(ended)
        ]
        self._forget_episodes(ended)

    def _forget_episodes(self, copies: Array) -> None:
        self._episode_return[copies] = 0
        self._episode_length[copies] = 0
        self._discounted_return[copies] = 0
        self._exploration.begin_episode(copies)

    def state(self) -> dict[str, Any]:
        """Everything needed to go on as if nothing had happened, running episodes included."""
        return {
            "env_steps": self.env_steps,
            "policy_version": self.policy_version,
            "rng": self._rng.bit_generator.state,
            "observation": self._observation.copy(),
            "episode_return": self._episode_return.copy(),
            "episode_length": self._episode_length.copy(),
            "discounted_return": self._discounted_return.copy(),
            "exploration": self._exploration.state(),
            "assembler": self._assembler.state(),
            "episodes": self._episode_records(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        copies = self._stepper.copies
        if len(state["observation"]) != copies:
            raise CheckpointError(
                f"the checkpoint has {len(state['observation'])} copies of the environment, "
                f"this run {copies}: set env.copies back"
            )
        self.env_steps = state["env_steps"]
        self.policy_version = state["policy_version"]
        self._rng.bit_generator.state = state["rng"]
        self._episode_return = state["episode_return"].copy()
        self._episode_length = state["episode_length"].copy()
        self._discounted_return = state["discounted_return"].copy()
        self._exploration.load_state(state["exploration"])
        self._assembler.load_state(state["assembler"])
        self._replay_episodes(state)

    def _episode_records(self) -> dict[str, Any]:
        """What is needed to replay the running episodes; nothing for a foreign vector env."""
        call = getattr(self._stepper.env, "call", None)
        records = call("episode_record") if call is not None else ()
        return {str(copy): record for copy, record in enumerate(records)}

    def _replay_episodes(self, state: Mapping[str, Any]) -> None:
        copies = self._stepper.copies
        call = getattr(self._stepper.env, "call", None)
        same = np.zeros(copies, bool)
        if call is not None and len(state["episodes"]) == copies:
            records = [state["episodes"][str(copy)] for copy in range(copies)]
            replayed = call("replay_episode", records, state["observation"])
            self._observation = np.stack([observation for observation, _ in replayed])
            same = np.array([kept for _, kept in replayed])
        if not same.all():
            lost = int((~same).sum())
            logger.warning(
                "%d of %d running episodes cannot be replayed: they begin anew", lost, copies
            )
            self._assembler.forget(~same)
            self._forget_episodes(~same)

    def close(self) -> None:
        self._stepper.env.close()


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Which of several rollout processes this is, and how often it was started."""

    index: int
    incarnation: int  # from 1


def rollout_for(
    config: RunConfig,
    learner_config: LearnerConfig,
    spec: EnvSpec,
    policy: Policy,
    worker: WorkerPlace | None = None,
) -> Rollout:
    """The rollout that a learner's settings ask for, in environments of its own.

    Each worker, and each start of it, plays episodes of its own; the first start of the first one
    plays those of a local run. A worker's environments are made anew when they break.
    """
    copies = config.env.copies
    seed = config.seed
    if worker is not None and (worker.index, worker.incarnation) != (0, 1):
        seed = derive_seed(config.seed, "worker", worker.index, worker.incarnation)
    assembler: Assembler
    if isinstance(learner_config, OffPolicyConfig):
        assembler = NStep(learner_config.n_step, learner_config.gamma)
        exploration_config = learner_config.exploration
        random_steps = learner_config.random_steps
    else:
        assert isinstance(learner_config, OnPolicyConfig)
        assembler = Segments(learner_config.segment_length, learner_config.gamma)
        exploration_config = lookup("exploration", "none").Config()
        random_steps = 0
    exploration = lookup("exploration", exploration_config.name)
    return Rollout(
        make_vector_env(
            config.env, copies=copies, seed=seed, role="rollout", guarded=worker is not None
        ),
        spec,
        policy,
        exploration(exploration_config, spec, copies),
        assembler,
        rng=np.random.default_rng(derive_seed(seed, "rollout")),
        random_steps=random_steps,
        return_gamma=learner_config.gamma if learner_config.normalize_reward else None,
    )
