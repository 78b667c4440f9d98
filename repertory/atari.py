"""Atari as the literature plays it (Mnih et al. 2015; Machado et al. 2018, arXiv 1709.06009).

    no-op starts     up to `noop_max` frames of doing nothing, a number drawn for each episode
    frame skip       an action is held for `frame_skip` frames, their rewards are summed
    max of two       the last two frames, pixel by pixel: what blinks on every second is seen
    84 x 84 grey     by area, in uint8; `env.frame_stack` puts four on top of each other

A step of the environment is one action, so `frame_skip` frames. A lost life is said in
`info["life_lost"]`: an end for learning (`env.atari.life_loss_ends`), while the game, its return
and evaluations go on to its last life. Rewards are clipped for learning only, see `actors.rollout`.

Gymnasium's own `AtariPreprocessing` needs OpenCV for one resize, and with `terminal_on_life_loss`
the whole game starts anew at every lost life, so that later lives are never seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from pydantic import Field

from repertory.errors import UsageError
from repertory.settings import Settings
from repertory.types import Array

ATARI_PREFIX = "ALE/"
LIFE_LOST = "life_lost"


class AtariConfig(Settings):
    noop_max: int = Field(default=30, ge=0)  # frames; 0 starts every episode alike
    frame_skip: int = Field(default=4, ge=1, le=60)
    screen_size: int = Field(default=84, ge=36, le=160)  # the convolutions need 36
    life_loss_ends: bool = True  # a lost life is an end for learning; returns are of whole games
    clip_reward: bool = True  # to [-1, 1] for learning; returns are of the rewards as they came


def game_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What `gymnasium.make` is to give us: single frames, grey."""
    for key in ("frameskip", "obs_type"):
        if key in kwargs:
            raise UsageError(
                f"env.kwargs.{key} = {kwargs[key]!r} is refused: env.atari sets it; use "
                "env.atari.frame_skip, or env.atari=null for the game as it is"
            )
    return {**kwargs, "frameskip": 1, "obs_type": "grayscale"}


def import_ale(env_id: str) -> None:
    """Importing it registers its ids."""
    try:
        import ale_py
    except ImportError as error:
        raise UsageError(
            f"{env_id} needs ale-py, which is not installed: "
            "install the extra `atari`, as in pip install 'repertory[atari]'"
        ) from error
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for each copy


class AtariPreprocessing(gym.Wrapper[Any, Any, Any, Any]):
    """Grey frames [H, W] of single ticks in, [1, size, size] uint8 after each action out."""

    def __init__(self, env: gym.Env[Any, Any], config: AtariConfig) -> None:
        super().__init__(env)
        self._config = config
        assert env.observation_space.shape is not None
        height, width = env.observation_space.shape
        self._rows = area_weights(height, config.screen_size)
        self._columns = area_weights(width, config.screen_size).T
        self._lives = 0
        shape = (1, config.screen_size, config.screen_size)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        frame, info = self.env.reset(seed=seed, options=options)
        most = self._config.noop_max
        for _ in range(int(self.np_random.integers(1, most + 1)) if most else 0):
            frame, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                frame, info = self.env.reset(options=options)
        self._lives = int(info["lives"])
        return self._resized(frame), {"lives": self._lives}

    def step(self, action: Any) -> tuple[Array, SupportsFloat, bool, bool, dict[str, Any]]:
        total, frames = 0.0, []
        for _ in range(self._config.frame_skip):
            frame, reward, terminated, truncated, info = self.env.step(action)
            frames.append(frame)
            total += float(reward)
            if terminated or truncated:
                break
        lives = int(info["lives"])
        told: dict[str, Any] = {"lives": lives}
        if self._config.life_loss_ends and lives < self._lives:
            told[LIFE_LOST] = True
        self._lives = lives
        return self._resized(np.max(frames[-2:], axis=0)), total, terminated, truncated, told

    def _resized(self, frame: Any) -> Array:
        resized = self._rows @ frame.astype(np.float32) @ self._columns
        image: Array = np.rint(resized).astype(np.uint8)[np.newaxis]
        return image


def area_weights(inputs: int, outputs: int) -> Array:
    """[outputs, inputs]: of each output pixel, how much of it each input pixel covers."""
    edges = np.arange(outputs + 1) * (inputs / outputs)
    pixels = np.arange(inputs)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    weights: Array = (np.clip(overlap, 0, None) * (outputs / inputs)).astype(np.float32)
    return weights
