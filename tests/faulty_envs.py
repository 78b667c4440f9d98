"""Environments that break while a distributed run trains on them; each by a class of its own.

An episode has `LENGTH` steps and pays 1 for action 1, so that one can see whether anything is
learned. What is to happen only once in a run is marked by a file, whichever process comes first.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

LENGTH = 20


class Steady(gym.Env[Any, Any]):
    """Never breaks; what the others are made from."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.total_steps = 0
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.total_steps += 1
        self._step += 1
        return self._observation(), float(action), self._step == LENGTH, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self._step / LENGTH, 1.0], np.float32)


class RaisesNowAndThen(Steady):
    """In the middle of an episode, after some that were whole."""

    def __init__(self, after: int = 110) -> None:
        super().__init__()
        self._after = after

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.total_steps == self._after:
            raise RuntimeError("the simulator lost its licence")
        return super().step(action)


class HangsOnce(Steady):
    """For ever: but only the first copy that comes so far."""

    def __init__(self, mark: str, after: int = 300) -> None:
        super().__init__()
        self._mark = Path(mark)
        self._after = after

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.total_steps == self._after and _first(self._mark):
            threading.Event().wait()
        return super().step(action)


class GoneForGood(Steady):
    """From the moment when any copy has come so far, every step of every copy raises."""

    def __init__(self, mark: str, after: int = 300) -> None:
        super().__init__()
        self._mark = Path(mark)
        self._after = after

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.total_steps == self._after:
            self._mark.touch()
        if self._mark.exists():
            raise RuntimeError("the simulator is gone")
        return super().step(action)


class Slow(Steady):
    """Each step takes a while, as a simulator's does that does not use this core."""

    def __init__(self, seconds: float = 0.01) -> None:
        super().__init__()
        self._seconds = seconds
        self._never = threading.Event()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._never.wait(self._seconds)
        return super().step(action)


def _first(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
