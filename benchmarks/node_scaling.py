"""Throughput against machines: a cluster over ssh on hosts in network namespaces of this machine.

The hosts share its cores, so the environment sleeps: what is seen is what spreading over machines
costs, not what more cores bring. Root and iproute2 are needed; `why_not` says what is missing.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT

RUN = "scaling"
STOP_SECONDS = 120.0
NEVER = 1_000_000_000  # steps


@dataclass(frozen=True, slots=True)
class NodeRate:
    nodes: int
    actors: int
    steps_per_second: float
    possible: float

    @property
    def share(self) -> float:
        return self.steps_per_second / self.possible


def _of_tests(module: str) -> Any:
    """The hosts are made by the tests' own modules, which are no package."""
    folder = str(ROOT / "tests")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(module)


def why_not() -> str | None:
    reason: str | None = _of_tests("lan").why_not()
    return reason


def measure_nodes(
    counts: Sequence[int],
    *,
    actors_per_node: int,
    env_seconds: float,
    warm_up_seconds: float,
    seconds: float,
) -> list[NodeRate]:
    results = []
    for nodes in counts:
        with tempfile.TemporaryDirectory(prefix="node-scaling-") as folder:
            rate = _measure(
                Path(folder), nodes, nodes * actors_per_node, env_seconds, warm_up_seconds, seconds
            )
        results.append(
            NodeRate(
                nodes, nodes * actors_per_node, rate, _possible(nodes, actors_per_node, env_seconds)
            )
        )
    return results


def _possible(nodes: int, actors_per_node: int, env_seconds: float) -> float:
    return nodes * actors_per_node / env_seconds


def _measure(
    folder: Path,
    nodes: int,
    actors: int,
    env_seconds: float,
    warm_up_seconds: float,
    seconds: float,
) -> float:
    hosts = _of_tests("cluster_on_hosts")
    code = folder / "code"
    code.mkdir()
    shutil.copy(ROOT / "benchmarks" / "sleeping_env.py", code)
    (folder / "lan").mkdir()
    with _of_tests("lan").Lan(folder / "lan", hosts=nodes) as lan:
        cluster = hosts.Cluster(folder, lan)
        cluster.write(code=str(code))
        try:
            cluster.call("up")
            settings = {
                "env.kwargs.seconds": env_seconds,
                "compile": "false",
                "learner.updates_per_step": 0.0006,  # about one broadcast a second
                "learner.random_steps": 0,
                "topology.publish_every": 1,
                "evaluation.every": NEVER,
                "evaluation.episodes": 1,
                "checkpoint.every": NEVER,
            }
            assignments = (f"{key}={value}" for key, value in settings.items())
            cluster.train(
                RUN, "sleeping_env:Sleeping", "--algo", "sac", "--steps", str(NEVER),
                "--actors", str(actors), "--shards", "1",
                *(word for one in assignments for word in ("--set", one)),
            )  # fmt: skip
            hosts.until(lambda: _acting(cluster) >= actors, f"{actors} actors act")
            time.sleep(warm_up_seconds)
            begin, before = time.monotonic(), cluster.steps(RUN)
            time.sleep(seconds)
            made, took = cluster.steps(RUN) - before, time.monotonic() - begin
            cluster.call("exec", "--", "stop", f"{hosts.FOLDER}/runs/{RUN}")
            cluster.call("down")
        finally:
            cluster.close()
    return float(made) / took


def _acting(cluster: Any) -> int:
    """Workers that have taken a step; none while the control server is not there."""
    from repertory.control import ControlUnavailable

    try:
        members = cluster.members(RUN).values()
    except ControlUnavailable:
        return 0
    return sum(one.role == "worker" and one.facts.get("env_steps", 0) > 0 for one in members)
