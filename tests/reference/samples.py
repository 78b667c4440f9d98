"""Small made-up environments and samples: rows all differ, some terminated, weights not all 1."""

from __future__ import annotations

import numpy as np
from reference.ppo import Distribution, Segments

from repertory.specs import EnvSpec
from repertory.types import Array, Sample, TransitionBatch

OBSERVATION_SIZE = 3
GAMMA = 0.9


def continuous_spec(actions: int = 2, *, bounded: bool = True) -> EnvSpec:
    bound = 1.0 if bounded else float("inf")
    return _spec("continuous", (actions,), (-bound,) * actions, (bound,) * actions, (actions,))


def discrete_spec(actions: int = 4) -> EnvSpec:
    return _spec("discrete", (actions,), (0.0,), (actions - 1.0,), ())


def multi_discrete_spec(sizes: tuple[int, ...] = (3, 2)) -> EnvSpec:
    high = tuple(size - 1.0 for size in sizes)
    return _spec("multi_discrete", sizes, (0.0,) * len(sizes), high, (len(sizes),))


def _spec(
    kind: str,
    sizes: tuple[int, ...],
    low: tuple[float, ...],
    high: tuple[float, ...],
    shape: tuple[int, ...],
) -> EnvSpec:
    return EnvSpec(
        env_id="made-by-hand",
        observation_kind="vector",
        observation_shape=(OBSERVATION_SIZE,),
        observation_dtype="<f4",
        action_kind=kind,  # type: ignore[arg-type]
        action_sizes=sizes,
        action_low=low,
        action_high=high,
        action_shape=shape,
        action_dtype="<f4" if kind == "continuous" else "<i8",
        max_episode_steps=None,
    )


def pixel_spec(actions: int = 4) -> EnvSpec:
    return EnvSpec(
        env_id="made-by-hand",
        observation_kind="pixels",
        observation_shape=(2, 36, 36),  # the smallest image the three convolutions take
        observation_dtype="|u1",
        action_kind="discrete",
        action_sizes=(actions,),
        action_low=(0.0,),
        action_high=(actions - 1.0,),
        action_shape=(),
        action_dtype="<i8",
        max_episode_steps=None,
    )


def transitions(spec: EnvSpec, size: int, seed: int, *, n_step: int = 1) -> Sample:
    """Transitions as a prioritised replay of n-step items gives them, in float64.

    Of the discounts some are 0 (terminated), most gamma**n, and for n > 1 some gamma**k with k < n
    (cut by a truncation). s and s' have nothing in common.
    """
    rng = np.random.default_rng(seed)
    steps = rng.integers(1, n_step + 1, size=size)
    discount = GAMMA**steps * (np.arange(size) % 3 != 1)
    return Sample(
        batch=TransitionBatch(
            observation=rng.normal(size=(size, OBSERVATION_SIZE)),
            action=spec.random_actions(size, rng).astype(
                np.float64 if spec.action_kind == "continuous" else np.int64
            ),
            reward=rng.normal(size=size),
            discount=discount,
            next_observation=rng.normal(loc=1.0, size=(size, OBSERVATION_SIZE)),
            policy_id=np.zeros(size, np.int32),
            policy_version=np.zeros(size, np.int64),
        ),
        keys=np.arange(size),
        weights=rng.uniform(0.2, 1.0, size=size),
    )


def segments(
    spec: EnvSpec, acted: Distribution, rows: int, steps: int, seed: int, *, drift: float = 0.0
) -> Segments:
    """Segments in which episodes terminate, are truncated, and are cut by the segment's end.

    `acted` gives the recorded log densities; `drift` shifts them at random, as if an older policy
    had acted, so that ratios fall inside and outside of the clip on both sides.
    """
    rng = np.random.default_rng(seed)
    observation = rng.normal(size=(rows, steps, OBSERVATION_SIZE))
    if spec.action_kind == "continuous":
        action = rng.normal(size=(rows, steps, spec.action_size))
    else:
        action = spec.random_actions(rows * steps, rng)
        action = action.reshape(rows, steps, *action.shape[1:])
    flat = acted.log_prob(
        observation.reshape(rows * steps, -1), action.reshape(rows * steps, *action.shape[2:])
    )
    ends, terminated = ending(rows, steps)
    return Segments(
        observation=observation,
        next_observation=rng.normal(loc=0.5, size=observation.shape),
        action=action,
        log_prob=(flat + drift * rng.normal(size=flat.shape)).reshape(rows, steps),
        reward=rng.normal(size=(rows, steps)),
        discount=GAMMA * ~terminated,
        boundary=ends,
    )


def ending(rows: int, steps: int) -> tuple[Array, Array]:
    """Where episodes end, and at which of these ends they terminate (others are truncated)."""
    ends = np.zeros((rows, steps), bool)
    ends[0, steps // 2] = ends[-1, steps // 3] = ends[-1, steps // 3 + 1] = True
    terminated = np.zeros_like(ends)
    terminated[0, steps // 2] = terminated[-1, steps // 3 + 1] = True
    return ends, terminated


def as_sample(columns: Segments, extras: dict[str, Array] | None = None) -> Sample:
    rows, steps = columns.reward.shape
    return Sample(
        batch=TransitionBatch(
            observation=columns.observation,
            # What was executed is a Gaussian's sample clipped; the density is of policy_action.
            action=(
                np.clip(columns.action, -1, 1)
                if np.issubdtype(columns.action.dtype, np.floating)
                else columns.action
            ),
            reward=columns.reward,
            discount=columns.discount,
            next_observation=columns.next_observation,
            policy_id=np.zeros((rows, steps), np.int32),
            policy_version=np.zeros((rows, steps), np.int64),
            extras={
                "policy_action": columns.action,
                "log_prob": columns.log_prob,
                "boundary": columns.boundary,
            }
            | (extras or {}),
        ),
        keys=np.arange(rows),
        weights=np.ones(rows),
    )
