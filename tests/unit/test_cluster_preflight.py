"""What is looked at before a cluster starts: each thing that can be wrong, alone."""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_fakes import AWAY, HERE, FakeShell, good_facts, machine_with

from services.clusters import host_facts, preflight
from services.clusters.inventory import Python, Requirements, Shape, Ssh
from services.clusters.keeper import _lock
from services.clusters.machine import Machine
from services.clusters.preflight import Finding, Look, look_at
from services.clusters.shell import Done, LocalShell, SshShell

LOCK = {"numpy": "2.3.1", "ray": "2.49.0", "torch": "2.8.0"}
PROJECT = importlib.metadata.version("repertory")
HAVING = {"repertory": PROJECT, **LOCK}


def ask(
    shell: Any,
    *,
    python: Python | None = None,
    shape: Shape | None = None,
    folder: Path = Path("/node"),
    require: Requirements | None = None,
) -> Look:
    machine = machine_with(shell, folder, shape=shape)
    (look,) = look_at([machine], python or Python(), require or Requirements(), LOCK)
    return look


def shell(**facts: Any) -> FakeShell:
    return FakeShell("beta", [], good_facts(**facts), clock=time.time)


def wrong(look: Look) -> list[Finding]:
    return [finding for finding in look.findings if not finding.ok]


def test_a_good_machine_has_nothing_wrong() -> None:
    look = ask(shell())
    assert wrong(look) == []
    assert {finding.check for finding in look.findings} == {
        *("ssh", "python", "ports", "disk", "memory", "shared memory"),
        *("open files", "gpus", "cores", "clock"),
    }
    assert {finding.machine for finding in look.findings} == {"beta"}
    assert not look.runs_already


@pytest.mark.parametrize(
    ("facts", "check", "said", "remedy"),
    [
        ({"interpreter": [3, 9, 2]}, "python", "3.9, here 3.", "python.interpreter"),
        ({"interpreter": None}, "python", "python3 is not there", "python.interpreter"),
        (
            {"environment": {"python": [3, 8, 1], "packages": {}}},
            "python",
            "3.8, here",
            "python.interpreter",
        ),
        ({"taken_ports": [6379]}, "ports", "taken: 6379", "choose other ports"),
        ({"taken_here": [8600]}, "ports", "taken: 8600", "choose other ports"),
        ({"has_address": False}, "address", "127.0.0.1 is not its own", "give the address"),
        ({"disk_bytes": 2**30}, "disk", "1.0 GB free of 5 asked for", "require.disk_gb"),
        ({"writable": False}, "disk", "cannot write to /node", "choose another `folder`"),
        ({"memory_bytes": 2**29}, "memory", "0.5 GB of 1 asked for", "require.memory_gb"),
        (
            {"shared_memory_bytes": 64 * 2**20},
            "shared memory",
            "64 MB free for an object store of 256 MB",
            "object_store_mb",
        ),
        ({"open_files": 1024}, "open files", "1024 allowed of 4096 asked for", "ulimit -n"),
        ({"cores": 1}, "cores", "1 of 2 asked for", "lower cores"),
        ({"gpus": 1}, "gpus", "1 of 2 asked for", "nvidia-smi"),
        ({"time": 0.0}, "clock", "s off", "NTP"),
        ({"time": 2e10}, "clock", "s off", "NTP"),
        ({"kept": True, "card": None}, "ports", "other settings", "cluster down"),
    ],
)
def test_each_thing_that_is_wrong_is_told_alone_with_its_remedy(
    facts: dict[str, Any], check: str, said: str, remedy: str
) -> None:
    shape = Shape(cores=2, gpus=2)
    look = ask(shell(**{"gpus": 2, **facts}), shape=shape)
    (finding,) = wrong(look)
    assert finding.check == check
    assert said in finding.said
    assert remedy in finding.remedy


def test_a_machine_that_is_in_the_cluster_already_keeps_its_ports() -> None:
    machine = machine_with(shell(), Path("/node"))
    card = json.loads(json.dumps(machine.node.to_json()))
    look = ask(shell(kept=True, card=card, taken_ports=[6379, 6380]))
    assert wrong(look) == []
    assert look.runs_already


def test_with_other_settings_it_has_to_go_down_first() -> None:
    machine = machine_with(shell(), Path("/node"))
    card = json.loads(json.dumps(machine.node.to_json())) | {"ray_address": "10.9.9.9:6379"}
    (finding,) = wrong(ask(shell(kept=True, card=card)))
    assert finding.said == "is in the cluster with other settings"


def test_at_its_limit_a_machine_is_good_enough() -> None:
    require = Requirements(disk_gb=1.0, memory_gb=2.0, open_files=300)
    look = ask(
        shell(
            disk_bytes=2**30,
            memory_bytes=2**31,
            open_files=300,
            shared_memory_bytes=100 * 2**20,
            gpus=1,
            cores=3,
        ),
        shape=Shape(cores=3, gpus=1, object_store_mb=100),
        require=require,
    )
    assert wrong(look) == []


@pytest.mark.parametrize(
    ("theirs", "off"), [(100.0, 0.0), (160.0, 0.0), (99.0, 1.0), (161.5, 1.5), (97.0, 3.0)]
)
def test_a_slow_answer_is_no_wrong_clock(
    monkeypatch: pytest.MonkeyPatch, theirs: float, off: float
) -> None:
    """Asked at 100 and answered at 160: theirs was read somewhere between."""
    clock = iter([100.0, 160.0])
    monkeypatch.setattr(preflight, "time", SimpleNamespace(time=lambda: next(clock)))
    (finding,) = [one for one in ask(shell(time=theirs)).findings if one.check == "clock"]
    assert (finding.said, finding.ok) == (f"{off} s off", off <= 2.0)


# An environment that is there already


THERE = Python(install=False, environment="/opt/rl")


def environment(**packages: str | None) -> dict[str, Any]:
    found = {name: version for name, version in (HAVING | packages).items() if version}
    return {"environment": {"python": HERE, "packages": found}}


def test_the_same_packages_are_right() -> None:
    assert wrong(ask(shell(**environment()), python=THERE)) == []
    assert wrong(ask(shell(**environment(torch="2.8.0+cu128", more="1.0")), python=THERE)) == []


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ({"ray": "2.48.0"}, "ray 2.48.0 there, 2.49.0 here"),
        ({"torch": None}, "torch 2.8.0 is missing"),
        ({"repertory": "0.0.1"}, f"repertory 0.0.1 there, {PROJECT} here"),
        (
            {"numpy": None, "ray": None, "torch": None},
            "numpy 2.3.1 is missing; ray 2.49.0 is missing, and 1 more",
        ),
    ],
)
def test_other_packages_are_named(packages: dict[str, str | None], said: str) -> None:
    (finding,) = wrong(ask(shell(**environment(**packages)), python=THERE))
    assert (finding.check, finding.said) == ("environment", said)
    assert "python.install: true" in finding.remedy


def test_one_that_is_to_be_installed_is_not_compared() -> None:
    assert wrong(ask(shell(**environment(ray="1.0")))) == []


def test_one_that_is_not_there_is_told() -> None:
    (finding,) = wrong(ask(shell(), python=THERE))
    assert finding.check == "environment"
    assert "is not there" in finding.said
    assert finding.remedy == "python.install: true makes it"


# No answer


def test_a_machine_that_ssh_does_not_reach_has_one_finding() -> None:
    away = FakeShell("beta", [], answers={"look": AWAY})
    look = ask(away)
    assert look.facts is None
    assert not look.runs_already
    (finding,) = look.findings
    assert (finding.check, finding.ok) == ("ssh", False)
    assert "No route to host" in finding.said


def test_the_way_to_try_it_by_hand_is_the_command_itself() -> None:
    class Unreachable(SshShell):
        def run(self, words: Any, **_: Any) -> Done:
            return AWAY

    (finding,) = ask(Unreachable("beta", Ssh(config=Path("/my/config")))).findings
    assert finding.remedy.startswith("try `ssh -F /my/config ")
    assert finding.remedy.endswith(" beta` by hand")


def test_without_python_there_is_nothing_to_ask() -> None:
    bare = FakeShell("beta", [], answers={"look": Done(127, "", "sh: python3: not found")})
    (finding,) = ask(bare).findings
    assert (finding.check, finding.ok) == ("python3", False)
    assert finding.said == "sh: python3: not found"
    assert finding.remedy == "install Python 3 there"


def test_without_ssh_here_that_is_what_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Once: "python3: ssh is not installed here; install Python 3 there".
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = ask(SshShell("beta", Ssh())).findings
    assert finding.said == "ssh is not installed here"
    assert finding.check == "ssh"
    assert "Python" not in finding.remedy


def test_what_a_login_shell_says_first_is_no_harm() -> None:
    # Once: `echo hello` in a user's .bashrc there, and the machine "has no Python 3".
    facts = json.dumps(good_facts(time=time.time()))
    greeting = FakeShell("beta", [], answers={"look": Done(0, f"hello\n{facts}", "")})
    assert wrong(ask(greeting)) == []


def test_all_machines_are_looked_at_whatever_one_says() -> None:
    good, away = shell(), FakeShell("gamma", [], answers={"look": AWAY})
    machines = [machine_with(one, Path("/node")) for one in (good, away, good)]
    looks = look_at(machines, Python(), Requirements(), LOCK)
    assert [look.facts is None for look in looks] == [False, True, False]


# The question itself, asked of this machine


def really(folder: Path, **changes: Any) -> dict[str, Any]:
    machine = machine_with(LocalShell(), folder)
    values = {name: getattr(machine, name) for name in ("name", "shell", "shape", "node", "folder")}
    values |= {"environment": str(folder / "none"), "ports": []}
    (look,) = look_at(
        [Machine(**(values | changes))],
        Python(interpreter=sys.executable),
        Requirements(),
        LOCK,
    )
    assert look.facts is not None, look.findings
    return dict(look.facts)


def test_this_machine_is_seen_as_it_is(tmp_path: Path) -> None:
    facts = really(tmp_path / "not" / "yet")
    assert facts["hostname"] == socket.gethostname()
    assert facts["interpreter"] == HERE
    assert facts["environment"] is None
    assert facts["cores"] == len(os.sched_getaffinity(0))
    assert facts["writable"]
    assert facts["has_address"]
    assert facts["taken_ports"] == []
    assert not facts["kept"]
    assert facts["card"] is None
    assert not (tmp_path / "not").exists()  # it only looks


def test_a_taken_port_is_seen(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        socket.create_server(("", 0)) as taken_on_all,
        socket.create_server(("127.0.0.1", 0)) as free,
    ):
        ports = [one.getsockname()[1] for one in (taken, taken_on_all, free)]
        free.close()
        assert really(tmp_path, ports=ports)["taken_ports"] == ports[:2]


def test_a_taken_port_of_the_dashboard_is_seen(tmp_path: Path) -> None:
    """It listens on this machine alone, whatever the address is."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = replace(machine_with(LocalShell(), tmp_path).node, dashboard_port=port)
        elsewhere = replace(node, address="127.0.0.2")
        assert really(tmp_path, node=elsewhere)["taken_here"] == [port]
    assert really(tmp_path, node=elsewhere)["taken_here"] == []


def test_an_address_of_another_machine_is_seen(tmp_path: Path) -> None:
    node = replace(machine_with(LocalShell(), tmp_path).node, address="192.0.2.1")
    facts = really(tmp_path, node=node, ports=[6379])
    assert not facts["has_address"]
    assert facts["taken_ports"] == []


def test_a_kept_folder_is_seen_with_its_card(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text('{"cluster": "lab"}')
    with _lock(tmp_path):
        facts = really(tmp_path)
        assert facts["kept"]
        assert facts["card"] == {"cluster": "lab"}
    assert not really(tmp_path)["kept"]


def test_a_broken_card_is_none(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text("{")
    assert really(tmp_path)["card"] is None


def test_packages_of_an_environment_are_seen(tmp_path: Path) -> None:
    environment = really(tmp_path, environment=sys.prefix)["environment"]
    assert environment["python"] == HERE
    assert environment["packages"]["repertory"] == PROJECT
    assert "pydantic-core" in environment["packages"]


def test_an_interpreter_that_does_not_work_is_none(tmp_path: Path) -> None:
    # Once: [], which is shown as ", here 3.11".
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert host_facts._interpreter(str(broken)) is None
    assert host_facts._interpreter(str(tmp_path / "none")) is None


def test_the_question_needs_no_more_than_a_bare_python(tmp_path: Path) -> None:
    """It is run by whatever Python 3 is there: no package of ours, no site-packages."""
    question = {
        "folder": str(tmp_path),
        "environment": "/none",
        "interpreter": "none",
        "address": "127.0.0.1",
        "ports": [],
        "own_ports": [],
    }
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-", json.dumps(question)],
        input=Path(host_facts.__file__).read_bytes(),
        capture_output=True,
        timeout=60,
        cwd="/",
        check=True,
    )
    assert json.loads(done.stdout)["folder"] == str(tmp_path)
