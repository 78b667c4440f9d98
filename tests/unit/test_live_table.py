"""A table while it runs: its limiter changes, those who wait are listed, let pass or sent away."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from replay_shards import LONG_SECONDS, make_table, numbered, until

from buffer_server.callers import Caller, CallerDismissed
from buffer_server.draws import DrawRequest
from buffer_server.rate_limiter import RateLimiter
from buffer_server.table import Table
from buffer_server.writer_ledger import Origin
from repertory.errors import ReplayTimeout, UsageError


def origin(sequence: int) -> Origin:
    return Origin(b"writer-writer-16", sequence)


def blocked_sample(table: Table, pool: ThreadPoolExecutor, size: int = 2) -> Future[Any]:
    before = len(table.statistics().blocked)
    future = pool.submit(
        table.draw, DrawRequest(size), timeout_seconds=LONG_SECONDS, caller=Caller("learner")
    )
    until(lambda: len(table.statistics().blocked) > before)
    return future


def test_a_lower_min_size_lets_a_sampler_pass() -> None:
    table = make_table(limiter=RateLimiter(min_size=100))
    table.insert(numbered(0, 10))
    with ThreadPoolExecutor() as pool:
        waiting = blocked_sample(table, pool)
        table.configure_limiter(min_size=10)
        assert len(waiting.result(LONG_SECONDS).selection.keys) == 2


def test_without_the_ratio_an_inserter_passes() -> None:
    limiter = RateLimiter(min_size=1, samples_per_insert=1.0, error_buffer=4.0)
    table = make_table(limiter=limiter)
    table.insert(numbered(0, 4))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(table.insert, numbered(4, 4), timeout_seconds=LONG_SECONDS)
        until(lambda: table.statistics().blocked)
        table.configure_limiter(min_size=1)
        assert waiting.result(LONG_SECONDS) == 4


def test_a_new_ratio_counts_from_now_on() -> None:
    table = make_table()
    table.insert(numbered(0, 500))
    table.insert(numbered(0, 32))
    table.configure_limiter(min_size=1, samples_per_insert=2.0, error_buffer=64.0)
    assert table.statistics().surplus == 0
    table.insert(numbered(0, 32))  # 2 * 32: just within the buffer
    with pytest.raises(ReplayTimeout, match="surplus 64"):
        table.insert(numbered(0, 1), timeout_seconds=0.0)


def test_another_buffer_alone_keeps_the_balance() -> None:
    limiter = RateLimiter(min_size=1, samples_per_insert=1.0, error_buffer=64.0)
    table = make_table(limiter=limiter)
    table.insert(numbered(0, 33))
    table.configure_limiter(min_size=1, samples_per_insert=1.0, error_buffer=40.0)
    assert table.statistics().surplus == 32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_size": 0}, "min_size 0"),
        ({"min_size": 1001}, "min_size 1001 .* never reached"),
        ({"min_size": 1, "samples_per_insert": 2.0}, "error_buffer None would let neither"),
        ({"min_size": 1, "samples_per_insert": float("nan"), "error_buffer": 1.0}, "nan"),
        ({"min_size": 1, "samples_per_insert": 1.0, "error_buffer": 9.0}, "insert of 10 items"),
    ],
)
def test_what_would_stop_a_side_is_refused_and_changes_nothing(
    settings: dict[str, Any], message: str
) -> None:
    table = make_table()
    table.insert(numbered(0, 10))
    with pytest.raises(UsageError, match=message):
        table.configure_limiter(**settings)
    now = table.statistics()
    assert (now.min_size, now.samples_per_insert, now.error_buffer) == (1, None, None)


def test_a_buffer_too_small_for_one_who_waits_is_refused() -> None:
    table = make_table(limiter=RateLimiter(min_size=100))
    table.insert(numbered(0, 1))
    with ThreadPoolExecutor() as pool:
        waiting = blocked_sample(table, pool, size=64)
        with pytest.raises(UsageError, match="a sample of 64 items is larger"):
            table.configure_limiter(min_size=1, samples_per_insert=1.0, error_buffer=63.0)
        table.configure_limiter(min_size=1, samples_per_insert=1.0, error_buffer=64.0)
        assert len(waiting.result(LONG_SECONDS).selection.keys) == 64


def test_a_queue_takes_no_ratio() -> None:
    with pytest.raises(UsageError, match="uses its items up"):
        make_table("fifo").configure_limiter(min_size=1, samples_per_insert=1.0, error_buffer=100.0)


def test_who_waits_since_when_and_why_is_listed() -> None:
    table = make_table(limiter=RateLimiter(min_size=100))
    with ThreadPoolExecutor() as pool:
        waiting = blocked_sample(table, pool)
        (one,) = table.statistics().blocked
        assert (one.caller, one.operation, one.items) == ("learner", "sample", 2)
        assert 0 <= one.seconds < LONG_SECONDS
        assert "only 0 of the first 100 items" in one.reason
        table.close("over")
        with pytest.raises(CallerDismissed, match="over"):
            waiting.result(LONG_SECONDS)
    assert table.statistics().blocked == ()


def test_a_dismissed_caller_takes_nothing_from_a_queue() -> None:
    table = make_table("fifo")
    caller = Caller("dead")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(
            table.draw, DrawRequest(2), timeout_seconds=LONG_SECONDS, caller=caller
        )
        until(lambda: table.statistics().blocked)
        table.dismiss(caller, "hung up")
        with pytest.raises(CallerDismissed, match="hung up"):
            waiting.result(LONG_SECONDS)
    table.insert(numbered(0, 2))
    assert table.sample(2, timeout_seconds=0.0).batch.reward.tolist() == [0.0, 1.0]


def test_a_closed_table_serves_but_lets_nobody_wait() -> None:
    table = make_table(limiter=RateLimiter(min_size=2))
    table.close("draining")
    with pytest.raises(CallerDismissed, match="draining"):
        table.sample(1, timeout_seconds=LONG_SECONDS)
    table.insert(numbered(0, 2))
    assert len(table.sample(1, timeout_seconds=0.0).batch) == 1


def test_one_origin_is_inserted_once() -> None:
    table = make_table()
    assert table.insert_once(origin(1), numbered(0, 3).columns(), timeout_seconds=0.0)
    assert not table.insert_once(origin(1), numbered(0, 3).columns(), timeout_seconds=0.0)
    assert table.insert_once(origin(2), numbered(3, 3).columns(), timeout_seconds=0.0)
    assert (table.size, table.statistics().duplicate_inserts) == (6, 1)


def test_two_who_wait_with_one_origin_insert_once() -> None:
    limiter = RateLimiter(min_size=1, samples_per_insert=1.0, error_buffer=4.0)
    table = make_table(limiter=limiter)
    table.insert(numbered(0, 4))
    table.insert(numbered(4, 1))
    with ThreadPoolExecutor() as pool:
        both = [
            pool.submit(
                table.insert_once, origin(1), numbered(5, 4).columns(), timeout_seconds=LONG_SECONDS
            )
            for _ in range(2)
        ]
        until(lambda: len(table.statistics().blocked) == 2)
        table.sample(4, timeout_seconds=0.0)
        assert sorted(future.result(LONG_SECONDS) for future in both) == [False, True]
    assert table.size == 9


def test_an_insert_that_timed_out_may_come_again() -> None:
    limiter = RateLimiter(min_size=1, samples_per_insert=1.0, error_buffer=4.0)
    table = make_table(limiter=limiter)
    table.insert(numbered(0, 4))
    table.insert(numbered(4, 1))
    with pytest.raises(ReplayTimeout):
        table.insert_once(origin(1), numbered(5, 4).columns(), timeout_seconds=0.0)
    table.sample(4, timeout_seconds=0.0)
    assert table.insert_once(origin(1), numbered(5, 4).columns(), timeout_seconds=0.0)


def test_a_restored_table_knows_what_was_inserted() -> None:
    table, restored = make_table(), make_table()
    table.insert_once(origin(1), numbered(0, 3).columns(), timeout_seconds=0.0)
    restored.load_arrays(table.arrays())
    assert not restored.insert_once(origin(1), numbered(0, 3).columns(), timeout_seconds=0.0)
    assert restored.size == 3


def test_a_checkpoint_from_before_there_were_writers_is_restored() -> None:
    table, restored = make_table(), make_table()
    table.insert(numbered(0, 3))
    old = {name: a for name, a in table.arrays().items() if not name.startswith("ledger/")}
    restored.load_arrays(old)
    np.testing.assert_array_equal(
        restored.sample(8, timeout_seconds=0.0).keys, table.sample(8, timeout_seconds=0.0).keys
    )


def test_dismissing_a_caller_that_does_not_wait_does_not_wait_for_the_table() -> None:
    table, caller = make_table(limiter=RateLimiter(min_size=9)), Caller("learner")
    with ThreadPoolExecutor(1) as pool, table._changed:  # somebody is at the table
        pool.submit(table.dismiss, caller, "it hung up").result(LONG_SECONDS)
    with pytest.raises(CallerDismissed, match="it hung up"):
        table.draw(DrawRequest(2), timeout_seconds=LONG_SECONDS, caller=caller)


def test_the_time_that_callers_waited_is_counted() -> None:
    table, caller = make_table(limiter=RateLimiter(min_size=9)), Caller("learner")
    with pytest.raises(ReplayTimeout):
        table.draw(DrawRequest(2), timeout_seconds=0.05, caller=caller)
    table.insert(numbered(0, 9))
    table.draw(DrawRequest(2), timeout_seconds=0.05, caller=caller)  # at once
    statistics = table.statistics()
    assert statistics.insert_wait_seconds == 0.0
    assert 0.05 <= statistics.sample_wait_seconds < LONG_SECONDS
    assert caller.waited_seconds == statistics.sample_wait_seconds


def test_statistics_say_what_is_gone_and_how_old_the_rest_is() -> None:
    table = make_table("mixture", 10)
    assert table.statistics().newest_age_seconds is None
    for first in (0, 8):
        table.insert(numbered(first, 8))
    statistics = table.statistics()
    assert (statistics.inserted, statistics.size, statistics.evicted) == (16, 10, 6)
    assert statistics.newest_age_seconds is not None
    assert statistics.oldest_age_seconds is not None
    assert 0 <= statistics.newest_age_seconds <= statistics.oldest_age_seconds < LONG_SECONDS
    # Every numbered item is its own policy's.
    live = {share.policy_id: share.newest_version for share in statistics.policies if share.items}
    assert live == {number: number for number in range(6, 16)}
