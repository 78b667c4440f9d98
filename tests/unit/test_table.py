"""A table: storage, sampler and limiter together, across threads and restarts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from buffer_server.rate_limiter import RateLimiter
from buffer_server.table import Table
from repertory.errors import CheckpointError, ReplayTimeout, UsageError
from repertory.parts import lookup
from repertory.types import TransitionBatch

# Only a broken table takes this long. A call that nobody wakes would still succeed at its own
# deadline, so that one is later.
JOIN_SECONDS = 10.0
DEADLINE_SECONDS = 30.0


def numbered(first: int, count: int) -> TransitionBatch:
    number = np.arange(first, first + count, dtype=np.float32)
    rows = np.repeat(number[:, None], 3, axis=1)
    return TransitionBatch(
        observation=rows,
        action=rows[:, :2].copy(),
        reward=number,
        discount=number,
        next_observation=rows,
        policy_id=number.astype(np.int32),
        policy_version=number.astype(np.int64),
    )


class WatchedLimiter(RateLimiter):
    """Sets an event when it makes someone wait. It does so under the table's lock, which is given
    up only by waiting: whoever sees the event and then gets the lock knows that the other waits."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.refused = threading.Event()

    def can_insert(self, count: int) -> bool:
        return self._note(super().can_insert(count))

    def can_sample(self, count: int, consumer: int | None = None) -> bool:
        return self._note(super().can_sample(count, consumer))

    def _note(self, allowed: bool) -> bool:
        if not allowed:
            self.refused.set()
        return allowed


def make_table(
    sampler: str = "uniform",
    capacity: int = 8,
    *,
    limiter: RateLimiter | None = None,
    seed: int = 0,
    **config: Any,
) -> Table:
    sampler_class = lookup("sampler", sampler)
    return Table(
        "replay",
        numbered(0, 1).signature(),
        capacity,
        sampler_class(sampler_class.Config(**config), capacity),
        limiter or RateLimiter(min_size=1),
        seed,
    )


@pytest.mark.parametrize("sampler", ["uniform", "prioritized", "fifo"])
def test_a_sample_holds_the_items_its_keys_name(sampler: str) -> None:
    table = make_table(sampler, 16)
    assert table.insert(numbered(0, 8)) == 8
    sample = table.sample(5, timeout_seconds=0)
    assert len(sample.batch) == 5
    for column in sample.batch.columns().values():
        np.testing.assert_array_equal(column.reshape(5, -1)[:, 0], sample.keys)
    assert sample.weights.shape == (5,)


def test_counts_and_sizes() -> None:
    table = make_table(capacity=8)
    for first in (0, 6):
        table.insert(numbered(first, 6))
    table.sample(3, timeout_seconds=0)
    assert (table.size, table.insert_count, table.sample_count) == (8, 12, 3)
    assert table.nbytes == 8 * (10 * 4 + 4 + 8)  # 3 + 2 + 1 + 1 + 3 float32, int32, int64


def test_an_empty_batch_inserts_nothing() -> None:
    table = make_table()
    assert table.insert(numbered(0, 0)) == 0
    assert table.size == 0


def test_a_sample_in_vain_says_why() -> None:
    table = make_table(limiter=RateLimiter(min_size=4))
    table.insert(numbered(0, 3))
    with pytest.raises(ReplayTimeout, match=r"'replay'.*only 3 of the first 4 items"):
        table.sample(2, timeout_seconds=0)


def test_a_sample_in_vain_waits_for_its_deadline() -> None:
    with pytest.raises(ReplayTimeout, match=r"within 0\.02 s"):
        make_table().sample(2, timeout_seconds=0.02)


def test_an_insert_in_vain_says_why_and_inserts_nothing() -> None:
    table = make_table(limiter=RateLimiter(min_size=2, samples_per_insert=1.0, error_buffer=2.0))
    table.insert(numbered(0, 2))
    table.insert(numbered(2, 2))
    with pytest.raises(ReplayTimeout, match=r"'replay'.*must wait for more samples.*inserted 4"):
        table.insert(numbered(4, 1), timeout_seconds=0)
    assert table.size == 4


@pytest.mark.parametrize("timeout_seconds", [-1.0, float("inf"), float("nan")])
def test_a_timeout_that_is_no_deadline_is_refused(timeout_seconds: float) -> None:
    with pytest.raises(UsageError, match="not a deadline"):
        make_table().sample(1, timeout_seconds=timeout_seconds)


def test_a_sample_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="sample of 0"):
        make_table().sample(0, timeout_seconds=0)


def test_a_waiting_sample_goes_on_when_items_come() -> None:
    limiter = WatchedLimiter(min_size=4)
    table = make_table(limiter=limiter)
    table.insert(numbered(0, 3))
    with ThreadPoolExecutor(1) as pool:
        sampling = pool.submit(table.sample, 2, timeout_seconds=DEADLINE_SECONDS)
        assert limiter.refused.wait(JOIN_SECONDS)
        table.insert(numbered(3, 1))
        assert len(sampling.result(JOIN_SECONDS).keys) == 2


def test_a_waiting_insert_goes_on_when_samples_are_taken() -> None:
    limiter = WatchedLimiter(min_size=2, samples_per_insert=1.0, error_buffer=2.0)
    table = make_table(limiter=limiter)
    table.insert(numbered(0, 2))
    table.insert(numbered(2, 2))
    with ThreadPoolExecutor(1) as pool:
        inserting = pool.submit(table.insert, numbered(4, 2), timeout_seconds=DEADLINE_SECONDS)
        assert limiter.refused.wait(JOIN_SECONDS)
        table.sample(2, timeout_seconds=DEADLINE_SECONDS)
        assert inserting.result(JOIN_SECONDS) == 2


def test_a_waiting_sample_lets_others_in() -> None:
    limiter = WatchedLimiter(min_size=4)
    table = make_table(limiter=limiter)
    with ThreadPoolExecutor(1) as pool:
        table.insert(numbered(0, 1))
        sampling = pool.submit(table.sample, 2, timeout_seconds=DEADLINE_SECONDS)
        assert limiter.refused.wait(JOIN_SECONDS)
        for first in (1, 2):  # neither of these is enough
            table.insert(numbered(first, 1), timeout_seconds=DEADLINE_SECONDS)
            assert not sampling.done()
        table.insert(numbered(3, 1))
        assert len(sampling.result(JOIN_SECONDS).keys) == 2


def test_many_threads_lose_and_repeat_nothing() -> None:
    table = make_table("fifo", 10)

    def insert_all(first: int) -> None:
        for start in range(first, first + 120, 3):
            table.insert(numbered(start, 3), timeout_seconds=DEADLINE_SECONDS)

    def sample_all() -> list[float]:
        taken: list[float] = []
        for _ in range(36):
            taken += table.sample(5, timeout_seconds=DEADLINE_SECONDS).batch.reward.tolist()
        return taken

    with ThreadPoolExecutor(5) as pool:
        inserting = [pool.submit(insert_all, 120 * place) for place in range(3)]
        sampling = [pool.submit(sample_all) for _ in range(2)]
        for job in inserting:
            job.result(JOIN_SECONDS)
        taken = [number for job in sampling for number in job.result(JOIN_SECONDS)]
    assert sorted(taken) == list(range(360))


class TestQueue:
    def test_an_insert_waits_rather_than_overwrite(self) -> None:
        table = make_table("fifo", 4)
        table.insert(numbered(0, 2))
        table.insert(numbered(2, 2))
        with pytest.raises(ReplayTimeout, match=r"4 of at most 4 items still wait.*room for 0"):
            table.insert(numbered(4, 1), timeout_seconds=0)
        assert table.sample(2, timeout_seconds=0).batch.reward.tolist() == [0, 1]
        table.insert(numbered(4, 2), timeout_seconds=0)
        assert table.sample(2, timeout_seconds=0).batch.reward.tolist() == [2, 3]

    def test_a_sample_waits_for_as_many_items_as_it_wants(self) -> None:
        table = make_table("fifo", 4)
        table.insert(numbered(0, 1))
        with pytest.raises(ReplayTimeout, match="1 can be sampled, and 2 are needed"):
            table.sample(2, timeout_seconds=0)

    @settings(max_examples=60, deadline=None)
    @given(
        capacity=st.integers(1, 9),
        max_times=st.integers(1, 3),
        steps=st.lists(st.tuples(st.booleans(), st.integers(0, 100)), max_size=40),
        data=st.data(),
    )
    def test_both_sides_are_never_stopped(
        self, capacity: int, max_times: int, steps: list[tuple[bool, int]], data: st.DataObject
    ) -> None:
        half = (capacity + 1) // 2
        limiter = RateLimiter(min_size=data.draw(st.integers(1, half)))
        table = make_table("fifo", capacity, limiter=limiter, max_times_sampled=max_times)
        for inserts_first, number in steps:
            count = number % half + 1
            stopped = 0
            for insert in (inserts_first, not inserts_first):
                try:
                    if insert:
                        table.insert(numbered(table.insert_count, count), timeout_seconds=0)
                    else:
                        table.sample(half, timeout_seconds=0)
                    break
                except ReplayTimeout:
                    stopped += 1
            assert stopped < 2

    def test_a_batch_of_more_than_half_the_capacity_is_refused(self) -> None:
        table = make_table("fifo", 8)
        with pytest.raises(UsageError, match=r"insert of 5 items is more than 4.*capacity to 10"):
            table.insert(numbered(0, 5))
        with pytest.raises(UsageError, match=r"sample of 5 items is more than 4.*capacity to 10"):
            table.sample(5, timeout_seconds=0)

    def test_a_ratio_is_refused(self) -> None:
        limiter = RateLimiter(samples_per_insert=1.0, error_buffer=4.0)
        with pytest.raises(UsageError, match="samples_per_insert 1 could stop both sides"):
            make_table("fifo", limiter=limiter)


def test_a_min_size_beyond_the_capacity_is_refused() -> None:
    with pytest.raises(UsageError, match=r"min_size 9 .* may be 8 at most"):
        make_table(capacity=8, limiter=RateLimiter(min_size=9))


def test_a_sampler_of_another_capacity_is_refused() -> None:
    uniform = lookup("sampler", "uniform")
    sampler = uniform(uniform.Config(), 4)
    with pytest.raises(UsageError, match=r"capacity of 8.*sampler was made for 4"):
        Table("replay", numbered(0, 1).signature(), 8, sampler, RateLimiter(), 0)


def test_a_batch_beyond_the_error_buffer_is_refused_at_once() -> None:
    table = make_table(limiter=RateLimiter(samples_per_insert=2.0, error_buffer=4.0))
    with pytest.raises(UsageError, match="insert of 3 items"):
        table.insert(numbered(0, 3))
    with pytest.raises(UsageError, match="sample of 5 items"):
        table.sample(5, timeout_seconds=0)


def test_a_batch_unlike_the_signature_is_refused_without_waiting() -> None:
    limiter = RateLimiter(min_size=1, samples_per_insert=1.0, error_buffer=1.0)
    table = make_table(limiter=limiter)
    table.insert(numbered(0, 1))
    table.insert(numbered(1, 1))  # from here on, inserts wait
    batch = TransitionBatch.from_columns(
        {**numbered(2, 1).columns(), "reward": np.zeros(1, np.float64)}
    )
    with pytest.raises(UsageError, match="column reward came as float64"):
        table.insert(batch, timeout_seconds=0)


def test_updated_priorities_decide_what_is_sampled() -> None:
    table = make_table("prioritized", 4, alpha=1.0)
    table.insert(numbered(0, 4))
    table.update_priorities(np.arange(4), np.array([0.0, 0.0, 1e9, 0.0]))
    assert table.sample(50, timeout_seconds=0).keys.tolist() == [2] * 50


def test_priorities_of_overwritten_items_are_ignored() -> None:
    table = make_table("prioritized", 4, alpha=1.0)
    table.insert(numbered(0, 4))
    table.insert(numbered(4, 2), np.array([0.0, 0.0]))  # overwrites 0 and 1
    table.update_priorities(np.array([0, 1, 3]), np.array([1e9, 1e9, 1e9]))
    assert set(table.sample(50, timeout_seconds=0).keys.tolist()) == {3}


def test_bad_priorities_insert_nothing() -> None:
    table = make_table("prioritized", 4)
    table.insert(numbered(0, 2))
    before = table.arrays()
    with pytest.raises(UsageError, match="nan"):
        table.insert(numbered(2, 2), np.array([1.0, np.nan]))
    after = table.arrays()
    assert all((before[name] == after[name]).all() for name in before)


def test_priorities_that_do_not_match_the_keys_are_refused() -> None:
    with pytest.raises(UsageError, match=r"keys \[2\] and priorities \[3\]"):
        make_table().update_priorities(np.arange(2), np.ones(3))


def test_a_seed_decides_the_samples() -> None:
    drawn = []
    for seed in (1, 1, 2):
        table = make_table(capacity=100, seed=seed)
        table.insert(numbered(0, 100))
        drawn.append(table.sample(20, timeout_seconds=0).keys.tolist())
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def continue_run(table: Table) -> list[tuple[list[int], list[float], list[float]]]:
    """Some more inserts, samples and priorities; what the samples were."""
    seen = []
    for _ in range(6):
        table.insert(numbered(table.insert_count, 3), timeout_seconds=0)
        sample = table.sample(3, timeout_seconds=0)
        seen.append((sample.keys.tolist(), sample.batch.reward.tolist(), sample.weights.tolist()))
        table.update_priorities(sample.keys, sample.batch.reward % 5)
    return seen


@pytest.mark.parametrize(
    ("sampler", "config"),
    [
        ("uniform", {}),
        ("prioritized", {"beta_steps": 9}),
        ("fifo", {}),
    ],
)
def test_a_restored_table_gives_the_very_same_samples(
    tmp_path: Path, sampler: str, config: dict[str, Any]
) -> None:
    table = make_table(sampler, 12, seed=3, **config)
    continue_run(table)
    save_file(table.arrays(), tmp_path / "table.safetensors")
    expected = continue_run(table)
    restored = make_table(sampler, 12, seed=4, **config)
    restored.load_arrays(load_file(tmp_path / "table.safetensors"))
    assert continue_run(restored) == expected


def test_the_spare_half_word_of_the_generator_is_restored() -> None:
    table = make_table()
    table._rng.integers(0, 10, dtype=np.uint32)
    assert table._bits.state["has_uint32"] == 1
    restored = make_table(seed=5)
    restored.load_arrays(table.arrays())
    assert restored._bits.state == table._bits.state


@pytest.mark.parametrize("capacity", [5, 40])
@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_a_restored_table_may_have_another_capacity(sampler: str, capacity: int) -> None:
    table = make_table(sampler, 12)
    for first in (0, 10):
        table.insert(numbered(first, 10))
    restored = make_table(sampler, capacity)
    restored.load_arrays(table.arrays())
    sample = restored.sample(200, timeout_seconds=0)
    assert set(sample.keys.tolist()) == set(range(20 - min(12, capacity), 20))
    np.testing.assert_array_equal(sample.batch.reward, sample.keys)


def test_a_restored_limiter_still_holds_its_side_back() -> None:
    def make() -> Table:
        return make_table(limiter=RateLimiter(samples_per_insert=1.0, error_buffer=2.0))

    table = make()
    for first in range(3):
        table.insert(numbered(first, 1), timeout_seconds=0)
    restored = make()
    restored.load_arrays(table.arrays())
    with pytest.raises(ReplayTimeout, match="inserted 3, sampled 0"):
        restored.insert(numbered(3, 1), timeout_seconds=0)


def test_the_arrays_of_another_sampler_are_refused_and_change_nothing() -> None:
    table = make_table("prioritized")
    with pytest.raises(CheckpointError, match=r"masses.*another sampler"):
        table.load_arrays(make_table("uniform").arrays())
    assert table.size == 0
