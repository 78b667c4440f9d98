"""Ports for a run's shards: the first of its order on which one can listen."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from services.placement import free_ports


@pytest.fixture
def listening() -> Iterator[list[int]]:
    """Three ports, on each of which somebody listens."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        yield [one.getsockname()[1] for one in sockets]


def unused(count: int, host: str = "127.0.0.1") -> list[int]:
    """Held together for a moment, so that they differ."""
    with ExitStack() as stack:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sockets = [
            stack.enter_context(socket.create_server((host, 0), family=family))
            for _ in range(count)
        ]
        return [one.getsockname()[1] for one in sockets]


def test_they_come_in_the_order_asked_for() -> None:
    order = unused(4)[::-1]
    assert free_ports("127.0.0.1", order, 3) == order[:3]


def test_taken_ones_are_passed_over(listening: list[int]) -> None:
    free = unused(2)
    order = [listening[0], free[0], listening[1], listening[2], free[1]]
    assert free_ports("127.0.0.1", order, 2) == free


def test_a_port_taken_on_all_addresses_is_taken_here_too() -> None:
    with socket.create_server(("", 0)) as other:
        assert free_ports("127.0.0.1", [other.getsockname()[1]], 1) == []


def test_where_there_are_too_few_those_there_are_come(listening: list[int]) -> None:
    free = unused(1)
    assert free_ports("127.0.0.1", [*listening, *free], 3) == free


def test_none_is_none() -> None:
    assert free_ports("127.0.0.1", unused(1), 0) == []


def test_an_address_of_another_machine_has_none_here() -> None:
    assert free_ports("192.0.2.1", unused(2), 1) == []


def test_they_are_left_free() -> None:
    order = unused(1)
    assert free_ports("127.0.0.1", order, 1) == order
    with socket.create_server(("127.0.0.1", order[0])):
        assert free_ports("127.0.0.1", order, 1) == []


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_an_ipv6_address_has_ports_too() -> None:
    order = unused(2, "::1")
    assert free_ports("::1", order, 1) == order[:1]
