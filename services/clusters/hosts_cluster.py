"""A cluster of machines that one reaches: by ssh, or several nodes on this very machine.

`up` looks at every machine first and starts nothing while something is wrong with one of them. Then
it installs, brings each machine its folder, and starts a keeper there: the head's first, the others
beside each other. What it started it ends again if one of them fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from repertory.checkpoints import write_atomically
from repertory.errors import RepertoryError, UsageError
from services.clusters.authority import Authority
from services.clusters.installation import Installation, tar_of
from services.clusters.inventory import LocalInventory, Python, SshInventory
from services.clusters.lock import as_constraints, lock
from services.clusters.machine import Machine
from services.clusters.node import default_folder
from services.clusters.node_plan import SECRETS, node_files, plan_node
from services.clusters.preflight import Finding, Look, look_at
from services.clusters.provider import MachineStatus, Operator, Say
from services.clusters.shell import LocalShell, SshShell

START_SECONDS = 180.0
STOP_SECONDS = 120.0
ANSWER_SECONDS = 60.0
UNREACHABLE = 255  # as ssh says it
SUBMITTED = "logs/submitted.log"  # on the head
LOCAL_ADDRESS = "127.0.0.2"  # Ray would take 127.0.0.1 for "whatever address this machine has"
# Unpacked in the node's folder, which is made for its owner alone.
_FORGET = '[ ! -e "$1/lock" ] && rm -f "$1/token" "$1/key.pem" "$1/certificate.pem"'
_DETACH = 'nohup setsid "$@" >>"$0" 2>&1 </dev/null &'
_UNPACK = 'umask 077; mkdir -p "$1" && rm -rf "$1/code" && tar -x -C "$1"'


class Refused(UsageError):
    """By what was found on the machines; nothing was started."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = findings
        wrong = [one for one in findings if not one.ok]
        super().__init__(
            f"{len(wrong)} of {len(findings)} checks failed, the first: {wrong[0].machine}: "
            f"{wrong[0].check}: {wrong[0].said}; nothing was started"
        )


class _Unanswered(RepertoryError):
    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code  # of the command there, or of ssh


class HostsCluster:
    def __init__(self, inventory: LocalInventory | SshInventory, source: Path) -> None:
        self.inventory = inventory
        self._source = source
        self._operator = Operator(inventory.name)
        self._machines = _machines(inventory)
        self._python = _python(inventory)

    @property
    def _head(self) -> Machine:
        return self._machines[0]

    def render(self) -> Mapping[str, str]:
        files = {
            "inventory.yaml": yaml.safe_dump(
                json.loads(self.inventory.model_dump_json()), sort_keys=False
            ),
            "lock.txt": as_constraints(lock(self._python.extras)),
        }
        for machine in self._machines:
            card = json.dumps(machine.node.to_json(), indent=1)
            files[f"{machine.name}/node.json"] = f"{card}\n"
            files[f"{machine.name}/commands.txt"] = _commands_in_words(machine)
        return files

    def preflight(self) -> list[Look]:
        return look_at(
            self._machines, self._python, self.inventory.require, lock(self._python.extras)
        )

    def up(self, say: Say) -> None:
        self._start(self._machines, say)
        self._record(workers=len(self._machines) - 1)

    def _start(self, machines: Sequence[Machine], say: Say) -> None:
        say(f"looking at {len(machines)} machines")
        looks = look_at(machines, self._python, self.inventory.require, lock(self._python.extras))
        findings = [finding for look in looks for finding in look.findings]
        if not all(finding.ok for finding in findings):
            raise Refused(findings)
        new = [look.machine for look in looks if not look.runs_already]
        if not new:
            say("all of them are in the cluster already")
        begun: list[Machine] = []
        try:
            if self._python.install and new:
                say("installing the same on each")
                installation = Installation(self._python, lock(self._python.extras))
                _on_each(new, installation.on)
            token = self._operator.token(self.inventory.token_file).read_bytes().strip()
            authority = self._operator.authority
            _on_each(new, lambda machine: self._bring_folder(machine, authority, token))
            head = [machine for machine in machines if machine is self._head]
            others = [machine for machine in machines if machine is not self._head]
            for stage in (head, others):
                if starting := [machine.name for machine in stage if machine in new]:
                    say(f"starting {', '.join(starting)}")
                _on_each(stage, lambda machine: self._start_one(machine, begun))
        except BaseException:
            if begun:
                say(f"that failed: ending {', '.join(machine.name for machine in begun)} again")
            for machine, error in _try_each(new, self._stop_one):
                if error is not None:
                    say(f"{machine.name} may still run something: {error}")
            raise

    def _bring_folder(self, machine: Machine, authority: Authority, token: bytes) -> None:
        files = dict(node_files(machine.node, authority, token))
        if self.inventory.code is not None:
            files |= _tree(self.inventory.code)
        done = machine.shell.run(
            ["sh", "-c", _UNPACK, "unpack", machine.folder],
            stdin=tar_of(files, SECRETS),
            timeout_seconds=ANSWER_SECONDS,
        )
        if done.code:
            raise RepertoryError(f"{machine.name}: cannot write to {machine.folder}: {done.said}")

    def _start_one(self, machine: Machine, begun: list[Machine]) -> None:
        answer = self._ask(machine, "start", START_SECONDS)
        if answer["begun"]:
            begun.append(machine)
        if not answer["ok"]:
            raise RepertoryError(
                f"{machine.name} did not join: {answer['reason']}; its logs are in "
                f"{machine.folder}/logs there"
            )

    def _stop_one(self, machine: Machine) -> None:
        try:
            self._ask(machine, "stop", STOP_SECONDS)
        except _Unanswered as error:
            if error.code == UNREACHABLE:
                raise
            # Nothing of ours may be installed there yet: then nothing can have been started.
            forgotten = machine.shell.run(
                ["sh", "-c", _FORGET, "forget", machine.folder], timeout_seconds=ANSWER_SECONDS
            )
            if forgotten.code:
                raise

    def _ask(self, machine: Machine, verb: str, seconds: float) -> Any:
        done = machine.shell.run(
            [machine.python, "-m", "services.clusters.host", verb, machine.folder],
            timeout_seconds=seconds,
        )
        try:
            return json.loads(done.output.splitlines()[-1])
        except (ValueError, IndexError):
            raise _Unanswered(f"{machine.name}: {verb}: {done.said}", done.code) from None

    def status(self) -> Sequence[MachineStatus]:
        wanted = 1 + self._recorded()
        with ThreadPoolExecutor(max_workers=32) as pool:
            answers = list(pool.map(self._status_of, self._machines))
        members, reason = self._members()
        found = []
        for place, (machine, answer) in enumerate(zip(self._machines, answers, strict=True)):
            member = members.get(machine.name)
            found.append(
                _status(machine, answer, member, reason, wanted=place < wanted, head=place == 0)
            )
        return found

    def _status_of(self, machine: Machine) -> Any:
        try:
            return self._ask(machine, "status", ANSWER_SECONDS)
        except RepertoryError as error:
            return {"kept": None, "state": None, "reason": str(error)}

    def _members(self) -> tuple[dict[str, Any], str]:
        """As the head has them: one that is back is named twice, and the newest counts."""
        try:
            answer = self._ask(self._head, "members", ANSWER_SECONDS)
        except RepertoryError as error:
            return {}, str(error)
        found: dict[str, Any] = {}
        for member in answer["members"]:
            if member["alive"] or member["name"] not in found:
                found[member["name"]] = member
        return found, answer["reason"]

    def scale(self, workers: int, say: Say) -> None:
        there = len(self._machines) - 1
        if workers > there:
            raise UsageError(
                f"--workers {workers} is refused: {self._source} names {there}; add machines to it"
            )
        leaving = self._machines[1 + workers :]
        if leaving:
            say(f"letting go of {', '.join(machine.name for machine in leaving)}")
            for machine, error in _try_each(leaving, self._stop_one):
                if error is not None:
                    say(f"{machine.name} did not answer, and may still run something: {error}")
        self._start(self._machines[: 1 + workers], say)
        self._record(workers=workers)

    def logs(self, *, host: str | None, lines: int, follow: bool) -> None:
        machines = [one for one in self._machines if host in (None, one.name)]
        if not machines:
            known = ", ".join(machine.name for machine in self._machines)
            raise UsageError(f"--host {host} is not in {self._source}: choose of {known}")
        words = [f"--lines={lines}", *(["--follow"] if follow else [])]
        readers = [
            threading.Thread(target=_pass_on, args=[machine, words], daemon=True)
            for machine in machines
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()

    def down(self, say: Say) -> None:
        """Runs first, with a checkpoint; then workers, so that the head does not mourn them."""
        failures: list[str] = []
        try:
            answer = self._ask(self._head, "stop-runs", STOP_SECONDS)
            for run in answer["stopped"]:
                say(f"run {run} has stopped")
            for run in answer["left"]:
                say(f"run {run} did not stop in time: it ends with the machines")
        except RepertoryError as unheard:
            say(f"no run could be told to stop: {unheard}")
        for machines in (self._machines[1:], self._machines[:1]):
            for machine, error in _try_each(machines, self._stop_one):
                if error is None:
                    say(f"{machine.name} has left")
                else:
                    failures.append(str(error))
        if failures:
            raise RepertoryError(
                f"{len(failures)} of {len(self._machines)} machines did not answer, and may still "
                f"run something: {'; '.join(failures)}; say it again when they are back"
            )

    def details(self) -> Mapping[str, Any]:
        port, name = self.inventory.ports.dashboard, self.inventory.name
        details: dict[str, Any] = {
            "head": self._head.node.ray_address,
            "dashboard": self._ask(self._head, "link", ANSWER_SECONDS)["link"],
            "submit": f"repertory cluster exec {self._source} -- train ENV --address {name}",
        }
        if isinstance(self.inventory, SshInventory):
            ssh = self._head.shell.command(["x"])
            config = f"-F {ssh[ssh.index('-F') + 1]} " if "-F" in ssh else ""
            host = self.inventory.head.host
            details["tunnel"] = f"ssh {config}-N -L {port}:127.0.0.1:{port} {host}"
        return details

    def execute(self, words: Sequence[str], *, detach: bool = False) -> int:
        """A command of ours on the head; returns its exit code, or 0 where it goes on by itself."""
        head = self._head
        command = [
            *("env", f"REPERTORY_NODE={head.folder}"),
            *(head.python, "-m", "services.cli", *words),
        ]
        if not detach:
            return subprocess.run(head.shell.command(command), check=False).returncode
        done = head.shell.run(
            ["sh", "-c", _DETACH, f"{head.folder}/{SUBMITTED}", *command],
            timeout_seconds=ANSWER_SECONDS,
        )
        if done.code:
            raise RepertoryError(f"{head.name}: {done.said}")
        return 0

    def _record(self, *, workers: int) -> None:
        self._operator.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        document = {"workers": workers, "at": time.time()}
        write_atomically(self._operator.folder / "cluster.json", json.dumps(document).encode())

    def _recorded(self) -> int:
        try:
            document = json.loads((self._operator.folder / "cluster.json").read_text())
            return int(document["workers"])
        except (OSError, ValueError, KeyError):
            return len(self._machines) - 1


def _machines(inventory: LocalInventory | SshInventory) -> list[Machine]:
    return _local(inventory) if isinstance(inventory, LocalInventory) else _by_ssh(inventory)


def _local(inventory: LocalInventory) -> list[Machine]:
    ports = inventory.ports
    machines = []
    for place, shape in enumerate([inventory.head, *inventory.workers]):
        name = "head" if place == 0 else f"worker-{place}"
        folder = default_folder(inventory.name if place == 0 else f"{inventory.name}.{name}")
        node = plan_node(
            inventory,
            shape,
            name=name,
            is_head=place == 0,
            address=LOCAL_ADDRESS,
            head_address=LOCAL_ADDRESS,
            folder=folder,
            fixed_ports=False,
        )
        fixed = [ports.ray, ports.control] if place == 0 else []
        machines.append(Machine(name, LocalShell(), shape, node, str(folder), sys.prefix, fixed))
    return machines


def _by_ssh(inventory: SshInventory) -> list[Machine]:
    ports, python = inventory.ports, inventory.python
    folder = (inventory.folder or f"~/.repertory/nodes/{inventory.name}").rstrip("/")
    head_address = inventory.head.address or inventory.head.host
    machines = []
    for place, host in enumerate([inventory.head, *inventory.workers]):
        node = plan_node(
            inventory,
            host,
            name=host.host,
            is_head=place == 0,
            address=host.address or host.host,
            head_address=head_address,
            folder=Path(folder),
        )
        listening = [*range(ports.node.first, ports.node.first + 3)]
        if place == 0:
            listening += [ports.ray, ports.control]
        machines.append(
            Machine(
                host.host,
                SshShell(host.host, inventory.ssh),
                host,
                node,
                folder,
                python.environment or f"{folder}/environment",
                listening,
            )
        )
    return machines


def _python(inventory: LocalInventory | SshInventory) -> Python:
    if isinstance(inventory, SshInventory):
        return inventory.python
    return Python(install=False, environment=sys.prefix, interpreter=sys.executable)


def _status(
    machine: Machine,
    answer: Any,
    member: Any,
    head_reason: str,
    *,
    wanted: bool,
    head: bool,
) -> MachineStatus:
    state = answer["state"]
    resources: dict[str, float] = {}
    heard, restarts, version = None, 0, ""
    if state is not None:
        heard, restarts = max(0.0, time.time() - state["at"]), state["restarts"]
        version = state["version"]
    if answer["kept"] is None:
        phase, reason = "unreachable", answer["reason"]
    elif not answer["kept"]:
        phase = "down" if wanted else "not used"
        reason = "" if state is None else state["reason"]
    elif state is None:
        phase, reason = "starting", ""
    elif member is None or not member["alive"]:
        phase = state["phase"] if state["phase"] != "ready" else "waiting"
        reason = state["reason"] or head_reason or "the head does not count it among its own"
    else:
        phase, reason = state["phase"], state["reason"]
        resources = member["resources"]
    return MachineStatus(
        name=machine.name,
        role="head" if head else "worker",
        address=machine.node.address,
        state=phase,
        reason=reason,
        version=version,
        heard_seconds=heard,
        restarts=restarts,
        resources=resources,
    )


def _on_each(machines: Sequence[Machine], action: Callable[[Machine], None]) -> None:
    """Beside each other; of several that fail the first is named."""
    errors = [error for _, error in _try_each(machines, action) if error is not None]
    if errors:
        raise errors[0]


def _try_each(
    machines: Sequence[Machine], action: Callable[[Machine], None]
) -> list[tuple[Machine, RepertoryError | None]]:
    def attempt(machine: Machine) -> RepertoryError | None:
        try:
            action(machine)
        except RepertoryError as error:
            return error
        return None

    if not machines:
        return []
    with ThreadPoolExecutor(max_workers=min(32, len(machines))) as pool:
        return list(zip(machines, pool.map(attempt, machines), strict=True))


def _pass_on(machine: Machine, words: Sequence[str]) -> None:
    """What a machine's logs say, each line with its name."""
    command = machine.shell.command(
        [machine.python, "-m", "services.clusters.host", "logs", machine.folder, *words]
    )
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(f"{machine.name} {line.decode(errors='replace')}")
            sys.stdout.flush()


def _tree(folder: Path) -> dict[str, bytes]:
    """A user's modules."""
    return {
        f"code/{path.relative_to(folder)}": path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def _commands_in_words(machine: Machine) -> str:
    """What `up` does there, for people to read."""
    steps = [
        ["python3", "-", "(services/clusters/host_facts.py)"],
        ["sh", "-c", _UNPACK, "unpack", machine.folder],
        [machine.python, "-m", "services.clusters.host", "start", machine.folder],
    ]
    return "".join(f"{' '.join(machine.shell.command(step))}\n" for step in steps)
