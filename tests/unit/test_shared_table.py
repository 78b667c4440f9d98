"""A table that several consumers share: who waits for whom, changes of ratios, what is saved."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from replay_shards import LONG_SECONDS, make_table, numbered, until
from saved_states import restore, saved

from buffer_server.callers import Caller
from buffer_server.draws import DrawRequest
from buffer_server.rate_limiter import RateLimiter
from buffer_server.statistics import ConsumerStatistics
from buffer_server.table import Table
from repertory.errors import ReplayTimeout, UsageError


def make_shared(consumers: dict[int, float], *, min_size: int = 1, buffer_items: int = 8) -> Table:
    limiter = RateLimiter(
        min_size=min_size, consumers=consumers, consumer_buffer_items=buffer_items
    )
    return make_table(limiter=limiter)


def draw(table: Table, size: int, consumer: int, caller: str = "") -> None:
    request = DrawRequest(size, consumer=consumer)
    table.draw(request, timeout_seconds=0.0, caller=Caller(caller))


def fill(table: Table) -> None:
    """Until nothing more goes in: 1 + 8 items."""
    for count in (1, 8):
        table.insert(numbered(0, count))


def held_insert(table: Table, pool: ThreadPoolExecutor) -> Future[Any]:
    waiting = pool.submit(table.insert, numbered(0, 4), timeout_seconds=LONG_SECONDS)
    until(lambda: table.statistics().blocked)
    return waiting


def consumer_statistics(table: Table, consumer: int) -> ConsumerStatistics:
    return {one.consumer: one for one in table.statistics().consumers}[consumer]


def test_a_writer_waits_for_the_slow_one_though_the_other_samples() -> None:
    table = make_shared({0: 2.0, 1: 1.0})
    fill(table)
    draw(table, 1, consumer=1, caller="learner-sac")
    with ThreadPoolExecutor() as pool:
        waiting = held_insert(table, pool)
        draw(table, 16, consumer=0)
        (one,) = table.statistics().blocked
        assert "consumer 1 (caller learner-sac) has sampled 7 items less than" in one.reason
        assert (one.operation, one.consumer) == ("insert", None)
        fast, slow = table.statistics().consumers
        assert (fast.held_inserts, slow.held_inserts) == (0, 1)
        assert not waiting.done()
        draw(table, 3, consumer=1)
        assert waiting.result(LONG_SECONDS) == 4


def test_everybody_is_listed_with_what_it_did_and_owes() -> None:
    table = make_shared({2: 2.0, 0: 0.5, 1: 0.0})
    fill(table)
    draw(table, 3, consumer=2, caller="learner-td3")
    statistics = table.statistics()
    assert statistics.consumer_buffer_items == 8
    assert statistics.consumers == (
        ConsumerStatistics(0, 0.5, 0, 4.0, "", 0, 0),
        ConsumerStatistics(1, 0.0, 0, 0.0, "", 0, 0),
        ConsumerStatistics(2, 2.0, 3, 13.0, "learner-td3", 0, 0),
    )
    assert (statistics.sampled, statistics.surplus) == (3, 13.0)
    assert (statistics.samples_per_insert, statistics.error_buffer) == (None, None)


def test_a_consumer_is_held_to_its_own_ratio_and_not_to_another() -> None:
    table = make_shared({0: 2.0, 1: 1.0})
    table.insert(numbered(0, 1))
    draw(table, 8, consumer=1)
    message = r"consumer 1 has sampled 8 items more than its 1 samples per insert"
    with pytest.raises(ReplayTimeout, match=message):
        draw(table, 1, consumer=1)
    draw(table, 16, consumer=0)


def test_a_sample_must_say_for_whom_it_is() -> None:
    table = make_shared({0: 2.0, 1: 1.0})
    table.insert(numbered(0, 1))
    with pytest.raises(UsageError, match=r"for which consumer .* one of 0, 1"):
        table.sample(1, timeout_seconds=LONG_SECONDS)
    with pytest.raises(UsageError, match="consumer 7 is not known here"):
        table.sample(1, timeout_seconds=LONG_SECONDS, consumer=7)
    assert len(table.sample(1, timeout_seconds=0.0, consumer=1).batch) == 1
    assert len(make_filled().sample(1, timeout_seconds=0.0, consumer=7).batch) == 1


def make_filled() -> Table:
    table = make_table()
    table.insert(numbered(0, 4))
    return table


def test_a_ratio_of_0_lets_the_writer_pass_and_another_one_the_consumer() -> None:
    table = make_shared({0: 1.0, 1: 1.0})
    fill(table)
    draw(table, 8, consumer=0)
    with ThreadPoolExecutor() as pool:
        writer = held_insert(table, pool)
        table.configure_consumers({1: 0.0})
        assert writer.result(LONG_SECONDS) == 4
        request = DrawRequest(2, consumer=1)
        learner = pool.submit(table.draw, request, timeout_seconds=LONG_SECONDS)
        until(lambda: consumer_statistics(table, 1).waiting_samples)
        (one,) = table.statistics().blocked
        assert one.consumer == 1
        assert "consumer 1 has a ratio of 0 and may not sample" in one.reason
        table.configure_consumers({1: 0.5})
        assert len(learner.result(LONG_SECONDS).selection.keys) == 2


def test_threads_of_different_speed_all_end_at_their_ratios() -> None:
    table = make_shared({0: 4.0, 1: 0.5, 2: 1.0}, min_size=10, buffer_items=16)
    batches = {0: 32, 1: 7, 2: 1}
    inserts = 150

    def learn(consumer: int) -> None:
        wanted = {0: 4.0, 1: 0.5, 2: 1.0}[consumer] * (8 * inserts - 10)
        while wanted - consumer_statistics(table, consumer).sampled >= batches[consumer]:
            table.sample(batches[consumer], timeout_seconds=LONG_SECONDS, consumer=consumer)

    with ThreadPoolExecutor(5) as pool:
        learners = [pool.submit(learn, consumer) for consumer in batches]
        writers = [
            pool.submit(table.insert, numbered(0, 8), timeout_seconds=LONG_SECONDS)
            for _ in range(inserts)
        ]
        for future in [*writers, *learners]:
            future.result(LONG_SECONDS)
    assert table.insert_count == 8 * inserts
    for one in table.statistics().consumers:
        assert 0 <= one.surplus < batches[one.consumer]


def test_one_count_becomes_many_while_it_runs_and_back() -> None:
    table = make_filled()
    table.sample(64, timeout_seconds=0.0)
    table.configure_limiter(min_size=1, consumers={0: 1.0}, consumer_buffer_items=4)
    table.insert(numbered(0, 4))
    with pytest.raises(ReplayTimeout, match="consumer 0 has sampled 4 items less"):
        table.insert(numbered(0, 1), timeout_seconds=0.0)
    with pytest.raises(UsageError, match="consumer_buffer_items 0"):
        table.configure_limiter(min_size=1, consumers={0: 1.0}, consumer_buffer_items=0)
    table.configure_limiter(min_size=1)
    table.insert(numbered(0, 100), timeout_seconds=0.0)
    assert table.statistics().consumers == ()
    with pytest.raises(UsageError, match="no consumers here"):
        table.configure_consumers({0: 1.0})


def test_a_buffer_too_small_for_the_inserts_in_use_is_refused() -> None:
    table = make_shared({0: 1.0})
    fill(table)
    with pytest.raises(UsageError, match=r"insert of 8 items .* consumer_buffer_items, 7"):
        table.configure_limiter(min_size=1, consumers={0: 1.0}, consumer_buffer_items=7)
    assert table.statistics().consumer_buffer_items == 8


@pytest.mark.parametrize(
    ("consumer", "message"), [(None, "for which consumer"), (3, "consumer 3 is not known")]
)
def test_consumers_that_leave_somebody_out_who_waits_are_refused(
    consumer: int | None, message: str
) -> None:
    table = make_table(limiter=RateLimiter(min_size=100))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(table.sample, 2, timeout_seconds=LONG_SECONDS, consumer=consumer)
        until(lambda: table.statistics().blocked)
        with pytest.raises(UsageError, match=message):
            table.configure_limiter(min_size=1, consumers={0: 1.0}, consumer_buffer_items=9)
        assert table.statistics().consumers == ()
        table.insert(numbered(0, 100))
        assert len(waiting.result(LONG_SECONDS).batch) == 2


def test_a_queue_takes_no_consumers() -> None:
    with pytest.raises(UsageError, match="uses its items up, so the ratios of consumers could"):
        make_table("fifo", limiter=RateLimiter(consumers={0: 1.0}, consumer_buffer_items=9))
    with pytest.raises(UsageError, match="uses its items up"):
        make_table("fifo").configure_limiter(
            min_size=1, consumers={0: 1.0}, consumer_buffer_items=9
        )


def test_balances_are_saved_and_restored() -> None:
    table = make_shared({0: 2.0, 1: 1.0})
    fill(table)
    draw(table, 5, consumer=0, caller="learner")
    table.configure_consumers({1: 0.0})
    restored = restore(make_shared({0: 2.0, 1: 1.0}), saved(table))
    assert restored.statistics().consumers == (
        ConsumerStatistics(0, 2.0, 5, 11.0, "", 0, 0),
        ConsumerStatistics(1, 0.0, 0, 8.0, "", 0, 0),
    )
    assert restored.sample_count == 5


def test_a_checkpoint_from_before_there_were_consumers_is_restored() -> None:
    table = make_table(limiter=RateLimiter(samples_per_insert=1.0, error_buffer=50.0))
    table.insert(numbered(0, 20))
    state = saved(table)
    assert not [name for name in state.arrays if name.startswith("consumers/")]
    restored = restore(make_shared({0: 2.0}), state)
    assert restored.statistics().consumers == (ConsumerStatistics(0, 2.0, 0, 0.0, "", 0, 0),)
    restored.insert(numbered(0, 8), timeout_seconds=0.0)
    assert consumer_statistics(restored, 0).surplus == 16
