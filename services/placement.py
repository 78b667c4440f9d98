"""Where the processes of a run go: learners and shards beside each other, actors over all machines.

On one machine there is nothing to decide. In a cluster of ours each machine says by resources of
that name whether it takes learners or actors; learners, shards, the evaluator and the weight hub
are at home on one of those that take learners: the head's own, or where the GPUs are. Should that
machine be lost, another one becomes the home.
"""

from __future__ import annotations

import hashlib
import socket
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from repertory.errors import RepertoryError
from services.clusters.node import Node, join_address
from services.plan import Machines
from services.shard_link import ShardLink

LITTLE = 0.001  # of a resource that only says what may run where
PORT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Home:
    node_id: str
    address: str


class Placement:
    """Of one run. Without a node of a cluster: all of it where Ray finds room."""

    def __init__(self, node: Node | None) -> None:
        self.node = node
        self.home: Home | None = None
        self.home_acts = True  # learners and actors share its cores

    def machines(self) -> Machines:
        """All of them together."""
        alive = _alive()
        acting = [one for one in alive if self.node is None or one["Resources"].get("actors")]
        return Machines(
            cores=_sum(alive, "CPU"),
            memory_bytes=int(_sum(alive, "memory")),
            gpus=_sum(alive, "GPU"),
            nodes=len(alive),
            acting_cores=_sum(acting, "CPU"),
        )

    def settle(self, gpus: float) -> None:
        """Chooses a home for learners that need so many GPUs, each of them."""
        if self.node is None:
            return
        taking = [one for one in _alive() if one["Resources"].get("learners")]
        if not taking:
            raise RepertoryError(
                f"no machine of {self.node.cluster} takes learners: give one of them "
                "`runs: [learners, actors]` in the inventory"
            )
        here = ray.get_runtime_context().get_node_id()
        best = max(
            taking,
            key=lambda one: (
                min(one["Resources"].get("GPU", 0.0), gpus),
                one["NodeID"] == here,
                one["Resources"].get("CPU", 0.0),
                one["NodeName"],
            ),
        )
        self.home = Home(best["NodeID"], best["NodeManagerAddress"])
        self.home_acts = bool(best["Resources"].get("actors"))

    def is_lost(self) -> bool:
        """The home is no longer among the machines."""
        return self.home is not None and self.home.node_id not in {
            one["NodeID"] for one in _alive()
        }

    def options(self, role: str) -> dict[str, Any]:
        """For Ray, when it starts a process of this role."""
        if self.home is None:
            return {}
        if role == "worker":
            return {"scheduling_strategy": "SPREAD", "resources": {"actors": LITTLE}}
        # Shards listen on an address of that machine. Ray, which starts what asks for nothing
        # anywhere, needs something to look at.
        strategy = NodeAffinitySchedulingStrategy(self.home.node_id, soft=role != "shard")
        return {"scheduling_strategy": strategy, "resources": {"learners": LITTLE}}

    def links(self, run_id: str, shards: int) -> list[ShardLink]:
        """Free ports at home; where a run begins to look differs, so that two do not collide."""
        assert self.node is not None
        assert self.home is not None
        first, last = self.node.shard_ports
        count = last - first + 1
        begin = int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4]) % count
        order = [first + (begin + offset) % count for offset in range(count)]
        strategy = NodeAffinitySchedulingStrategy(self.home.node_id, soft=False)
        asked = (
            ray.remote(free_ports)
            .options(num_cpus=0, scheduling_strategy=strategy)
            .remote(self.home.address, order, shards)
        )
        ports = ray.get(asked, timeout=PORT_SECONDS)
        if len(ports) < shards:
            raise RepertoryError(
                f"{self.home.address} has {len(ports)} free ports of {first}-{last}, and the run "
                f"needs {shards}: widen ports.shards in the inventory"
            )
        addresses = [join_address(self.home.address, port) for port in ports]
        return [ShardLink(address, address) for address in addresses]


def free_ports(host: str, order: list[int], count: int) -> list[int]:
    """The first so many on which one can listen."""
    free: list[int] = []
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in order:
        if len(free) == count:
            break
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((host, port))
            except OSError:
                continue
            free.append(port)
    return free


def _alive() -> list[dict[str, Any]]:
    return [one for one in ray.nodes() if one["Alive"]]


def _sum(nodes: list[dict[str, Any]], resource: str) -> float:
    return sum(one["Resources"].get(resource, 0.0) for one in nodes)
