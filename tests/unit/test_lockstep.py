"""What replicas do next, where there is one: nobody is asked."""

from __future__ import annotations

import pytest

from learner import lockstep
from learner.lockstep import Turn, agree


def test_a_learner_alone_agrees_with_itself_without_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(lockstep, "highest")
    turn = Turn(waiting=True, publish=True, batch_size=64)
    assert agree(turn) == turn
