"""What an exploration without a memory from one step to the next has in common: nothing to keep."""

from __future__ import annotations

from collections.abc import Mapping

from repertory.types import Array


class Memoryless:
    def begin_episode(self, starting: Array) -> None:
        pass

    def state(self) -> dict[str, Array]:
        return {}

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        pass
