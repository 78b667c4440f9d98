"""The benchmarks' own arithmetic: who is measured when, what ratios are of, what work is given."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.growth import Growth
from benchmarks.measure import Comparison, in_turns
from benchmarks.peers.commands import Count, Job, until
from benchmarks.peers.work import STACK, make_work


def test_both_sides_are_measured_in_every_round_and_take_turns_at_being_first() -> None:
    order: list[str] = []

    def measure(name: str) -> int:
        order.append(name)
        return len(order)

    ours, peer = in_turns(lambda: measure("ours"), lambda: measure("peer"), rounds=3)
    assert order == ["ours", "peer", "peer", "ours", "ours", "peer"]
    assert (ours, peer) == ([1, 4, 5], [2, 3, 6])


def test_the_ratio_is_that_of_the_medians_and_the_interval_that_of_the_rounds() -> None:
    comparison = Comparison("insert", ours=[10.0, 30.0, 20.0], peer=[1.0, 2.0, 4.0], target=10.0)
    assert comparison.ratio == 20.0 / 2.0
    assert comparison.interval == (20.0 / 4.0, 30.0 / 2.0)
    assert comparison.ok


def test_a_target_that_is_missed_is_not_ok() -> None:
    assert not Comparison("insert", ours=[9.9], peer=[1.0], target=10.0).ok
    assert not Growth("uniform", {10: [1.0], 100: [2.1]}, target=2.0).ok


def test_what_is_done_to_warm_up_is_not_counted_and_what_is_under_way_is_waited_for() -> None:
    job = Job([], "", "", 1, {}, warm_up_seconds=0.02, begin=0.0, seconds=0.02)
    steps, finished = [], []

    def step() -> int:
        steps.append(len(finished))
        return 3

    count = until(job, step, lambda: finished.append(len(steps)))
    warm, done = finished
    assert count.items == 3 * (done - warm)
    assert warm > 0
    assert count.seconds >= job.seconds
    assert isinstance(count, Count)


@pytest.mark.parametrize("name", ["vector", "pixels"])
def test_a_batch_whose_columns_do_not_belong_together_is_found(name: str) -> None:
    work = make_work(name)
    batch = next(work.batches(8))
    work.check(batch, 8)
    with pytest.raises(ValueError, match="other items"):
        work.check({**batch, "reward": batch["reward"][::-1].copy()}, 8)
    with pytest.raises(ValueError, match="column action"):
        work.check({**batch, "action": batch["action"][:4]}, 8)


def test_stacks_show_their_frames_and_no_turn_repeats_the_frames_of_another() -> None:
    work = make_work("pixels")
    assert work.frames is not None
    seen = set()
    batches = work.batches(len(work))
    for _ in range(2):
        batch = next(batches)
        for step in (0, len(work) - 1):
            shown = work.frames[step : step + STACK]
            np.testing.assert_array_equal(batch["observation"][step], shown)
            following = work.frames[step + 1 : step + 1 + STACK]
            np.testing.assert_array_equal(batch["next_observation"][step], following)
        seen |= {frame.tobytes() for frame in work.frames}
    assert len(seen) == 2 * len(work.frames)
