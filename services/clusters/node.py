"""A machine as a member of a cluster: its folder, which says who it is and what it shows to others.

    FOLDER/node.json     this class
    FOLDER/token         opens Ray, the replay and the control server; the same on all machines
    FOLDER/authority.pem who signed everybody's certificate
    FOLDER/certificate.pem, key.pem   of this machine
    FOLDER/logs/  state.json  runs/ (of the head)

Processes of a run find the folder by the variable REPERTORY_NODE, which Ray hands on to them; so
paths may differ between machines, and nothing secret is ever sent along.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repertory.checkpoints import write_atomically
from repertory.control import ControlAddress, ControlTls
from repertory.errors import RepertoryError, UsageError

logger = logging.getLogger(__name__)

VARIABLE = "REPERTORY_NODE"
CARD = "node.json"


def home() -> Path:
    """Where everything of ours in a user's home is."""
    return Path(os.environ.get("REPERTORY_HOME", "~/.repertory")).expanduser()


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def default_folder(cluster: str) -> Path:
    return home() / "nodes" / cluster


@dataclass(frozen=True, slots=True)
class Node:
    """As its folder has it."""

    folder: Path
    cluster: str
    name: str
    address: str  # where the others reach this machine
    is_head: bool
    ray_address: str  # HOST:PORT of the head
    control_address: str  # HOST:PORT of the head's control server
    shard_ports: tuple[int, int]  # first and last
    ray: Mapping[str, Any]  # how Ray is started here: options of `ray start`, without dashes
    ray_folder: str  # for Ray's sockets and logs: the same path on all machines
    dashboard_port: int | None = None  # of the head
    version: str = ""  # of repertory

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    @property
    def authority(self) -> Path:
        return self.folder / "authority.pem"

    @property
    def certificate(self) -> Path:
        return self.folder / "certificate.pem"

    @property
    def key(self) -> Path:
        return self.folder / "key.pem"

    @property
    def runs(self) -> Path:
        """What runs leave behind here."""
        return self.folder / "runs"

    @property
    def code(self) -> Path:
        """A user's modules, where the inventory names some."""
        return self.folder / "code"

    @property
    def control(self) -> ControlAddress:
        tls = ControlTls(self.authority, self.certificate, self.key)
        return ControlAddress(f"rediss://{self.control_address}/0", self.token_file, tls)

    def as_client(self) -> dict[str, Any]:
        """Settings of whoever calls a replay shard."""
        return {
            "token_file": self.token_file,
            "tls_authority": self.authority,
            "tls_certificate": self.certificate,
            "tls_key": self.key,
        }

    def as_server(self) -> dict[str, Any]:
        """Settings of a replay shard that others can reach."""
        return {
            "token_file": self.token_file,
            "tls_client_authority": self.authority,
            "tls_certificate": self.certificate,
            "tls_key": self.key,
        }

    def ray_environment(self) -> dict[str, str]:
        """For every process that speaks to Ray: both sides show a certificate and the token."""
        return {
            VARIABLE: str(self.folder),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token_file),
            "RAY_USE_TLS": "1",
            "RAY_TLS_CA_CERT": str(self.authority),
            "RAY_TLS_SERVER_CERT": str(self.certificate),
            "RAY_TLS_SERVER_KEY": str(self.key),
        }

    def check_up(self) -> Node:
        """Itself; what it shows to others goes when the cluster is taken down."""
        if not self.token_file.exists():
            raise RepertoryError(
                f"the cluster {self.cluster} is down on this machine: `repertory cluster up` with "
                "its inventory brings it back"
            )
        return self

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        del document["folder"]
        return document

    def write(self) -> None:
        write_atomically(self.folder / CARD, json.dumps(self.to_json(), indent=1).encode())

    @classmethod
    def read(cls, folder: Path) -> Node:
        try:
            document = json.loads((folder / CARD).read_text())
            document["shard_ports"] = tuple(document["shard_ports"])
            return cls(folder=folder.resolve(), **document)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{folder} is not the folder of a cluster's node: {error}") from error

    @classmethod
    def here(cls) -> Node | None:
        """Of the process that asks; None outside of clusters."""
        folder = os.environ.get(VARIABLE)
        return None if folder is None else cls.read(Path(folder).expanduser())

    @classmethod
    def at(cls, ray_address: str) -> Node | None:
        """The node of this machine that belongs to the cluster with that head, or that name."""
        if (given := cls.here()) is not None and ray_address in (given.ray_address, given.cluster):
            return given
        for card in sorted((home() / "nodes").glob(f"*/{CARD}")):
            try:
                node = cls.read(card.parent)
            except UsageError as error:  # of another cluster, half written or old
                logger.warning("%s", error)
                continue
            if ray_address in (node.ray_address, node.cluster):
                return node
        return None
