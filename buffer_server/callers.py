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
    """One caller for the time of one call.

    Whoever dismisses a caller does not hold the table's lock. So a caller first says where it waits
    and then looks whether it was dismissed, and who dismisses it does the two in the other order:
    one of them sees the other.
    """

    name: str
    dismissed: str | None = None  # why, once it was
    waits_at: object | None = None  # the table
    waited_seconds: float = 0.0  # for limiters, in all its calls


@dataclass(frozen=True, slots=True)
class Blocked:
    """A caller that waits now."""

    caller: str
    operation: Operation
    items: int
    seconds: float  # for how long by now
    reason: str
    consumer: int | None = None  # of a sample, where each has a ratio of its own
