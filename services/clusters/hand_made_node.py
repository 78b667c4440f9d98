"""A machine that joins a cluster by itself: where a scheduler starts it, not we over ssh."""

from __future__ import annotations

import logging
from pathlib import Path

from repertory.errors import UsageError
from services.clusters.authority import Authority
from services.clusters.inventory import LocalInventory, Shape, SshInventory, read_inventory
from services.clusters.keeper import Keeper
from services.clusters.node_plan import node_files, plan_node


def be_node(
    file: Path,
    *,
    is_head: bool,
    name: str,
    address: str,
    head_address: str,
    secrets: Path,
    folder: Path,
    also_known_as: tuple[str, ...] = (),
    prepare_only: bool = False,
) -> None:
    """Returns when it was told to stop; `prepare_only`: when its folder is there."""
    inventory = read_inventory(file)
    if isinstance(inventory, LocalInventory | SshInventory):
        raise UsageError(
            f"{file} is of provider {inventory.provider}: `repertory cluster up` starts its nodes"
        )
    shape: Shape = inventory.head if is_head else inventory.worker
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    node = plan_node(
        inventory,
        shape,
        name=name,
        is_head=is_head,
        address=address,
        head_address=head_address,
        folder=folder.resolve(),
    )
    try:
        token = (secrets / "token").read_bytes().strip()
    except OSError as error:
        raise UsageError(f"--secrets {secrets} has no token: {error.strerror}") from error
    for file_name, content in node_files(
        node, Authority(secrets, make=False), token, also_known_as
    ).items():
        path = folder / file_name
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(content)
    if prepare_only:
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    Keeper(node).run()
