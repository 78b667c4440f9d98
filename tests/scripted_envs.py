"""Scripted environments that betray mistakes in stepping, resetting and the mapping of spaces.

Each is named in a config as `scripted_envs:ClassName` with its settings under `env.kwargs`; `tests`
must be on sys.path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

StepResult = tuple[Any, float, bool, bool, dict[str, Any]]


class Counter(gym.Env[Any, Any]):
    """Observation [episode, step], reward 10 * episode + step: transitions betray their origin.

    Episode e ends after `lengths[e]` steps in the way `endings[e]` says, both taken in turns.
    """

    def __init__(
        self,
        *,
        lengths: Sequence[int] = (3,),
        endings: Sequence[Literal["terminated", "truncated", "both"]] = ("terminated",),
        actions: Literal["discrete", "continuous"] = "discrete",
    ) -> None:
        self._lengths, self._endings = tuple(lengths), tuple(endings)
        self.observation_space = spaces.Box(0.0, np.inf, (2,), np.float32)
        self.action_space = (
            spaces.Discrete(2) if actions == "discrete" else spaces.Box(-1.0, 1.0, (1,), np.float32)
        )
        self._episode, self._step = -1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1, 0
        return self._observation(), {}

    def step(self, action: Any) -> StepResult:
        if self._step >= self._length:
            raise RuntimeError("stepped on after the end of an episode")
        self._step += 1
        over = self._step >= self._length
        ending = self._endings[self._episode % len(self._endings)]
        terminated = over and ending in ("terminated", "both")
        truncated = over and ending in ("truncated", "both")
        reward = 10.0 * self._episode + self._step
        return self._observation(), reward, terminated, truncated, {}

    @property
    def _length(self) -> int:
        return self._lengths[self._episode % len(self._lengths)]

    def _observation(self) -> np.ndarray:
        return np.array([self._episode, self._step], np.float32)


class Seeded(gym.Env[Any, Any]):
    """Everything comes from the seed: the first observation, the noise, and with it the length.

    Each step pays 1 and adds a random number to the observation; an episode has from 1 to
    `longest` steps.
    """

    def __init__(self, *, longest: int = 20) -> None:
        self._longest = longest
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._place = np.zeros(2)
        self._left = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = self.np_random.standard_normal(2)
        self._left = int(self.np_random.integers(1, self._longest + 1))
        return self._place.astype(np.float32), {}

    def step(self, action: Any) -> StepResult:
        self._place = self._place + self.np_random.standard_normal(2) * (1 + int(action))
        self._left -= 1
        return self._place.astype(np.float32), 1.0, self._left == 0, False, {}


class ActionEcho(gym.Env[Any, Any]):
    """Shows the action that it was given, keeps all of them in `taken`, and refuses any outside.

    `space` is one of the names in SPACES. Cut after `length` steps.
    """

    SPACES = {  # noqa: RUF012
        "asymmetric": lambda: spaces.Box(
            np.array([0.0, -1.0], np.float32), np.array([1.0, 3.0], np.float32)
        ),
        "unbounded": lambda: spaces.Box(-np.inf, np.inf, (2,), np.float32),
        "mixed": lambda: spaces.Box(
            np.array([0.0, -np.inf], np.float32), np.array([2.0, np.inf], np.float32)
        ),
        "matrix": lambda: spaces.Box(0.0, 4.0, (2, 3), np.float32),
        "discrete_from_5": lambda: spaces.Discrete(3, start=5),
        "multi_discrete": lambda: spaces.MultiDiscrete([2, 3, 4]),
        "multi_discrete_from": lambda: spaces.MultiDiscrete([2, 3], start=[10, -1]),
        "multi_discrete_table": lambda: spaces.MultiDiscrete([[2, 3], [4, 5]]),
    }

    def __init__(self, *, space: str = "asymmetric", length: int = 5) -> None:
        self.action_space = self.SPACES[space]()
        width = int(np.prod(self.action_space.shape, dtype=int))
        self.observation_space = spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.taken: list[np.ndarray] = []
        self._length = length
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action: Any) -> StepResult:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is outside {self.action_space}")
        self.taken.append(np.array(action))
        self._steps += 1
        shown = np.asarray(action, np.float32).reshape(self.observation_space.shape)
        return shown, 0.0, False, self._steps >= self._length, {}


class Odd(gym.Env[Any, Any]):
    """Observations of an unusual space; `space` is one of the names in SPACES."""

    SPACES = {  # noqa: RUF012
        "discrete": lambda: spaces.Discrete(4),
        "multi_discrete": lambda: spaces.MultiDiscrete([2, 3]),
        "multi_binary": lambda: spaces.MultiBinary(3),
        "dict": lambda: spaces.Dict(
            {
                "position": spaces.Box(-1.0, 1.0, (2,), np.float32),
                "target": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
                "gear": spaces.Discrete(3),
            }
        ),
        "tuple": lambda: spaces.Tuple((spaces.Discrete(2), spaces.Box(0.0, 1.0, (1,), np.float32))),
        "float64": lambda: spaces.Box(-1.0, 1.0, (3,), np.float64),
        "matrix": lambda: spaces.Box(-1.0, 1.0, (2, 3), np.float32),
        "sequence": lambda: spaces.Sequence(spaces.Discrete(2)),
    }

    def __init__(self, *, space: str) -> None:
        self.observation_space = self.SPACES[space]()
        self.action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> StepResult:
        return self.observation_space.sample(), 0.0, False, False, {}


class OddActions(gym.Env[Any, Any]):
    """An action space that nothing here can choose from."""

    def __init__(self, *, space: Literal["dict", "integer_box", "empty_box"] = "dict") -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = {
            "dict": spaces.Dict({"steer": spaces.Discrete(2)}),
            "integer_box": spaces.Box(0, 5, (2,), np.int64),
            "empty_box": spaces.Box(1.0, 1.0, (2,), np.float32),
        }[space]


class Frames(gym.Env[Any, Any]):
    """Images whose every pixel of channel c is 10 * step + c, for encoding and stacking."""

    def __init__(
        self,
        *,
        height: int = 40,
        width: int = 36,
        channels: int = 3,
        layout: Literal["last", "first", "none"] = "last",
        length: int = 5,
    ) -> None:
        shape = {
            "last": (height, width, channels),
            "first": (channels, height, width),
            "none": (height, width),
        }[layout]
        self._channels = {
            "last": np.arange(channels),
            "first": np.arange(channels)[:, None, None],
            "none": 0,
        }[layout]
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(2)
        self._length, self._step = length, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._image(), {}

    def step(self, action: Any) -> StepResult:
        self._step += 1
        return self._image(), 0.0, False, self._step >= self._length, {}

    def _image(self) -> np.ndarray:
        image = np.zeros(self.observation_space.shape, np.uint8)
        return image + np.asarray(10 * self._step + self._channels, np.uint8)


class Broken(gym.Env[Any, Any]):
    """Breaks its promise in the way that `how` says."""

    def __init__(self, *, how: str) -> None:
        if how == "init":
            raise ValueError("no such\n  level")
        self._how = how
        self.observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self._how == "reset":
            raise RuntimeError("the simulator\nis gone")
        if self._how == "shape":
            return np.zeros(4, np.float32), {}
        if self._how == "nan":
            return np.array([0.0, np.nan, 0.0], np.float32), {}
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        if self._how == "step":
            raise ZeroDivisionError("division by zero")
        observation = np.zeros(3, np.float32)
        if self._how == "four_values":
            return observation, 0.0, False, {}
        if self._how == "nan_later":
            observation[0] = np.inf
        reward = float("nan") if self._how == "nan_reward" else 0.0
        return observation, reward, False, False, {}


class Unrepeatable(gym.Env[Any, Any]):
    """Takes no notice of its seed: no episode of its `length` steps can be played again."""

    def __init__(self, *, length: int = 5) -> None:
        self._length, self._steps = length, 0
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._rng = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._steps = 0
        return self._rng.standard_normal(1).astype(np.float32), {}

    def step(self, action: Any) -> StepResult:
        self._steps += 1
        observation = self._rng.standard_normal(1).astype(np.float32)
        return observation, 1.0, self._steps >= self._length, False, {}


class TimesTen(gym.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> float:
        return 10.0 * float(reward)


class PlusOne(gym.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> float:
        return float(reward) + 1.0


def make_counter(length: int = 3) -> gym.Env[Any, Any]:
    """A factory that is not a class."""
    return Counter(lengths=(length,))


def shaped_reward(
    *,
    observation: Any,
    action: Any,
    reward: float,
    next_observation: Any,
    terminated: bool,
    truncated: bool,
    info: Any,
) -> float:
    """Betrays what it was given: 1000 * terminated + 100 * truncated + step before + step after."""
    return 1000.0 * terminated + 100.0 * truncated + observation[1] + next_observation[1]


def failing_reward(**arguments: Any) -> float:
    raise KeyError("velocity")


class Lives(gym.Env[Any, Any]):
    """A game of `length` steps that pays `reward` for each; a life is lost at `lost_at` of them."""

    def __init__(
        self, *, length: int = 6, lost_at: Sequence[int] = (2, 4), reward: float = 5.0
    ) -> None:
        self._length, self._lost_at, self._reward = length, tuple(lost_at), reward
        self.observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return np.array([0.0], np.float32), {}

    def step(self, action: Any) -> StepResult:
        self._step += 1
        info = {"life_lost": True} if self._step in self._lost_at else {}
        over = self._step == self._length
        return np.array([self._step], np.float32), self._reward, False, over, info
