"""A schedule that is kept to the letter: [[td3, 10], [sac, 5]].

In `episodes` an entry holds for so many choices: whole episodes, or stretches of
`director.switch_every` steps. That is exact, whatever is lost on the way: the director hands a
choice that came to nothing out again. In `steps` an entry holds until so many environment steps
have ended under the script; choices that are leased by then are still carried out.

After its end the script repeats, or stays at its last entry. Entries of benched members are passed
over; where the script names no candidate at all, the first candidate acts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from repertory.errors import UsageError
from repertory.settings import PartSettings
from services.strategies.strategy import Outcome
from services.strategies.windowed import Windowed


class Scripted(Windowed):
    class Config(PartSettings):
        name: str = "scripted"
        script: tuple[tuple[str, Annotated[int, Field(ge=1)]], ...] = ()
        unit: Literal["episodes", "steps"] = "episodes"
        after: Literal["repeat", "stay"] = "repeat"
        window: int = Field(default=100, ge=1)  # scores behind the estimates that people see

    exact: ClassVar[bool] = True

    def __init__(self, config: Config, members: Sequence[str]) -> None:
        super().__init__(members, config.window)
        if not config.script:
            raise UsageError(
                "director.strategy.script is empty: give a list of policies and for how long each "
                f"acts, as [[{members[0]}, 10]]"
            )
        for policy, _ in config.script:
            if policy not in members:
                raise UsageError(
                    f"director.strategy.script names {policy!r}, which is not in the portfolio: "
                    f"use {', '.join(members)}"
                )
        self._config = config
        self._entry = 0
        self._used = 0  # of the entry, in its unit

    def choose(self, candidates: Sequence[str], rng: np.random.Generator) -> str:
        script = self._config.script
        in_steps = self._config.unit == "steps"
        entry = self._entry
        for _ in script:
            policy = script[entry][0]
            if policy in candidates:
                # Steps pass by themselves: looking past an entry does not use it up.
                if not in_steps:
                    self._entry, self._used = entry, (self._used if entry == self._entry else 0)
                    self._use(1)
                return policy
            entry = self._following(entry)
        return candidates[0]

    def observe(self, outcome: Outcome) -> None:
        super().observe(outcome)
        if self._config.unit == "steps":
            self._use(outcome.length)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "entry": self._entry, "used": self._used}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self._entry, self._used = int(state["entry"]), int(state["used"])

    def _use(self, amount: int) -> None:
        self._used += amount
        while self._used >= self._config.script[self._entry][1]:
            if self._following(self._entry) == self._entry:  # it stays here, or is alone
                self._used = 0
                return
            self._used -= self._config.script[self._entry][1]
            self._entry = self._following(self._entry)

    def _following(self, entry: int) -> int:
        last = len(self._config.script) - 1
        if entry < last:
            return entry + 1
        return 0 if self._config.after == "repeat" else last
