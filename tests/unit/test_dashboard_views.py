"""What the dashboard makes of what processes say of themselves."""

from __future__ import annotations

import fcntl
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from dashboard_runs import make_run

from buffer_server.callers import Blocked
from buffer_server.statistics import ConsumerStatistics, PolicyShare, TableStatistics
from repertory.control import Desired, Member
from services.dashboard.control_snapshot import Snapshot, Speeds
from services.dashboard.event_log import EventLog
from services.dashboard.process_view import processes_of
from services.dashboard.replay_view import held_inserts, replay_of
from services.dashboard.run_settings import RunSettings
from services.dashboard.run_view import RunView
from services.dashboard.update_ratios import ratios_of
from services.dashboard.writer_lock import is_locked


def member(role: str, at: float = 100.0, incarnation: int = 1, **facts: Any) -> Member:
    return Member(role, "host", 1, incarnation, at, facts)


def test_speeds_are_over_a_window_and_begin_anew_with_a_new_life() -> None:
    speeds = Speeds()
    assert speeds.take({"worker-0": member("worker", 100.0, env_steps=0)}) == {}
    rates = speeds.take({"worker-0": member("worker", 102.0, env_steps=50)})
    assert rates == {("worker-0", "env_steps"): 25.0}
    # Heard again without a new heartbeat: nothing changes.
    assert speeds.take({"worker-0": member("worker", 102.0, env_steps=50)}) == rates
    assert speeds.take({"worker-0": member("worker", 103.0, 2, env_steps=0)}) == {}
    late = speeds.take({"worker-0": member("worker", 104.0, 2, env_steps=10)})
    assert late == {("worker-0", "env_steps"): 10.0}


def test_what_is_long_ago_no_longer_counts() -> None:
    speeds = Speeds()
    for second in range(100):
        steps = 10 * min(second, 50)  # then it stands still
        rates = speeds.take({"w": member("worker", float(second), env_steps=steps)})
    assert rates == {("w", "env_steps"): 0.0}


def snapshot(**members: Member) -> Snapshot:
    named = {name.replace("_", "-"): one for name, one in members.items()}
    return Snapshot(at=101.0, reachable=True, members=named)


def test_processes_say_how_far_they_are_behind(tmp_path: Path) -> None:
    found = processes_of(
        snapshot(
            learner_dqn=member("learner", version=40, updates=40),
            worker_0=member(
                "worker",
                50.0,
                3,
                env_steps=7,
                broken_episodes=0,
                memory_bytes=1,
                weights={"dqn": {"version": 33, "weights_age_seconds": 2.0}},
            ),
        ),
        EventLog(tmp_path / "events.jsonl"),
    )
    worker = found.processes[-1]
    assert (worker.weights[0].lag_versions, worker.starts, worker.stale) == (7, 3, True)
    assert worker.heard_seconds == 51.0


def table(**changes: Any) -> dict[str, Any]:
    made = TableStatistics(
        size=10, capacity=20, size_nbytes=100, capacity_nbytes=200, inserted=10, sampled=5,
        evicted=0, duplicate_inserts=0, min_size=1, samples_per_insert=None, error_buffer=None,
        surplus=3.0, insert_wait_seconds=0.0, sample_wait_seconds=0.0, newest_age_seconds=1.0,
        oldest_age_seconds=9.0,
        policies=(PolicyShare(0, 4, 1), PolicyShare(1, 6, 1)),
        blocked=(Blocked("worker-0@host:1", "insert", 64, 0.5, "the ratio"),),
        consumers=(ConsumerStatistics(0, 32.0, 5, 3.0, "learner-td3", 0, 1),),
    )  # fmt: skip
    return {**asdict(made), **changes}


def test_a_replay_tells_whose_items_it_has_and_who_waits() -> None:
    shards = {
        name: member("shard", tables={"replay": table()}, requests={}, memory_bytes=1)
        for name in ("shard_0", "shard_1")
    }
    found = replay_of(snapshot(**shards), ["td3", "sac"])
    assert [(one.policy, one.items, one.share) for one in found.provenance] == [
        ("td3", 8, 0.4),
        ("sac", 12, 0.6),
    ]
    (reader,) = found.shards[0].tables[0].readers
    assert (reader.policy, reader.held_inserts) == ("td3", 1)
    assert held_inserts(found) == {"worker-0": "the ratio"}


def test_a_shard_that_has_not_said_anything_yet_is_there_already() -> None:
    assert replay_of(snapshot(shard_0=member("shard")), ["td3"]).shards[0].tables == []


@pytest.mark.parametrize(
    ("end", "state"),
    [
        ({"event": "finished", "env_steps": 9, "stopped_by": None}, "finished"),
        ({"event": "finished", "env_steps": 9, "stopped_by": "SIGINT"}, "stopped"),
        ({"event": "failed", "env_steps": 9, "traceback": "E"}, "failed"),
        ({"event": "resumed", "env_steps": 9, "checkpoint": "step_9"}, "lost"),
    ],
)
def test_how_a_run_ended(tmp_path: Path, end: dict[str, Any], state: str) -> None:
    path = make_run(tmp_path / "run", events=[{"event": "started", "env_steps": 0}, end])
    assert RunView(path, "run").summary(read_only=False).state == state


def test_a_run_whose_folder_is_locked_goes_on(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    lock = path / ".lock"
    assert is_locked(lock) is False  # it is not there
    with lock.open("w") as file:
        assert is_locked(lock) is False
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_locked(lock) is True
        assert RunView(path, "run").summary(read_only=False).state == "running"
    assert is_locked(lock) is False
    assert is_locked(lock, tmp_path / "no such list") is None


def test_the_target_of_updates_is_what_people_asked_for(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", learners={"td3": "td3", "sac": "sac"})
    settings = RunSettings.read(path / "config.yaml")
    learner = member("learner", updates=450)
    said = Snapshot(
        at=101.0,
        reachable=True,
        members={"learner-td3": learner, "learner-sac": learner},
        counters={"env_steps": 1000},
        desired=Desired(updates_per_step={"sac": 0.25}),
        rates={("worker-0", "env_steps"): 40.0, ("learner-sac", "updates"): 10.0},
    )
    ratios = {one.learner: (one.target, one.measured) for one in ratios_of(settings, said)}
    assert ratios == {"td3": (0.5, 0.5), "sac": (0.25, 0.25)}
