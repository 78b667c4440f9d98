"""Copies of an environment inside EnvPool: `env.vector=envpool` steps all of them in C++ at once.

EnvPool has its own versions of the classic control, MuJoCo, Box2D and Atari environments. What it
does by itself differs from ours in two points, which are undone here:

    limits    an episode that terminates with its very last step counts as truncated there, so
              EnvPool is given one step more, and the limit is ours
    resets    it resets a finished copy in the following step; ours are reset in the same one, and
              the true last observation is in info["final_obs"]

Copies are seeded from (run, role, copy) as all are, but not episode by episode: an episode cannot
be replayed, so a resumed run begins new ones. Evaluation and play use Gymnasium's environments.
"""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from repertory.atari import ATARI_PREFIX, LIFE_LOST
from repertory.config import EnvConfig
from repertory.errors import EnvironmentFailure, UsageError
from repertory.guarded_env import FAULT
from repertory.types import Array

ATARI_FRAMES = 108_000  # half an hour of a game, after which ale-py cuts it
# What ale-py takes, by the names that EnvPool has for it, and what it does by default.
ATARI_DEFAULTS = {
    "repeat_action_probability": 0.25,
    "full_action_space": False,
    "mode": -1,
    "difficulty": -1,
}
# Of EnvPool's settings those that describe a pool or are set here.
NOT_FOR_USERS = frozenset(
    {"num_envs", "batch_size", "num_threads", "max_num_players", "thread_affinity_offset"}
    | {"base_path", "seed", "env_seed", "gym_reset_return_info", "max_episode_steps"}
    | {"stack_num", "frame_skip", "noop_max", "img_height", "img_width", "task"}
)
NO_LIMIT = 2**30


class EnvPoolEnv(VectorEnv[Any, Any, Any]):
    """`like` is one copy as Gymnasium makes it, encoded; this must look the same from outside."""

    def __init__(
        self,
        config: EnvConfig,
        like: gym.Env[Any, Any],
        *,
        copies: int,
        entropy: tuple[int, ...],
        guarded: bool,
    ) -> None:
        """`entropy` and the number of a copy make its seed; guarded copies may break."""
        self._config = config
        self._limit = _limit(config, like)
        self.num_envs = copies
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = like.observation_space
        self.single_action_space = like.action_space
        self.observation_space = batch_space(like.observation_space, copies)
        self.action_space = batch_space(like.action_space, copies)
        self._dtype = like.observation_space.dtype
        self._guarded = guarded
        self._faults = np.zeros(copies, np.int64)  # in a row, no episode finished in between
        self._nobody = np.zeros(copies, bool)
        self._lives: Array | None = None  # [B] of games whose lost lives are told
        seeds = [np.random.SeedSequence((*entropy, copy)) for copy in range(copies)]
        self._pool = _make(
            config,
            num_envs=copies,
            # Beside other workers one core is all there is for each.
            num_threads=1 if guarded else min(copies, len(os.sched_getaffinity(0))),
            max_episode_steps=self._limit + 1,
            seed=[int(one.generate_state(1)[0] >> 1) for one in seeds],  # of 31 bits
        )
        _require_same(config, like, self._pool)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        seen, told = self._pool.reset()
        if self._config.atari is not None and self._config.atari.life_loss_ends:
            self._lives = told["lives"].copy()
        return seen.astype(self._dtype, copy=False), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        seen, reward, terminated, truncated, told = self._pool.step(actions)
        observation = seen.astype(self._dtype, copy=False)
        reward = reward.astype(np.float64)
        truncated = truncated | ((told["elapsed_step"] >= self._limit) & ~terminated)
        infos: dict[str, Any] = {}
        if self._lives is not None:
            lost = told["lives"] < self._lives
            self._lives = told["lives"].copy()
            if lost.any():
                infos[f"_{LIFE_LOST}"] = lost
        broken = self._nobody
        if self._guarded:
            broken = ~np.isfinite(reward)
            if observation.dtype.kind == "f":
                broken |= ~np.isfinite(observation).all(axis=-1)
            if broken.any():
                infos[f"_{FAULT}"] = broken
                reward[broken] = 0
                terminated, truncated = terminated & ~broken, truncated | broken
                self._count_faults(broken)
        ended = terminated | truncated
        if ended.any():
            self._faults[ended & ~broken] = 0
            infos["final_obs"], infos["_final_obs"] = observation, ended
            observation = self._begin_anew(observation, ended)
        return observation, reward, terminated, truncated, infos

    def _begin_anew(self, observation: Array, ended: Array) -> Array:
        """What is seen now, with new episodes in the marked copies [B]."""
        copies = np.flatnonzero(ended).astype(np.int32)
        self._pool._reset(copies)  # its `reset` reads all of its settings three times over
        first, told = self._pool.recv(reset=True)
        observation = observation.copy()
        observation[told["env_id"]] = first
        if self._lives is not None:
            self._lives[told["env_id"]] = told["lives"]
        return observation

    def _count_faults(self, broken: Array) -> None:
        """Raises where a copy breaks again and again: this one cannot be made anew."""
        self._faults[broken] += 1
        if self._faults.max() > self._config.max_faults:
            raise EnvironmentFailure(
                f"{self._config.id} gave values that are not finite {self._faults.max()} times in "
                f"a row, env.max_faults is {self._config.max_faults}"
            )

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """No copy is ever set aside: where one is broken for good, `step` raises."""
        if name != "quarantined":
            raise AttributeError(name)
        return (None,) * self.num_envs

    def close_extras(self, **kwargs: Any) -> None:
        self._pool.close()


def check(config: EnvConfig, like: gym.Env[Any, Any]) -> None:
    """Raises what making it would raise, before a run starts."""
    EnvPoolEnv(config, like, copies=1, entropy=(0,), guarded=True).close()


def _make(config: EnvConfig, **settings: Any) -> Any:
    try:
        envpool = importlib.import_module("envpool")
    except ImportError as error:
        raise UsageError(
            f"env.vector = envpool needs EnvPool, which cannot be imported ({error}): install the "
            "extra `envpool`, as in pip install 'repertory[envpool]', or set env.vector=sync"
        ) from error
    name = config.id.removeprefix(ATARI_PREFIX)
    if name not in envpool.list_all_envs():
        raise UsageError(
            f"env.vector = envpool has no environment {config.id}: set env.vector to sync or async"
        )
    settings |= _atari_settings(config) if config.atari is not None else config.kwargs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its spaces' precision; ours are Gymnasium's
        known = set(envpool.make_spec(name).config._fields)
        for key in config.kwargs:
            if key not in known or key in NOT_FOR_USERS:
                raise UsageError(
                    f"env.kwargs.{key} is refused with env.vector = envpool, whose {name} has no "
                    "such setting: leave it out, or set env.vector to sync or async"
                )
        try:
            return envpool.make(name, env_type="gymnasium", **settings)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise EnvironmentFailure(f"EnvPool cannot make {name}: {reason}") from error


def _atari_settings(config: EnvConfig) -> dict[str, Any]:
    """The same game as `repertory.atari` makes of it; images may differ by a shade of grey."""
    atari = config.atari
    assert atari is not None
    if atari.noop_max == 0:
        raise UsageError(
            "env.atari.noop_max = 0 is refused with env.vector = envpool, which does nothing for "
            "at least one frame: set at least 1, or env.vector to sync or async"
        )
    return {
        **ATARI_DEFAULTS,
        **config.kwargs,
        "noop_max": atari.noop_max,
        "frame_skip": atari.frame_skip,
        "img_height": atari.screen_size,
        "img_width": atari.screen_size,
        "stack_num": config.frame_stack,
        "use_fire_reset": False,
        "episodic_life": False,  # lost lives are told, the game goes on
        "reward_clip": False,  # by the rollout, for learning only
    }


def _limit(config: EnvConfig, like: gym.Env[Any, Any]) -> int:
    """Steps of an episode."""
    limit = config.max_episode_steps or NO_LIMIT
    if config.atari is not None:
        return min(limit, ATARI_FRAMES // config.atari.frame_skip)
    if config.max_episode_steps is None and like.spec is not None:
        return like.spec.max_episode_steps or NO_LIMIT
    return limit


def _require_same(config: EnvConfig, like: gym.Env[Any, Any], pool: Any) -> None:
    """Policies are made for Gymnasium's environment, and evaluated there."""
    for what, ours, theirs in (
        ("observations", like.observation_space, pool.observation_space),
        ("actions", like.action_space, pool.action_space),
    ):
        # What an observation can be at most is often not said; of an action it is what it means.
        same_bounds = not isinstance(ours, spaces.Box) or (
            what == "observations"
            or (np.allclose(ours.low, theirs.low) and np.allclose(ours.high, theirs.high))
        )
        if not (_alike(ours, theirs) and same_bounds):
            raise UsageError(
                f"{config.id} has {what} {ours} in Gymnasium and {theirs} in EnvPool, which must "
                "be the same: set env.vector to sync or async"
            )


def _alike(ours: gym.Space[Any], theirs: Any) -> bool:
    if isinstance(ours, spaces.Discrete) and isinstance(theirs, spaces.Discrete):
        return bool(ours.n == theirs.n and ours.start == theirs.start)
    if not (isinstance(ours, spaces.Box) and isinstance(theirs, spaces.Box)):
        return False
    return ours.shape == theirs.shape and ours.dtype.kind == theirs.dtype.kind
