"""A process's log in the run directory: one JSON object for each line, for people and tools."""

from __future__ import annotations

import faulthandler
import json
import logging
from pathlib import Path


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": round(record.created, 3),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def log_to(path: Path) -> None:
    """All of this process from now on; a crash by a signal leaves its stacks in there too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a", buffering=1)
    handler = logging.StreamHandler(file)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    faulthandler.enable(file)
