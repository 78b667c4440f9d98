"""The newest lines of all logs of a machine, each with the file it is from; goes on if asked to."""

from __future__ import annotations

import sys
import threading
from collections import deque
from pathlib import Path

LOOK_SECONDS = 0.5
LARGEST_LINE = 2000


def show(folder: Path, *, lines: int, follow: bool) -> None:
    """Until whoever reads it goes away."""
    places: dict[Path, int] = {}
    for path in _logs(folder):
        with path.open("rb") as file:
            for line in deque(file, maxlen=lines):
                _say(folder, path, line)
            places[path] = file.tell()
    sys.stdout.flush()
    pause = threading.Event()
    while follow and not pause.wait(LOOK_SECONDS):
        for path in _logs(folder):
            begin = places.get(path, 0)
            if path.stat().st_size < begin:  # it was begun anew
                begin = 0
            with path.open("rb") as file:
                file.seek(begin)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # the rest is still to come
                    _say(folder, path, line)
                    begin += len(line)
            places[path] = begin
        sys.stdout.flush()


def _logs(folder: Path) -> list[Path]:
    return sorted([*folder.glob("logs/*.log"), *folder.glob("runs/*/logs/*")])


def _say(folder: Path, path: Path, line: bytes) -> None:
    name = str(path.relative_to(folder)).removeprefix("logs/").removeprefix("runs/")
    text = line.decode(errors="replace").rstrip("\n")[:LARGEST_LINE]
    sys.stdout.write(f"{name}: {text}\n")
