"""A shard over real gRPC: what a table does, a client does, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from replay_shards import LONG_SECONDS, connect, make_table, numbered, until, write_token

from buffer_server.client import ReplayClient
from buffer_server.connection import Connection
from buffer_server.draws import DrawRequest
from buffer_server.rate_limiter import RateLimiter
from buffer_server.server import ReplayServer, ServerConfig
from buffer_server.service import SavedCheckpoint
from buffer_server.statuses import (
    ReplayMismatch,
    ReplayOverload,
    ReplayUnavailable,
    UnknownTable,
)
from buffer_server.table import Table
from repertory.errors import RepertoryError, ReplayTimeout, UsageError
from repertory.protocols import Replay
from repertory.types import ColumnSpec, Sample

Serve = Callable[..., ReplayServer]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers = []

    def start(*tables: Table, checkpoints: Any = None, **settings: Any) -> ReplayServer:
        address = f"unix:{tmp_path}/{len(servers)}.sock"
        config = ServerConfig(**{"address": address, **settings})
        server = ReplayServer(tables, config, checkpoints)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop(grace_seconds=0.0)


def assert_same(one: Sample, other: Sample) -> None:
    np.testing.assert_array_equal(one.keys, other.keys)
    np.testing.assert_array_equal(one.weights, other.weights)
    theirs = other.batch.columns()
    for name, column in one.batch.columns().items():
        assert column.dtype == theirs[name].dtype
        np.testing.assert_array_equal(column, theirs[name])


def learn(replay: Replay, rng: np.random.Generator) -> list[Sample]:
    """Inserts, samples and updates as an actor and a learner do in turn."""
    samples = []
    for step in range(20):
        replay.insert(numbered(100 * step, 50), rng.random(50) if step % 2 else None)
        sample = replay.sample(32, timeout_seconds=LONG_SECONDS)
        replay.update_priorities(sample.keys, rng.random(32).astype(np.float32))
        samples.append(sample)
    return samples


@pytest.mark.parametrize("sampler", ["uniform", "prioritized", "fifo"])
@pytest.mark.parametrize("over", ["socket", "port"])
def test_one_seed_gives_the_samples_of_the_table_itself(
    sampler: str, over: str, serve: Serve, tmp_path: Path
) -> None:
    token = {"token_file": write_token(tmp_path / "token")} if over == "port" else {}
    address = {"address": "127.0.0.1:0"} if over == "port" else {}
    server = serve(make_table(sampler, 500, seed=7), **address, **token)
    expected = learn(make_table(sampler, 500, seed=7), np.random.default_rng(1))
    with connect(server, **token) as client:
        for here, there in zip(expected, learn(client, np.random.default_rng(1)), strict=True):
            assert_same(here, there)


def test_a_repeated_insert_is_acknowledged_and_not_done_twice(serve: Serve) -> None:
    table = make_table()
    with connect(serve(table)) as client:
        lose_first_answer(client)
        assert client.insert(numbered(0, 5)) == 5
        assert table.size == 5
        assert client.statistics().tables["replay"].duplicate_inserts == 1


def lose_first_answer(client: ReplayClient) -> None:
    """The shard does the first call, but its answer is UNAVAILABLE."""
    channel = client._connection._channel
    lost: list[str] = []

    class Lost(grpc.RpcError, grpc.Call):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNAVAILABLE

        def details(self) -> str:
            return "lost"

    Lost.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]

    class Channel:
        def unary_unary(self, method: str) -> Callable[..., bytes]:
            call = channel.unary_unary(method)

            def once(raw: bytes, **options: Any) -> bytes:
                answer: bytes = call(raw, **options)
                if not lost:
                    lost.append(method)
                    raise Lost
                return answer

            return once

        def close(self) -> None:
            channel.close()

    client._connection._channel = Channel()  # type: ignore[assignment]


def test_a_caller_hears_why_it_waited_in_vain(serve: Serve) -> None:
    with connect(serve(make_table(limiter=RateLimiter(min_size=9)))) as client:
        client.insert(numbered(0, 4))
        with pytest.raises(ReplayTimeout, match="only 4 of the first 9 items"):
            client.sample(2, timeout_seconds=0.2)
        client.insert(numbered(4, 5))
        assert len(client.sample(2, timeout_seconds=LONG_SECONDS).batch) == 2


def test_the_reason_also_comes_within_a_plain_grpc_deadline(serve: Serve) -> None:
    server = serve(make_table(limiter=RateLimiter(min_size=9)))
    with connect(server) as client, grpc.insecure_channel(server.address) as channel:
        request = client._table.sample_request(DrawRequest(2), LONG_SECONDS).SerializeToString()
        call = channel.unary_unary("/repertory.replay.v1.Replay/Sample")
        with pytest.raises(grpc.RpcError) as caught:
            call(request, timeout=0.5, metadata=(("repertory-protocol", "1"),))
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "only 0 of the first 9 items" in caught.value.details()


def test_a_live_change_releases_who_waits(serve: Serve) -> None:
    server = serve(make_table(limiter=RateLimiter(min_size=100)))
    with (
        connect(server) as operator,
        connect(server, caller="learner") as client,
        ThreadPoolExecutor() as pool,
    ):
        operator.insert(numbered(0, 10))
        waiting = pool.submit(client.sample, 4, timeout_seconds=LONG_SECONDS)
        until(lambda: operator.statistics().tables["replay"].blocked)
        blocked = operator.statistics().tables["replay"].blocked[0]
        assert blocked.caller.startswith("learner@")
        assert blocked.operation == "sample"
        assert "min_size" in blocked.reason
        with pytest.raises(UsageError, match=r"min_size 5000 .* never reached"):
            operator.configure_limiter(min_size=5000)
        operator.configure_limiter(min_size=1)
        assert len(waiting.result(LONG_SECONDS).batch) == 4


def test_those_who_wait_leave_room_for_those_who_release_them(serve: Serve) -> None:
    table = make_table(limiter=RateLimiter(min_size=4))
    server = serve(table, workers=1, max_waiting=3)
    with connect(server) as client, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(client.sample, 2, timeout_seconds=LONG_SECONDS) for _ in range(3)]
        until(lambda: len(table.statistics().blocked) == 3)
        with pytest.raises(ReplayOverload, match="3 callers wait already"):
            client.sample(2, timeout_seconds=LONG_SECONDS)
        client.insert(numbered(0, 4))
        assert [len(future.result(LONG_SECONDS).batch) for future in waiting] == [2, 2, 2]


def test_a_caller_that_hangs_up_takes_nothing_from_a_queue(serve: Serve) -> None:
    table = make_table("fifo")
    server = serve(table)
    with connect(server) as other:
        client = connect(server, attempts=1)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(client.sample, 2, timeout_seconds=LONG_SECONDS)
            until(lambda: table.statistics().blocked)
            client.close()
            with pytest.raises(RepertoryError):
                waiting.result(LONG_SECONDS)
        until(lambda: not table.statistics().blocked)
        other.insert(numbered(0, 2))
        sample = other.sample(2, timeout_seconds=LONG_SECONDS)
        assert sample.batch.reward.tolist() == [0.0, 1.0]


def test_a_draining_shard_sends_everyone_away(serve: Serve) -> None:
    server = serve(make_table(limiter=RateLimiter(min_size=100)))
    with connect(server, attempts=1) as client, ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.sample, 4, timeout_seconds=LONG_SECONDS)
        until(lambda: client.statistics().tables["replay"].blocked)
        assert client.drain(timeout_seconds=LONG_SECONDS) == 0
        with pytest.raises(ReplayUnavailable, match="draining"):
            waiting.result(LONG_SECONDS)
        with pytest.raises(ReplayUnavailable, match="draining"):
            client.insert(numbered(0, 1))
        assert client.statistics().draining


def test_a_shard_that_is_not_there_is_tried_again_and_then_named(tmp_path: Path) -> None:
    tried: list[float] = []

    class Counted(Connection):
        def sleep(self, seconds: float) -> bool:
            tried.append(seconds)
            return super().sleep(0.0)

    server = ReplayServer([make_table()], ServerConfig(address=f"unix:{tmp_path}/s"))
    with server, connect(server, attempts=4, longest_pause_seconds=0.3) as client:
        client._connection = Counted(server.address, client.config)
        server.stop(grace_seconds=0.0)
        with pytest.raises(ReplayUnavailable, match=r"not there .* is it running"):
            client.statistics()
    assert len(tried) == 3
    assert all(0 <= seconds <= 0.3 for seconds in tried)


def test_other_tables_and_signatures_are_refused(serve: Serve) -> None:
    server = serve(make_table(), make_table("fifo", name="queue"))
    with pytest.raises(UnknownTable, match="no table 'other': it has replay, queue"):
        connect(server, table="other")
    with connect(server) as client:
        wrong = {**client.signature, "reward": ColumnSpec("<f8", ())}
        with pytest.raises(ReplayMismatch, match="another environment"):
            ReplayClient(client.config, wrong)
        client._table = replace(client._table, signature_hash=1)
        for call in (
            lambda: client.insert(numbered(0, 1)),
            lambda: client.sample(1, timeout_seconds=0.0),
        ):
            with pytest.raises(ReplayMismatch, match="has the signature"):
                call()


def test_what_is_too_large_is_refused_on_both_ways(serve: Serve) -> None:
    with connect(serve(make_table(capacity=10_000), max_message_bytes=2**16)) as client:
        with pytest.raises(ReplayOverload, match="insert smaller batches"):
            client.insert(numbered(0, 5000))
        client._table = replace(client._table, max_message_bytes=2**30)  # it does not know
        with pytest.raises(ReplayOverload):
            client.insert(numbered(0, 5000))
        client.insert(numbered(0, 10))
        with pytest.raises(ReplayOverload, match="sample smaller batches"):
            client.sample(2**32 - 1, timeout_seconds=LONG_SECONDS)


def test_a_checkpoint_is_written_by_whoever_was_given(serve: Serve, tmp_path: Path) -> None:
    client = connect(serve(make_table()))
    with client, pytest.raises(ReplayMismatch, match="no checkpoint directory"):
        client.checkpoint(timeout_seconds=LONG_SECONDS)

    class Written:
        def save(self, *, wait_seconds: float = 0.0) -> SavedCheckpoint:
            return SavedCheckpoint(tmp_path / "saved", 3, 4, 0.5)

    with connect(serve(make_table(), checkpoints=Written())) as client:
        assert client.checkpoint(timeout_seconds=LONG_SECONDS) == str(tmp_path / "saved")
