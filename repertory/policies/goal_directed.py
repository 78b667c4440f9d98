"""A meta-controller that sets goals and a controller that goes after them: h-DQN's policy.

    meta-controller   Q(s, g)      which goal to go after from here
    controller        Q(s, g, a)   what to do in s on the way to g

A goal holds until it is reached, or for `goal_steps` steps; then the best is set, or with
probability epsilon any. The goal in force is the policy's memory. It is recorded as `extras/goal`,
counted from 1: 0 is none, as where the policy begins and for steps that somebody else took.
`extras/beginning` marks the steps at which one was set.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from repertory.goals import FROM_ENVIRONMENT, goals_for
from repertory.policies.networks import Torso
from repertory.policies.policy import PolicyConfig, TorchPolicy
from repertory.schedule import Schedule
from repertory.specs import EnvSpec
from repertory.types import Acted, Array, ColumnSpec

NO_GOAL = 0


class Controller(nn.Module):
    """Q(s, g, .): the goal stands beside the observation as a unit vector."""

    def __init__(self, spec: EnvSpec, hidden_sizes: tuple[int, ...], goals: int) -> None:
        super().__init__()
        self._goals = goals
        self.torso = Torso(spec, hidden_sizes, extra_inputs=goals)
        self.head = nn.Linear(self.torso.features, spec.num_actions)

    def forward(self, observation: Tensor, index: Tensor) -> Tensor:
        """[B, ...] and goals from 0 [B] -> [B, actions]."""
        goal = F.one_hot(index, self._goals).to(observation.dtype)
        return self.head(self.torso(torch.cat([observation, goal], dim=-1)))  # type: ignore[no-any-return]


class MetaController(nn.Module):
    """Q(s, .) of the goals: [B, ...] -> [B, G]."""

    def __init__(self, spec: EnvSpec, hidden_sizes: tuple[int, ...], goals: int) -> None:
        super().__init__()
        self.torso = Torso(spec, hidden_sizes)
        self.head = nn.Linear(self.torso.features, goals)

    def forward(self, observation: Tensor) -> Tensor:
        return self.head(self.torso(observation))  # type: ignore[no-any-return]


class GoalDirectedPolicy(TorchPolicy):
    class Config(PolicyConfig):
        name: str = "goal_directed"
        goals: str = FROM_ENVIRONMENT
        goal_steps: int = Field(default=500, ge=1)
        goal_epsilon: Schedule = Schedule(start=1.0, final=0.1, steps=10_000)

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.extras = {"goal": ColumnSpec("<i8", ()), "beginning": ColumnSpec("|b1", ())}
        self.memory = {"goal": ColumnSpec("<i8", ()), "steps": ColumnSpec("<i8", ())}
        self.goals = goals_for(config.goals, spec)
        self._goal_steps = config.goal_steps
        self._epsilon = config.goal_epsilon
        self.controller = Controller(spec, config.hidden_sizes, self.goals.count)
        self.meta_controller = MetaController(spec, config.hidden_sizes, self.goals.count)

    def act_remembering(
        self,
        observation: Array,
        memory: Mapping[str, Array],
        env_steps: int,
        rng: np.random.Generator | None,
    ) -> tuple[Acted, dict[str, Array]]:
        with torch.inference_mode():
            seen = self.observe(observation)
            before, steps = memory["goal"], memory["steps"]
            over = self.is_reached(observation, before) | (steps >= self._goal_steps)
            beginning = over | (before == NO_GOAL)
            goal = before
            if beginning.any():
                goal = np.where(beginning, self._set_goals(seen, env_steps, rng), before)
            index = torch.from_numpy(goal - 1).to(self.device)
            action: Array = self.controller(seen, index).argmax(-1).cpu().numpy()
        taken = np.where(beginning, 0, steps) + 1
        extras = {"goal": goal, "beginning": beginning}
        return Acted(action, extras), {"goal": goal, "steps": taken}

    def act(self, observation: Array, rng: np.random.Generator | None) -> Acted:
        nothing = {name: np.zeros(len(observation), np.int64) for name in self.memory}
        return self.act_remembering(observation, nothing, self._epsilon.steps, rng)[0]

    def is_reached(self, observation: Array, goal: Array) -> Array:
        """[B] whether that is seen which each row goes after, from 1; without a goal it is not."""
        rows = np.arange(len(goal))
        own = self.goals.reached(observation)[rows, np.maximum(goal - 1, 0)]
        reached: Array = own & (goal != NO_GOAL)
        return reached

    def _set_goals(self, seen: Tensor, env_steps: int, rng: np.random.Generator | None) -> Array:
        chosen: Array = self.meta_controller(seen).argmax(-1).cpu().numpy() + 1
        if rng is None:
            return chosen
        exploring = rng.random(len(chosen)) < self._epsilon.at(env_steps)
        anyone = rng.integers(1, self.goals.count + 1, size=len(chosen))
        return np.where(exploring, anyone, chosen)
