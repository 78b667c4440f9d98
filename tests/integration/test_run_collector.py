"""A run's numbers for Prometheus, over a real control server and real HTTP."""

from __future__ import annotations

import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from repertory.control import Control, Member
from repertory.metrics_server import MetricsServer
from services.embedded_redis import EmbeddedRedis
from services.run_collector import RunCollector


def read(address: str) -> dict[tuple[str, str], float]:
    """By name and process."""
    text = urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read().decode()
    return {
        (sample.name, sample.labels.get("process", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counters_and_what_processes_say_are_told(control: Control) -> None:
    control.set_counters(env_steps=120, episodes=3)
    control.heartbeat(
        "worker-0", Member("worker", "here", 1, 2, time.time(), {"memory_bytes": 7, "version": 5})
    )
    control.heartbeat("shard-0", Member("shard", "here", 2, 1, time.time(), {"size": 11}))
    with MetricsServer("127.0.0.1:0", RunCollector(control)) as server:
        told = read(server.address)
    assert told["repertory_control_up", ""] == 1
    assert told["repertory_run_env_steps_total", ""] == 120
    assert told["repertory_run_episodes_total", ""] == 3
    assert told["repertory_process_starts", "worker-0"] == 2
    assert told["repertory_process_memory_bytes", "worker-0"] == 7
    assert told["repertory_process_version", "worker-0"] == 5
    assert told["repertory_process_size", "shard-0"] == 11
    assert 0 <= told["repertory_process_heard_seconds", "shard-0"] < 60
    assert ("repertory_process_version", "shard-0") not in told


def test_without_the_control_server_it_still_answers(
    control: Control, server: EmbeddedRedis
) -> None:
    server.stop()
    with MetricsServer("127.0.0.1:0", RunCollector(control)) as metrics:
        told = read(metrics.address)
    assert told["repertory_control_up", ""] == 0
    assert not any(name.startswith("repertory_run") for name, _ in told)
