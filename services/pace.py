"""How many updates the environment steps so far allow, at a rate that may change on the way.

In a distributed run the limiters of the shards do this; a local run has nobody to wait for, and
counts.
"""

from __future__ import annotations

from collections.abc import Mapping

ROUNDING = 1e-9  # ten times 0.1 is a whole update


class Pace:
    def __init__(self, learning_starts: int, updates_per_step: float) -> None:
        self._updates_per_step = updates_per_step
        self._counted = learning_starts  # environment steps that are paid for
        self._allowed = 0.0

    def allowed(self, env_steps: int, factor: float = 1.0) -> int:
        """In all, where the steps since the last call count `factor` times."""
        if env_steps > self._counted:
            self._allowed += (env_steps - self._counted) * self._updates_per_step * factor
            self._counted = env_steps
        return int(self._allowed + ROUNDING)

    def state(self) -> dict[str, float]:
        return {"counted": self._counted, "allowed": self._allowed}

    def load_state(self, state: Mapping[str, float]) -> None:
        self._counted, self._allowed = int(state["counted"]), float(state["allowed"])
