"""What a shard grants at most: connections, bytes under way, and time to be idle."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from replay_shards import LONG_SECONDS, connect, make_table, numbered, until, write_token

from buffer_server.rate_limiter import RateLimiter
from buffer_server.server import ReplayServer, ServerConfig
from buffer_server.statuses import ReplayUnavailable
from buffer_server.table import Table

SMALL = {"max_message_bytes": 2**16, "max_inflight_bytes": 2**17}


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    return f"unix:{tmp_path}/s"


def serve(table: Table, address: str, **settings: Any) -> ReplayServer:
    return ReplayServer([table], ServerConfig(address=address, **settings))


@pytest.mark.parametrize("over", ["socket", "port"])
def test_too_many_connections_are_turned_away(over: str, address: str, tmp_path: Path) -> None:
    token: dict[str, Any] = {}
    if over == "port":
        address, token = "127.0.0.1:0", {"token_file": write_token(tmp_path / "token")}
    with serve(make_table(), address, max_clients=2, **token) as server:
        with (
            connect(server, **token),
            connect(server, **token),
            pytest.raises(ReplayUnavailable),
        ):
            connect(server, attempts=1, timeout_seconds=2.0, **token)
        # Those who leave make room.
        with connect(server, attempts=100, **token) as late:
            assert late.insert(numbered(0, 1)) == 1


def test_an_idle_connection_is_closed_and_opened_again_when_needed(address: str) -> None:
    server = serve(make_table(), address, max_clients=1, idle_seconds=1.0)
    with server, connect(server) as idle:
        with connect(server, attempts=100) as other:
            assert other.insert(numbered(0, 1)) == 1  # there was room for it only then
        assert idle.insert(numbered(1, 1)) == 1


def test_inserts_that_wait_hold_back_inserts_and_not_samples(address: str) -> None:
    limiter = RateLimiter(min_size=1, samples_per_insert=1.0, error_buffer=1000.0)
    table = make_table(capacity=5000, limiter=limiter)
    with serve(table, address, **SMALL) as server, ThreadPoolExecutor() as pool:
        with connect(server) as client, connect(server, attempts=1) as hasty:
            for first in (0, 500):
                client.insert(numbered(first, 500))
            # 600 items are more than half of the bytes that one side may have under way.
            waiting = pool.submit(client.insert, numbered(1000, 600))
            until(lambda: table.statistics().blocked)
            with pytest.raises(ReplayUnavailable, match=r"busy with \d+ bytes .* ask again"):
                hasty.insert(numbered(1600, 600))
            assert server.statistics().inflight_nbytes > 2**15
            for _ in range(2):
                hasty.sample(300, timeout_seconds=LONG_SECONDS)
            assert waiting.result(LONG_SECONDS) == 600
        until(lambda: server.statistics().inflight_nbytes == 0)


def test_a_caller_that_is_told_to_ask_again_gets_through(address: str) -> None:
    table = make_table(capacity=20_000)
    with serve(table, address, **SMALL) as server, ThreadPoolExecutor(4) as pool:
        with connect(server, attempts=100) as client:
            inserts = [pool.submit(client.insert, numbered(600 * k, 600)) for k in range(16)]
            assert sum(insert.result(LONG_SECONDS) for insert in inserts) == 9600
        assert table.size == 9600


def test_refusals_are_counted_by_their_code(address: str) -> None:
    with serve(make_table(), address) as server, connect(server) as client:
        client.insert(numbered(0, 5))
        with pytest.raises(Exception, match="priorities"):
            client.update_priorities(np.arange(3), np.arange(2.0))
        assert client.statistics().refused == {3: 1}  # INVALID_ARGUMENT


def test_requests_are_timed_without_the_wait_for_the_limiter(address: str) -> None:
    table = make_table(limiter=RateLimiter(min_size=10))
    with serve(table, address) as server, connect(server) as client, ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.sample, 2, timeout_seconds=LONG_SECONDS)
        until(lambda: table.statistics().blocked)
        until(lambda: table.statistics().blocked[0].seconds > 0.5)
        client.insert(numbered(0, 10))
        waiting.result(LONG_SECONDS)
        statistics = client.statistics()
        assert statistics.requests["insert"].count == statistics.requests["sample"].count == 1
        assert statistics.requests["sample"].p99_seconds < 0.4
        assert statistics.tables["replay"].sample_wait_seconds > 0.5
        assert statistics.clients == 1


def test_a_budget_without_room_for_one_message_each_way_is_refused() -> None:
    with pytest.raises(ValidationError, match="give at least 134217728"):
        ServerConfig(address="unix:/s", max_inflight_bytes=2**20)


def test_a_socket_that_is_listened_to_is_not_taken_over(address: str) -> None:
    with serve(make_table(), address) as server:
        with pytest.raises(Exception, match="another server does"):
            serve(make_table(), address)
        with connect(server) as client:
            assert client.insert(numbered(0, 1)) == 1


def test_a_file_in_the_place_of_a_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    with pytest.raises(Exception, match="it is a file"):
        serve(make_table(), f"unix:{tmp_path}/s")
    assert (tmp_path / "s").read_text() == "precious"
