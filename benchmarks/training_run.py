"""One training by one system, from the start of its command to its end, watched from outside.

Ours is the command line with its run directory and its control server to look at; a peer is a
script that prints lines (`benchmarks.peers.training`). Nothing outlives its deadline.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.course import Course
from benchmarks.marked_processes import MARK, end_marked
from benchmarks.measure import ROOT
from benchmarks.measured_run import MeasuredRun, thread_settings
from benchmarks.peers.training import Judged, Progress, TrainingJob, Versions, parse_line
from benchmarks.training_cases import (
    DISTRIBUTED,
    LAYOUTS,
    OURS,
    CaseName,
    System,
    our_settings,
)
from repertory.errors import RepertoryError
from services.compile_process import CACHE_VARIABLE

LOOK_SECONDS = 0.1
END_SECONDS = 10.0
COMPILER, COMPILER_SECONDS = "compile_steps", 1.0  # a word of its command line, looked for so often
EVALUATION = "eval/mean_reward"

Enough = Callable[[Course, float], bool]  # of what was seen, at this moment


class TrainingFailed(RepertoryError):
    """It ended before it should have, or not in time."""


@dataclass
class Trained:
    course: Course
    versions: dict[str, str] = field(default_factory=dict)


def train(
    system: System, case: CaseName, job: TrainingJob, enough: Enough, deadline_seconds: float
) -> Trained:
    """Until it ends by itself, or there is enough."""
    if system in OURS:
        return _train_ours(system, case, job, enough, deadline_seconds)
    if system == "sb3_vector":
        job = replace(job, copies=LAYOUTS[case].all_copies)
    return _train_peer(system, job, enough, deadline_seconds)


def _train_ours(
    system: System, case: CaseName, job: TrainingJob, enough: Enough, deadline_seconds: float
) -> Trained:
    layout = LAYOUTS[case] if system in DISTRIBUTED else None
    settings = our_settings(job, layout)
    arguments = [
        job.env_id, "--algo", job.algorithm, "--steps", str(job.steps), "--seed", str(job.seed),
        *(["--local"] if layout is None else []),
        *(word for key, value in settings.items() for word in ("--set", _assignment(key, value))),
    ]  # fmt: skip
    versions = {
        name: importlib.metadata.version(name)
        for name in ("repertory", "torch", "numpy", "gymnasium", "mujoco", "ray")
    }
    trained = Trained(Course(time.time()), versions)
    deadline = time.monotonic() + deadline_seconds
    with (
        tempfile.TemporaryDirectory(prefix="repertory-cache-") as cache,
        MeasuredRun(
            arguments,
            threads=job.threads,
            environment={CACHE_VARIABLE: cache} if system == "repertory_first" else {},
        ) as run,
    ):
        watch = RunWatch(run, job, trained.course)
        while True:
            ended = run.ended  # before looking, so that the last of it is seen
            watch.look()
            if enough(trained.course, time.time()):
                return trained
            if ended is not None:
                if ended != 0:
                    raise TrainingFailed(f"{system} ended with {ended}: {run.output()}")
                return trained
            if time.monotonic() > deadline:
                raise TrainingFailed(f"{system} was not done in {deadline_seconds:g} s")
            time.sleep(LOOK_SECONDS)


def _assignment(key: str, value: object) -> str:
    return f"{key}={value if isinstance(value, str) else json.dumps(value)}"


class RunWatch:
    """Reads the counters of a run of ours: members' own with their own moments, or metrics."""

    def __init__(self, run: MeasuredRun, job: TrainingJob, course: Course) -> None:
        self._run = run
        self._course = course
        # One of our PPO's updates is a whole iteration.
        self._factor = round(job.wanted_ratio * job.iteration_steps) if job.on_policy else 1
        self._read_bytes = 0
        self._workers: dict[str, int] = {}
        self._from_members = False
        self._looked_for_compilers = 0.0

    def look(self) -> None:
        self._members()
        self._metrics()
        self._compilers()

    def _compilers(self) -> None:
        """While a learner's steps are compiled beside it, what it does is not yet its pace."""
        now = time.time()
        if now - self._looked_for_compilers < COMPILER_SECONDS:
            return
        self._looked_for_compilers = now
        if any(COMPILER in command for command in self._run.commands().values()):
            self._course.prepared = now

    def _members(self) -> None:
        """Workers beat when they have something to count, learners once a second."""
        course, newest = self._course, 0.0
        for name, member in self._run.members().items():
            if member.role == "learner" and "updates" in member.facts:
                self._from_members = True
                if not course.updates or member.at > course.updates[-1][0]:
                    updates = self._factor * int(member.facts["updates"])
                    course.updates.append((member.at, updates))
            elif member.role == "worker" and "env_steps" in member.facts:
                self._workers[name] = int(member.facts["env_steps"])
                newest = max(newest, member.at)
        # Steps come by messages: between two of them they are taken to go evenly.
        steps = sum(self._workers.values())
        if newest and (not course.env_steps or steps > course.env_steps[-1][1]):
            course.env_steps.append((newest, steps))

    def _metrics(self) -> None:
        """Rows that are new, at the moment they are seen."""
        path = self._run.run_dir / "metrics.jsonl"
        try:
            with path.open("rb") as file:
                file.seek(self._read_bytes)
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return
        self._read_bytes += sum(len(line) + 1 for line in lines[:-1])  # the last may be half
        for line in lines[:-1]:
            self._row(json.loads(line), time.time())

    def _row(self, row: Mapping[str, float], now: float) -> None:
        steps = int(row["step"])
        if EVALUATION in row:
            self._course.judged.append(Judged(now, steps, row[EVALUATION]))
        elif "learner/updates" in row and not self._from_members:
            self._course.env_steps.append((now, steps))
            self._course.updates.append((now, self._factor * int(row["learner/updates"])))


def _train_peer(
    system: System, job: TrainingJob, enough: Enough, deadline_seconds: float
) -> Trained:
    mark = uuid.uuid4().hex
    deadline = time.monotonic() + deadline_seconds
    with tempfile.TemporaryFile("w+") as errors:
        trained = Trained(Course(time.time()))
        process = subprocess.Popen(
            [peer_python(system), "-m", f"benchmarks.peers.{script_of(system)}_training"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=ROOT,
            env={
                **os.environ,
                MARK: mark,
                **thread_settings(job.threads),
                "CUDA_VISIBLE_DEVICES": "",
                # Ray's agents write their titles over their environment, and the mark goes with it.
                "SPT_NOENV": "1",
            },
            text=True,
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(asdict(job)) + "\n")
            process.stdin.close()
            code = _follow(process, trained, enough, deadline)
        finally:
            _end(process, mark)
        if code is None and time.monotonic() > deadline:
            raise TrainingFailed(f"{system} was not done in {deadline_seconds:g} s")
        if code not in (None, 0):
            errors.seek(0)
            raise TrainingFailed(f"{system} ended with {code}: {errors.read()[-2000:]}")
    return trained


def _follow(
    process: subprocess.Popen[str], trained: Trained, enough: Enough, deadline: float
) -> int | None:
    """Its exit code, or None where it was left before its end."""
    assert process.stdout is not None
    course = trained.course
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (remaining := deadline - time.monotonic()) > 0:
            if not selector.select(remaining):
                return None
            text = process.stdout.readline()
            if not text:
                return process.wait(END_SECONDS)
            line = parse_line(text)
            if isinstance(line, Progress):
                course.env_steps.append((line.time, line.env_steps))
                course.updates.append((line.time, line.updates))
            elif isinstance(line, Judged):
                course.judged.append(line)
            elif isinstance(line, Versions):
                trained.versions.update(line.versions)
            if enough(course, time.time()):
                return None
    return None


def _end(process: subprocess.Popen[str], mark: str) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(END_SECONDS)
    end_marked(mark, END_SECONDS)
    assert process.stdout is not None
    process.stdout.close()


def script_of(system: System) -> str:
    """Which peer it is, however it is laid out."""
    return system.removesuffix("_vector")


def peer_python(system: System) -> Path:
    return ROOT / "benchmarks" / f".venv-{script_of(system)}" / "bin" / "python"
