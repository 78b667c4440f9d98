"""Steps a vector environment and says what truly happened, whatever its autoreset mode.

Gymnasium's vector environments reset a finished copy in one of three ways:

    SAME_STEP   the step that ends an episode returns the *next* episode's first observation; the
                true last one is in info["final_obs"]
    NEXT_STEP   the step that ends an episode returns its last observation; the following step
                ignores the action and returns the reset: that step is not a transition
    DISABLED    nothing is reset until the caller does

`Step` means the same in all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from repertory.atari import LIFE_LOST
from repertory.errors import EnvironmentFailure
from repertory.guarded_env import FAULT
from repertory.types import Array


@dataclass(frozen=True, slots=True)
class Step:
    """One step of every copy."""

    reward: Array  # [B]
    terminated: Array  # [B] the task ended: nothing to bootstrap from
    truncated: Array  # [B] cut by a limit: the value of next_observation counts
    next_observation: Array  # [B, ...] where the step led, never a reset
    observation: Array  # [B, ...] where the copy stands now: what to act upon next
    valid: Array  # [B] False where the environment merely reset itself, or broke
    broken: Array  # [B] the episode is lost: the copy was made anew (`repertory.guarded_env`)
    life_lost: Array  # [B] an end for learning, though the episode may go on (`repertory.atari`)
    boundary: Array  # [B] terminated or truncated
    eventful: bool  # False: everywhere a plain step in the middle of an episode


class Stepper:
    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.env = env
        self.copies = env.num_envs
        self._mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._resetting = np.zeros(self.copies, bool)
        self._nobody = np.zeros(self.copies, bool)
        self._nobody.flags.writeable = False
        self._everybody = ~self._nobody
        self._everybody.flags.writeable = False
        self._any_resetting = False

    def reset(self) -> Array:
        observation, _ = self.env.reset()
        self._resetting = np.zeros(self.copies, bool)
        self._any_resetting = False
        return observation

    def step(self, env_action: Array) -> Step:
        try:
            observation, reward, terminated, truncated, info = self.env.step(env_action)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise EnvironmentFailure(
                f"the environment raised {type(error).__name__}: {reason}"
            ) from error
        boundary = terminated | truncated
        if not (info or boundary.any() or self._any_resetting):
            return Step(
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                next_observation=observation,
                observation=observation,
                valid=self._everybody,
                broken=self._nobody,
                life_lost=self._nobody,
                boundary=boundary,
                eventful=False,
            )
        broken, life_lost = self._said(FAULT, info), self._said(LIFE_LOST, info)
        valid = ~(self._resetting | broken)
        next_observation = observation
        if self._mode is AutoresetMode.SAME_STEP:
            if boundary.any():
                next_observation = observation.copy()
                final = info["final_obs"]
                if final.dtype == observation.dtype:  # one array for all copies
                    next_observation[boundary] = final[boundary]
                else:
                    for copy in np.flatnonzero(boundary):
                        next_observation[copy] = final[copy]
        elif self._mode is AutoresetMode.NEXT_STEP:
            self._resetting, self._any_resetting = boundary, bool(boundary.any())
        elif boundary.any():
            next_observation = observation.copy()
            observation, _ = self.env.reset(options={"reset_mask": boundary})
        return Step(
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_observation=next_observation,
            observation=observation,
            valid=valid,
            broken=broken,
            life_lost=life_lost,
            boundary=boundary,
            eventful=bool((boundary | life_lost | ~valid).any()),
        )

    def _said(self, key: str, info: Mapping[str, Any]) -> Array:
        """[B] which copies say this; a vector environment marks whose value counts."""
        if not info:
            return self._nobody
        mask: Array = np.asarray(info.get(f"_{key}", self._nobody))
        return mask | np.asarray(info.get("final_info", {}).get(f"_{key}", self._nobody))
