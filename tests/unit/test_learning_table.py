"""The table of learning results: what is run in which order, and what its rows say."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.learning import PLACE, Record, found, page_of, plan, row_of
from benchmarks.learning_tasks import TASKS, LearningTask
from repertory.config import resolve

ROOT = Path(__file__).resolve().parents[2]


def record(task: LearningTask, seed: int, *returns: float, last: float = 0.0) -> Record:
    return Record(task.name, seed, list(returns), {"0": 1.0, "100": last}, 1.0, "abc")


def test_every_task_has_a_first_run_before_one_has_a_second(tmp_path: Path) -> None:
    jobs = plan(TASKS[:2], 2, tmp_path)
    assert [(job.task.algorithm, job.seed) for job in jobs] == [
        ("dqn", 1), ("c51", 1), ("dqn", 2), ("c51", 2),
    ]  # fmt: skip
    assert len({job.path for job in plan(TASKS, 3, tmp_path)}) == 3 * len(TASKS)


def test_only_runs_that_are_there_count(tmp_path: Path) -> None:
    task = TASKS[0]
    second = plan([task], 2, tmp_path)[1]
    second.path.write_text(json.dumps(asdict(record(task, 2, 5.0))))
    assert [run.seed for run in found(task, 2, tmp_path)] == [2]
    assert found(task, 1, tmp_path) == []


def test_a_row_has_each_seed_their_mean_and_where_it_ended() -> None:
    task = LearningTask("dqn", "CartPole-v1", 500, "500 at 50k")
    runs = [record(task, 1, 400.0, 500.0, last=20.0), record(task, 3, 100.0, last=30.0)]
    row = ("dqn", "CartPole-v1", "500", "1, 3", "450, 100", "275", "20, 30", "500 at 50k")
    assert row_of(task, runs) == row
    assert page_of({task: runs}).splitlines()[-1] == "| `dqn` | " + " | ".join(row[1:]) + " |"


def test_small_returns_keep_their_digits() -> None:
    task = LearningTask("h_dqn", "a.module:Chain", 500)
    assert row_of(task, [record(task, 1, 0.124)])[1:6] == ("Chain", "500", "1", "0.124", "0.124")


def test_every_task_is_one_that_can_be_run_and_the_page_has_a_place_for_them() -> None:
    for task in TASKS:
        assert resolve(task.env_id, [task.algorithm], overrides=dict(task.settings))
    assert PLACE.begin in (ROOT / "docs" / "algorithms.md").read_text()
