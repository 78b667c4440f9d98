"""One run as the dashboard shows it: from its folder, and from its control server if it goes on.

Everything is read on demand and kept: a finished run is parsed once, one that goes on is read on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from services.dashboard.control_snapshot import ControlReader, Snapshot
from services.dashboard.director_view import director_of
from services.dashboard.event_log import EventLog
from services.dashboard.history import MetricHistory, Row, newest_values
from services.dashboard.holdups import SILENT_SECONDS, Facts, holdups
from services.dashboard.process_view import learners_of, processes_of
from services.dashboard.replay_view import held_inserts, replay_of
from services.dashboard.run_settings import RunSettings
from services.dashboard.schemas import (
    Axis,
    DirectorView,
    Evaluations,
    Events,
    Holdup,
    Learners,
    Log,
    MetricNames,
    Overview,
    Processes,
    ReplayView,
    RunSummary,
    Series,
    SeriesSet,
    State,
    SystemView,
)
from services.dashboard.system_view import log_names, read_log, system_of, videos_of
from services.dashboard.update_ratios import ratios_of
from services.dashboard.writer_lock import is_locked
from services.run_control import CONTROL_FOLDER
from services.run_directory import read_evaluations

RETURN = "rollout/ep_rew_mean"
HEARD_SECONDS = 120.0  # where nobody can tell whether it is alive: so young is alive


class RunView:
    """Safe to share between threads."""

    def __init__(self, path: Path, id_: str) -> None:
        self.path = path
        self.id = id_
        self.settings = RunSettings.read(path / "config.yaml")
        self.distributed = (path / CONTROL_FOLDER).is_dir()
        self.history = MetricHistory(path / "metrics.jsonl")
        self.events_log = EventLog(path / "events.jsonl")
        self._control = ControlReader(path)
        self._evaluations: tuple[float, dict[str, dict[int, list[float]]]] = (-1.0, {})
        self._lock = threading.RLock()

    def close(self) -> None:
        with self._lock:
            self._control.close()

    def refresh(self) -> Snapshot:
        """Reads on; under the lock of whoever asks."""
        self.history.read_on()
        self.events_log.read_on()
        return self._snapshot()

    def _snapshot(self) -> Snapshot:
        return self._control.snapshot() if self.distributed else Snapshot(at=0.0)

    # What the pages show

    def summary(self, *, read_only: bool) -> RunSummary:
        """For a list of many: a run that nobody has opened is only glanced at."""
        with self._lock:
            if self.history.count:
                return self._summary(self.refresh(), read_only=read_only)
            self.events_log.read_on()
            newest = newest_values(self.path / "metrics.jsonl")
            return self._summary(
                self._snapshot(),
                read_only=read_only,
                last_step=newest.get("step", 0),
                mean_return=newest.get(RETURN),
            )

    def overview(self, *, read_only: bool) -> Overview:
        with self._lock:
            return self._overview(self.refresh(), read_only=read_only)

    def metric_names(self) -> MetricNames:
        with self._lock:
            self.refresh()
            return MetricNames(names=self.history.names)

    def series(self, names: list[str], points: int, axis: Axis) -> SeriesSet:
        """Of those that there are."""
        with self._lock:
            self.refresh()
            found = {name: self.history.points(name, points, axis) for name in names}
        return SeriesSet(
            axis=axis,
            series={
                name: Series(x=one.x, y=one.y, total=one.total)
                for name, one in found.items()
                if one is not None
            },
        )

    def row_count(self) -> int:
        with self._lock:
            self.refresh()
            return self.history.count

    def rows_after(self, number: int) -> list[Row]:
        with self._lock:
            self.history.read_on()
            return self.history.rows_after(number)

    def evaluations(self, axis: Axis) -> Evaluations:
        curves, deviations = {}, {}
        with self._lock:
            self.refresh()
            for name, by_step in self.evaluated().items():
                steps = np.array(list(by_step), dtype=float)
                x = steps if axis == "steps" else self.history.seconds_at(steps)
                means = [float(np.mean(returns)) for returns in by_step.values()]
                curves[name] = Series(x=x.tolist(), y=list(means), total=len(means))
                deviations[name] = [float(np.std(returns)) for returns in by_step.values()]
        return Evaluations(curves=curves, deviations=deviations)

    def learners(self) -> Learners:
        with self._lock:
            return learners_of(self.settings, self.refresh(), self.history)

    def director(self) -> DirectorView:
        with self._lock:
            return director_of(self.settings, self.refresh(), self.history, self.events_log)

    def replay(self) -> ReplayView:
        with self._lock:
            return replay_of(self.refresh(), list(self.settings.learners))

    def processes(self) -> Processes:
        with self._lock:
            return processes_of(self.refresh(), self.events_log)

    def system(self) -> SystemView:
        with self._lock:
            snapshot = self.refresh()
            control = self._control.server() if snapshot.reachable else None
            return system_of(self.path, self.settings, snapshot, control)

    def events(self, after: int | None, limit: int) -> Events:
        with self._lock:
            self.refresh()
            log = self.events_log
            found = log.newest(limit) if after is None else log.after(after, limit)
            last = found[-1].number if found else min(after or 0, log.count)
        return Events(events=found, last=last)

    def log(self, process: str, limit: int) -> Log | None:
        """None: there is no such process."""
        return read_log(self.path, process, limit) if process in log_names(self.path) else None

    def video(self, name: str) -> Path | None:
        known = {path.name: path for path in (self.path / "videos").glob("*.*")}
        return known.get(name)

    def obey(self, name: str, arguments: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        """Without the lock: others may look while the run thinks."""
        return self._control.send(name, arguments, timeout_seconds)

    def evaluated(self) -> dict[str, dict[int, list[float]]]:
        """Returns by step, of each learner; of whoever led under the empty name."""
        path = self.path / "evaluations.npz"
        try:
            changed = path.stat().st_mtime
        except FileNotFoundError:
            return {}
        if changed != self._evaluations[0]:
            names = list(self.settings.learners) if len(self.settings.learners) > 1 else []
            found = {name: read_evaluations(path, name or None) for name in ["", *names]}
            self._evaluations = (changed, {name: one for name, one in found.items() if one})
        return self._evaluations[1]

    # How they are made

    def _summary(
        self,
        snapshot: Snapshot,
        *,
        read_only: bool,
        last_step: float | None = None,
        mean_return: float | None = None,
    ) -> RunSummary:
        """By default with what the whole history ends with."""
        if last_step is None:
            last_step, mean_return = self.history.last_step, self.history.newest(RETURN)
        means = [float(np.mean(returns)) for returns in self.evaluated().get("", {}).values()]
        env_steps = max(int(last_step), snapshot.counters.get("env_steps", 0))
        end = self.events_log.end
        if end is not None and isinstance(end.details.get("env_steps"), int):
            env_steps = max(env_steps, end.details["env_steps"])
        return RunSummary(
            id=self.id,
            env=self.settings.env,
            learners=dict(self.settings.learners),
            group=self.settings.group,
            seed=self.settings.seed,
            distributed=self.distributed,
            state=self._state(snapshot),
            steerable=snapshot.reachable and not read_only,
            env_steps=env_steps,
            total_steps=self.settings.steps,
            mean_return=mean_return,
            evaluation=means[-1] if means else None,
            best_evaluation=max(means, default=None),
            started_at=self.events_log.started_at,
            heard_at=self._heard_at(snapshot),
        )

    def _state(self, snapshot: Snapshot) -> State:
        log = self.events_log
        if snapshot.reachable and log.end is None:
            return "paused" if snapshot.desired.state == "paused" else "running"
        if log.end is not None:
            if log.end.kind == "failed":
                return "failed"
            return "stopped" if log.end.details.get("stopped_by") else "finished"
        locked = is_locked(self.path / ".lock")
        if locked is None:
            heard = self._heard_at(snapshot)
            locked = heard is not None and time.time() - heard < HEARD_SECONDS
        return "running" if locked else "lost"

    def _heard_at(self, snapshot: Snapshot) -> float | None:
        times = [member.at for member in snapshot.members.values()]
        with contextlib.suppress(FileNotFoundError):
            times.append((self.path / "metrics.jsonl").stat().st_mtime)
        if self.events_log.last_at is not None:
            times.append(self.events_log.last_at)
        return max(times, default=None)

    def _overview(self, snapshot: Snapshot, *, read_only: bool) -> Overview:
        run = self._summary(snapshot, read_only=read_only)
        history, log = self.history, self.events_log
        going_on = run.state in ("running", "paused")
        speed = history.newest("time/fps") if going_on else _average_speed(history)
        elapsed = history.newest("time/time_elapsed")
        left = run.total_steps - run.env_steps
        workers = snapshot.of_role("worker")
        broken_episodes = sum(one.facts.get("broken_episodes", 0) for one in workers.values())
        return Overview(
            run=run,
            updates=int(history.newest("learner/updates") or 0),
            steps_per_second=speed,
            updates_per_second=history.newest("time/updates_per_second") if going_on else None,
            ratios=ratios_of(self.settings, snapshot),
            version_lag=history.newest("actors/version_lag") if going_on else None,
            lag_seconds=history.newest("actors/weights_lag_seconds") if going_on else None,
            elapsed_seconds=elapsed,
            remaining_seconds=(
                max(0, left) / speed if going_on and speed and run.state == "running" else None
            ),
            episodes=snapshot.counters.get("episodes"),
            actors=len(workers) if snapshot.reachable else None,
            wanted_actors=snapshot.desired.actors,
            restarts=log.kinds["restarting"],
            faults=log.faults + broken_episodes,
            holdups=self._holdups(run, snapshot),
            videos=videos_of(self.path / "videos"),
        )

    def _holdups(self, run: RunSummary, snapshot: Snapshot) -> list[Holdup]:
        learners = learners_of(self.settings, snapshot, self.history).learners
        begun = snapshot.members.keys()
        waiting_for = {
            str(event.details.get("member")): str(event.details.get("reason"))
            for event in self.events_log.newest(50)
            if event.kind == "pending" and event.details.get("member") not in begun
        }
        return holdups(
            Facts(
                state=run.state,
                env_steps=run.env_steps,
                learning_starts=self.settings.learning_starts,
                waiting_shares={
                    one.name: one.waiting_share for one in learners if one.waiting_share is not None
                },
                held_inserts=held_inserts(replay_of(snapshot, list(self.settings.learners))),
                workers=len(snapshot.of_role("worker")) if snapshot.reachable else 1,
                silent=[
                    name
                    for name, member in snapshot.members.items()
                    if snapshot.at - member.at > SILENT_SECONDS
                ],
                pending=waiting_for if snapshot.reachable else {},
                lag_seconds=self.history.newest("actors/weights_lag_seconds"),
                skipped_updates=max((one.skipped or 0 for one in learners), default=0),
            )
        )


def _average_speed(history: MetricHistory) -> float | None:
    elapsed = history.newest("time/time_elapsed")
    return history.last_step / elapsed if elapsed else None
