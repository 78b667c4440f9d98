"""One line of a run's files, as an object."""

from __future__ import annotations

import json
from typing import Any

import orjson


def parsed(line: bytes) -> dict[str, Any] | None:
    """None: it is none, for example torn by a crash."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            value = json.loads(line)  # also takes NaN and Infinity, as Python writes them
        except ValueError:
            return None
    return value if isinstance(value, dict) else None
