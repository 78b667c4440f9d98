"""Stands before every page: refuses what does not belong here, and says so in the log.

- A `Host` that is not ours: a name in somebody's hands that was pointed at this machine.
- A foreign `Origin` or `Sec-Fetch-Site`: another site's page that makes a browser act here.
- No session: JSON gets 401, pages are sent to the login.
- Bodies that are too large.

And gives every answer its headers: nothing is loaded from elsewhere, shown in a frame, or guessed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.dashboard.sessions import Sessions

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 << 10
SAFE_METHODS = ("GET", "HEAD")
OPEN_TO_ALL = ("/login", "/enter", "/healthz")
OPEN_BELOW = "/static/"
CONTENT_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self'; connect-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with less, a form would not say where it comes from
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class BodyTooLarge(Exception):
    pass


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, sessions: Sessions, hosts: Collection[str]) -> None:
        """`hosts` are names and addresses without ports."""
        self._app = app
        self._sessions = sessions
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        app = self._app if refusal is None else refusal
        begun = False
        received = 0

        async def bounded_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY_BYTES:
                raise BodyTooLarge
            return message

        async def send_with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            await app(scope, bounded_receive, send_with_headers)
        except BodyTooLarge:
            if not begun:
                await self._refuse(scope, 413, _TOO_LARGE)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        path, method = scope["path"], scope["method"]
        host = _without_port(headers.get("host", ""))
        if host not in self._hosts:
            return self._refuse(scope, 403, f"this is not {host!r}: see --allow-host")
        if not self._is_from_here(scope, headers):
            return self._refuse(scope, 403, "this came from another site's page")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            return self._refuse(scope, 413, _TOO_LARGE)
        if path in OPEN_TO_ALL or path.startswith(OPEN_BELOW) or self._has_session(headers):
            return None
        if path.startswith("/api/") or path == "/metrics" or method not in SAFE_METHODS:
            response = self._refuse(scope, 401, "log in at /login, or send the token")
            response.headers["www-authenticate"] = "Bearer"
            return response
        return RedirectResponse("/login", 303)

    def _is_from_here(self, scope: Scope, headers: Headers) -> bool:
        """Of what changes something; a page of another site can do no harm by looking."""
        if scope["method"] in SAFE_METHODS:
            return True
        origin = headers.get("origin")
        if origin is not None:
            return origin == f"{scope['scheme']}://{headers.get('host', '')}"
        # Programs send neither; browsers of today send both.
        return headers.get("sec-fetch-site", "none") in ("same-origin", "none")

    def _has_session(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._sessions.knows(token.strip()):
            return True
        cookie = cookie_parser(headers.get("cookie", "")).get(self._sessions.cookie_name)
        return cookie is not None and self._sessions.is_cookie(cookie)

    def _refuse(self, scope: Scope, status: int, why: str) -> Response:
        client: Any = scope.get("client") or ("?", 0)
        logger.warning(
            "refused with %d: %s %.200r from %s: %s",
            status,
            scope["method"],
            scope["path"],
            client[0],
            why,
        )
        return JSONResponse({"error": why}, status)


_TOO_LARGE = f"the body is larger than {MAX_BODY_BYTES} bytes"


def _without_port(host: str) -> str:
    if host.startswith("["):  # an IPv6 address
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()
