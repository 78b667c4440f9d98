"""What all processes of a run have in common, as Ray actors.

`services.blueprint` makes them. What a process needs to know comes as one `ProcessContext`; what it
says goes through the control plane and its log file in the run directory. Each kind has a file of
its own (`shard_host`, `learner_host`, `worker_host`, `evaluator_host`), so that none imports what
only another needs: each builds its part, runs it, and can be told to stop.
"""

from __future__ import annotations

import importlib.metadata
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from repertory.config import RunConfig
from repertory.control import TIMEOUT_SECONDS, Control, ControlAddress
from repertory.errors import RepertoryError
from repertory.freed_memory import keep_freed_memory
from repertory.heartbeat import Heartbeat
from repertory.specs import EnvSpec
from services.clusters.node import Node
from services.process_log import log_to
from services.user_code import make_importable


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """What every process of a run is told when it is started."""

    version: str  # of the head's repertory
    name: str
    incarnation: int
    config: str  # YAML
    spec: Mapping[str, Any]  # JSON
    run_id: str
    run_dir: Path
    control: ControlAddress
    clustered: bool  # over machines, each of which has a `services.clusters.node`
    shards: tuple[str, ...]  # addresses, by index
    window_bytes: Mapping[str, int]  # by table: of inserts under way from one actor to one shard
    hub: Any
    director: Any  # None where there is one policy only
    user_paths: tuple[str, ...]  # where user code is found, after everything else
    counters: Mapping[str, int]
    policies: Mapping[str, Mapping[str, Any]]  # settings of each learner's policy, as JSON

    def run_config(self) -> RunConfig:
        return RunConfig.from_yaml(self.config)

    def env_spec(self) -> EnvSpec:
        return EnvSpec.from_json(self.spec)


class Process:
    """What all hosts do first."""

    def __init__(self, context: ProcessContext) -> None:
        self.node = Node.here() if context.clustered else None
        make_importable(*context.user_paths, *_shipped_code(self.node))
        self.folder = context.run_dir
        if self.node is not None and not context.run_dir.is_dir():  # that is on the head's disk
            self.folder = self.node.runs / context.run_id
        log_to(self.folder / "logs" / f"{context.name}.jsonl")
        keep_freed_memory()
        if importlib.metadata.version("repertory") != context.version:
            raise RepertoryError(
                f"{socket.gethostname()} has repertory {importlib.metadata.version('repertory')}, "
                f"the head has {context.version}: install the same on all machines"
            )
        self.context = context

    @cached_property
    def config(self) -> RunConfig:
        """Read where it is needed: that imports the algorithms, and torch with them."""
        return self.context.run_config()

    @cached_property
    def spec(self) -> EnvSpec:
        return self.context.env_spec()

    def beat(self, role: str, facts: Callable[[], Mapping[str, Any]] = dict) -> Heartbeat:
        return Heartbeat(self.control(), self.context.name, role, self.context.incarnation, facts)

    def control(self, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Control:
        address = self.context.control if self.node is None else self.node.control
        return Control(address, self.context.run_id, timeout_seconds=timeout_seconds)

    @property
    def as_client(self) -> dict[str, Any]:
        """What callers of the replay show to it."""
        return {} if self.node is None else self.node.as_client()


def _shipped_code(node: Node | None) -> list[str]:
    """A user's modules, where the cluster brought them along."""
    return [] if node is None else [str(node.code)]
