"""What the clusters that are rendered to files (SLURM, Kubernetes, compose) have in common."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from repertory.checkpoints import write_atomically
from repertory.errors import RepertoryError, UsageError
from services.clusters.authority import CERTIFICATE, KEY
from services.clusters.inventory import (
    ComposeInventory,
    Inventory,
    KubernetesInventory,
    SlurmInventory,
)
from services.clusters.provider import Operator, Say

RenderedInventory = SlurmInventory | KubernetesInventory | ComposeInventory
RESERVED_WORDS = ("--address", "--run-dir", "--resume", "--local")


def inventory_document(inventory: Inventory) -> dict[str, Any]:
    """For the nodes, which have the secrets and the code elsewhere."""
    return inventory.model_dump(
        mode="json", exclude={"token_file", "code", "train"}, exclude_none=True
    )


class _Dumper(yaml.SafeDumper):
    """Quotes text that readers of newer YAML take for a number, as 1e3 or 0o17."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?$|^0[oOxX][0-9a-fA-F]+$"),
    list("-+.0123456789"),
)


def as_yaml(document: Any) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def write_rendered(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())


def secret_files(operator: Operator, inventory: Inventory) -> dict[str, Path]:
    """By the names under which the nodes look for them. Made where they are not there yet."""
    token = operator.token(inventory.token_file)
    _ = operator.authority
    secrets = operator.folder / "secrets"
    return {CERTIFICATE: secrets / CERTIFICATE, KEY: secrets / KEY, "token": token}


def check_train_words(words: tuple[str, ...], refused: tuple[str, ...] = RESERVED_WORDS) -> None:
    """Those that say where a run goes are ours."""
    for word in words:
        if word.partition("=")[0] in refused:
            raise UsageError(f"train: {word} is refused: the cluster itself says where a run goes")


def roll_back(end: Callable[[], None], say: Say) -> None:
    """Why `up` has failed is what counts; a second failure is said, and `down` can be tried."""
    try:
        end()
    except RepertoryError as error:
        say(f"not everything could be ended: {error}; `repertory cluster down` tries again")


class Record:
    """What `up` has started: `down` ends that, and nothing else."""

    def __init__(self, operator: Operator, provider: str) -> None:
        self._path = operator.folder / f"{provider}.json"

    def read(self) -> dict[str, Any] | None:
        try:
            document: dict[str, Any] = json.loads(self._path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise UsageError(f"{self._path} is not readable: {error}; remove it") from error
        return document

    def write(self, document: Mapping[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self._path, json.dumps(document).encode())

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)
