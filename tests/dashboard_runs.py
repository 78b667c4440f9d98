"""Runs on disk for tests of the dashboard, made in a moment, and a dashboard around them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from repertory.closing import Closing
from services.dashboard.library import RunLibrary
from services.dashboard.routes import make_app
from services.dashboard.server import LOOPBACK
from services.dashboard.sessions import Sessions
from services.dashboard.site import Site

TOKEN = "0f" * 32


def make_run(
    path: Path,
    *,
    env: str = "CartPole-v1",
    learners: Mapping[str, str] | None = None,
    seed: int = 0,
    rows: Iterable[Mapping[str, Any]] = (),
    events: Iterable[Mapping[str, Any]] = ({"event": "started", "env_steps": 0},),
    evaluations: Mapping[int, list[float]] | None = None,
) -> Path:
    """As `repertory train` leaves it, as far as the dashboard looks."""
    path.mkdir(parents=True)
    names = learners or {"dqn": "dqn"}
    config = {
        "env": {"id": env},
        "learners": {
            name: {"algorithm": algorithm, "updates_per_step": 0.5, "learning_starts": 100}
            for name, algorithm in names.items()
        },
        "steps": 1000,
        "seed": seed,
        "evaluation": {"every": 500},
        "director": {"strategy": {"name": "ucb"}},
    }
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    (path / "versions.json").write_text(json.dumps({"python": "3.11"}))
    add_rows(path, rows)
    add_events(path, events)
    if evaluations:
        steps = np.array(list(evaluations))
        results = np.array(list(evaluations.values()))
        np.savez(path / "evaluations.npz", timesteps=steps, results=results)
    return path


def add_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with (path / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def add_events(path: Path, events: Iterable[Mapping[str, Any]]) -> None:
    with (path / "events.jsonl").open("a") as file:
        for number, event in enumerate(events):
            file.write(json.dumps({"time": 1000.0 + number, **event}) + "\n")


def make_site(runs: Path, *, read_only: bool = False) -> tuple[Site, Any]:
    """And the application, which answers as a server of this machine."""
    site = Site(RunLibrary(runs, read_only=read_only), Sessions(TOKEN))
    return site, make_app(site, LOOPBACK)


class DashboardProcess(Closing):
    """`repertory dashboard` in a process of its own."""

    def __init__(self, runs: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "services.cli", "dashboard", str(runs), "--json",
             "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._process.communicate()[1]
        document = json.loads(line)
        self.address: str = document["address"]
        self.link: str = document["link"]
        self.token = Path(document["token_file"]).read_text().strip()
        self.process_id = self._process.pid

    def close(self) -> None:
        """As a person would, by Ctrl-C; it must end well."""
        self._process.send_signal(signal.SIGINT)
        self.errors = self._process.communicate(timeout=30)[1]
        self.exit_code = self._process.returncode
