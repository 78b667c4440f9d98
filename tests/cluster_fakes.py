"""Stand-ins for machines of a cluster: shells that answer as one would and record what came."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.clusters.authority import Authority
from services.clusters.inventory import LocalInventory, Shape
from services.clusters.machine import Machine
from services.clusters.node import Node
from services.clusters.node_plan import node_files, plan_node
from services.clusters.shell import Done, LocalShell, Shell

HERE = list(sys.version_info[:3])


def good_facts(**changes: Any) -> dict[str, Any]:
    """Of a machine with which nothing is wrong: time is filled in when it is asked."""
    return {
        "hostname": "beta",
        "home": "/home/somebody",
        "time": None,
        "python": HERE,
        "interpreter": HERE,
        "environment": None,
        "folder": "/node",
        "writable": True,
        "disk_bytes": 2**40,
        "shared_memory_bytes": 2**34,
        "memory_bytes": 2**36,
        "cores": 8,
        "open_files": 2**16,
        "gpus": 0,
        "kept": False,
        "card": None,
        "taken_ports": [],
        "taken_here": [],
        "has_address": True,
        **changes,
    }


def node_in(folder: Path, *, address: str = "127.0.0.1", **changes: Any) -> Node:
    """A head's, as the inventory's defaults have it."""
    inventory = LocalInventory(name="lab", provider="local", **changes)
    return plan_node(
        inventory,
        inventory.head,
        name="head",
        is_head=True,
        address=address,
        head_address=address,
        folder=folder,
    )


def bring(node: Node, authority: Authority, token: bytes = b"of-the-cluster") -> Node:
    """Makes its folder here."""
    node.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, content in node_files(node, authority, token).items():
        (node.folder / name).write_bytes(content)
    return node


def machine_with(shell: Shell, folder: Path, *, shape: Shape | None = None) -> Machine:
    node = node_in(folder)
    return Machine(
        "beta", shell, shape or Shape(), node, str(folder), f"{folder}/environment", [6379, 6380]
    )


@dataclass(frozen=True)
class Call:
    machine: str
    words: list[str]
    stdin: bytes

    @property
    def verb(self) -> str:
        """What it is for: look, bring, remove, or what is said to `services.clusters.host`."""
        if self.words[:2] == ["python3", "-"]:
            return "look"
        if self.words[:2] == ["sh", "-c"]:
            return {"unpack": "bring", "remove": "remove"}[self.words[3]]
        return self.words[3]


@dataclass
class FakeShell:
    """A machine that has what its facts say, and starts what it is told to."""

    name: str
    calls: list[Call]  # of all machines, in their order
    facts: dict[str, Any] = field(default_factory=good_facts)
    # verb -> instead of the usual one; an exception is raised
    answers: dict[str, Done | BaseException] = field(default_factory=dict)
    running: bool = False
    state: Any = None  # as its keeper has written it
    members: list[Any] = field(default_factory=list)  # as the head has them
    runs: list[str] = field(default_factory=list)
    clock: Any = None  # () -> seconds since the epoch
    lock: threading.Lock = field(default_factory=threading.Lock)

    def command(self, words: Sequence[str]) -> list[str]:
        return ["ssh", self.name, "--", *words]

    def run(self, words: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float) -> Done:
        call = Call(self.name, list(words), stdin)
        with self.lock:
            self.calls.append(call)
        answer = self.answers.get(call.verb)
        if isinstance(answer, BaseException):
            raise answer
        if answer is not None:
            return answer
        done: Done = getattr(self, f"_{call.verb.replace('-', '_')}")(call)
        return done

    def _look(self, call: Call) -> Done:
        facts = dict(self.facts)
        if facts["time"] is None:
            facts["time"] = self.clock()
        return said({**facts, "kept": facts["kept"] or self.running})

    def _bring(self, call: Call) -> Done:
        self.facts["card"] = json.loads(unpacked(call.stdin)["node.json"].content)
        return Done(0, "", "")

    def _remove(self, call: Call) -> Done:
        """Really, below folders for tests."""
        assert call.words[-1].startswith(tempfile.gettempdir())
        return LocalShell().run(call.words, timeout_seconds=30)

    def _stop_runs(self, call: Call) -> Done:
        stopped, self.runs = self.runs, []
        return said({"stopped": stopped, "left": []})

    def _status(self, call: Call) -> Done:
        return said({"kept": self.running, "state": self.state})

    def _members(self, call: Call) -> Done:
        return said({"members": self.members, "reason": ""})

    def _start(self, call: Call) -> Done:
        begun, self.running = not self.running, True
        return said({"ok": True, "begun": begun, "reason": ""})

    def _stop(self, call: Call) -> Done:
        stopped, self.running = self.running, False
        return said({"ok": True, "stopped": stopped})


def said(document: Any) -> Done:
    """By `services.clusters.host`."""
    return Done(0, json.dumps(document), "")


AWAY = Done(255, "", "ssh: connect to host beta port 22: No route to host")


@dataclass(frozen=True)
class Unpacked:
    content: bytes
    mode: int


def unpacked(box: bytes) -> dict[str, Unpacked]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(box)) as tar:
        for entry in tar:
            file = tar.extractfile(entry)
            assert file is not None
            found[entry.name] = Unpacked(file.read(), entry.mode)
    return found
