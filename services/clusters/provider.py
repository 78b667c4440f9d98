"""What every kind of cluster can do: `repertory cluster up | status | scale | logs | down`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from services.clusters.authority import Authority
from services.clusters.inventory import AnyInventory
from services.clusters.node import home
from services.secret_file import make_secret

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """One machine of a cluster, for people and for --json."""

    name: str
    role: str  # head or worker
    address: str
    state: str  # ready, starting, waiting, down, unreachable, ...
    reason: str = ""  # why it is not ready
    version: str = ""  # of repertory
    heard_seconds: float | None = None  # since its last sign of life
    restarts: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)  # cores, GPUs, ...


class Operator:
    """What whoever launches a cluster keeps of it: its authority, its token, what was rendered."""

    def __init__(self, name: str) -> None:
        self.folder = home() / "clusters" / name

    @property
    def authority(self) -> Authority:
        """Made when it is first asked for."""
        return Authority(self.folder / "secrets")

    @property
    def rendered(self) -> Path:
        return self.folder / "rendered"

    def token(self, given: Path | None) -> Path:
        """One's own, or one that is made once."""
        if given is not None:
            return given
        secrets = self.folder / "secrets"
        secrets.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_secret(secrets / "token")
        return secrets / "token"


class Provider(Protocol):
    """Made of its inventory; nothing is started by that."""

    @property
    def inventory(self) -> AnyInventory: ...

    def render(self) -> Mapping[str, str]:
        """Files by their names: all that `up` will use, to be read first. Without secrets."""

    def up(self, say: Say) -> None:
        """Returns when the cluster is healthy; what was started is ended where that fails."""

    def status(self) -> Sequence[MachineStatus]: ...

    def scale(self, workers: int, say: Say) -> None:
        """So many workers from now on."""

    def logs(self, *, host: str | None, lines: int, follow: bool) -> None:
        """To standard output."""

    def down(self, say: Say) -> None:
        """Ends what was started, and nothing else. Runs and their checkpoints stay."""

    def details(self) -> Mapping[str, Any]:
        """How to get in: the dashboard's address, a tunnel to it, how to submit a run."""
