"""A cluster as one job of SLURM: `sbatch`, then waiting until all of its nodes are ready.

Rendered, checked by shellcheck, and run by tests with stand-ins for SLURM's commands; not run on
a real SLURM here. All nodes of the job are alike (each has what the larger shape asks for), and a
job that runs keeps its nodes: SLURM does not give it more.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repertory.errors import RepertoryError, UsageError
from services.clusters import slurm_scripts
from services.clusters.external_tool import ExternalTool, wait_until
from services.clusters.inventory import SlurmInventory
from services.clusters.provider import MachineStatus, Operator, Say
from services.clusters.rendered import (
    Record,
    as_yaml,
    check_train_words,
    inventory_document,
    roll_back,
    secret_files,
    write_rendered,
)

END_SECONDS = 120.0
UNKNOWN_JOB = "Invalid job id"  # as squeue says of one that ended a while ago
SILENT_SECONDS = 30.0  # nodes say every second that they are there


class SlurmCluster:
    """Of one inventory."""

    def __init__(self, inventory: SlurmInventory, source: Path) -> None:
        check_train_words(inventory.train, ("--address", "--local"))
        self.inventory = inventory
        self._source = source
        self._operator = Operator(inventory.name)
        self._record = Record(self._operator, "slurm")
        self._base = Path(inventory.folder).expanduser() / inventory.name
        self._environment = Path(inventory.environment).expanduser()

    def render(self) -> Mapping[str, str]:
        return {
            "job.sh": slurm_scripts.job_script(self.inventory, self._base, self._environment),
            "node.sh": slurm_scripts.node_script(self.inventory, self._base),
            "inventory.yaml": as_yaml(inventory_document(self.inventory)),
        }

    def up(self, say: Say) -> None:
        for tool in (_sbatch, _squeue, _scancel):
            tool.require()
        known = self._job()
        there = known is not None and self._state(known) is not None
        if there:
            say(f"job {known} is there already")
        job = known if there and known is not None else self._submit(say)
        try:
            wait_until(lambda: self._missing(job), self.inventory.wait_minutes * 60)
        except BaseException:
            if not there:
                say(f"job {job} is cancelled; its logs stay in {self._base / 'logs'}")
                roll_back(lambda: self._end(job), say)
            raise
        say(f"ready: job {job}")

    def _submit(self, say: Say) -> str:
        try:
            self._prepare()
            answer = _sbatch.run("--parsable", str(self._base / "job.sh"))
            job = answer.strip().partition(";")[0]
            if not job.isdigit():
                raise RepertoryError(f"sbatch answered {answer.strip()!r}, which is no job")
        except BaseException:
            self._remove_secrets()
            raise
        self._record.write({"job": job})
        say(f"job {job} is submitted")
        return job

    def _prepare(self) -> None:
        """Everything onto the shared file system; secrets for their owner alone."""
        try:
            self._base.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self._base / "logs").mkdir(exist_ok=True)
            write_rendered(self._operator.rendered, self.render())
            write_rendered(self._base, self.render())
            secrets = self._base / "secrets"
            secrets.mkdir(exist_ok=True, mode=0o700)
            secrets.chmod(0o700)
            for name, path in secret_files(self._operator, self.inventory).items():
                _copy_secret(path, secrets / name)
            if self.inventory.code is not None:
                shutil.copytree(self.inventory.code, self._base / "code", dirs_exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"folder: cannot write below {self._base}: {error.strerror or error}; "
                "it has to be on a file system that this machine shares with the nodes"
            ) from error

    def _missing(self, job: str) -> str:
        """What `up` still waits for."""
        state = self._state(job)
        if state is None or state[0] not in ("PENDING", "CONFIGURING", "RUNNING"):
            raise RepertoryError(
                f"job {job} ended ({state[0] if state else 'no longer known'}) before it was "
                f"ready: see {self._base / 'logs' / f'job-{job}.log'}"
            )
        if state[0] != "RUNNING":
            return f"job {job} is {state[0]} ({state[1]})"
        if not (self._base / "jobs" / job / "ready").exists():
            waiting = [one for one in self._nodes(job) if one.state != "ready"]
            more = f", {waiting[0].name} is {waiting[0].state}" if waiting else ""
            return f"job {job} runs, but not all of its nodes are ready{more}"
        return ""

    def status(self) -> Sequence[MachineStatus]:
        job = self._job()
        state = None if job is None else self._state(job)
        if job is None or state is None:
            return []
        nodes = self._nodes(job)
        if nodes:
            return nodes
        return [MachineStatus(f"job {job}", "head", "", state[0].lower(), state[1])]

    def _nodes(self, job: str) -> list[MachineStatus]:
        found = []
        for card in sorted((self._base / "jobs" / job / "nodes").glob("*.card")):
            known, said = _read(card), _read(card.with_suffix(".json"))
            silent = _age_seconds(card.with_suffix(".json"))
            state = said.get("phase", "starting")
            if silent is not None and silent > SILENT_SECONDS:
                state = "unreachable"
            found.append(
                MachineStatus(
                    name=card.stem,
                    role=known.get("role", ""),
                    address=known.get("address", ""),
                    state=state,
                    reason=said.get("reason", ""),
                    version=said.get("version", ""),
                    heard_seconds=silent,
                    restarts=said.get("restarts", 0),
                )
            )
        return sorted(found, key=lambda one: (one.role != "head", one.name))

    def scale(self, workers: int, say: Say) -> None:
        job = self._job()
        state = None if job is None else self._state(job)
        if job is None or state is None:
            raise UsageError(f"{self.inventory.name} is not up: write workers: {workers} and `up`")
        if state[0] != "PENDING":
            raise UsageError(
                f"job {job} runs, and SLURM gives a job that runs no more nodes: `repertory "
                f"cluster down {self._source}`, write workers: {workers}, then `up`; "
                "`repertory resume` goes on with a run from its checkpoint"
            )
        _scontrol.run("update", f"JobId={job}", f"NumNodes={workers + 1}")
        say(f"job {job}, which still waits in the queue, now asks for {workers + 1} nodes")

    def logs(self, *, host: str | None, lines: int, follow: bool) -> None:
        job = self._job()
        if job is None:
            raise UsageError(f"{self.inventory.name} is not up")
        logs = self._base / "logs"
        if host is None:
            files = [logs / f"job-{job}.log", *sorted((logs / job).glob("*/*.log"))]
        else:
            known = sorted(path.name for path in (logs / job).glob("*"))
            if host not in known:
                raise UsageError(f"job {job} has no node {host}: {', '.join(known) or 'none yet'}")
            files = sorted((logs / job / host).glob("*.log"))
        words = ["-n", str(lines), *(["-F"] if follow else [])]
        _tail.show(*words, "--", *map(str, files), follow=follow)

    def down(self, say: Say) -> None:
        job = self._job()
        if job is None:
            say(f"{self.inventory.name} is not up")
        else:
            self._end(job)
            say(f"job {job} has ended; runs stay in {self._base / 'runs'}")

    def details(self) -> Mapping[str, Any]:
        job = self._job()
        head = next((one for one in self._nodes(job) if one.role == "head"), None) if job else None
        port = self.inventory.ports.dashboard
        host = head.name if head else "HEAD"
        node = f"/tmp/repertory-{self.inventory.name}-{job or 'JOB'}"
        return {
            "job": job,
            "dashboard": f"http://127.0.0.1:{port}",
            "tunnel": f"ssh -N -L {port}:127.0.0.1:{port} {host}",
            "submit": (
                f"srun --jobid={job or 'JOB'} --overlap --nodes=1 --ntasks=1 --nodelist={host} "
                f"env REPERTORY_NODE={node} {self._environment / 'bin' / 'repertory'} train ... "
                f"--address {self.inventory.name}"
            ),
            "runs": str(self._base / "runs"),
        }

    def _job(self) -> str | None:
        record = self._record.read()
        return None if record is None else str(record["job"])

    def _state(self, job: str) -> tuple[str, str] | None:
        """As squeue has it, and why; None of one that has ended."""
        answer = _squeue.ask("--noheader", f"--jobs={job}", "--format=%T|%r")
        if answer.exit_code != 0 and UNKNOWN_JOB not in answer.error:
            raise RepertoryError(f"squeue does not answer: {answer.error.strip()[:300]}")
        line = answer.output.strip().partition("\n")[0]
        if answer.exit_code != 0 or not line:
            return None
        state, _, reason = line.partition("|")
        return state, reason

    def _end(self, job: str) -> None:
        if self._state(job) is not None:
            _scancel.run("--full", job)  # the nodes and the script itself: both tidy up
            wait_until(lambda: f"job {job} is ending" if self._state(job) else "", END_SECONDS)
        self._record.forget()
        self._remove_secrets()

    def _remove_secrets(self) -> None:
        shutil.rmtree(self._base / "secrets", ignore_errors=True)


_sbatch, _squeue, _scancel = map(ExternalTool, ("sbatch", "squeue", "scancel"))
_scontrol, _tail = map(ExternalTool, ("scontrol", "tail"))


def _copy_secret(source: Path, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(source.read_bytes())
    temporary.replace(target)


def _read(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):  # not there yet, or half written
        return {}
    return document


def _age_seconds(path: Path) -> float | None:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None
