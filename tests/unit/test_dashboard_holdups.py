"""What holds a run back: each case in its own words."""

from __future__ import annotations

import pytest

from services.dashboard.holdups import Facts, holdups

RUNNING = {"state": "running", "env_steps": 5000, "workers": 2}


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        ({}, "fine", "keep each other busy"),
        ({"waiting_shares": {"td3": 0.8}}, "notice", "td3 waits for data 80%"),
        ({"waiting_shares": {"td3": 0.3}}, "fine", "waits for data 30%"),
        ({"held_inserts": {"worker-0": "ratio"}}, "notice", "Actors wait for the learner"),
        ({"learning_starts": 10_000}, "notice", "learning begins in 5,000 steps"),
        ({"workers": 0}, "warning", "no actors"),
        ({"silent": ["shard-1"]}, "warning", "shard-1"),
        ({"pending": {"worker-9": "needs 1 CPU"}}, "warning", "worker-9 has not begun: needs 1"),
        ({"lag_seconds": 60.0}, "warning", "60 s behind"),
        ({"skipped_updates": 2}, "warning", "2 updates in a row"),
        ({"state": "paused"}, "notice", "Paused"),
        ({"state": "finished"}, "fine", "has finished"),
        ({"state": "stopped"}, "notice", "was stopped"),
        ({"state": "failed"}, "warning", "has failed"),
        ({"state": "lost"}, "warning", "without a word"),
    ],
)
def test_each_case(facts: dict[str, object], level: str, words: str) -> None:
    found = holdups(Facts(**{**RUNNING, **facts}))  # type: ignore[arg-type]
    assert found[0].level == level
    assert words in found[0].text


def test_trouble_comes_before_balance_and_both_are_said() -> None:
    facts = Facts(**RUNNING, silent=["worker-0"], waiting_shares={"sac": 0.9})  # type: ignore[arg-type]
    assert [one.level for one in holdups(facts)] == ["warning", "notice"]


def test_many_names_are_cut_short() -> None:
    facts = Facts(**RUNNING, silent=[f"worker-{n}" for n in range(32)])  # type: ignore[arg-type]
    assert "worker-2 and 29 more" in holdups(facts)[0].text
