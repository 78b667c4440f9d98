"""Which segments an on-policy learner gets: fresh ones, with their age, and none lost."""

from __future__ import annotations

import numpy as np
import pytest

from learner.fresh_segments import FreshSegments
from repertory.errors import ReplayTimeout
from repertory.types import Sample, TransitionBatch

SECONDS = 30.0


class Queue:
    """Hands out segments by the versions of their steps, oldest first; too few is a timeout."""

    def __init__(self, *segments: list[int]) -> None:
        self.segments = list(enumerate(segments))
        self.asked: list[int] = []

    def add(self, *segments: list[int]) -> None:
        self.segments += enumerate(segments, start=100)

    def insert(self, batch: TransitionBatch, priorities: np.ndarray | None = None) -> int:
        raise NotImplementedError

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        raise NotImplementedError

    def sample(self, size: int, *, timeout_seconds: float) -> Sample:
        self.asked.append(size)
        if len(self.segments) < size:
            raise ReplayTimeout("not enough")
        taken, self.segments = self.segments[:size], self.segments[size:]
        versions = np.array([versions for _, versions in taken], np.int64)
        keys = np.array([key for key, _ in taken], np.int64)
        column = np.repeat(keys[:, None], versions.shape[1], axis=1).astype(np.float32)
        batch = TransitionBatch(
            *[column] * 5,
            policy_id=np.zeros(versions.shape, np.int32),
            policy_version=versions,
            extras={"log_prob": column},
        )
        return Sample(batch, keys, np.ones(size, np.float32))


def fresh(queue: Queue, *, version: int, max_lag: int = 0, since: int | None = None):
    segments = FreshSegments(queue, max_lag)
    segments.version, segments.fresh_since = version, version if since is None else since
    return segments


def test_what_is_too_old_is_dropped_and_replaced_by_the_next() -> None:
    queue = Queue([5, 5], [4, 4], [5, 5], [3, 3], [5, 5])
    segments = fresh(queue, version=5)
    sample = segments.sample(3, timeout_seconds=SECONDS)
    assert sample.keys.tolist() == [0, 2, 4]
    assert sample.batch.reward[:, 0].tolist() == [0.0, 2.0, 4.0]  # columns go with their keys
    assert sample.batch.extras["log_prob"][:, 0].tolist() == [0.0, 2.0, 4.0]
    assert segments.dropped == 2


@pytest.mark.parametrize(("max_lag", "kept"), [(0, [3]), (1, [1, 2, 3]), (2, [0, 1, 2, 3])])
def test_the_oldest_step_of_a_segment_decides(max_lag: int, kept: list[int]) -> None:
    queue = Queue([3, 5], [4, 4], [4, 5], [5, 5])
    segments = fresh(queue, version=5, max_lag=max_lag)
    assert segments.sample(len(kept), timeout_seconds=SECONDS).keys.tolist() == kept


def test_age_is_in_versions_for_each_step() -> None:
    segments = fresh(Queue([3, 4], [5, 5]), version=5, max_lag=2)
    age = segments.sample(2, timeout_seconds=SECONDS).batch.extras["age"]
    assert age.dtype == np.int64
    assert age.tolist() == [[2, 1], [0, 0]]


def test_weights_that_were_published_again_are_the_same_weights() -> None:
    """Version 5 and its repetitions 6 and 7: nothing of them is old, version 4 is one behind."""
    queue = Queue([5, 6], [7, 7], [4, 5], [3, 5])
    segments = fresh(queue, version=7, since=5, max_lag=1)
    sample = segments.sample(3, timeout_seconds=SECONDS)
    assert sample.batch.extras["age"].tolist() == [[0, 0], [0, 0], [1, 0]]
    with pytest.raises(ReplayTimeout):
        segments.sample(1, timeout_seconds=SECONDS)
    assert segments.dropped == 1


def test_versions_that_are_yet_to_come_are_of_a_life_that_was_lost() -> None:
    segments = fresh(Queue([9, 9], [5, 9], [5, 5]), version=5, max_lag=3)
    assert segments.sample(1, timeout_seconds=SECONDS).keys.tolist() == [2]
    assert segments.dropped == 2


def test_a_timeout_loses_nothing() -> None:
    queue = Queue([5, 5], [1, 1], [5, 5])
    segments = fresh(queue, version=5)
    with pytest.raises(ReplayTimeout):
        segments.sample(3, timeout_seconds=SECONDS)
    queue.add([5, 5])
    assert segments.sample(3, timeout_seconds=SECONDS).keys.tolist() == [0, 2, 100]
    assert queue.asked == [3, 1, 1]  # only for what is missing


def test_what_was_kept_may_have_become_too_old() -> None:
    queue = Queue([5, 5], [1, 1])
    segments = fresh(queue, version=5)
    with pytest.raises(ReplayTimeout):
        segments.sample(2, timeout_seconds=SECONDS)
    segments.version = segments.fresh_since = 6
    queue.add([6, 6], [6, 6])
    assert segments.sample(2, timeout_seconds=SECONDS).keys.tolist() == [100, 101]
    assert segments.dropped == 2


def test_a_flood_of_old_segments_ends_at_the_deadline() -> None:
    segments = fresh(Queue(*[[1, 1]] * 1000), version=5)
    with pytest.raises(ReplayTimeout, match="0 of 2 segments were fresh"):
        segments.sample(2, timeout_seconds=-1.0)


def test_what_is_put_back_comes_first_and_its_age_is_worked_out_anew() -> None:
    queue = Queue([4, 4], [5, 5], [5, 5])
    segments = fresh(queue, version=5, max_lag=2)
    segments.put_back(segments.sample(2, timeout_seconds=SECONDS))
    segments.version = segments.fresh_since = 6
    sample = segments.sample(3, timeout_seconds=SECONDS)
    assert sample.keys.tolist() == [0, 1, 2]
    assert sample.batch.extras["age"].tolist() == [[2, 2], [1, 1], [1, 1]]


def test_more_than_asked_for_stays_for_the_next_time() -> None:
    segments = fresh(Queue([5, 5], [5, 5], [5, 5]), version=5)
    segments.put_back(segments.sample(3, timeout_seconds=SECONDS))
    assert segments.sample(2, timeout_seconds=SECONDS).keys.tolist() == [0, 1]
    assert segments.sample(1, timeout_seconds=SECONDS).keys.tolist() == [2]
