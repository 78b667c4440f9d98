"""Who may look: those with the token, once with it in a form or by a link, then by a cookie.

The token lies in a file that only its owner can read. A cookie holds no secret of its own but a
time and its signature by the token: it is valid as long as the token is, over restarts too. A link
holds the same for some minutes, and is good once.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time

COOKIE_SECONDS = 30 * 24 * 3600
LINK_SECONDS = 10 * 60


class Sessions:
    """Safe to share between threads."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        # Cookies know no ports: each token has its own, or two dashboards would log each other out.
        self.cookie_name = f"repertory_{hashlib.sha256(self._token).hexdigest()[:12]}"
        self._lock = threading.Lock()
        self._spent: dict[str, int] = {}  # links, and until when they would be valid

    def knows(self, token: str) -> bool:
        return hmac.compare_digest(self._token, token.encode())

    def cookie(self) -> str:
        return self._signed("cookie", int(time.time()) + COOKIE_SECONDS)

    def is_cookie(self, value: str) -> bool:
        return self._until("cookie", value) is not None

    def link_code(self) -> str:
        return self._signed("link", int(time.time()) + LINK_SECONDS, secrets.token_hex(8))

    def redeem(self, code: str) -> bool:
        """Once."""
        until = self._until("link", code)
        if until is None:
            return False
        with self._lock:
            self._spent = {one: at for one, at in self._spent.items() if at >= time.time()}
            if code in self._spent:
                return False
            self._spent[code] = until
        return True

    def _signed(self, purpose: str, until: int, number: str = "0") -> str:
        text = f"{until}.{number}"
        signature = hmac.new(self._token, f"{purpose}.{text}".encode(), hashlib.sha256)
        return f"{text}.{signature.hexdigest()}"

    def _until(self, purpose: str, value: str) -> int | None:
        """None: it is not one of ours, or its time is over."""
        until, _, rest = value.partition(".")
        number, _, _ = rest.partition(".")
        if not (until.isascii() and until.isdecimal() and len(until) < 15):
            return None
        expected = self._signed(purpose, int(until), number)
        if not hmac.compare_digest(expected.encode(), value.encode()):
            return None
        return int(until) if int(until) >= time.time() else None
