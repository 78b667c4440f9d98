"""Where a shard listens, `unix:/path/to.sock` or `host:port`, and what TLS takes.

Both ends read the same files: settings of `ReplayServer` and of `ReplayClient`.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path

from repertory.errors import UsageError

UNIX_PREFIX = "unix:"
LONGEST_UNIX_PATH = 107  # bytes, the system's limit


def check_address(address: str) -> str:
    """The address itself, if it is one."""
    if address.startswith(UNIX_PREFIX):
        path = address.removeprefix(UNIX_PREFIX)
        if not path.startswith("/") or len(path.encode()) > LONGEST_UNIX_PATH:
            raise ValueError(
                f"{address!r} is not the absolute path of a socket, "
                f"of at most {LONGEST_UNIX_PATH} bytes: choose a shorter directory"
            )
        return address
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is no address: write host:port or unix:/path/to.sock")
    return address


def is_unix(address: str) -> bool:
    return address.startswith(UNIX_PREFIX)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach it."""
    if is_unix(address):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may mean anything
        return False


def read_pem(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the {what} {path}: {error.strerror}") from error
