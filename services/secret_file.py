"""Secrets in files that only their owner may read."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from repertory.errors import UsageError


def make_secret(path: Path) -> bool:
    """256 random bits; False where there is such a file already. Never half written."""
    return not path.exists() and write_secret(path, secrets.token_hex(32).encode())


def secret_in(path: Path) -> str:
    """Of that file, which is made where it is not there."""
    make_secret(path)
    return path.read_text().strip()


def write_secret(path: Path, content: bytes) -> bool:
    """False where there is such a file already: of several that start at once, one makes it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"cannot make {path}, a secret: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
