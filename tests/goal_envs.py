"""Goal environments whose every number can be told by hand, and some that break their promises.

Each is named in a config as `goal_envs:ClassName`; `tests` must be on sys.path.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Line(gym.Env[Any, Any]):
    """A place on a line, which action 1 moves on by one and action 0 leaves; the goal is place 3.

    The reward is minus the distance to the goal. Cut after `length` steps; ends at the goal.
    `observation` is [10 * episode + step], so that transitions betray their origin.
    """

    keys: ClassVar[dict[str, int]] = {"observation": 1, "achieved_goal": 1, "desired_goal": 1}

    def __init__(self, length: int = 4) -> None:
        self._length = length
        self._episode, self._step, self._place = -1, 0, 0
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Dict(
            {
                name: spaces.Box(-np.inf, np.inf, (width,), np.float64)
                for name, width in self.keys.items()
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode += 1
        self._step, self._place = 0, 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        self._place += int(action)
        here, goal = np.array([float(self._place)]), np.array([3.0])
        return (
            self._observation(),
            self._paid(here, goal),
            self._ends(here, goal),
            self._step >= self._length,
            {},
        )

    def _paid(self, here: np.ndarray, goal: np.ndarray) -> float:
        return float(self.compute_reward(here, goal, {}))

    def _ends(self, here: np.ndarray, goal: np.ndarray) -> bool:
        return bool(self.compute_terminated(here, goal, {}))

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -float(np.abs(achieved_goal - desired_goal)[0])

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> bool:
        return bool(np.array_equal(achieved_goal, desired_goal))

    def _observation(self) -> dict[str, np.ndarray]:
        values = {
            "observation": 10.0 * self._episode + self._step,
            "achieved_goal": float(self._place),
            "desired_goal": 3.0,
        }
        return {name: np.full(width, values[name]) for name, width in self.keys.items()}


class ManyAtOnce(Line):
    """Its reward is written for arrays of goals, and returns one of one for a single goal."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -np.abs(np.atleast_2d(achieved_goal) - np.atleast_2d(desired_goal))[:, 0]

    def _paid(self, here: np.ndarray, goal: np.ndarray) -> float:
        return float(self.compute_reward(here, goal, {})[0])


class EndsByItself(Line):
    """Terminates after its last step, wherever that leads, and has no compute_terminated."""

    compute_terminated = property()  # type: ignore[assignment]  # raises AttributeError

    def _ends(self, here: np.ndarray, goal: np.ndarray) -> bool:
        return self._step >= self._length


class NoReward(Line):
    compute_reward = property()  # type: ignore[assignment]

    def _paid(self, here: np.ndarray, goal: np.ndarray) -> float:
        return 0.0


class PaysMore(Line):
    """Its step has a bonus of which compute_reward knows nothing."""

    def _paid(self, here: np.ndarray, goal: np.ndarray) -> float:
        return super()._paid(here, goal) + 0.5


class EndsEarlier(Line):
    """Its step ends at place 2, of which compute_terminated knows nothing."""

    def _ends(self, here: np.ndarray, goal: np.ndarray) -> bool:
        return bool(here[0] >= 2)


class NeedsInfo(Line):
    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return super().compute_reward(achieved_goal, desired_goal, info) - info["effort"]

    def _paid(self, here: np.ndarray, goal: np.ndarray) -> float:
        return float(self.compute_reward(here, goal, {"effort": 1.0}))


class UnevenGoals(Line):
    """What is achieved has another shape than what is wanted."""

    keys: ClassVar[dict[str, int]] = {"observation": 1, "achieved_goal": 2, "desired_goal": 1}


class BreaksInTheMiddle(Line):
    """Every third episode raises in its second step; the copy that is made then counts anew."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._episode % 3 == 2 and self._step == 1:
            raise RuntimeError("the line is torn")
        return super().step(action)
