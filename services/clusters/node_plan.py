"""How each machine of a cluster is set up: from the inventory to the nodes' own cards."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from services.clusters.authority import Authority
from services.clusters.inventory import Inventory, Shape
from services.clusters.node import Node, join_address

PLENTY = 1_000_000  # of a resource that only says what may run where


def plan_node(
    inventory: Inventory,
    shape: Shape,
    *,
    name: str,
    is_head: bool,
    address: str,
    head_address: str,
    folder: Path,
    fixed_ports: bool = True,
) -> Node:
    """`fixed_ports`: those of the inventory, which several nodes of one machine cannot have."""
    ports = inventory.ports
    options: dict[str, Any] = {
        "num-gpus": shape.gpus,
        "object-store-memory": shape.object_store_mb * 2**20,
        "resources": json.dumps(dict.fromkeys(shape.runs, PLENTY)),
    }
    if shape.cores is not None:
        options["num-cpus"] = shape.cores
    ray_folder = f"/tmp/repertory-{inventory.name}"  # short: it holds sockets
    if is_head:
        options["temp-dir"] = ray_folder  # the others hear of it from the head
    if fixed_ports:
        node_manager, object_manager, agent = range(ports.node.first, ports.node.first + 3)
        options |= {
            "node-manager-port": node_manager,
            "object-manager-port": object_manager,
            "runtime-env-agent-port": agent,
            "min-worker-port": ports.processes.first,
            "max-worker-port": ports.processes.last,
        }
    return Node(
        folder=folder,
        cluster=inventory.name,
        name=name,
        address=address,
        is_head=is_head,
        ray_address=join_address(head_address, ports.ray),
        control_address=join_address(head_address, ports.control),
        shard_ports=(ports.shards.first, ports.shards.last),
        ray=options,
        ray_folder=ray_folder,
        dashboard_port=ports.dashboard if is_head else None,
        version=importlib.metadata.version("repertory"),
    )


def node_files(
    node: Node, authority: Authority, token: bytes, other_names: Sequence[str] = ()
) -> Mapping[str, bytes]:
    """What is put into a node's folder; the token and the key are for their owner alone."""
    issued = authority.issue([node.name, node.address, *other_names])
    return {
        "node.json": json.dumps(node.to_json(), indent=1).encode(),
        "token": token,
        "authority.pem": authority.certificate,
        "certificate.pem": issued.certificate,
        "key.pem": issued.key,
    }


SECRETS = ("token", "key.pem")
