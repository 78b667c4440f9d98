"""What Ray reads from the environment when it is imported: so it is set before, and nowhere else.

Every call to Ray is authenticated by a token, which lies in a file only its owner can read. Nothing
is reported to its makers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

from repertory.errors import RepertoryError
from services.secret_file import make_secret

TRIES_TO_JOIN = "5"  # of a cluster that is there, about a second each


def prepare(token_file: Path, *, make_token: bool) -> None:
    """Before anything imports Ray. A token is made for a cluster of our own only."""
    if make_token:
        make_secret(token_file)
    if "ray" in sys.modules and os.environ.get("RAY_AUTH_MODE") != "token":
        raise RepertoryError(
            "Ray was imported before its token could be set: import repertory first, or set "
            "RAY_AUTH_MODE=token in the environment"
        )
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token_file.resolve()))
    quiet_ray(os.environ)
    if not make_token:
        os.environ["RAY_NUM_REDIS_GET_RETRIES"] = TRIES_TO_JOIN


def quiet_ray(environment: MutableMapping[str, str]) -> None:
    """For whoever starts Ray's processes. A value of one's own is kept, where that is harmless."""
    environment["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray's agents write their titles over their environment, and the guardian's mark went with it.
    environment["SPT_NOENV"] = "1"
    # Ray makes its workers nice, and a nice one that wakes waits for milliseconds before it runs:
    # of an environment that takes 20 ms a step that cost a sixth.
    environment.setdefault("RAY_worker_niceness", "0")
    # What Ray's processes tell of their tasks and of their event loops, once a second each, is read
    # by nobody here; with 32 processes on two cores it is felt.
    environment.setdefault("RAY_task_events_report_interval_ms", "0")
    environment.setdefault("RAY_event_stats", "0")
    # Ray starts an idle worker for every core and lets nobody in before all of them are there; ours
    # are started when they are asked for, beside each other.
    environment.setdefault("RAY_prestart_worker_first_driver", "0")
