"""The newest lines of all logs of a machine, each with the file it is from; goes on if asked to."""

from __future__ import annotations

import os
import select
import sys
from collections import deque
from pathlib import Path

LOOK_SECONDS = 0.5
LARGEST_LINE = 2000


def show(folder: Path, *, lines: int, follow: bool) -> None:
    """Until whoever reads it goes away."""
    places: dict[Path, int] = {}
    try:
        for path in _logs(folder):
            places[path] = _newest(folder, path, lines, whole=follow)
        sys.stdout.flush()
        while follow and not _reader_has_gone():
            for path in _logs(folder):
                places[path] = _since(folder, path, places.get(path, 0))
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _newest(folder: Path, path: Path, lines: int, *, whole: bool) -> int:
    """Where to go on; `whole`: a line whose end is still to come waits for it."""
    with path.open("rb") as file:
        found = deque(file, maxlen=max(0, lines) + 1)
        end = file.tell()
    if whole and found and not found[-1].endswith(b"\n"):
        end -= len(found.pop())
    for line in list(found)[-lines:] if lines > 0 else ():
        _say(folder, path, line)
    return end


def _since(folder: Path, path: Path, begin: int) -> int:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < begin:  # it was begun anew
            begin = 0
        file.seek(begin)
        for line in file:
            if not line.endswith(b"\n"):
                break
            _say(folder, path, line)
            begin += len(line)
    return begin


def _reader_has_gone() -> bool:
    """Looked at for a while: a pipe that nobody reads from any more says so at once."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(
        event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(LOOK_SECONDS * 1000)
    )


def _logs(folder: Path) -> list[Path]:
    found = [*folder.glob("logs/*.log"), *folder.glob("runs/*/logs/*")]
    return sorted(path for path in found if path.is_file())


def _say(folder: Path, path: Path, line: bytes) -> None:
    name = str(path.relative_to(folder)).removeprefix("logs/").removeprefix("runs/")
    text = line.decode(errors="replace").rstrip("\n")[:LARGEST_LINE]
    sys.stdout.write(f"{name}: {text}\n")
