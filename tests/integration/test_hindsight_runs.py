"""Whole runs with hindsight: one seed, one result; killed and resumed; distributed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed_runs import Train
from small_runs import HINDSIGHT, HINDSIGHT_ENV, final_weights, timeless_metrics

from repertory.api import resume, train

pytestmark = pytest.mark.timeout(600)


def run(run_dir: Path, **changes: Any) -> None:
    settings = {**HINDSIGHT, **changes}
    train(HINDSIGHT_ENV, "dqn", seed=3, run_dir=run_dir, settings=settings, progress=False)


def assert_same_arrays(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_array_equal(array, right[name], err_msg=name)


def assert_same_end(left: Path, right: Path) -> None:
    assert_same_arrays(final_weights(left), final_weights(right))
    assert timeless_metrics(left) == timeless_metrics(right)


def test_a_killed_and_resumed_run_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(whole)
    settings = {**HINDSIGHT, "callbacks": ["hooks:KillAt700"]}
    code = (
        "from repertory.api import train; "
        f"train({HINDSIGHT_ENV!r}, 'dqn', seed=3, run_dir={str(killed)!r}, progress=False, "
        f"settings={settings!r})"
    )
    tests = Path(__file__).parents[1]
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{tests}:{tests.parent}", "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert process.returncode == -signal.SIGKILL
    (checkpoint,) = killed.glob("checkpoints/step_*600")
    state = json.loads((checkpoint / "rollout.json").read_text())
    assert "filled" in json.dumps(state)  # episodes were running
    config = killed / "config.yaml"  # the run goes on without the hook that killed it
    config.write_text(config.read_text().replace("- hooks:KillAt700", ""))
    config.write_text(config.read_text().replace("callbacks:\n", "callbacks: []\n"))
    resume(killed, progress=False)
    assert_same_end(whole, killed)
    assert_same_arrays(final_weights(whole, "table-*"), final_weights(killed, "table-*"))


def test_replay_over_grpc_changes_nothing(tmp_path: Path) -> None:
    run(tmp_path / "object")
    run(tmp_path / "shard", **{"replay.transport": "grpc"})
    assert_same_end(tmp_path / "object", tmp_path / "shard")


@pytest.fixture
def distributed(tmp_path: Path) -> Iterator[Train]:
    made = Train(tmp_path)
    yield made
    made.end()


def test_a_distributed_run_holds_the_ratio_of_updates_to_steps(distributed: Train) -> None:
    steps, learning_starts, updates_per_step = 6000, 400, 0.25
    distributed.start(
        "train", HINDSIGHT_ENV, "--algo", "dqn", "--steps", str(steps), "--actors", "2",
        "--shards", "2", "--run-dir", str(distributed.run_dir), "--set", "env.copies=2",
        "--set", "learner.relabel=future", "--set", f"learner.learning_starts={learning_starts}",
        "--set", f"learner.updates_per_step={updates_per_step}",
        "--set", "learner.batch_size=64", "--set", "topology.send_items=16",
        "--set", "evaluation.episodes=2", "--set", "evaluation.every=3000",
    )  # fmt: skip
    output = distributed.finish()
    found = re.search(r"finished: (\d+) steps, (\d+) updates", output)
    assert found is not None, output
    ratio = int(found[2]) / (int(found[1]) - learning_starts)
    # Of 5600 steps the limiters let one side run ahead by 2 messages of 18 steps for each of two
    # shards, each of two workers has three messages of 16 under way, and each of four copies is in
    # an episode of 15: 228 steps, or 4.1 %. Without the items of a step counted it would be 400 %.
    assert ratio == pytest.approx(updates_per_step, rel=0.06)
    rows = map(json.loads, (distributed.run_dir / "metrics.jsonl").read_text().splitlines())
    assert any("learner/loss" in row for row in rows)
    assert distributed.events("restarting") == []
    distributed.assert_nothing_left()
