"""Who calls a table: so that those who wait can be named, and sent away.

A table lets callers wait for its limiter. Whoever speaks for a caller (the gRPC server, whose
client hung up) dismisses it through `Table.dismiss`; it then gets `CallerDismissed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from repertory.errors import RepertoryError

Operation = Literal["insert", "sample"]


class CallerDismissed(RepertoryError):
    """A caller that waited was sent away before its deadline. The message says why."""


@dataclass(slots=True, eq=False)
class Caller:
    """One caller for the time of one call."""

    name: str
    dismissed: str | None = None  # why, once it was


@dataclass(frozen=True, slots=True)
class Blocked:
    """A caller that waits now."""

    caller: str
    operation: Operation
    items: int
    seconds: float  # for how long by now
    reason: str
