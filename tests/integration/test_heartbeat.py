"""Signs of life on a real control server, also while it is away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from replay_shards import until

from repertory.control import Control
from repertory.heartbeat import Heartbeat
from services.embedded_redis import EmbeddedRedis


@pytest.fixture
def beat(control: Control) -> Iterator[Callable[..., Heartbeat]]:
    made: list[Heartbeat] = []

    def make(facts: Callable[[], dict[str, Any]] = dict) -> Heartbeat:
        made.append(Heartbeat(control, "worker-0", "worker", 2, facts, every_seconds=0.01))
        return made[-1]

    yield make
    for heartbeat in made:
        heartbeat.close()


def test_a_process_says_who_it_is_and_how_it_fares(
    control: Control, beat: Callable[..., Heartbeat]
) -> None:
    beat(lambda: {"version": 7})
    until(control.members)
    member = control.members()["worker-0"]
    assert (member.role, member.incarnation, member.process_id) == ("worker", 2, os.getpid())
    assert member.facts["version"] == 7
    assert member.facts["memory_bytes"] > 1_000_000


def test_progress_stands_still_when_the_work_does(
    control: Control, beat: Callable[..., Heartbeat]
) -> None:
    heartbeat = beat()
    until(control.members)
    before = control.members()["worker-0"]
    until(lambda: control.members()["worker-0"].at > before.at)
    assert control.members()["worker-0"].facts["progress_at"] == before.facts["progress_at"]
    heartbeat.progress()
    until(lambda: control.members()["worker-0"].facts["progress_at"] > before.facts["progress_at"])


def test_counts_metrics_and_events_arrive(control: Control, beat: Callable[..., Heartbeat]) -> None:
    heartbeat = beat()
    heartbeat.count(env_steps=5)
    heartbeat.count(env_steps=2, episodes=1)
    heartbeat.event("fault", reason="on fire")
    heartbeat.metrics(7, {"loss": 1.5})
    heartbeat.close()
    assert control.counters() == {"env_steps": 7, "episodes": 1}
    (event,) = control.read("events")
    assert (event.fields["member"], event.fields["reason"]) == ("worker-0", "on fire")
    (metrics,) = control.read("metrics")
    assert metrics.fields == {"source": "worker-0", "env_steps": 7, "metrics": {"loss": 1.5}}


def test_while_the_server_is_away_everything_is_kept(
    server: EmbeddedRedis, control: Control, beat: Callable[..., Heartbeat]
) -> None:
    heartbeat = beat()
    until(control.members)
    assert server.process_id is not None
    os.kill(server.process_id, signal.SIGKILL)
    until(lambda: not server.alive())
    for _ in range(10):
        heartbeat.count(env_steps=1)
        heartbeat.event("tick")
    begin = time.time()
    server.start()
    until(lambda: control.counters() == {"env_steps": 10})
    until(lambda: len(control.read("events")) == 10)
    assert control.members()["worker-0"].at > begin
