"""Makes environments: ids, `module:EnvId-v0`, factories, wrappers, copies side by side.

Every environment made here is *encoded*: observations are flat float32 vectors or channel-first
uint8 images, whatever the space was. Episodes are seeded one by one from (run, role, copy,
episode), so that no two are alike and any can be played again: a checkpoint keeps the actions of
the running episodes and a resumed run replays them, which needs no pickling of environments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from gymnasium.wrappers import FlattenObservation, FrameStackObservation, TimeLimit

from repertory import envpool_env
from repertory.atari import ATARI_PREFIX, AtariPreprocessing, game_arguments, import_ale
from repertory.config import EnvConfig
from repertory.envpool_env import EnvPoolEnv
from repertory.errors import EnvironmentFailure, UsageError
from repertory.guarded_env import GuardedEnv
from repertory.parts import load_attribute
from repertory.side_by_side import SideBySide
from repertory.specs import EnvSpec
from repertory.types import Array

Role = Literal["rollout", "evaluation", "play"]
ROLES: tuple[Role, ...] = ("rollout", "evaluation", "play")

# An episode longer than this is not kept for replaying; a resumed run begins a new one instead.
MAX_RECORDED_ACTIONS = 200_000


class RewardFunction(Protocol):
    """A user's reward. It sees the termination but cannot change it."""

    def __call__(
        self,
        *,
        observation: Any,
        action: Any,
        reward: float,
        next_observation: Any,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any],
    ) -> float: ...


class ShapedReward(gym.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gym.Env[Any, Any], reward_function: RewardFunction) -> None:
        super().__init__(env)
        self._reward_function = reward_function
        self._observation: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._observation, info = self.env.reset(seed=seed, options=options)
        return self._observation, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        next_observation, reward, terminated, truncated, info = self.env.step(action)
        shaped = self._reward_function(
            observation=self._observation,
            action=action,
            reward=float(reward),
            next_observation=next_observation,
            terminated=terminated,
            truncated=truncated,
            info=info,
        )
        self._observation = next_observation
        return next_observation, float(shaped), terminated, truncated, info


class ChannelFirst(gym.ObservationWrapper[Any, Any, Any]):
    """Images as [C, H, W] uint8; a stack of frames joins the channels."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        shape = self._encode(np.zeros(env.observation_space.shape or (), np.uint8)).shape
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)

    def observation(self, observation: Array) -> Array:
        return self._encode(np.asarray(observation))

    @staticmethod
    def _encode(image: Array) -> Array:
        if image.shape[-1] in (1, 3, 4):  # channels last
            image = np.moveaxis(image, -1, -3)
        return image.reshape(-1, *image.shape[-2:])  # [stack, C, H, W] joins to [stack * C, H, W]


class Float32(gym.ObservationWrapper[Any, Any, Any]):
    """Vectors as float32, whatever precision the simulator has."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        self.observation_space = spaces.Box(
            space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32
        )

    def observation(self, observation: Any) -> Array:
        return np.asarray(observation, np.float32)


class SeededEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Seeds each episode by its number and remembers its actions. Always the outermost wrapper."""

    def __init__(self, env: gym.Env[Any, Any], seed: int, role: Role, copy: int) -> None:
        super().__init__(env)
        self._entropy = (seed, ROLES.index(role), copy)
        self._episode = -1
        self._actions: list[Any] | None = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._episode += 1
        self._actions = []
        sequence = np.random.SeedSequence((*self._entropy, self._episode))
        return self.env.reset(seed=int(sequence.generate_state(1)[0]), options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        if self._actions is not None:
            self._actions.append(action.copy() if isinstance(action, np.ndarray) else action)
            if len(self._actions) > MAX_RECORDED_ACTIONS:
                self._actions = None
        return self.env.step(action)

    def episode_record(self) -> dict[str, Any]:
        """The running episode: its number and what was done in it (None: too long to keep)."""
        actions = self._actions
        return {"episode": self._episode, "actions": None if actions is None else np.array(actions)}

    def replay_episode(
        self, records: Sequence[Mapping[str, Any]], observations: Sequence[Any]
    ) -> tuple[Any, bool]:
        """Brings this copy to where its `episode_record` was taken and its observation was seen.

        Takes those of all copies. Returns the observation there, and whether it is the same
        episode: one that is too long to be kept, or that went differently this time because the
        environment is not repeatable, is given up for a fresh one.
        """
        record, expected = records[self._entropy[-1]], observations[self._entropy[-1]]
        self._episode = int(record["episode"]) - 1
        observation, _ = self.reset()
        if record["actions"] is None:
            return self.reset()[0], False
        discrete = isinstance(self.action_space, spaces.Discrete)
        for action in record["actions"]:
            observation, _, terminated, truncated, _ = self.step(
                int(action) if discrete else action
            )
            if terminated or truncated:
                return self.reset()[0], False
        if not np.array_equal(observation, expected):
            return self.reset()[0], False
        return observation, True


def make_env(
    config: EnvConfig,
    *,
    seed: int = 0,
    role: Role = "rollout",
    copy: int = 0,
    render_mode: str | None = None,
) -> gym.Env[Any, Any]:
    """One encoded environment."""
    env = _base_env(config, render_mode)
    for path in config.wrappers:
        env = load_attribute(path, "the environment wrapper")(env)
    if config.reward_function is not None:
        env = ShapedReward(env, load_attribute(config.reward_function, "the reward function"))
    if config.frame_stack > 1:
        env = FrameStackObservation(env, config.frame_stack)
    return SeededEpisodes(_encoded(env), seed, role, copy)


def _base_env(config: EnvConfig, render_mode: str | None) -> gym.Env[Any, Any]:
    module_name, _, attribute = config.id.partition(":")
    rendering = {} if render_mode is None else {"render_mode": render_mode}
    arguments = {**config.kwargs, **rendering}
    limit = config.max_episode_steps
    if attribute and not _is_gymnasium_id(attribute):
        factory = load_attribute(config.id, "the environment")
        try:
            env = factory(**arguments)
        except Exception as error:
            raise EnvironmentFailure(f"cannot make {config.id}: {_one_line(error)}") from error
        return TimeLimit(env, limit) if limit is not None else env
    if attribute:  # importing the module registers the id
        _import_for_registration(module_name, config.id)
    if config.id.startswith(ATARI_PREFIX):
        import_ale(config.id)
    if config.atari is not None:
        arguments, limit = game_arguments(arguments), None
    try:
        env = gym.make(
            attribute or config.id, max_episode_steps=limit, disable_env_checker=True, **arguments
        )
    except gym.error.UnregisteredEnv as error:
        raise UsageError(
            f"there is no environment {config.id!r}{_nearest_id(attribute or config.id)}"
        ) from error
    except (gym.error.Error, ImportError) as error:
        raise UsageError(f"cannot make {config.id}: {_one_line(error)}") from error
    except Exception as error:
        raise EnvironmentFailure(f"cannot make {config.id}: {_one_line(error)}") from error
    if config.atari is None:
        return env
    env = AtariPreprocessing(env, config.atari)
    limit = config.max_episode_steps  # of actions, each several frames
    return TimeLimit(env, limit) if limit is not None else env


def _is_gymnasium_id(name: str) -> bool:
    with contextlib.suppress(gym.error.Error):
        gym.envs.registration.parse_env_id(name)
        return name.rpartition("-v")[2].isdigit() or name in gym.registry
    return False


def _import_for_registration(module_name: str, env_id: str) -> None:
    import importlib

    try:
        importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(
            f"cannot import {module_name!r} for the environment {env_id!r}: {error}; "
            "is it installed, or is its folder on PYTHONPATH?"
        ) from error


def _nearest_id(name: str) -> str:
    import difflib

    by_version = sorted(gym.registry.values(), key=lambda spec: spec.version or 0)
    newest = {_without_version(spec.id): spec.id for spec in by_version}
    nearest = difflib.get_close_matches(_without_version(name), newest, n=1, cutoff=0.7)
    return (
        f": did you mean {newest[nearest[0]]}?"
        if nearest
        else "; name a Gymnasium id, or your own as package.module:EnvId-v0"
    )


def _without_version(name: str) -> str:
    """A version that two ids share does not make them alike."""
    return name.rpartition("-v")[0] or name


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _encoded(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    space = env.observation_space
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (3, 4):
        return ChannelFirst(env)
    if not (isinstance(space, spaces.Box) and len(space.shape) == 1):
        try:
            env = FlattenObservation(env)
        except (NotImplementedError, TypeError):
            return env  # EnvSpec.from_env says what is wrong with the space
    if isinstance(env.observation_space, spaces.Box) and env.observation_space.dtype != np.float32:
        env = Float32(env)
    return env


def make_vector_env(
    config: EnvConfig, *, copies: int, seed: int, role: Role, guarded: bool = False
) -> VectorEnv[Any, Any, Any]:
    """Copies side by side, each with its own seeds; a finished copy is reset in the same step.

    A guarded copy is made anew when it breaks (see `guarded_env`); else its error ends the step.
    Only rollouts use EnvPool: evaluations are of Gymnasium's environment.
    """

    def maker(copy: int) -> Callable[[], gym.Env[Any, Any]]:
        def make() -> gym.Env[Any, Any]:
            return make_env(config, seed=seed, role=role, copy=copy)

        return (lambda: GuardedEnv(make, config.max_faults)) if guarded else make

    if config.vector == "envpool":
        like = make_env(config)
        try:
            entropy = (seed, ROLES.index(role))
            return EnvPoolEnv(config, like, copies=copies, entropy=entropy, guarded=guarded)
        finally:
            like.close()
    makers = [maker(copy) for copy in range(copies)]
    if config.vector == "async" and copies > 1:
        return AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    return SideBySide(makers)


def probe(config: EnvConfig) -> EnvSpec:
    """Makes the environment once, tries it, and describes it; errors come before a run starts."""
    env = make_env(config)
    try:
        spec = EnvSpec.from_env(env, config.id)
        if config.max_episode_steps is not None and spec.max_episode_steps is None:
            spec = EnvSpec.from_json(
                {**spec.to_json(), "max_episode_steps": config.max_episode_steps}
            )
        _try_out(env, spec)
        if config.vector == "envpool":
            envpool_env.check(config, env)
        return spec
    finally:
        env.close()


def _try_out(env: gym.Env[Any, Any], spec: EnvSpec) -> None:
    """A reset and a few random steps, checked against what the spaces promise."""
    rng = np.random.default_rng(0)
    try:
        observation, _ = env.reset()
        _check_observation(observation, spec)
        for _ in range(3):
            action = spec.to_env_action(spec.random_actions(1, rng))[0]
            result = env.step(int(action) if spec.action_kind == "discrete" else action)
            if len(result) != 5:
                raise EnvironmentFailure(
                    f"{spec.env_id}: step() returned {len(result)} values, not the five of "
                    "Gymnasium (observation, reward, terminated, truncated, info)"
                )
            observation, reward, terminated, truncated, _ = result
            _check_observation(observation, spec)
            if not np.isfinite(float(reward)):
                raise EnvironmentFailure(f"{spec.env_id}: step() returned the reward {reward}")
            if terminated or truncated:
                env.reset()
    except EnvironmentFailure:
        raise
    except Exception as error:
        raise EnvironmentFailure(
            f"{spec.env_id} failed when tried out: {type(error).__name__}: {_one_line(error)}"
        ) from error


def _check_observation(observation: Array, spec: EnvSpec) -> None:
    if observation.shape != spec.observation_shape:
        raise EnvironmentFailure(
            f"{spec.env_id}: observations have shape {observation.shape}, "
            f"its space says {spec.observation_shape}"
        )
    if not np.isfinite(observation).all():
        raise EnvironmentFailure(f"{spec.env_id}: an observation is not finite: {observation}")
