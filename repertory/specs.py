"""What an environment looks like to policies, replay and learners; to and from JSON.

An `EnvSpec` describes the *encoded* environment (see `repertory.envs`): observations are flat
float32 vectors or channel-first uint8 images, continuous actions are in [-1, 1] on our side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation

from repertory.errors import UsageError
from repertory.types import Array, ColumnSpec

ActionKind = Literal["continuous", "discrete", "multi_discrete"]
ObservationKind = Literal["vector", "pixels"]

GOAL_KEYS = frozenset({"observation", "achieved_goal", "desired_goal"})


@dataclass(frozen=True, slots=True)
class GoalSpec:
    """Where the goals stand in the flat observation of a goal environment: from, to."""

    achieved: tuple[int, int]
    desired: tuple[int, int]

    @classmethod
    def within(cls, space: spaces.Space[Any]) -> GoalSpec | None:
        """None where the observations are no dict with both goals, of one shape."""
        places: dict[str, tuple[int, int]] = {}
        start = 0
        if isinstance(space, spaces.Dict):
            for name, part in space.items():  # flattened in this order
                places[name] = (start, start + spaces.flatdim(part))
                start = places[name][1]
        if not places.keys() >= GOAL_KEYS:
            return None
        goals = cls(places["achieved_goal"], places["desired_goal"])
        return goals if np.diff(goals.achieved) == np.diff(goals.desired) else None


@dataclass(frozen=True, slots=True)
class EnvSpec:
    env_id: str
    observation_kind: ObservationKind
    observation_shape: tuple[int, ...]
    observation_dtype: str
    action_kind: ActionKind
    action_sizes: tuple[int, ...]  # continuous: (A,); discrete: (n,); multi_discrete: (n0, n1, ...)
    action_low: tuple[float, ...]  # the environment's own bounds; discrete: the first value
    action_high: tuple[float, ...]
    action_shape: tuple[int, ...]  # of one action as the environment takes it
    action_dtype: str
    max_episode_steps: int | None
    observation_low: tuple[float, ...] = ()  # of a vector's numbers; empty: not known
    observation_high: tuple[float, ...] = ()
    goals: GoalSpec | None = None  # of a goal environment
    # Observations that the environment names as goals by its attribute `goals`, flat: [G][numbers].
    named_goals: tuple[tuple[float, ...], ...] = ()

    @property
    def action_size(self) -> int:
        """How many numbers an action has: the width of a continuous policy's output."""
        return self.action_sizes[0] if self.action_kind == "continuous" else len(self.action_sizes)

    @property
    def num_actions(self) -> int:
        if self.action_kind != "discrete":
            raise UsageError(f"{self.env_id} has {self.action_kind} actions, not discrete ones")
        return self.action_sizes[0]

    @property
    def bounded(self) -> bool:
        """Whether every action dimension has two finite bounds."""
        return bool(np.isfinite(self.action_low).all() and np.isfinite(self.action_high).all())

    @property
    def action_column(self) -> ColumnSpec:
        """How an action is stored: [A] float32, one int64, or [D] int64."""
        if self.action_kind == "continuous":
            return ColumnSpec("<f4", (self.action_size,))
        return ColumnSpec("<i8", () if self.action_kind == "discrete" else (self.action_size,))

    def to_env_action(self, action: Array) -> Array:
        """Our actions [B, ...] as the environment takes them.

        Continuous: [-1, 1] goes affinely onto [low, high] of each dimension; one without two finite
        bounds is only clipped. Discrete: counted from the space's own start.
        """
        if self.action_kind != "continuous":
            from_zero = action.reshape(-1, *self.action_shape)
            low = np.asarray(self.action_low).astype(np.int64)
            return (from_zero + low.reshape(self.action_shape)).astype(self.action_dtype)
        bounds = _bounds(self.action_low, self.action_high)
        unit = np.minimum(np.maximum(action, -1.0), 1.0)
        mapped = bounds.start + (unit + 1) / 2 * bounds.width
        if bounds.infinite is not None:
            mapped = np.where(bounds.infinite, action, mapped)
        mapped = np.minimum(np.maximum(mapped, bounds.low), bounds.high)
        return mapped.reshape(-1, *self.action_shape).astype(self.action_dtype)

    def random_actions(self, count: int, rng: np.random.Generator) -> Array:
        """Uniform over the action space; standard normal where a dimension is not bounded."""
        if self.action_kind == "discrete":
            return rng.integers(self.num_actions, size=count)
        if self.action_kind == "multi_discrete":
            return rng.integers(self.action_sizes, size=(count, self.action_size))
        uniform = rng.uniform(-1, 1, size=(count, self.action_size))
        if not self.bounded:
            finite = np.isfinite(self.action_low) & np.isfinite(self.action_high)
            uniform = np.where(finite, uniform, rng.standard_normal(uniform.shape))
        return uniform.astype(np.float32)

    def transition_signature(
        self, extras: Mapping[str, ColumnSpec], segment_length: int | None = None
    ) -> dict[str, ColumnSpec]:
        """The columns of this environment's transitions, or of segments of them."""
        lead = () if segment_length is None else (segment_length,)
        observation = ColumnSpec(self.observation_dtype, self.observation_shape)
        columns = {
            "observation": observation,
            "action": self.action_column,
            "reward": ColumnSpec("<f4", ()),
            "discount": ColumnSpec("<f4", ()),
            "next_observation": observation,
            "policy_id": ColumnSpec("<i4", ()),
            "policy_version": ColumnSpec("<i8", ()),
            **{f"extras/{name}": column for name, column in extras.items()},
        }
        return {
            name: ColumnSpec(column.dtype, lead + column.shape) for name, column in columns.items()
        }

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> EnvSpec:
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in document.items()
        }
        if values.get("goals") is not None:
            goals = {name: tuple(place) for name, place in values["goals"].items()}
            values["goals"] = GoalSpec(**goals)
        values["named_goals"] = tuple(tuple(goal) for goal in values.get("named_goals", ()))
        return cls(**values)

    @classmethod
    def from_env(cls, env: gym.Env[Any, Any], env_id: str) -> EnvSpec:
        """Reads the spaces of an encoded environment (`repertory.envs.make_env`)."""
        observation, action = env.observation_space, env.action_space
        if not isinstance(observation, spaces.Box):
            raise UsageError(
                f"{env_id}: observation space {observation} is not supported; "
                "use Box, Discrete or Dict, or add a wrapper with --set env.wrappers=[...]"
            )
        pixels = len(observation.shape) == 3
        limit = env.spec.max_episode_steps if env.spec is not None else None
        return cls(
            env_id=env_id,
            observation_kind="pixels" if pixels else "vector",
            observation_shape=observation.shape,
            observation_dtype=observation.dtype.str,
            max_episode_steps=limit,
            # A limit for each pixel would say no more than its type does.
            observation_low=() if pixels else tuple(observation.low.ravel().tolist()),
            observation_high=() if pixels else tuple(observation.high.ravel().tolist()),
            goals=_goals(env),
            named_goals=_named_goals(env, observation.shape, env_id),
            **_describe_actions(action, env_id),
        )


def _goals(env: gym.Env[Any, Any]) -> GoalSpec | None:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, FlattenObservation):
            return GoalSpec.within(env.env.observation_space)
        env = env.env
    return None


def _named_goals(
    env: gym.Env[Any, Any], shape: tuple[int, ...], env_id: str
) -> tuple[tuple[float, ...], ...]:
    goals = np.asarray(getattr(env.unwrapped, "goals", ()), np.float64)
    if goals.size and goals.shape[1:] != shape:
        raise UsageError(
            f"{env_id} names goals of shape {goals.shape[1:]}, its observations have {shape}: "
            "make each goal an observation"
        )
    return tuple(tuple(goal.ravel().tolist()) for goal in goals)


def _describe_actions(action: spaces.Space[Any], env_id: str) -> dict[str, Any]:
    sizes: tuple[int, ...]
    if isinstance(action, spaces.Box) and np.issubdtype(action.dtype, np.floating):
        kind, sizes = "continuous", (int(np.prod(action.shape)),)
        low, high = action.low.ravel(), action.high.ravel()
        if not (low < high).all():
            raise UsageError(f"{env_id}: action bounds {low} to {high} are empty")
    elif isinstance(action, spaces.Discrete):
        kind, sizes = "discrete", (int(action.n),)
        low, high = np.array([action.start]), np.array([action.start + action.n - 1])
    elif isinstance(action, spaces.MultiDiscrete):
        kind, sizes = "multi_discrete", tuple(int(n) for n in action.nvec.ravel())
        low, high = action.start.ravel(), (action.start + action.nvec - 1).ravel()
    else:
        raise UsageError(
            f"{env_id}: action space {action} is not supported; "
            "use a float Box, Discrete or MultiDiscrete, or add a wrapper"
        )
    assert action.shape is not None
    assert action.dtype is not None
    return {
        "action_kind": kind,
        "action_sizes": sizes,
        "action_low": tuple(float(value) for value in low),
        "action_high": tuple(float(value) for value in high),
        "action_shape": tuple(action.shape),
        "action_dtype": np.dtype(action.dtype).str,
    }


@lru_cache(maxsize=64)
def _bounds(low: tuple[float, ...], high: tuple[float, ...]) -> _Bounds:
    """Asked for at every step."""
    lowest, highest = np.asarray(low), np.asarray(high)
    finite = np.isfinite(lowest) & np.isfinite(highest)
    start = np.where(finite, lowest, 0.0)
    return _Bounds(
        low=lowest,
        high=highest,
        start=start,
        width=np.where(finite, highest, 0.0) - start,
        infinite=None if finite.all() else ~finite,
    )


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Of continuous actions, [A] each."""

    low: Array
    high: Array
    start: Array  # where [-1, 1] is mapped to begins: low, or 0 where that has no end
    width: Array
    infinite: Array | None  # where one bound is missing
