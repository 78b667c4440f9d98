"""A distributed run in processes of its own, looked at from outside while it goes on.

    with MeasuredRun(["benchmarks.sleeping_env:Sleeping", "--algo", "sac", ...]) as run:
        run.until(lambda: len(run.workers()) >= 32, timeout_seconds=600)
        run.env_steps(), run.usage()

Everything it starts is found by a mark in its environment, and what each process uses is read from
/proc: Linux only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.marked_processes import MARK, end_marked, marked
from benchmarks.measure import ROOT
from repertory.closing import Closing
from repertory.control import Control, ControlUnavailable, Member
from repertory.errors import RepertoryError, UsageError
from services.run_control import control_of

LOOK_SECONDS = 0.1
STOP_SECONDS = 120.0
LEFT_SECONDS = 20.0  # for what a run's guardian ends
TICKS = os.sysconf("SC_CLK_TCK")
# Of processes that do not report as members, by a word of their command line.
OTHERS = {
    "WeightHub": "weight hub",
    "raylet": "raylet",
    "gcs_server": "ray gcs",
    "RuntimeEnvAgent": "ray runtime agent",
    "DashboardAgent": "ray agent",
    "ray::IDLE": "ray idle",
    "services.cli": "head",
    " -I -S -c ": "guardian",
    "log_monitor.py": "ray log monitor",
    "monitor.py": "ray monitor",
    "dashboard.py": "ray dashboard",
}


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process at one moment."""

    resident_bytes: int  # without what it shares through the object store
    shared_bytes: int  # in shared memory: of raylet, the object store
    cpu_seconds: float
    open_files: int
    threads: int


def thread_settings(threads: int) -> dict[str, str]:
    """For a process that may have so many; 0: as many as it takes by itself."""
    return {"OMP_NUM_THREADS": str(threads)} if threads else {}


class MeasuredRun(Closing):
    """Started when made; `close` stops it as a person would, and kills what does not end."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        threads: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="repertory-bench-"))
        self.run_dir = self._folder / "run"
        self._mark = uuid.uuid4().hex
        self._control: Control | None = None
        self._output = (self._folder / "output.txt").open("w+")
        self.started_at = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "services.cli", "train", *arguments,
             "--run-dir", str(self.run_dir), "--set", "log.dashboard=false"],
            env={**os.environ, MARK: self._mark, **(environment or {}), **thread_settings(threads)},
            cwd=ROOT,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def members(self) -> dict[str, Member]:
        """None while the control server is not there."""
        try:
            return self.control().members()
        except (ControlUnavailable, UsageError):
            return {}

    def control(self) -> Control:
        if self._control is None:
            self._control = control_of(self.run_dir)
        return self._control

    def env_steps(self) -> int:
        try:
            return self.control().counters().get("env_steps", 0)
        except (ControlUnavailable, UsageError):
            return 0

    def workers(self) -> dict[str, Member]:
        """Those that have taken a step."""
        return {
            name: member
            for name, member in self.members().items()
            if member.role == "worker" and member.facts.get("env_steps", 0) > 0
        }

    def until(self, condition: Callable[[], bool], timeout_seconds: float) -> float:
        """How long it took."""
        begin = time.monotonic()
        while not condition():
            if self._process.poll() is not None:
                raise RepertoryError(f"the run has ended: {self.output()}")
            if time.monotonic() - begin > timeout_seconds:
                raise RepertoryError(f"that did not come about in {timeout_seconds:g} s")
            time.sleep(LOOK_SECONDS)
        return time.monotonic() - begin

    @property
    def ended(self) -> int | None:
        """The exit code of one that has ended by itself."""
        return self._process.poll()

    def output(self) -> str:
        """The last of what it printed."""
        self._output.seek(0)
        return self._output.read()[-2000:]

    def scale(self, actors: int) -> None:
        control = self.control()
        control.await_reply(control.send("scale", actors=actors), timeout_seconds=30.0)

    def commands(self) -> dict[int, str]:
        """Command lines of everything that it has started, by process id."""
        return marked(self._mark)

    def processes(self) -> dict[int, str]:
        """Everything of the run that is there now, by process id."""
        names = {member.process_id: name for name, member in self.members().items()}
        found = {
            process_id: names.get(process_id) or _name_of(command)
            for process_id, command in marked(self._mark).items()
        }
        with contextlib.suppress(OSError, ValueError):  # it covers its environment
            file = self.run_dir / "control" / "server.pid"
            found[int(file.read_text())] = "control server"
        return found

    def usage(self) -> Mapping[int, tuple[str, Usage]]:
        """By process id; those that end meanwhile are left out."""
        found = {}
        for process_id, name in self.processes().items():
            with contextlib.suppress(OSError, KeyError):
                found[process_id] = (name, usage_of(process_id))
        return found

    def close(self) -> None:
        if self._process.poll() is None:
            try:
                self.control().send("stop")
            except RepertoryError:  # a local run has nobody to be told by
                self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()  # its guardian ends the others
                self._process.wait()
        end_marked(self._mark, LEFT_SECONDS)
        self._output.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def usage_of(process_id: int) -> Usage:
    folder = Path(f"/proc/{process_id}")
    status = dict(
        line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line
    )
    # The name of a program may hold anything, so it is skipped by its closing bracket.
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return Usage(
        resident_bytes=_kilobytes(status["RssAnon"]) + _kilobytes(status["RssFile"]),
        shared_bytes=_kilobytes(status["RssShmem"]),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / TICKS,
        open_files=len(list((folder / "fd").iterdir())),
        threads=int(status["Threads"]),
    )


def private_bytes(process_id: int) -> int:
    """What would be free again if only this process ended; code is shared by all of them."""
    lines = Path(f"/proc/{process_id}/smaps_rollup").read_text().splitlines()
    return sum(_kilobytes(line.split(":")[1]) for line in lines if line.startswith("Private_"))


def _kilobytes(text: str) -> int:
    return int(text.split()[0]) * 1024


def _name_of(command: str) -> str:
    words = command.replace("\0", " ")
    return next((name for word, name in OTHERS.items() if word in words), words.strip()[:40])
