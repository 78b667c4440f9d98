"""The inventory: one YAML file that says which machines a cluster has and what runs on them.

    name: lab
    provider: ssh
    head: {host: alpha, address: 10.0.0.1}
    workers:
      - {host: beta, address: 10.0.0.2}
      - {host: gamma, address: 10.0.0.3, gpus: 2, runs: [learners, actors]}

Nothing here opens a connection. Secrets are never in it: where one is brought along, the inventory
names its file.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from repertory.config import parse_yaml
from repertory.config_messages import explain
from repertory.errors import UsageError
from repertory.settings import Settings

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")]
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,252}$")]
Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.:-]{0,252}$")]
Port = Annotated[int, Field(ge=1024, le=65535)]
Task = Literal["learners", "actors"]
# With these a value could become words of its own in a shell or a script that is rendered from it.
UNSAFE = set("\n\r\0`$\"'\\;|&<>")


def _plain(text: str) -> str:
    if found := sorted(UNSAFE.intersection(text)):
        raise ValueError(f"{text!r} has {found[0]!r} in it, which no path or name here may have")
    return text


PlainText = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_plain)]


class PortRange(Settings):
    first: Port
    last: Port

    @model_validator(mode="before")
    @classmethod
    def _written(cls, value: Any) -> Any:
        """As 7000-7099, or 7000."""
        if isinstance(value, str | int):
            written = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", str(value), re.ASCII)
            if written is None:
                raise PydanticCustomError("ports", "should be written as 7000-7099")
            first, last = written[1], written[2] or written[1]
            return {"first": int(first), "last": int(last)}
        return value

    @model_validator(mode="after")
    def _in_order(self) -> PortRange:
        if self.last < self.first:
            raise ValueError(f"the ports {self} end before they begin")
        return self

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def __contains__(self, port: int) -> bool:
        return self.first <= port <= self.last


class Ports(Settings):
    """What listens where. Firewalls between the hosts let these through, and nothing else."""

    ray: Port = 6379  # the head's
    control: Port = 6380  # the head's control server
    dashboard: Port = 8600  # the head's, for itself alone: reached through a tunnel
    node: PortRange = PortRange(first=6381, last=6383)  # of Ray, on every host
    shards: PortRange = PortRange(first=7000, last=7099)  # replay, on hosts that run learners
    processes: PortRange = PortRange(first=10002, last=10999)  # of Ray: one for each process

    @model_validator(mode="after")
    def _apart(self) -> Ports:
        ranges = {
            name: value if isinstance(value, PortRange) else PortRange(first=value, last=value)
            for name, value in self
        }
        ordered = sorted(ranges.items(), key=lambda item: item[1].first)
        for (one, before), (other, after) in itertools.pairwise(ordered):
            if after.first <= before.last:
                raise ValueError(f"ports.{one} ({before}) and ports.{other} ({after}) overlap")
        if self.node.last - self.node.first < 2:
            raise ValueError(f"ports.node has to be three ports, not {self.node}")
        return self


class Shape(Settings):
    """How much of a machine the cluster may use, and for what."""

    cores: Annotated[int, Field(ge=1, le=4096)] | None = None  # None: all there are
    gpus: int = Field(default=0, ge=0, le=64)
    runs: tuple[Task, ...] = Field(default=("actors",), min_length=1)
    object_store_mb: int = Field(default=256, ge=80, le=2**20)  # weights, in shared memory


class HeadShape(Shape):
    runs: tuple[Task, ...] = Field(default=("learners", "actors"), min_length=1)


class Host(Shape):
    """A machine that ssh reaches by its name, and the others by its address."""

    host: HostName
    address: Address | None = None  # None: its name


class HeadHost(Host):
    runs: tuple[Task, ...] = Field(default=("learners", "actors"), min_length=1)


class Python(Settings):
    """The environment on each host: the same version of everything."""

    # Made there, or there already. `~` is the home of whom ssh logs in as.
    environment: PlainText | None = None  # None: below the host's folder
    install: bool = True  # False: it is there already, and is only compared
    interpreter: PlainText = "python3"  # which makes it
    extras: tuple[Name, ...] = ()
    wheels: Path | None = None  # a folder of wheels, for hosts that reach no package index
    setup: tuple[str, ...] = ()  # commands that run in it on each host, after the installation


class Ssh(Settings):
    config: Path | None = None  # as `ssh -F`; None: the usual one
    connect_seconds: float = Field(default=10.0, gt=0, le=300)


class Requirements(Settings):
    """What a host must have; `up` refuses one that does not."""

    disk_gb: float = Field(default=5.0, ge=0)
    memory_gb: float = Field(default=1.0, ge=0)
    open_files: int = Field(default=4096, ge=256)
    clock_seconds: float = Field(default=2.0, gt=0)  # that clocks may differ


class Inventory(Settings):
    """What all providers have in common."""

    name: Name
    ports: Ports = Ports()
    require: Requirements = Requirements()
    token_file: Path | None = None  # a token of your own; None: one is made
    code: Path | None = None  # a folder with modules of yours, copied to each host


class LocalInventory(Inventory):
    """Several nodes on this machine, for trying things out."""

    provider: Literal["local"]
    head: HeadShape = HeadShape()
    workers: tuple[Shape, ...] = ()


class SshInventory(Inventory):
    provider: Literal["ssh"]
    head: HeadHost
    workers: tuple[Host, ...] = ()
    ssh: Ssh = Ssh()
    python: Python = Python()
    folder: PlainText | None = None  # on each host; None: ~/.repertory/nodes/NAME

    @model_validator(mode="after")
    def _once(self) -> SshInventory:
        hosts = [self.head, *self.workers]
        for what, values in (
            ("host", [host.host for host in hosts]),
            ("address", [host.address or host.host for host in hosts]),
        ):
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"{what} {twice[0]} is there twice: each machine once")
        return self


# In a job script's `#SBATCH` lines a space would begin another option, and % has a meaning.
SlurmName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:@+-]{0,99}$")]
SharedPath = Annotated[str, Field(pattern=r"^~?/[A-Za-z0-9_./+@=,-]{1,500}$")]
ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+/-]{0,199}$")]
WaitMinutes = Annotated[float, Field(gt=0, le=7 * 24 * 60)]


class SlurmInventory(Inventory):
    """One job: its first node is the head, all others are workers."""

    provider: Literal["slurm"]
    head: HeadShape = HeadShape()
    worker: Shape = Shape()
    workers: int = Field(default=1, ge=0, le=10_000)
    partition: SlurmName | None = None
    account: SlurmName | None = None
    time: Annotated[str, Field(pattern=r"^(\d+-)?\d{1,2}:\d{2}:\d{2}$")] = "24:00:00"
    memory_gb: float = Field(default=8.0, gt=0)  # of each node
    environment: SharedPath  # the Python environment, on a file system that all nodes share
    folder: SharedPath  # for tokens and logs, on a shared file system too
    modules: tuple[ModuleName, ...] = ()  # `module load`
    train: tuple[PlainText, ...] = ()  # words of `repertory train`; none: the cluster waits for it
    wait_minutes: WaitMinutes = 60.0  # for `up`, the time in the queue included


class PodShape(Shape):
    cores: Annotated[int, Field(ge=1, le=4096)] = 2
    memory_gb: float = Field(default=4.0, gt=0)


class HeadPodShape(PodShape):
    runs: tuple[Task, ...] = Field(default=("learners", "actors"), min_length=1)


class KubernetesInventory(Inventory):
    """A RayCluster of the KubeRay operator, by our Helm chart."""

    provider: Literal["kubernetes"]
    namespace: Name = "default"
    context: PlainText | None = None  # of kubectl; None: the current one
    image: PlainText
    head: HeadPodShape = HeadPodShape()
    worker: PodShape = PodShape()
    workers: int = Field(default=1, ge=0, le=10_000)
    spot: bool = False  # workers may go to nodes that may vanish
    storage_gb: int = Field(default=20, ge=1)  # for runs, on a volume of the head
    storage_class: PlainText | None = None
    train: tuple[PlainText, ...] = ()  # words of `repertory train`, which runs beside the head
    wait_minutes: WaitMinutes = 15.0  # for `up`


class ComposeInventory(Inventory):
    """Containers on one machine."""

    provider: Literal["compose"]
    image: PlainText = "repertory:latest"
    head: HeadPodShape = HeadPodShape()
    worker: PodShape = PodShape()
    workers: int = Field(default=1, ge=0, le=1000)
    wait_minutes: WaitMinutes = 10.0  # for `up`


AnyInventory = (
    LocalInventory | SshInventory | SlurmInventory | KubernetesInventory | ComposeInventory
)
PROVIDERS: dict[str, type[AnyInventory]] = {
    "local": LocalInventory,
    "ssh": SshInventory,
    "slurm": SlurmInventory,
    "kubernetes": KubernetesInventory,
    "compose": ComposeInventory,
}


def read_inventory(path: Path) -> AnyInventory:
    """Paths in it are relative to the file."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read inventory {path}: {error}") from error
    document = parse_yaml(text, f"inventory {path}")
    provider = PROVIDERS.get(str(document.get("provider")))
    if provider is None:
        raise UsageError(
            f"inventory {path}: provider = {document.get('provider')!r} is refused: "
            f"it should be {', '.join(PROVIDERS)}"
        )
    try:
        inventory = provider.model_validate(document)
    except ValidationError as error:
        problem = explain(error, document, provider, "write it into the inventory")
        raise UsageError(f"inventory {path}: {problem}") from error
    return _anchored(inventory, path.resolve().parent)


def _anchored(inventory: AnyInventory, folder: Path) -> AnyInventory:
    """With whole paths, and all of the files there."""
    changes: dict[str, Any] = {
        "token_file": _path(folder, "token_file", inventory.token_file, is_folder=False),
        "code": _path(folder, "code", inventory.code, is_folder=True),
    }
    if isinstance(inventory, SshInventory):
        config = _path(folder, "ssh.config", inventory.ssh.config, is_folder=False)
        wheels = _path(folder, "python.wheels", inventory.python.wheels, is_folder=True)
        changes["ssh"] = inventory.ssh.model_copy(update={"config": config})
        changes["python"] = inventory.python.model_copy(update={"wheels": wheels})
    return inventory.model_copy(update=changes)


def _path(folder: Path, key: str, given: Path | None, *, is_folder: bool) -> Path | None:
    if given is None:
        return None
    try:
        path = folder / given.expanduser()
    except RuntimeError as error:
        raise UsageError(f"{key}: {given}: {error}") from error
    if not (path.is_dir() if is_folder else path.is_file()):
        what = "folder" if is_folder else "file"
        raise UsageError(f"{key}: there is no {what} {path}: make it, or leave {key} out")
    return path
