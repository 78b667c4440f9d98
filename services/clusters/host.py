"""What is done on a machine of a cluster, by words that come over ssh:

python -m services.clusters.host VERB FOLDER [...]

Each verb prints one JSON object, except `logs`. `keep` is the keeper itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from repertory.control import Control
from repertory.errors import RepertoryError
from services.clusters.keeper import Keeper, KeeperState, is_kept, members
from services.clusters.node import Node
from services.clusters.tail import show
from services.dashboard.server import DashboardConfig
from services.dashboard.sessions import Sessions
from services.secret_file import secret_in

POLL_SECONDS = 0.1
START_SECONDS = 120.0
STOP_SECONDS = 60.0
RUNS_SECONDS = 90.0  # a last evaluation and a checkpoint
SECRETS = ("token", "key.pem", "certificate.pem", "authority.pem", "authority.key")


def start(folder: Path, seconds: float = START_SECONDS) -> dict[str, Any]:
    """Returns when this machine is a member, or says why it is not."""
    begun = not is_kept(folder)
    if begun:
        (folder / "state.json").unlink(missing_ok=True)
        logs = folder / "logs"
        logs.mkdir(exist_ok=True)
        with (logs / "keeper.log").open("ab") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-m", "services.clusters.host", "keep", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,  # it stays when this connection goes
            )
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        state = KeeperState.read(folder)
        if state is not None and state.phase in ("ready", "failed"):
            return {"ok": state.phase == "ready", "begun": begun, "reason": state.reason}
        if begun and keeper.poll() is not None:
            return {"ok": False, "begun": False, "reason": f"ended with {keeper.returncode}"}
        time.sleep(POLL_SECONDS)
    said = "" if state is None else f" ({state.phase}: {state.reason})"
    return {"ok": False, "begun": begun, "reason": f"not ready in {seconds:g} s{said}"}


def stop(folder: Path) -> dict[str, Any]:
    """Ends the keeper, which ends all it started; takes the secrets away, and leaves the runs."""
    state = KeeperState.read(folder)
    kept = is_kept(folder)
    if kept and state is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(state.process_id, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while is_kept(folder):
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(state.process_id, signal.SIGKILL)  # its guardian ends the rest
            time.sleep(POLL_SECONDS)
    for name in SECRETS:
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(RepertoryError):
        node = Node.read(folder)
        if node.is_head or not node.ray_address.strip("[").startswith(node.address):
            shutil.rmtree(node.ray_folder, ignore_errors=True)
    return {"ok": True, "stopped": kept}


def link(folder: Path) -> dict[str, Any]:
    """To the dashboard, good once: for whoever may log in here."""
    node = Node.read(folder)
    code = Sessions(secret_in(DashboardConfig(node.runs).token_file)).link_code()
    return {"link": f"http://127.0.0.1:{node.dashboard_port}/enter?code={code}"}


def stop_runs(folder: Path) -> dict[str, Any]:
    """Each writes a checkpoint; returns when they have ended, or will not."""
    if not is_kept(folder):
        return {"stopped": [], "left": []}
    node = Node.read(folder)
    with Control(node.control, "") as control:
        asked = list(control.claims())
        for run in asked:
            with Control(node.control, run) as told:
                told.send("stop")
        deadline = time.monotonic() + RUNS_SECONDS
        while (left := set(control.claims())) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    return {"stopped": [run for run in asked if run not in left], "left": sorted(left)}


def status(folder: Path) -> dict[str, Any]:
    state = KeeperState.read(folder)
    return {"kept": is_kept(folder), "state": None if state is None else asdict(state)}


def all_members(folder: Path) -> dict[str, Any]:
    try:
        return {"members": members(Node.read(folder)), "reason": ""}
    except RepertoryError as error:
        return {"members": [], "reason": str(error)}


def keep(folder: Path) -> dict[str, Any]:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    Keeper(Node.read(folder)).run()
    return {"ok": True}


VERBS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "start": start,
    "stop": stop,
    "stop-runs": stop_runs,
    "status": status,
    "members": all_members,
    "link": link,
    "keep": keep,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="services.clusters.host")
    parser.add_argument("verb", choices=[*VERBS, "logs"])
    parser.add_argument("folder", type=lambda text: Path(text).expanduser())
    parser.add_argument("--lines", type=int, default=20)
    parser.add_argument("--follow", action="store_true")
    words = parser.parse_args()
    if words.verb == "logs":
        show(words.folder, lines=words.lines, follow=words.follow)
        return
    sys.stdout.write(json.dumps(VERBS[words.verb](words.folder)) + "\n")


if __name__ == "__main__":
    main()
