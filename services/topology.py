"""The whole topology of a distributed run, in one function.

Redis   ── control, heartbeats, metrics ── everybody
Ray     ── shards, learners, workers, evaluator, weight hub
head    ── starts them, watches them, writes the run directory
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from repertory.checkpoints import Checkpoint
from repertory.config import RunConfig
from repertory.control import Control, ControlAddress, ControlUnavailable, RunCard
from repertory.errors import RepertoryError
from repertory.metrics_server import MetricsServer
from repertory.protocols import Callback
from repertory.specs import EnvSpec
from services import ray_environment
from services.batch_shares import items_per_replica
from services.embedded_redis import EmbeddedRedis
from services.local_run import RunResult
from services.plan import Machines, Plan, make_plan, this_machine
from services.progress import Reporter
from services.run_collector import RunCollector
from services.run_control import CONTROL_FOLDER, run_id, write_address
from services.run_dashboard import RunDashboard
from services.run_directory import RunDirectory
from services.shard_link import ShardLink

if TYPE_CHECKING:
    from services.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run takes place: by default on this machine, with servers of its own."""

    ray_address: str | None = None
    ray_token_file: Path | None = None
    redis: ControlAddress | None = None
    # Where shards listen and are reached; by default sockets in a folder of their own.
    links: Sequence[ShardLink] | None = None


def launch(
    directory: RunDirectory,
    spec: EnvSpec,
    reporter: Reporter,
    place: Place,
    *,
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoint | None = None,
    user_paths: tuple[str, ...] = (),
) -> RunResult:
    """Starts everything, trains, ends everything."""
    config = directory.config
    private = directory.path / CONTROL_FOLDER
    private.mkdir(exist_ok=True)
    with ExitStack() as stack:
        plan = None if place.ray_address else _plan(config, this_machine())
        redis, server = place.redis, None
        if redis is None:
            server = stack.enter_context(EmbeddedRedis(private))
            redis = server.address
        control = stack.enter_context(_control(directory, redis))
        if config.log.prometheus is not None:
            metrics = MetricsServer(config.log.prometheus, RunCollector(control))
            stack.callback(metrics.close)
            reporter.message(f"metrics for Prometheus: http://{metrics.address}/metrics")
        if config.log.dashboard:
            port = config.log.dashboard_port
            stack.enter_context(RunDashboard(directory.path, port, reporter.message))
        cluster = stack.enter_context(_cluster(place, private / "ray_token"))
        plan = plan or _plan(config, cluster.machines())
        links = place.links or stack.enter_context(_sockets(plan.shards))
        control.register(_card(directory))

        from services.distributed_run import DistributedRun  # imports Ray

        return DistributedRun(
            config,
            spec,
            plan,
            directory,
            control,
            server,
            links,
            reporter,
            callbacks,
            checkpoint,
            user_paths,
        ).run()


def plan_for(config: RunConfig, place: Place) -> Plan:
    """How a run would be laid out there; nothing is started."""
    if place.ray_address is None:
        return _plan(config, this_machine())
    with _cluster(place, Path()) as cluster:
        return _plan(config, cluster.machines())


def _plan(config: RunConfig, machines: Machines) -> Plan:
    """Refused where the processes of a learner cannot have equal parts of its batches."""
    plan = make_plan(config, machines)
    for learner in config.learners:
        items_per_replica(config, learner, plan.actors)
    return plan


def _cluster(place: Place, own_token: Path) -> Cluster:
    """Ray reads its settings when it is imported: so they come first."""
    token = place.ray_token_file or own_token
    ray_environment.prepare(token, make_token=place.ray_address is None)
    from services.cluster import Cluster

    return Cluster(place.ray_address)


def _control(directory: RunDirectory, address: ControlAddress) -> Control:
    """Answers, or it is refused here."""
    control = Control(address, run_id(directory.path))
    try:
        control.counters()
    except ControlUnavailable as error:
        raise RepertoryError(
            f"{error}; is it running, and is --redis-password-file right? "
            "Without --redis-url one is started here"
        ) from error
    write_address(directory.path, address)
    return control


def _card(directory: RunDirectory) -> RunCard:
    config = directory.config
    return RunCard(
        run_dir=str(directory.path.resolve()),
        env=config.env.id,
        learners={name: one.algorithm for name, one in config.learners.items()},
        steps=config.steps,
        started=time.time(),
        host=socket.gethostname(),
        process_id=os.getpid(),
    )


@contextmanager
def _sockets(shards: int) -> Iterator[list[ShardLink]]:
    """In a folder with a short path: those of sockets may not be long."""
    with tempfile.TemporaryDirectory(prefix="repertory-") as folder:
        addresses = [f"unix:{folder}/shard-{index}.sock" for index in range(shards)]
        yield [ShardLink(address, address) for address in addresses]
