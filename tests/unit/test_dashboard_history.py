"""A run's metrics and events are read once, then on; torn lines and new files are no trouble."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from dashboard_runs import add_events, add_rows

from services.dashboard.event_log import EventLog
from services.dashboard.history import MetricHistory


def history(folder: Path) -> MetricHistory:
    made = MetricHistory(folder / "metrics.jsonl")
    made.read_on()
    return made


def test_rows_become_columns(tmp_path: Path) -> None:
    add_rows(tmp_path, [{"step": 0, "a": 1.0, "time/time_elapsed": 0.5}, {"step": 10, "b": 2.0}])
    found = history(tmp_path)
    assert found.names == ["a", "b", "time/time_elapsed"]
    assert found.newest("a") == 1.0
    points = found.points("b", 100, "time")
    assert points is not None
    assert (points.x, points.y, points.total) == ([0.5], [2.0], 1)
    assert found.points("c", 100, "steps") is None
    assert (found.count, found.last_step) == (2, 10)


def test_only_what_is_new_is_read_on(tmp_path: Path) -> None:
    add_rows(tmp_path, [{"step": 0, "a": 1.0}])
    found = history(tmp_path)
    file = tmp_path / "metrics.jsonl"
    with file.open("a") as stream:
        stream.write('{"step": 1, "a": 2.0}\n{"step": 2, "a"')  # the last is being written
    found.read_on()
    assert [row.step for row in found.rows_after(1)] == [1]
    with file.open("a") as stream:
        stream.write(": 3.0}\n")
    found.read_on()
    assert [row.step for row in found.rows_after(1)] == [1, 2]
    assert found.newest("a") == 3.0


def test_a_torn_line_loses_itself_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "a": 1}\n{"step": 1, "\n[3]\n{"b": 1}\n')
    add_rows(tmp_path, [{"step": 2, "a": 3.0}])
    found = history(tmp_path)
    assert found.count == 2
    points = found.points("a", 10, "steps")
    assert points is not None
    assert points.y == [1.0, 3.0]


@pytest.mark.parametrize("shorter", [True, False])
def test_a_file_in_the_place_of_another_is_read_anew(tmp_path: Path, shorter: bool) -> None:
    add_rows(tmp_path, [{"step": step, "a": step} for step in range(10)])
    found = history(tmp_path)
    rows = [{"step": step, "b": step} for step in range(3 if shorter else 30)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "other").write_text(text)
    (tmp_path / "other").replace(tmp_path / "metrics.jsonl")
    found.read_on()
    assert found.names == ["b"]
    assert found.count == len(rows)
    assert len(found.rows_after(10**6)) == len(rows)  # of a life before


def test_what_is_no_number_is_a_gap(tmp_path: Path) -> None:
    add_rows(tmp_path, [{"step": 0, "a": math.nan}, {"step": 1, "a": None}, {"step": 2, "a": 1}])
    found = history(tmp_path)
    points = found.points("a", 10, "steps")
    assert points is not None
    assert points.y == [None, None, 1.0]
    assert [row.to_json()["values"]["a"] for row in found.rows_after(0)] == [None, None, 1.0]


def test_steps_become_seconds(tmp_path: Path) -> None:
    add_rows(tmp_path, [{"step": s, "time/time_elapsed": s / 10} for s in (0, 100, 200)])
    assert history(tmp_path).seconds_at(np.array([50.0, 150.0])).tolist() == [5.0, 15.0]


def test_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    found = history(tmp_path)
    assert found.names == []
    add_rows(tmp_path, [{"step": 0, "a": 1.0}])
    found.read_on()
    assert found.names == ["a"]


def events(folder: Path) -> EventLog:
    made = EventLog(folder / "events.jsonl")
    made.read_on()
    return made


def test_events_are_said_in_words(tmp_path: Path) -> None:
    add_events(
        tmp_path,
        [
            {"event": "started", "env_steps": 0},
            {"event": "restarting", "member": "worker-3", "incarnation": 2, "reason": "it died"},
            {"event": "command", "name": "scale", "actors": 4},
            {"event": "finished", "env_steps": 12000, "stopped_by": None},
        ],
    )
    found = events(tmp_path)
    assert [event.text for event in found.newest(10)] == [
        "started",
        "worker-3 is started again: it died",
        "asked to scale to 4 actors",
        "finished at step 12,000",
    ]
    assert [event.number for event in found.after(2, 10)] == [3, 4]
    assert found.faults == 1
    assert found.last_restart["worker-3"].details["reason"] == "it died"
    assert found.end is not None


def test_a_run_that_was_resumed_has_not_ended(tmp_path: Path) -> None:
    add_events(
        tmp_path,
        [
            {"event": "started", "env_steps": 0},
            {"event": "finished", "env_steps": 5, "stopped_by": "SIGINT"},
            {"event": "resumed", "env_steps": 5, "checkpoint": "step_5"},
        ],
    )
    assert events(tmp_path).end is None


def test_decisions_are_not_events_and_learn_how_they_ended(tmp_path: Path) -> None:
    add_events(
        tmp_path,
        [
            {"event": "started"},
            {
                "event": "decisions",
                "actor": "worker-0",
                "decisions": [[0, "dqn", "strategy", 0.5], [1, "ppo", "floor", None]],
            },
            {"event": "decisions_ended", "outcomes": [[0, "dqn", 7, 21.5, 22], [9, "x", 0, 0, 0]]},
        ],
    )
    found = events(tmp_path)
    assert found.count == 1
    newest, oldest = found.decisions
    assert (newest.number, newest.policy, newest.episode_return) == (1, "ppo", None)
    assert (oldest.episode_return, oldest.length, oldest.probability) == (21.5, 22, 0.5)
