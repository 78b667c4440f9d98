"""The seams: what a replay, an algorithm, a policy, an exploration and a callback must offer.

Anything with these methods fits, ours or a user's own (see `repertory.parts` for how it is named).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np

from repertory.specs import ActionKind, EnvSpec, ObservationKind
from repertory.types import Acted, Array, ColumnSpec, Sample, TransitionBatch, UpdateResult

State = TypeVar("State")


class Replay(Protocol):
    """Where experience is kept: a table here, one shard elsewhere, or all shards together."""

    def insert(self, batch: TransitionBatch, priorities: Array | None = None) -> int: ...

    def sample(self, size: int, *, timeout_seconds: float) -> Sample: ...

    def update_priorities(self, keys: Array, priorities: Array) -> None: ...


class Acting(Protocol):
    """Whoever maps observations to actions: a policy, or several as one."""

    def act(self, observation: Array, rng: np.random.Generator | None) -> Acted:
        """Actions for a batch of observations; without a generator, the deterministic action."""
        ...


@runtime_checkable
class Episodic(Protocol):
    """Who acts by the episode, and must be told where one begins."""

    def begin(self, starting: Array | None = None) -> None:
        """`starting` [B] marks the copies whose next observation is the first of an episode.

        By default it is so in all of them.
        """
        ...


class Policy(Acting, Protocol):
    """What actors run and learners publish; it holds no optimiser."""

    extras: Mapping[str, ColumnSpec]  # what `act` records beside the action

    def weights(self) -> dict[str, Array]: ...

    def load_weights(self, arrays: Mapping[str, Array]) -> None: ...


@runtime_checkable
class MemoryPolicy(Policy, Protocol):
    """A policy that carries something from one step to the next: the option in force, a goal.

    It has no state of its own: who lets it act keeps one row for each copy of the environment
    (`repertory.policy_memory`), all zero where it has just begun. `act` is its first step.
    """

    memory: Mapping[str, ColumnSpec]

    def act_remembering(
        self,
        observation: Array,
        memory: Mapping[str, Array],
        env_steps: int,
        rng: np.random.Generator | None,
    ) -> tuple[Acted, Mapping[str, Array]]:
        """Actions, and what to remember: `memory` has the rows [B, ...] of these observations.

        `env_steps` of the whole run are for schedules; without a generator nothing is random.
        """
        ...


class Algorithm(Protocol[State]):
    """One algorithm: how its state starts, how a sample changes it, which policy comes of it."""

    data: ClassVar[Literal["off_policy", "on_policy"]]
    action_kinds: ClassVar[frozenset[ActionKind]]
    observation_kinds: ClassVar[frozenset[ObservationKind]]

    def initial_state(self, spec: EnvSpec) -> State: ...

    def update(self, state: State, sample: Sample) -> UpdateResult:
        """One step of learning: changes `state` in place, returns what to report."""
        ...

    def policy(self, state: State) -> Policy:
        """The policy that acts with this state; it shares the state's parameters."""
        ...


class Exploration(Protocol):
    """Changes a policy's actions while collecting; never used while evaluating."""

    def explore(
        self, action: Array, copies: Array, env_steps: int, rng: np.random.Generator
    ) -> Array:
        """`action` [K, ...] is that of the copies with these indices [K], ascending."""
        ...

    def begin_episode(self, starting: Array) -> None:
        """`starting` [B] marks the copies where its policy begins to act.

        With a new episode, or in the middle of one where another policy acted before.
        """
        ...

    def state(self) -> dict[str, Array]: ...

    def load_state(self, arrays: Mapping[str, Array]) -> None: ...


class Callback(Protocol):
    """Hooks of a run, named in the config by dotted path. Return True from any to stop the run."""

    def on_step(self, env_steps: int, metrics: Mapping[str, float]) -> bool | None: ...

    def on_evaluation(
        self, env_steps: int, returns: Sequence[float], policy: Policy
    ) -> bool | None: ...

    def on_checkpoint(self, env_steps: int, path: Any) -> bool | None: ...

    def on_end(self, env_steps: int) -> bool | None: ...
