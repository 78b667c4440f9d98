"""The runs below one folder, found again each time somebody asks.

An id is the path below that folder, with `~` between its parts: it is looked up among what was
found, never turned into a path.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from repertory.errors import RepertoryError
from services.dashboard.run_view import RunView
from services.dashboard.schemas import RunList

DEEPEST = 3  # folders below the root
FRESH_SECONDS = 1.0
SEPARATOR = "~"


class RunLibrary:
    """Safe to share between threads."""

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        self.root = root.resolve()
        self.read_only = read_only
        self._lock = threading.Lock()
        self._views: dict[str, RunView] = {}
        self._looked_at = -FRESH_SECONDS

    def close(self) -> None:
        for view in self._views.values():
            view.close()

    def view(self, id_: str) -> RunView | None:
        with self._lock:
            if id_ not in self._views:
                self._look()
            return self._views.get(id_)

    def views(self) -> list[RunView]:
        with self._lock:
            self._look()
            return list(self._views.values())

    def list(self) -> RunList:
        """The newest first."""
        runs = [view.summary(read_only=self.read_only) for view in self.views()]
        runs.sort(key=lambda run: -(run.started_at or 0.0))
        return RunList(runs=runs, read_only=self.read_only)

    def _look(self) -> None:
        if time.monotonic() - self._looked_at < FRESH_SECONDS:
            return
        found = {_id_of(self.root, path): path for path in _runs_below(self.root, DEEPEST)}
        for gone in self._views.keys() - found.keys():
            self._views.pop(gone).close()
        for id_, path in found.items():
            if id_ in self._views:
                continue
            try:
                self._views[id_] = RunView(path, id_)
            except RepertoryError:
                continue  # being made, or of another program
        self._looked_at = time.monotonic()


def _id_of(root: Path, path: Path) -> str:
    return path.name if path == root else SEPARATOR.join(path.relative_to(root).parts)


def _runs_below(folder: Path, depth: int) -> list[Path]:
    """A run has a config, and no runs in it."""
    if (folder / "config.yaml").is_file():
        return [folder]
    if depth == 0:
        return []
    try:
        inside = sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []
    return [
        run
        for path in inside
        if not path.name.startswith(".") and not path.is_symlink()
        for run in _runs_below(path, depth - 1)
    ]
