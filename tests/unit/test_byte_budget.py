"""A budget of bytes: never passed but by one message alone, and given back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from replay_shards import LONG_SECONDS, until

from buffer_server.byte_budget import ByteBudget
from buffer_server.statuses import ReplayUnavailable


def test_what_does_not_fit_is_told_to_ask_again() -> None:
    budget = ByteBudget(100)
    budget.take(60, wait_seconds=0.0)
    with pytest.raises(ReplayUnavailable, match=r"busy with 60 bytes .* 41 more .* ask again"):
        budget.take(41, wait_seconds=0.0)
    budget.take(40, wait_seconds=0.0)
    assert budget.taken_nbytes == 100


def test_a_message_alone_is_taken_whatever_its_size() -> None:
    budget = ByteBudget(100)
    with budget.hold(1000, wait_seconds=0.0):
        assert budget.taken_nbytes == 1000
    assert budget.taken_nbytes == 0


def test_who_waits_goes_on_when_there_is_room() -> None:
    budget = ByteBudget(100)
    budget.take(100, wait_seconds=0.0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(budget.take, 50, wait_seconds=LONG_SECONDS)
        until(lambda: budget._changed._waiters)  # type: ignore[attr-defined]
        budget.give_back(70)
        waiting.result(LONG_SECONDS)
    assert budget.taken_nbytes == 80


def test_what_fails_gives_back_what_it_took() -> None:
    budget = ByteBudget(100)
    with pytest.raises(KeyError), budget.hold(50, wait_seconds=0.0):
        raise KeyError
    assert budget.taken_nbytes == 0
