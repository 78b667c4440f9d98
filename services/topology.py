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
from repertory.errors import RepertoryError, UsageError
from repertory.metrics_server import MetricsServer
from repertory.protocols import Callback
from repertory.specs import EnvSpec
from services import ray_environment
from services.batch_shares import items_per_replica
from services.clusters.node import Node
from services.early_compilation import EarlyCompilation
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
    from services.placement import Placement


NODE_FILE = "node"  # beside the control address: the folder of this machine in its cluster


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run takes place: by default on this machine, with servers of its own."""

    ray_address: str | None = None
    ray_token_file: Path | None = None
    redis: ControlAddress | None = None
    # Where shards listen and are reached; by default sockets in a folder of their own.
    links: Sequence[ShardLink] | None = None
    node: Node | None = None  # of the cluster of ours that this machine belongs to


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
        if plan is not None:  # learners will be here
            stack.enter_context(EarlyCompilation(config, spec))
        redis, server = place.redis, None
        if redis is None:
            server = stack.enter_context(EmbeddedRedis(private))
            redis = server.address
        control = stack.enter_context(_control(directory, redis))
        if config.log.prometheus is not None:
            metrics = MetricsServer(config.log.prometheus, RunCollector(control))
            stack.callback(metrics.close)
            reporter.message(f"metrics for Prometheus: http://{metrics.address}/metrics")
        dashboard = None
        if config.log.dashboard and place.node is None:  # a cluster has one for all its runs
            port = config.log.dashboard_port
            dashboard = stack.enter_context(RunDashboard(directory.path, port, reporter.message))
        stack.enter_context(_cluster(place, private / "ray_token"))
        if dashboard is not None:
            stack.callback(dashboard.end_soon)  # while Ray ends
        if place.node is not None:
            (private / NODE_FILE).write_text(str(place.node.folder))

        from services.distributed_run import DistributedRun  # imports Ray
        from services.placement import Placement

        placement = Placement(place.node)
        plan = plan or _plan(config, _shared_machines(placement))
        placement.settle(max(plan.learner_gpus.values()))
        if place.node is not None:
            links = placement.links(control.run_id, plan.shards)
        else:
            links = list(place.links or stack.enter_context(_sockets(plan.shards)))
        control.register(_card(directory))

        return DistributedRun(
            config,
            spec,
            plan,
            directory,
            control,
            server,
            placement,
            links,
            reporter,
            callbacks,
            checkpoint,
            user_paths,
        ).run()


def place_of(run_dir: Path) -> Place:
    """Where a run took place: in the same cluster it goes on."""
    try:
        folder = (run_dir / CONTROL_FOLDER / NODE_FILE).read_text()
    except FileNotFoundError:
        return Place()
    return place_at(Node.read(Path(folder)))


def place_at(node: Node, redis: ControlAddress | None = None) -> Place:
    node.check_up()
    return Place(node.ray_address, node.token_file, redis or node.control, node=node)


def plan_for(config: RunConfig, place: Place) -> Plan:
    """How a run would be laid out there; nothing is started."""
    if place.ray_address is None:
        return _plan(config, this_machine())
    with _cluster(place, Path()):
        from services.placement import Placement

        return _plan(config, _shared_machines(Placement(place.node)))


def _plan(config: RunConfig, machines: Machines) -> Plan:
    """Refused where the processes of a learner cannot have equal parts of its batches."""
    plan = make_plan(config, machines)
    for learner in config.learners:
        items_per_replica(config, learner, plan.actors)
    return plan


def _shared_machines(placement: Placement) -> Machines:
    """Those of a cluster that is there."""
    machines = placement.machines()
    if placement.node is None and machines.nodes > 1:
        raise UsageError(
            f"that Ray cluster has {machines.nodes} machines, and nothing of ours on them: without "
            "certificates experience would go over the network for everybody to read and write. "
            "`repertory cluster up` makes a cluster for runs over many machines"
        )
    return machines


def _cluster(place: Place, own_token: Path) -> Cluster:
    """Ray reads its settings when it is imported: so they come first."""
    if place.node is not None:
        os.environ.update(place.node.ray_environment())
    token = place.ray_token_file or own_token
    ray_environment.prepare(token, make_token=place.ray_address is None)
    from services.cluster import Cluster

    return Cluster(place.ray_address)


def _control(directory: RunDirectory, address: ControlAddress) -> Control:
    """Answers, or it is refused here."""
    control = Control(address, run_id(directory.path))
    try:
        if control.run_id in control.claims():
            raise UsageError(
                f"a run called {control.run_id} is going on already: give another --run-dir"
            )
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
