"""What a worker is told through a real control server."""

from __future__ import annotations

import os
import queue
import signal

from repertory.control import Control
from repertory.orders import Orders
from services.embedded_redis import EmbeddedRedis

SECONDS = 20.0


def listening(control: Control, incarnation: int, heard: queue.Queue[object]) -> Orders:
    return Orders(
        control,
        "worker-0",
        incarnation,
        {"stop": lambda: heard.put("stop"), "heed": lambda edition: heard.put(edition)},
    )


def test_orders_come_in_their_order_and_only_to_whom_they_are_for(control: Control) -> None:
    heard: queue.Queue[object] = queue.Queue()
    with listening(control, 1, heard):
        control.order("worker-1", 1, "stop")
        control.order("worker-0", 1, "heed", 3)
        control.order("worker-0", 1, "stop")
        assert [heard.get(timeout=SECONDS), heard.get(timeout=SECONDS)] == [3, "stop"]
    assert heard.empty()


def test_what_was_for_an_earlier_life_is_not_heard(control: Control) -> None:
    heard: queue.Queue[object] = queue.Queue()
    control.order("worker-0", 1, "stop")
    control.order("worker-0", 2, "heed", 5)  # before it listens
    with listening(control, 2, heard):
        assert heard.get(timeout=SECONDS) == 5
        assert heard.empty()


def test_it_goes_on_listening_after_the_server_was_killed(
    server: EmbeddedRedis, control: Control
) -> None:
    heard: queue.Queue[object] = queue.Queue()
    with listening(control, 1, heard):
        control.order("worker-0", 1, "heed", 1)
        assert heard.get(timeout=SECONDS) == 1
        assert server.process_id is not None
        os.kill(server.process_id, signal.SIGKILL)
        while server.alive():
            os.sched_yield()
        server.start()
        control.order("worker-0", 1, "heed", 2)
        assert heard.get(timeout=SECONDS) == 2
        assert heard.empty()
