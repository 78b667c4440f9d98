"""A cluster of containers on one machine, by `docker compose`.

Rendered and validated; not run on a real Docker here. The containers' network is internal: no
port is published, and they reach nothing outside. The dashboard listens on the head's loopback
only, and is reached through `container_tunnel`.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import join, quote
from typing import Any

from repertory.errors import RepertoryError, UsageError
from services.clusters.external_tool import ExternalTool
from services.clusters.inventory import ComposeInventory, PodShape
from services.clusters.provider import MachineStatus, Operator, Say
from services.clusters.rendered import (
    Record,
    as_yaml,
    inventory_document,
    roll_back,
    secret_files,
    write_rendered,
)

STOP_SECONDS = 60  # for runs to save a checkpoint
NODE = "/node"
INVENTORY = "/etc/repertory/inventory.yaml"
SECRETS = "/run/secrets"  # where Docker puts them
SHARED_MEMORY_MB = 256  # besides the object store
COMPOSE_FILE = "compose.yaml"
_docker = ExternalTool("docker")


class ComposeCluster:
    """Of one inventory."""

    def __init__(self, inventory: ComposeInventory, source: Path) -> None:
        self.inventory = inventory
        self._source = source
        self._operator = Operator(inventory.name)
        self._record = Record(self._operator, "compose")
        self._file = self._operator.rendered / COMPOSE_FILE
        self._runs = self._operator.folder / "runs"
        self._project = f"repertory-{inventory.name}"
        self._compose = ExternalTool(
            "docker", "compose", "-p", self._project, "-f", str(self._file)
        )

    def render(self) -> Mapping[str, str]:
        return {
            COMPOSE_FILE: as_yaml(self._document()),
            "inventory.yaml": as_yaml(inventory_document(self.inventory)),
        }

    def _document(self) -> dict[str, Any]:
        secrets = self._operator.folder / "secrets"
        files = {
            "authority.pem": secrets / "authority.pem",
            "authority.key": secrets / "authority.key",
            "token": self.inventory.token_file or secrets / "token",
        }
        return {
            "name": self._project,
            "services": {
                "head": self._head(),
                "worker": self._service("worker", self.inventory.worker)
                | {"depends_on": {"head": {"condition": "service_healthy"}}},
            },
            "networks": {"cluster": {"internal": True}},
            "secrets": {name: {"file": _literal(path)} for name, path in files.items()},
        }

    def _head(self) -> dict[str, Any]:
        head = self._service("head", self.inventory.head)
        head["hostname"] = "head"
        runs = {"type": "bind", "source": _literal(self._runs), "target": f"{NODE}/runs"}
        head["volumes"] = [*head["volumes"], runs]
        return head

    def _service(self, role: str, shape: PodShape) -> dict[str, Any]:
        volumes = [_read_only(self._operator.rendered / "inventory.yaml", INVENTORY)]
        environment = {"HOME": "/tmp", "USER": "repertory", "REPERTORY_NODE": NODE}
        if self.inventory.code is not None:
            volumes.append(_read_only(self.inventory.code, "/code"))
            environment["PYTHONPATH"] = "/code"
        replicas = 1 if role == "head" else self.inventory.workers
        return {
            "image": self.inventory.image,
            "init": True,
            # Docker hands on files of secrets with the owner and the mode that they have here.
            "user": f"{os.getuid()}:{os.getgid()}",
            "entrypoint": ["/bin/sh", "-c", _start(role)],
            "command": [],
            "environment": environment,
            "networks": ["cluster"],
            "secrets": ["authority.pem", "authority.key", "token"],
            "volumes": volumes,
            "read_only": True,
            "tmpfs": [f"{NODE}:mode=1777,size=512m", "/tmp:exec,mode=1777,size=2g"],
            "shm_size": f"{shape.object_store_mb + SHARED_MEMORY_MB}m",
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            "ulimits": {"nofile": 65536},
            "restart": "unless-stopped",
            "stop_grace_period": f"{STOP_SECONDS}s",
            "healthcheck": {
                "test": ["CMD", "repertory", "cluster", "healthy", "--folder", NODE],
                "interval": "10s",
                "timeout": "20s",
                "retries": 3,
                "start_period": "120s",
            },
            "deploy": {"replicas": replicas, "resources": _resources(shape)},
        }

    def up(self, say: Say) -> None:
        _docker.require()
        before = self._containers() if self._record.read() is not None else []
        self._write()
        self._record.write({"project": self._project})
        try:
            self._start(self.inventory.workers)
        except BaseException:
            if not before:
                say(f"{self._project} is ended again; runs stay in {self._runs}")
                roll_back(self._end, say)
            raise
        say(f"ready: a head and {self.inventory.workers} workers")

    def _write(self) -> None:
        secret_files(self._operator, self.inventory)
        self._runs.mkdir(parents=True, exist_ok=True)
        write_rendered(self._operator.rendered, self.render())

    def _start(self, workers: int) -> None:
        seconds = math.ceil(self.inventory.wait_minutes * 60)
        self._compose.run(
            *("up", "--detach", "--wait", "--wait-timeout", str(seconds)),
            *("--scale", f"worker={workers}"),
            timeout_seconds=seconds + STOP_SECONDS,
        )

    def status(self) -> Sequence[MachineStatus]:
        if self._record.read() is None:
            return []
        found = [
            MachineStatus(
                name=str(one.get("Name", "")),
                role=str(one.get("Service", "")),
                address=str(one.get("Service", "")),
                state=_state(one),
                reason="" if _state(one) == "ready" else str(one.get("Status", "")),
            )
            for one in self._containers()
        ]
        return sorted(found, key=lambda one: (one.role != "head", one.name))

    def _containers(self) -> list[dict[str, Any]]:
        text = self._compose.run("ps", "--all", "--format", "json").strip()
        try:
            if text.startswith("["):  # as older versions answer
                found: list[dict[str, Any]] = json.loads(text)
                return found
            return [json.loads(line) for line in text.splitlines()]
        except ValueError as error:
            raise RepertoryError(f"docker compose ps answered {text[:200]!r}") from error

    def scale(self, workers: int, say: Say) -> None:
        if self._record.read() is None:
            raise UsageError(f"{self.inventory.name} is not up")
        self._start(workers)
        say(f"{workers} workers; `up` goes back to the {self.inventory.workers} of {self._source}")

    def logs(self, *, host: str | None, lines: int, follow: bool) -> None:
        words = ["logs", "--tail", str(lines), *(["--follow"] if follow else [])]
        if host is None or host in ("head", "worker"):
            self._compose.show(*words, *([host] if host else []), follow=follow)
            return
        known = [str(one.get("Name", "")) for one in self._containers()]
        if host not in known:
            raise UsageError(f"there is no container {host}: {', '.join(known) or 'none is up'}")
        _docker.show(*words, host, follow=follow)

    def down(self, say: Say) -> None:
        if self._record.read() is None:
            say(f"{self.inventory.name} is not up")
        else:
            self._end()
            say(f"{self._project} has ended; runs stay in {self._runs}")

    def _end(self) -> None:
        self._compose.run("down", "--timeout", str(STOP_SECONDS), timeout_seconds=5 * STOP_SECONDS)
        self._record.forget()

    def details(self) -> Mapping[str, Any]:
        port = self.inventory.ports.dashboard
        compose = join(["docker", "compose", "-p", self._project, "-f", str(self._file)])
        module = "services.clusters.container_tunnel"
        return {
            "dashboard": f"http://127.0.0.1:{port}",
            "tunnel": f"{quote(sys.executable)} -m {module} {port} -- {compose} exec -T head",
            "submit": f"{compose} exec head repertory train ... --address {self.inventory.name}",
            "runs": str(self._runs),
        }


def _start(role: str) -> str:
    """Name and address are known in the container alone; compose would expand a single `$`."""
    place = '"$$address" --also-known-as head' if role == "head" else "head"
    return (
        "address=$$(hostname -i | cut -d ' ' -f 1) && exec repertory cluster node "
        f'{INVENTORY} --role {role} --name "$$(hostname)" --address "$$address" '
        f"--head-address {place} --secrets {SECRETS} --folder {NODE}"
    )


def _resources(shape: PodShape) -> dict[str, Any]:
    resources: dict[str, Any] = {
        "limits": {"cpus": str(shape.cores), "memory": f"{math.ceil(shape.memory_gb * 1024)}m"}
    }
    if shape.gpus:
        device = {"driver": "nvidia", "count": shape.gpus, "capabilities": ["gpu"]}
        resources["reservations"] = {"devices": [device]}
    return resources


def _read_only(source: Path, target: str) -> dict[str, Any]:
    return {"type": "bind", "source": _literal(source), "target": target, "read_only": True}


def _literal(path: Path) -> str:
    """Compose takes $ for the beginning of a variable."""
    return str(path).replace("$", "$$")


def _state(container: Mapping[str, Any]) -> str:
    if container.get("State") != "running":
        return str(container.get("State", "down"))
    health = container.get("Health")
    return "ready" if health == "healthy" else str(health or "starting")
