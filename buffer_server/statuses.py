"""What can go wrong between a shard and its callers, and the gRPC status each travels as.

The server turns errors into statuses, the client turns them back: a caller of `ReplayClient` sees
the same error as a caller of `Table`, and never one of gRPC's own.
"""

from __future__ import annotations

import grpc

from buffer_server.callers import CallerDismissed
from buffer_server.writer_ledger import SequenceTooOld
from repertory.errors import RepertoryError, ReplayTimeout, UsageError

LONGEST_MESSAGE = 1000  # a status travels in HTTP/2 headers, which are bounded


class UnknownTable(UsageError):
    """The shard has no table of that name."""


class ReplayMismatch(RepertoryError):
    """Both sides speak of different things: another protocol, signature or set-up."""


class ReplayOverload(RepertoryError):
    """A message or the number of callers is over a limit of the shard."""


class ReplayDenied(RepertoryError):
    """The token is wrong or missing."""


class ReplayUnavailable(RepertoryError):
    """The shard is draining or gone."""


# The first that fits counts.
_CODES: tuple[tuple[type[RepertoryError], grpc.StatusCode], ...] = (
    (UnknownTable, grpc.StatusCode.NOT_FOUND),
    (UsageError, grpc.StatusCode.INVALID_ARGUMENT),
    (ReplayMismatch, grpc.StatusCode.FAILED_PRECONDITION),
    (SequenceTooOld, grpc.StatusCode.FAILED_PRECONDITION),
    (ReplayOverload, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (ReplayDenied, grpc.StatusCode.UNAUTHENTICATED),
    (ReplayTimeout, grpc.StatusCode.DEADLINE_EXCEEDED),
    (ReplayUnavailable, grpc.StatusCode.UNAVAILABLE),
    (CallerDismissed, grpc.StatusCode.UNAVAILABLE),
    (RepertoryError, grpc.StatusCode.INTERNAL),
)
_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


def status_of(error: RepertoryError) -> tuple[grpc.StatusCode, str]:
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    return code, str(error)[:LONGEST_MESSAGE]


def error_of(code: grpc.StatusCode | int, message: str, address: str) -> RepertoryError:
    """The error that a caller sees for a status that came from the shard at `address`."""
    known = _BY_NUMBER.get(code, grpc.StatusCode.UNKNOWN) if isinstance(code, int) else code
    kind = next((kind for kind, mapped in _CODES if mapped is known), RepertoryError)
    return kind(f"the replay shard at {address}: {' '.join(message.split())}")
