"""Stretches: one item for each goal, whatever ends it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from actors.stretches import Stretches
from repertory.types import TransitionBatch

GAMMA = 0.5


class Feed:
    """Steps of copies whose observation is the number of the step, and reward 10^step."""

    def __init__(self, copies: int = 1) -> None:
        self.stretches = Stretches(GAMMA)
        self.copies = copies
        self.step = 0

    def add(
        self,
        goal: Sequence[int],
        beginning: Sequence[bool],
        *,
        terminated: Sequence[bool] | None = None,
        truncated: Sequence[bool] | None = None,
        valid: Sequence[bool] | None = None,
    ) -> list[tuple[float, ...]]:
        nothing = [False] * self.copies
        ends = np.array(terminated or nothing)
        columns = {
            "observation": np.full((self.copies, 1), self.step, np.float32),
            "action": np.full(self.copies, self.step),
            "reward": np.full(self.copies, 10.0**self.step, np.float32),
            "discount": np.zeros(self.copies, np.float32),
            "next_observation": np.full((self.copies, 1), self.step + 1, np.float32),
            "policy_id": np.arange(self.copies, dtype=np.int32),
            "policy_version": np.full(self.copies, self.step),
            "extras/goal": np.array(goal),
            "extras/beginning": np.array(beginning),
        }
        self.step += 1
        return items(
            self.stretches.add(
                columns,
                ends,
                ends | np.array(truncated or nothing),
                np.ones(self.copies, bool) if valid is None else np.array(valid),
            )
        )


def items(batch: TransitionBatch | None) -> list[tuple[float, ...]]:
    """(copy, from, goal, reward, discount, to) of each."""
    if batch is None:
        return []
    columns = (
        batch.policy_id, batch.observation[:, 0], batch.extras["goal"], batch.reward,
        batch.discount, batch.next_observation[:, 0],
    )  # fmt: skip
    return [tuple(float(value) for value in row) for row in zip(*columns, strict=True)]


def test_a_stretch_leaves_when_the_next_begins():
    feed = Feed()
    assert feed.add([3], [True]) == []
    assert feed.add([3], [False]) == []
    assert feed.add([1], [True]) == [(0, 0, 3, 11, GAMMA, 2)]
    assert feed.add([2], [True]) == [(0, 2, 1, 100, GAMMA, 3)]


@pytest.mark.parametrize(("how", "discount"), [("terminated", 0.0), ("truncated", GAMMA)])
def test_an_episodes_end_ends_it(how: str, discount: float):
    feed = Feed()
    feed.add([3], [True])
    assert feed.add([3], [False], **{how: [True]}) == [(0, 0, 3, 11, discount, 2)]
    assert feed.add([4], [True]) == []


def test_one_step_that_begins_and_ends_the_episode():
    feed = Feed()
    feed.add([3], [True])
    assert feed.add([4], [True], terminated=[True]) == [(0, 0, 3, 1, GAMMA, 1), (0, 1, 4, 10, 0, 2)]


def test_copies_have_stretches_of_their_own():
    feed = Feed(2)
    feed.add([1, 2], [True, True])
    assert feed.add([1, 5], [False, True]) == [(1, 0, 2, 1, GAMMA, 1)]
    assert feed.add([1, 5], [False, False], terminated=[True, False]) == [(0, 0, 1, 111, 0, 3)]


def test_a_cut_ends_it_where_it_is():
    feed = Feed(2)
    feed.add([1, 2], [True, True])
    feed.add([1, 2], [False, False])
    cut = feed.stretches.cut(np.array([False, True]))
    assert items(cut) == [(1, 0, 2, 11, GAMMA, 2)]
    assert feed.stretches.cut(np.array([False, True])) is None


def test_steps_of_others_and_mere_resets_do_not_count():
    feed = Feed()
    feed.add([3], [True])
    assert feed.add([9], [True], valid=[False]) == []
    assert feed.add([3], [False], terminated=[True]) == [(0, 0, 3, 101, 0, 3)]
    assert feed.add([0], [False], terminated=[True]) == []  # nobody had a goal


def test_what_is_forgotten_never_leaves():
    feed = Feed(2)
    feed.add([1, 2], [True, True])
    feed.stretches.forget(np.array([True, False]))
    assert feed.add([5, 6], [True, True]) == [(1, 0, 2, 1, GAMMA, 1)]


def test_its_state_goes_on_elsewhere():
    feed = Feed()
    assert feed.stretches.state() == {}
    feed.stretches.load_state({})
    feed.add([3], [True])
    saved = feed.stretches.state()
    expected = feed.add([3], [False], terminated=[True])
    other = Feed()
    other.step = 1
    other.stretches.load_state(saved)
    assert other.add([3], [False], terminated=[True]) == expected == [(0, 0, 3, 11, 0, 2)]
