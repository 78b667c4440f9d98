"""A policy that counts in each copy how often it has acted since it began there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from repertory.types import Acted, Array, ColumnSpec


class Counting:
    """Records the count before its step, and the steps of the run; its action alternates."""

    def __init__(self) -> None:
        self.extras: Mapping[str, ColumnSpec] = {
            "count": ColumnSpec("<i8", ()),
            "env_steps": ColumnSpec("<i8", ()),
        }
        self.memory: Mapping[str, ColumnSpec] = {"count": ColumnSpec("<i8", ())}

    def act(self, observation: Array, rng: np.random.Generator | None) -> Acted:
        return self.act_remembering(
            observation, {"count": np.zeros(len(observation), np.int64)}, 0, rng
        )[0]

    def act_remembering(
        self,
        observation: Array,
        memory: Mapping[str, Array],
        env_steps: int,
        rng: np.random.Generator | None,
    ) -> tuple[Acted, Mapping[str, Array]]:
        count = memory["count"]
        extras = {"count": count, "env_steps": np.full(len(count), env_steps)}
        return Acted(count % 2, extras), {"count": count + 1}

    def weights(self) -> dict[str, Array]:
        return {}

    def load_weights(self, arrays: Mapping[str, Array]) -> None:
        pass
