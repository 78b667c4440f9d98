"""The whole topology of a distributed run, in one function.

Redis   ── control, heartbeats, metrics ── everybody
Ray     ── shards, learners, workers, evaluator, weight hub
head    ── starts them, watches them, writes the run directory
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from repertory.checkpoints import Checkpoint, write_atomically
from repertory.control import Control, ControlAddress, RunCard
from repertory.errors import UsageError
from repertory.protocols import Callback
from repertory.specs import EnvSpec
from services import ray_environment
from services.embedded_redis import EmbeddedRedis
from services.local_run import RunResult
from services.plan import make_plan
from services.progress import Reporter
from services.run_directory import RunDirectory

CONTROL_FOLDER = "control"  # in the run directory of every distributed run
ADDRESS_FILE = "address.json"


def launch(
    directory: RunDirectory,
    spec: EnvSpec,
    reporter: Reporter,
    *,
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoint | None = None,
    ray_address: str | None = None,
    ray_token_file: Path | None = None,
    redis: ControlAddress | None = None,
    user_paths: tuple[str, ...] = (),
) -> RunResult:
    """Starts everything, trains, ends everything."""
    config = directory.config
    private = directory.path / CONTROL_FOLDER
    private.mkdir(exist_ok=True)
    ray_environment.prepare(ray_token_file or private / "ray_token", make_token=ray_address is None)
    from services.cluster import Cluster  # imports Ray, which reads the environment
    from services.distributed_run import DistributedRun

    with ExitStack() as stack:
        server = None
        if redis is None:
            server = EmbeddedRedis(private)
            server.start()
            stack.callback(server.stop)
            redis = server.address
        write_atomically(private / ADDRESS_FILE, json.dumps(redis.to_json()).encode())
        control = Control(redis, run_id(directory.path))
        stack.callback(control.close)
        cluster = Cluster(ray_address)
        stack.callback(cluster.close)
        plan = make_plan(config, cluster.machines())
        control.register(
            RunCard(
                run_dir=str(directory.path.resolve()),
                env=config.env.id,
                learners={name: one.algorithm for name, one in config.learners.items()},
                steps=config.steps,
                started=time.time(),
                host=socket.gethostname(),
                process_id=os.getpid(),
            )
        )
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="repertory-")))
        return DistributedRun(
            config,
            spec,
            plan,
            directory,
            control,
            server,
            sockets,
            reporter,
            callbacks,
            checkpoint,
            user_paths,
        ).run()


def run_id(run_dir: Path) -> str:
    """Its name in the control plane: the folder's, which is unique to who looks at one folder."""
    return run_dir.resolve().name


def control_of(run_dir: Path) -> Control:
    """The control plane of a run that is going on, for those who look at it or steer it."""
    try:
        document = json.loads((run_dir / CONTROL_FOLDER / ADDRESS_FILE).read_text())
    except OSError:
        raise UsageError(
            f"{run_dir} is not a distributed run: only those can be looked at and steered"
        ) from None
    return Control(ControlAddress.from_json(document), run_id(run_dir))
