"""Tiny environments whose right answer is known, for unit tests and learning probes.

Every class is named in a config as `probes:ClassName` with its settings under `env.kwargs`; `tests`
must be on sys.path. P1 to P8 each add one thing that a learner can get wrong.

Where a probe shows a number x, it is a vector [x], or with `pixels=True` a grey image [H, W, 1] of
brightness (x + 1) / 2.
"""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Actions = Literal["discrete", "continuous"]
StepResult = tuple[Any, float, bool, bool, dict[str, Any]]

SMALLEST_IMAGE = 36  # the convolutions of Mnih et al. (2015) need as much


class Probe(gym.Env[Any, Any]):
    """Shows one number in [-1, 1]; two actions, or one in [-1, 1]."""

    def __init__(
        self, *, actions: Actions = "discrete", pixels: bool = False, size: int = SMALLEST_IMAGE
    ) -> None:
        self._pixels = pixels
        self._size = size
        self._discrete = actions == "discrete"
        self.action_space = (
            spaces.Discrete(2) if self._discrete else spaces.Box(-1.0, 1.0, (1,), np.float32)
        )
        self.observation_space = (
            spaces.Box(0, 255, (size, size, 1), np.uint8)
            if pixels
            else spaces.Box(-1.0, 1.0, (1,), np.float32)
        )
        self._shown = 0.0

    def show(self, number: float) -> np.ndarray:
        self._shown = float(number)
        if self._pixels:
            brightness = round((self._shown + 1) / 2 * 255)
            return np.full((self._size, self._size, 1), brightness, np.uint8)
        return np.array([self._shown], np.float32)

    def number(self, action: Any) -> float:
        """The action as a number in [-1, 1]: the two discrete ones are -1 and 1."""
        return 2.0 * int(action) - 1.0 if self._discrete else float(np.asarray(action).item())

    def either_sign(self) -> float:
        return float(self.np_random.choice([-1.0, 1.0]))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self.show(self.first()), {}

    def first(self) -> float:
        return 0.0


class P1OneStep(Probe):
    """One step, reward 1: V = 1 whatever is done. Catches a wrong value loss."""

    def step(self, action: Any) -> StepResult:
        return self.show(0.0), 1.0, True, False, {}


class P2ObservedReward(Probe):
    """One step, reward = observation, -1 or 1: V(s) = s. Catches a value blind to observations."""

    def first(self) -> float:
        return self.either_sign()

    def step(self, action: Any) -> StepResult:
        reward = self._shown
        return self.show(0.0), reward, True, False, {}


class P3DelayedReward(Probe):
    """Shows 0, then 1; the second step pays 1: V(1) = 1, V(0) = gamma. Catches bad discounting."""

    def step(self, action: Any) -> StepResult:
        if self._shown == 0.0:
            return self.show(1.0), 0.0, False, False, {}
        return self.show(0.0), 1.0, True, False, {}


class P4ActionReward(Probe):
    """One step; the best action pays 1: V = 1.

    Discrete: action 1 pays 1 and action 0 pays -1. Continuous: 1 - (action - best_action)^2.
    """

    def __init__(self, *, best_action: float = 0.5, **form: Any) -> None:
        super().__init__(**form)
        self._best_action = best_action

    def step(self, action: Any) -> StepResult:
        number = self.number(action)
        reward = number if self._discrete else 1.0 - (number - self._best_action) ** 2
        return self.show(0.0), reward, True, False, {}


class P5ObservationTimesAction(Probe):
    """One step, reward = observation * action, both in [-1, 1]: the best is its sign, V = 1."""

    def first(self) -> float:
        return self.either_sign()

    def step(self, action: Any) -> StepResult:
        reward = self._shown * self.number(action)
        return self.show(0.0), reward, True, False, {}


class P6SelfLoop(Probe):
    """One step from a state to itself, reward 1, then cut off: V = 1 / (1 - gamma).

    `terminated=True` is its twin that ends for good: V = 1. A time limit taken for a termination
    makes the first look like the second.
    """

    def __init__(self, *, terminated: bool = False, **form: Any) -> None:
        super().__init__(**form)
        self._terminated = terminated

    def step(self, action: Any) -> StepResult:
        return self.show(0.0), 1.0, self._terminated, not self._terminated, {}


class P7ShiftedRange(Probe):
    """One step, actions in [low, high] = [0, 3], reward 1 - (action - 2.4)^2: V = 1 at 2.4.

    In our units 2.4 is 0.6. Bounds taken for symmetric would reach it by 0.8, and a policy that
    does not map at all, never.
    """

    def __init__(
        self, *, low: float = 0.0, high: float = 3.0, best_action: float = 2.4, **form: Any
    ) -> None:
        super().__init__(**{"actions": "continuous", **form})
        self.action_space = spaces.Box(low, high, (1,), np.float32)
        self._best_action = best_action

    def step(self, action: Any) -> StepResult:
        if not self.action_space.contains(action):
            raise ValueError(f"{action} is outside {self.action_space}")
        reward = 1.0 - (self.number(action) - self._best_action) ** 2
        return self.show(0.0), reward, True, False, {}


class P8Identity(gym.Env[Any, Any]):
    """Reward for repeating what is shown, a new one at every step; cut after `length` steps.

    discrete: an index below `choices`, 1 for the same. multi_discrete: two indices, half a point
    each. continuous: x in [-1, 1], 1 - (x - action)^2. The best return is `length` in all of them.
    With `pixels` an index is a white stripe, one of `choices` side by side.
    """

    def __init__(
        self,
        *,
        actions: Literal["discrete", "multi_discrete", "continuous"] = "discrete",
        pixels: bool = False,
        choices: int = 3,
        length: int = 10,
        size: int = SMALLEST_IMAGE,
    ) -> None:
        if pixels and actions != "discrete":
            raise ValueError("the identity of pixels has discrete actions")
        self._actions, self._pixels, self._choices = actions, pixels, choices
        self._length, self._size = length, size
        self.action_space = {
            "discrete": spaces.Discrete(choices),
            "multi_discrete": spaces.MultiDiscrete([choices, choices]),
            "continuous": spaces.Box(-1.0, 1.0, (1,), np.float32),
        }[actions]
        self.observation_space = (
            spaces.Box(0, 255, (size, size, 1), np.uint8) if pixels else self.action_space
        )
        self._target: Any = None
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._draw(), {}

    def step(self, action: Any) -> StepResult:
        if self._actions == "continuous":
            reward = 1.0 - float((self._target - action).item()) ** 2
        else:
            reward = float(np.mean(np.asarray(action) == self._target))
        self._steps += 1
        return self._draw(), reward, False, self._steps >= self._length, {}

    def _draw(self) -> Any:
        if self._actions == "continuous":
            self._target = self.np_random.uniform(-1, 1, (1,)).astype(np.float32)
            return self._target.copy()
        if self._actions == "multi_discrete":
            self._target = self.np_random.integers(self._choices, size=2)
            return self._target.copy()
        self._target = int(self.np_random.integers(self._choices))
        if not self._pixels:
            return self._target
        image = np.zeros((self._size, self._size, 1), np.uint8)
        edges = np.linspace(0, self._size, self._choices + 1).astype(int)
        image[:, edges[self._target] : edges[self._target + 1]] = 255
        return image
