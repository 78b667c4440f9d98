"""The token of a run: read from a file that only its owner may read, asked for on every call.

It travels as `authorization: Bearer TOKEN`, never on a command line and never in a log.
"""

from __future__ import annotations

import hmac
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc

from repertory.errors import UsageError

TOKEN_KEY = "authorization"
SHORTEST_TOKEN = 32  # characters; 256 bits are 64 in hexadecimal

Metadata = Iterable[tuple[str, str | bytes]]


def read_token(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"cannot read token file {path}: {reason}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise UsageError(
            f"token file {path} can be read by others (mode {stat.S_IMODE(mode):o}): chmod 600 it"
        )
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise UsageError(
            f"token file {path} holds no token: write at least {SHORTEST_TOKEN} random characters, "
            "for example with `openssl rand -hex 32`"
        )
    return token


def token_metadata(token: str) -> tuple[str, str]:
    return (TOKEN_KEY, f"Bearer {token}")


class TokenInterceptor(grpc.ServerInterceptor):
    """Refuses every call, of any service, that does not carry the token."""

    def __init__(self, token: str) -> None:
        self._expected = token_metadata(token)[1].encode()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        if self._admits(handler_call_details.invocation_metadata):
            return continuation(handler_call_details)
        handler = continuation(handler_call_details)
        # Without deserialisers: nothing that a stranger sends is looked at.
        if handler is None or not handler.request_streaming:
            return grpc.unary_unary_rpc_method_handler(_deny)
        return grpc.stream_stream_rpc_method_handler(_deny)

    def _admits(self, metadata: Metadata) -> bool:
        given = [value for key, value in metadata if key == TOKEN_KEY]
        if len(given) != 1:
            return False
        value = given[0].encode() if isinstance(given[0], str) else given[0]
        return hmac.compare_digest(value, self._expected)


def _deny(_: Any, context: grpc.ServicerContext) -> Any:
    context.abort(
        grpc.StatusCode.UNAUTHENTICATED, "the token is wrong or missing: give the run's token file"
    )
