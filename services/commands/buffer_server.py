"""`repertory buffer-server`: from the words of the command line to a shard that serves.

The tables come from a file, or from an environment and its algorithms as a run would have them.
Imports wait inside, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from repertory.errors import UsageError
from services.commands.arguments import Environment, File, Folder, Json, Settings, Text, Whole
from services.secret_file import make_secret

if TYPE_CHECKING:
    from buffer_server.process import Ready, ShardConfig
    from buffer_server.resharding import ShardPlace
    from buffer_server.table_config import TableConfig


@dataclass(frozen=True, slots=True)
class BufferServerOptions:
    """What the command line says.

    Args:
        env: The environment whose experience the tables hold; or give --tables.
        algo: The algorithms of its run, separated by commas.
        config: A YAML file of settings of such a run.
        set_: One setting of such a run by its dotted name. May be repeated.
        tables: A YAML file of tables; --dry-run prints one.
        capacity: Items of each table, in the place of what the tables say.
        capacity_bytes: Bytes of each table, whichever is reached first.
        shard: Which one of how many shards this is, as 0/4: its part of a run's capacity, and of
            the items of --restore-from.
        address: unix:/path/to.sock or host:port, where port 0 is any free one. Default: a free port
            that only this machine can reach.
        token_file: Holds the token that callers must have; made if it is not there. A port
            needs one.
        tls_certificate: Of this server; a port that others can reach needs TLS.
        tls_key: The key of that certificate.
        tls_client_authority: Callers must show a certificate that it signed.
        insecure: Lift these rules.
        max_clients: Connections at most.
        max_inflight_bytes: Bytes of messages under way at most.
        checkpoint_dir: Where checkpoints go, and where the newest whole one is found at the start.
        checkpoint_every: Seconds between two checkpoints.
        keep: How many checkpoints stay.
        restore_from: Checkpoint directories of other shards, of which this one takes its part.
            Only where it has no checkpoint of its own.
        metrics_address: Where Prometheus finds metrics.
        exit_with_parent: Stop, as after SIGTERM, when the parent process is gone.
        json_: Print one line of JSON when ready: address, metrics, pid, tables.
        dry_run: Check everything, print the tables, start nothing.
    """

    env: Environment = None
    algo: Text = None
    config: File = None
    set_: Settings = ()
    tables: File = None
    capacity: Whole = None
    capacity_bytes: Whole = None
    shard: Annotated[str, arg(metavar="INDEX/COUNT")] = "0/1"
    address: Annotated[str | None, arg(metavar="ADDRESS", help_behavior_hint="")] = None
    token_file: File = None
    tls_certificate: File = None
    tls_key: File = None
    tls_client_authority: File = None
    insecure: bool = False
    max_clients: Annotated[int, arg(metavar="N")] = 1024
    max_inflight_bytes: Annotated[int, arg(metavar="N")] = 512 * 2**20
    checkpoint_dir: Folder = None
    checkpoint_every: Annotated[float, arg(metavar="SECONDS")] = 300.0
    keep: Annotated[int, arg(metavar="N")] = 2
    restore_from: Annotated[
        tuple[Path, ...], arg(metavar="DIR [DIR ...]", help_behavior_hint="")
    ] = ()
    metrics_address: Annotated[str | None, arg(metavar="HOST:PORT", help_behavior_hint="")] = None
    exit_with_parent: bool = False
    json_: Json = False
    dry_run: bool = False


def serve(options: Annotated[BufferServerOptions, arg(name="")]) -> None:
    """Serve one shard of a replay: tables on a socket or a port, with checkpoints and metrics."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is said once, by us
    config = shard_config(options)
    if options.dry_run:
        print(tables_yaml(config.tables), end="")
        return
    if not options.json_:  # who reads the line may read no more: what is regular would fill a pipe
        logging.getLogger("buffer_server.process").setLevel(logging.INFO)
    if config.server.token_file is not None and make_secret(config.server.token_file):
        note(f"made token file {config.server.token_file}", options)

    from buffer_server.process import ShardProcess

    process = ShardProcess(config, say=lambda text: note(text, options))
    process.run(lambda ready: _announce(ready, config, options))


def shard_config(options: BufferServerOptions) -> ShardConfig:
    """Checked whole; refused with one sentence."""
    from pydantic import ValidationError

    from buffer_server.process import ShardConfig
    from repertory.config_messages import explain

    place = _place(options.shard)
    tables = _tables(options, place)
    changes = {"capacity": options.capacity, "capacity_bytes": options.capacity_bytes}
    document = {
        "tables": {
            name: table.model_dump() | {key: n for key, n in changes.items() if n is not None}
            for name, table in tables.items()
        },
        "server": {
            "address": options.address or "127.0.0.1:0",
            "token_file": options.token_file,
            "tls_certificate": options.tls_certificate,
            "tls_key": options.tls_key,
            "tls_client_authority": options.tls_client_authority,
            # What is only printed needs no guard.
            "insecure": options.insecure or (options.dry_run and options.address is None),
            "max_clients": options.max_clients,
            "max_inflight_bytes": options.max_inflight_bytes,
        },
        "checkpoint_dir": options.checkpoint_dir,
        "checkpoint_every_seconds": options.checkpoint_every,
        "keep": options.keep,
        "restore_from": options.restore_from,
        "shard_index": place.index,
        "shard_count": place.count,
        "metrics_address": options.metrics_address,
        "exit_with_parent": options.exit_with_parent,
    }
    try:
        return ShardConfig.model_validate(document)
    except ValidationError as error:
        raise UsageError(explain(error, document, ShardConfig)) from None


def _place(text: str) -> ShardPlace:
    from buffer_server.resharding import ShardPlace

    index, separator, count = text.partition("/")
    if not separator or not index.isdecimal() or not count.isdecimal():
        raise UsageError(f"--shard {text!r} is refused: write INDEX/COUNT, as 0/4")
    return ShardPlace(int(index), int(count))


def _tables(options: BufferServerOptions, place: ShardPlace) -> dict[str, TableConfig]:
    from buffer_server.table_config import read_tables

    of_a_run = options.env is not None or options.algo is not None or options.config is not None
    if options.tables is not None:
        if of_a_run or options.set_:
            raise UsageError("--tables says it all: leave ENV, --algo, --config and --set out")
        return read_tables(options.tables)
    if not of_a_run:
        raise UsageError("which tables? give ENV and --algo, or --tables FILE")
    return _tables_of_a_run(options, place)


def _tables_of_a_run(options: BufferServerOptions, place: ShardPlace) -> dict[str, TableConfig]:
    """One shard's part of what a run with these settings needs."""
    from repertory.config import parse_assignment, resolve
    from repertory.envs import probe
    from repertory.parts import lookup
    from services.fit import check_fit, choose_device
    from services.replay_access import shard_tables

    run = resolve(
        options.env,
        options.algo.split(",") if options.algo else [],
        file=options.config,
        overrides=dict(parse_assignment(text) for text in options.set_),
    )
    spec = probe(run.env)
    extras = {}
    for name, learner in run.learners.items():
        check_fit(name, learner, run.replay, spec)
        algorithm = lookup("algorithm", learner.algorithm)(
            learner, device=choose_device("cpu"), seed=0
        )
        extras[name] = algorithm.policy(algorithm.initial_state(spec)).extras
    actors = run.topology.actors
    return shard_tables(
        run,
        spec,
        extras,
        actors=1 if actors == "auto" else actors,
        shards=place.count,
        index=place.index,
    )


def tables_yaml(tables: dict[str, TableConfig]) -> str:
    import yaml

    document = {name: table.model_dump(mode="json") for name, table in tables.items()}
    return yaml.safe_dump({"tables": document}, sort_keys=False)


def _announce(ready: Ready, config: ShardConfig, options: BufferServerOptions) -> None:
    metrics = None if ready.metrics is None else f"http://{ready.metrics}/metrics"
    if options.json_:
        document = {
            "address": ready.address,
            "metrics": metrics,
            "pid": ready.process_id,
            "tables": list(config.tables),
        }
        print(json.dumps(document), flush=True)
        return
    where = "" if metrics is None else f"; metrics at {metrics}"
    print(f"serving {', '.join(config.tables)} on {ready.address}{where}", flush=True)


def note(text: str, options: BufferServerOptions) -> None:
    """For people: beside the line of JSON there must be nothing on standard output."""
    with contextlib.suppress(OSError):  # who started it may be gone: a shard ends well all the same
        print(text, file=sys.stderr if options.json_ else sys.stdout, flush=True)
