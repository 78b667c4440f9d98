"""Looks at every machine before anything is started: one table of what is right and what is not."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.clusters import host_facts
from services.clusters.inventory import Python, Requirements
from services.clusters.lock import differences
from services.clusters.machine import Machine

LOOK_SECONDS = 90.0
DIFFERENCES_SHOWN = 2
GIGABYTE = 2**30


@dataclass(frozen=True, slots=True)
class Finding:
    machine: str
    check: str
    ok: bool
    said: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """At one machine; without facts nothing could be asked of it."""

    machine: Machine
    facts: Mapping[str, Any] | None
    findings: Sequence[Finding]

    @property
    def runs_already(self) -> bool:
        return self.facts is not None and bool(self.facts["kept"])


def look_at(
    machines: Sequence[Machine], python: Python, require: Requirements, lock: Mapping[str, str]
) -> list[Look]:
    """All at once; none is changed by it."""
    with ThreadPoolExecutor(max_workers=min(32, len(machines))) as pool:
        return list(pool.map(lambda one: _look(one, python, require, lock), machines))


def _look(machine: Machine, python: Python, require: Requirements, lock: Mapping[str, str]) -> Look:
    question = {
        "folder": machine.folder,
        "environment": machine.environment,
        "interpreter": python.interpreter,
        "address": machine.node.address,
        "ports": machine.ports,
        "own_ports": [] if machine.node.dashboard_port is None else [machine.node.dashboard_port],
    }
    before = time.time()
    done = machine.shell.run(
        ["python3", "-", json.dumps(question)],
        stdin=Path(host_facts.__file__).read_bytes(),
        timeout_seconds=LOOK_SECONDS,
    )
    after = time.time()
    if done.code == 127 and not done.output and "not installed here" in done.errors:
        return Look(machine, None, [Finding(machine.name, "ssh", False, done.said, "install it")])
    if done.code == 255:
        remedy = f"try `{' '.join(machine.shell.command(['true'])[:-2])}` by hand"
        return Look(machine, None, [Finding(machine.name, "ssh", False, done.said, remedy)])
    try:
        facts = json.loads(done.output.splitlines()[-1])  # before it: greetings of a shell
    except (ValueError, IndexError):
        finding = Finding(machine.name, "python3", False, done.said, "install Python 3 there")
        return Look(machine, None, [finding])
    findings = [
        Finding(machine.name, "ssh", True, facts["hostname"]),
        *_check_python(machine, facts, python, lock),
        *_check_ports(machine, facts),
        *_check_room(machine, facts, require),
        _check_clock(machine, facts, before, after, require),
    ]
    return Look(machine, facts, findings)


def _check_python(
    machine: Machine, facts: Mapping[str, Any], python: Python, lock: Mapping[str, str]
) -> list[Finding]:
    ours = ".".join(map(str, sys.version_info[:2]))
    environment = facts["environment"]
    version = environment["python"] if environment else facts["interpreter"]
    if version is None:
        where = python.interpreter if python.install else f"{machine.environment}/bin/python"
        remedy = "name one that is there: python.interpreter, or python.environment"
        return [Finding(machine.name, "python", False, f"{where} is not there", remedy)]
    theirs = ".".join(map(str, version[:2]))
    remedy = f"name a Python {ours} by python.interpreter"
    found = [
        Finding(machine.name, "python", theirs == ours, f"{theirs}, here {ours}", remedy),
    ]
    if python.install:
        return found
    if environment is None:
        remedy = "python.install: true makes it"
        said = f"{machine.environment} is not there"
        return [*found, Finding(machine.name, "environment", False, said, remedy)]
    project = importlib.metadata.version("repertory")
    differing = differences({"repertory": project, **lock}, environment["packages"])
    if not differing:
        said = f"repertory {project}, {len(lock)} packages as here"
        return [*found, Finding(machine.name, "environment", True, said)]
    more = f", and {len(differing) - DIFFERENCES_SHOWN} more"
    said = "; ".join(differing[:DIFFERENCES_SHOWN]) + (
        more if len(differing) > DIFFERENCES_SHOWN else ""
    )
    remedy = "install the same there, or let python.install: true do it"
    return [*found, Finding(machine.name, "environment", False, said, remedy)]


def _check_ports(machine: Machine, facts: Mapping[str, Any]) -> list[Finding]:
    if facts["kept"]:
        same = facts["card"] == json.loads(json.dumps(machine.node.to_json()))
        said = "is in the cluster already" if same else "is in the cluster with other settings"
        return [Finding(machine.name, "ports", same, said, "`repertory cluster down` first")]
    address = machine.node.address
    if not facts["has_address"]:
        remedy = "give the address under which the others reach it"
        return [Finding(machine.name, "address", False, f"{address} is not its own", remedy)]
    if found := [*facts["taken_ports"], *facts["taken_here"]]:
        taken = ", ".join(map(str, found[:5]))
        remedy = "end what listens there, or choose other ports"
        return [Finding(machine.name, "ports", False, f"taken: {taken}", remedy)]
    return [Finding(machine.name, "ports", True, f"{len(machine.ports)} free at {address}")]


def _check_room(machine: Machine, facts: Mapping[str, Any], require: Requirements) -> list[Finding]:
    name, shape = machine.name, machine.shape
    disk, memory = facts["disk_bytes"] / GIGABYTE, facts["memory_bytes"] / GIGABYTE
    shared, store = facts["shared_memory_bytes"] / 2**20, shape.object_store_mb
    files = facts["open_files"]
    return [
        Finding(
            name,
            "disk",
            facts["writable"] and disk >= require.disk_gb,
            f"{disk:.1f} GB free of {require.disk_gb:g} asked for"
            if facts["writable"]
            else f"cannot write to {facts['folder']}",
            "choose another `folder`, make room, or lower require.disk_gb",
        ),
        Finding(
            name,
            "memory",
            memory >= require.memory_gb,
            f"{memory:.1f} GB of {require.memory_gb:g} asked for",
            "lower require.memory_gb, or leave it out",
        ),
        Finding(
            name,
            "shared memory",
            shared >= store,
            f"{shared:.0f} MB free for an object store of {store} MB",
            "lower object_store_mb, or mount a larger /dev/shm",
        ),
        Finding(
            name,
            "open files",
            files >= require.open_files,
            f"{files} allowed of {require.open_files} asked for",
            "raise `ulimit -n`",
        ),
        Finding(
            name,
            "gpus",
            facts["gpus"] >= shape.gpus,
            f"{facts['gpus']} of {shape.gpus} asked for",
            "lower gpus, or see why nvidia-smi finds no more",
        ),
        Finding(
            name,
            "cores",
            shape.cores is None or facts["cores"] >= shape.cores,
            f"{facts['cores']}" + ("" if shape.cores is None else f" of {shape.cores} asked for"),
            "lower cores: actors would share them",
        ),
    ]


def _check_clock(
    machine: Machine,
    facts: Mapping[str, Any],
    before: float,
    after: float,
    require: Requirements,
) -> Finding:
    """It was read between the two; how long the question took tells nothing about its clock."""
    off = max(before - facts["time"], facts["time"] - after, 0.0)
    return Finding(
        machine.name,
        "clock",
        off <= require.clock_seconds,
        f"{off:.1f} s off",
        "set it by NTP: certificates and ages depend on it",
    )
