"""The bit-flip environment of Hindsight Experience Replay (arXiv 1707.01495, section 3.1).

A state is n bits, an action flips one of them, and the goal is another pattern. The reward is -1
until the state is the goal: with n = 15 a random walk meets one of 32767 goals once in a lifetime,
and nothing tells good actions from bad ones. An episode ends at the goal, or is cut after n steps.

    repertory train repertory.environments.bit_flip:BitFlip --algo dqn --set env.kwargs.bits=15

An episode reached its goal where its return is above -n.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from repertory.errors import UsageError
from repertory.types import Array

CELL_PIXELS = 16


class BitFlip(gym.Env[Any, Any]):
    """Observations are dicts: `observation` and `achieved_goal` are the state, `desired_goal`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, bits: int = 15, render_mode: str | None = None) -> None:
        if bits < 1:
            raise UsageError(f"env.kwargs.bits = {bits} is refused: give at least 1")
        self.render_mode = render_mode
        self._bits = bits
        self._state = np.zeros(bits, np.int8)
        self._goal = np.ones(bits, np.int8)
        self._steps = 0
        self.action_space = spaces.Discrete(bits)
        self.observation_space = spaces.Dict(
            {
                "observation": spaces.MultiBinary(bits),
                "achieved_goal": spaces.MultiBinary(bits),
                "desired_goal": spaces.MultiBinary(bits),
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._state = self.np_random.integers(2, size=self._bits, dtype=np.int8)
        self._goal = self._state.copy()
        while np.array_equal(self._goal, self._state):
            self._goal = self.np_random.integers(2, size=self._bits, dtype=np.int8)
        return self._observation(), {}

    def step(self, action: int) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        self._state[action] = 1 - self._state[action]
        self._steps += 1
        reached = self.compute_terminated(self._state, self._goal, {})
        reward = self.compute_reward(self._state, self._goal, {})
        return (
            self._observation(),
            reward,
            reached,
            self._steps >= self._bits,
            {"is_success": reached},
        )

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> float:
        return 0.0 if self.compute_terminated(achieved_goal, desired_goal, info) else -1.0

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any) -> bool:
        return bool(np.array_equal(achieved_goal, desired_goal))

    def render(self) -> Array | None:
        """The state above, the goal below."""
        if self.render_mode is None:
            return None
        cells = np.stack([self._state, self._goal]).astype(np.uint8) * 255
        image = np.kron(cells, np.ones((CELL_PIXELS, CELL_PIXELS), np.uint8))
        return np.repeat(image[:, :, None], 3, axis=2)

    def _observation(self) -> dict[str, Array]:
        return {
            "observation": self._state.copy(),
            "achieved_goal": self._state.copy(),
            "desired_goal": self._goal.copy(),
        }
