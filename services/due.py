"""Something that is due every so many environment steps."""

from __future__ import annotations


class Due:
    """At every multiple of `every`; steps may jump over several, which are then one."""

    def __init__(self, every: int, env_steps: int) -> None:
        self._every = every
        self._at = self._next(env_steps)

    def now(self, env_steps: int) -> bool:
        """Whether it is; asking moves on to the next time."""
        if env_steps < self._at:
            return False
        self._at = self._next(env_steps)
        return True

    def _next(self, env_steps: int) -> int:
        return (env_steps // self._every + 1) * self._every
