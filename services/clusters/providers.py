"""From an inventory to the cluster it speaks of."""

from __future__ import annotations

from pathlib import Path

from services.clusters.inventory import (
    ComposeInventory,
    KubernetesInventory,
    LocalInventory,
    SlurmInventory,
    SshInventory,
    read_inventory,
)
from services.clusters.provider import Provider


def provider_for(file: Path) -> Provider:
    inventory = read_inventory(file)
    if isinstance(inventory, LocalInventory | SshInventory):
        from services.clusters.hosts_cluster import HostsCluster

        return HostsCluster(inventory, file)
    if isinstance(inventory, SlurmInventory):
        from services.clusters.slurm import SlurmCluster

        return SlurmCluster(inventory, file)
    if isinstance(inventory, KubernetesInventory):
        from services.clusters.kubernetes import KubernetesCluster

        return KubernetesCluster(inventory, file)
    assert isinstance(inventory, ComposeInventory)
    from services.clusters.compose import ComposeCluster

    return ComposeCluster(inventory, file)
