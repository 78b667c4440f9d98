"""The ratio of updates to environment steps is held, whichever side of a run is the slow one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed_runs import Train

pytestmark = pytest.mark.timeout(1200)

LEARNING_STARTS = 400
# Of 5000 steps and more the limiters let one side run ahead by 2 messages of 17 steps for each of
# two shards, and each of two workers has three messages under way: 170 steps, or 3.4 %.
TOLERANCE = 0.05


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Train]:
    made = Train(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize(
    ("env", "steps", "updates_per_step", "hidden_sizes", "held"),
    [
        ("Steady", 6400, 0.5, "[256,256]", "worker"),
        ("Slow", 5400, 0.25, "[8]", "learner"),
    ],
    ids=["slow learner", "slow environment"],
)
def test_there_are_as_many_updates_as_the_steps_allow(
    train: Train, env: str, steps: int, updates_per_step: float, hidden_sizes: str, held: str
) -> None:
    train.start(
        "train", f"faulty_envs:{env}", "--algo", "dqn", "--steps", str(steps),
        "--actors", "2", "--shards", "2", "--run-dir", str(train.run_dir),
        "--set", f"learner.updates_per_step={updates_per_step}",
        "--set", f"learner.hidden_sizes={hidden_sizes}",
        "--set", f"learner.learning_starts={LEARNING_STARTS}",
        "--set", "learner.batch_size=64", "--set", "topology.send_items=16",
        "--set", "env.copies=2",
        "--set", "evaluation.episodes=1", "--set", "evaluation.every=1000000",
    )  # fmt: skip
    waited: Counter[str] = Counter()

    def nearly_over() -> bool:
        if train.env_steps() > 2000:  # both are at full speed
            waited.update(waiting(train))
        return train.env_steps() > steps - 500

    train.until(nearly_over)
    output = train.finish()
    found = re.search(r"finished: (\d+) steps, (\d+) updates", output)
    assert found is not None, output
    ratio = int(found[2]) / (int(found[1]) - LEARNING_STARTS)
    assert ratio == pytest.approx(updates_per_step, rel=TOLERANCE)
    assert waited.most_common(1)[0][0] == held, waited  # the other side was the slow one


def waiting(train: Train) -> set[str]:
    """The roles of those whom a limiter holds at this moment."""
    return {
        caller.partition("-")[0]
        for member in train.members().values()
        for caller in member.facts.get("blocked", ())
    }
