"""A cluster over ssh on the hosts of a `Lan`, launched as a person would: by the command line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from lan import Host, Lan

from repertory.control import Control, ControlAddress, ControlTls, Member
from services.clusters.authority import Authority

NAME = "lab"
FOLDER = f"/root/.repertory/nodes/{NAME}"  # on each host
LONG_SECONDS = 150.0  # only something broken takes this long
LOOK_SECONDS = 0.5
FRESH_SECONDS = 5.0


class Cluster:
    """The first host is the head."""

    def __init__(self, folder: Path, lan: Lan) -> None:
        self.lan = lan
        self.folder = folder
        self.file = folder / f"{NAME}.yaml"
        self._trains: list[subprocess.Popen[str]] = []
        self.write()

    def write(self, **changes: Any) -> None:
        """The inventory, with some of its values others."""
        head, *workers = [
            {"host": host.name, "address": host.address, "cores": 2, "object_store_mb": 100}
            for host in self.lan.hosts
        ]
        document = {
            "name": NAME,
            "provider": "ssh",
            "head": head,
            "workers": workers,
            "ssh": {"config": str(self.lan.ssh_config)},
            "python": {"environment": sys.prefix, "install": False},
            "require": {"disk_gb": 0.5, "memory_gb": 0.5},
            **changes,
        }
        self.file.write_text(yaml.safe_dump(document, sort_keys=False))

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "REPERTORY_HOME": str(self.folder / "operator"),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
        }

    def call(self, verb: str, *words: str, code: int = 0) -> str:
        """`repertory cluster VERB FILE ...`; its output, both streams together."""
        done = subprocess.run(
            [sys.executable, "-m", "services.cli", "cluster", verb, str(self.file), *words],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONG_SECONDS,
            check=False,
        )
        assert done.returncode == code, f"{verb}: {done.returncode}: {done.stdout}"
        return done.stdout

    def states(self) -> dict[str, str]:
        document = json.loads(self.call("status", "--json").splitlines()[-1])
        return {one["name"]: one["state"] for one in document["machines"]}

    def train(self, run: str, *words: str) -> subprocess.Popen[str]:
        """On the head, with its output here."""
        arguments = [
            *("train", *words, "--address", NAME, "--run-dir", f"{FOLDER}/runs/{run}"),
            *("--set", "log.dashboard=false"),
        ]
        command = [sys.executable, "-m", "services.cli", "cluster", "exec", str(self.file), "--"]
        process = subprocess.Popen(
            [*command, *arguments],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._trains.append(process)
        return process

    def control(self, run: str) -> Control:
        """The control plane of a run, through the gate, with a certificate of the cluster."""
        secrets = self.folder / "operator" / "clusters" / NAME / "secrets"
        own = self.folder / "own"
        if not own.exists():
            own.mkdir()
            issued = Authority(secrets).issue(["laptop"])
            (own / "certificate.pem").write_bytes(issued.certificate)
            (own / "key.pem").write_bytes(issued.key)
        tls = ControlTls(secrets / "authority.pem", own / "certificate.pem", own / "key.pem")
        place = f"rediss://{self.lan.hosts[0].address}:6380/0"
        return Control(ControlAddress(place, secrets / "token", tls), run)

    def members(self, run: str) -> dict[str, Member]:
        """Those that have said something within the last few seconds."""
        with self.control(run) as control:
            found = control.members()
        return {name: one for name, one in found.items() if one.age_seconds < FRESH_SECONDS}

    def steps(self, run: str) -> int:
        with self.control(run) as control:
            return control.counters().get("env_steps", 0)

    def hosts_of_workers(self, run: str) -> set[str]:
        return {one.host for one in self.members(run).values() if one.role == "worker"}

    def events(self, run: str) -> list[dict[str, Any]]:
        text = self.lan.hosts[0].run("cat", f"{FOLDER}/runs/{run}/events.jsonl").stdout
        return [json.loads(line) for line in text.splitlines()]

    def close(self) -> None:
        for process in self._trains:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its ssh too
            process.communicate(timeout=LONG_SECONDS)


def until(condition: Callable[[], bool], what: str, seconds: float = LONG_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"in {seconds:g} s never: {what}"
        time.sleep(LOOK_SECONDS)


def logs_of(host: Host) -> str:
    return host.run("sh", "-c", f"tail -n 20 {FOLDER}/logs/*", check=False).stdout
