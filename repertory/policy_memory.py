"""What a policy carries from one step to the next, kept for it in each copy of the environment.

Rollouts, evaluations, videos and `LoadedPolicy` let a policy act through this, whatever policy it
is. One without a memory (most) is simply called. A `MemoryPolicy` gets the rows of the copies it
acts in and says what they become: it stays a function, and what it remembers is arrays that a
checkpoint can hold.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from repertory.protocols import Acting, Episodic, MemoryPolicy
from repertory.types import Acted, Array


class PolicyMemory:
    """One row for each copy, all zero where the policy has just begun to act."""

    def __init__(self, policy: Acting) -> None:
        self._policy = policy
        # Asked once: what a policy is does not change, and the question is dear at every step.
        self._remembering = policy if isinstance(policy, MemoryPolicy) else None
        self._episodic = policy if isinstance(policy, Episodic) else None
        self._rows: dict[str, Array] = {}
        if self._remembering is not None:
            self._rows = {
                name: np.zeros((0, *spec.shape), spec.dtype)
                for name, spec in self._remembering.memory.items()
            }

    def act(
        self,
        observation: Array,
        rng: np.random.Generator | None,
        *,
        copies: Array | None = None,
        env_steps: int = 0,
    ) -> Acted:
        """What it does in the copies with these indices [K]; by default in the first K."""
        if self._remembering is None:
            return self._policy.act(observation, rng)
        if copies is None:
            copies = np.arange(len(observation))
        self._grow(int(copies[-1]) + 1)
        before = {name: rows[copies] for name, rows in self._rows.items()}
        acted, after = self._remembering.act_remembering(observation, before, env_steps, rng)
        for name, rows in self._rows.items():
            rows[copies] = after[name]
        return acted

    def begin(self, starting: Array | None = None) -> None:
        """`starting` [B] marks the copies where it begins: with an episode, or by a hand-over.

        By default it begins everywhere.
        """
        if self._episodic is not None:
            self._episodic.begin(starting)
        for rows in self._rows.values():
            rows[slice(None) if starting is None else np.flatnonzero(starting[: len(rows)])] = 0

    def state(self) -> dict[str, Array]:
        return {name: rows.copy() for name, rows in self._rows.items()}

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        self._rows = {name: arrays[name].copy() for name in self._rows}

    def _grow(self, copies: int) -> None:
        """Room for so many: in those not heard of before it has just begun."""
        for name, rows in self._rows.items():
            if len(rows) < copies:
                fresh = np.zeros((copies - len(rows), *rows.shape[1:]), rows.dtype)
                self._rows[name] = np.concatenate([rows, fresh])
