"""Called by `ray start` with what it is about to start (RAY_START_HOOK)."""

from __future__ import annotations

from typing import Any


def no_client_server(parameters: Any, is_head: bool) -> None:
    """Ray's client protocol is not used here, and its port would be open on all addresses."""
    parameters.ray_client_server_port = None
