"""How large a cluster may be before something is full: `python -m benchmarks.cluster_sizing`.

No network and no second process: sizes come from the code's own tables, messages, policies and
limits, speeds from a second of acting and of learning on one core of this machine (its CPU time, so
that others who use it matter little), and the rest is arithmetic. What a network card, a learner's
GPU and the control server can take is assumed; each assumption is an option. docs/sizing.md
explains the tables.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table

from actors.casting import Solo
from actors.rollout import rollout_for
from benchmarks.measure import ROOT, machine_facts
from buffer_server import wire
from buffer_server.capacity import Capacity
from buffer_server.frames import share_frames
from buffer_server.proto import replay_pb2 as pb
from buffer_server.server import ServerConfig
from repertory.config import OffPolicyConfig, RunConfig, resolve
from repertory.control import Member
from repertory.envs import probe
from repertory.heartbeat import EVERY_SECONDS
from repertory.table_layout import tables_of
from repertory.types import TransitionBatch
from services.clusters.inventory import Ports
from services.local_learner import LocalLearner
from services.plan import CORES_PER_SHARD, LARGEST_SHARD_COUNT
from services.replay_access import run_table
from services.shard_host import MANY_CALLERS

MB = 1e6
WIDTH = 118
HEAD_LOOKS_PER_SECOND = 10.0  # at all members: LOOK_SECONDS of services.distributed_run
LEARNER_STREAMS = 2  # samples and priorities
CONTROL_CONNECTIONS = 2  # of an actor: signs of life, and orders that it waits for
MOST_CONTROL_CONNECTIONS = 10_000  # maxclients of Redis and Valkey
WARM_UP_STEPS = 200  # the first pictures of a game stand still, and equal ones are sent once
MEASURED_PARSES = 2000
MEASURED_MESSAGES = 10
REPLAY_RESULTS = ROOT / "benchmarks" / "results" / "replay.json"
WORKLOADS = (
    ("CartPole-v1", "dqn"),
    ("HalfCheetah-v5", "td3"),
    ("HalfCheetah-v5", "sac"),
    ("ALE/MsPacman-v5", "dqn"),
)


@dataclass(frozen=True)
class Options:
    """Bytes, connections and calls of clusters of several sizes, and what is full first."""

    nodes: tuple[int, ...] = (10, 100, 1000)
    cores: int = 16
    """Of each node; each acts."""
    network_gbit: float = 10.0
    """Assumed: of the machine with the learner and the shards, in each direction."""
    updates_per_second: float = 1000.0
    """Assumed: of a learner on a GPU."""
    control_calls_per_second: float = 5000.0
    """Assumed: that the control server and the gate before it can take."""
    seconds: float = 1.0
    """Of acting, and of learning, for each workload."""
    core_hour_price: float = 0.04
    """Assumed: of one core for one hour, in any currency."""
    gpu_hour_price: float = 1.0
    """Assumed: of the learner's GPU for one hour."""
    out: Path = ROOT / "benchmarks" / "results" / "cluster_sizing.json"


@dataclass(frozen=True, slots=True)
class Workload:
    """One environment with one algorithm."""

    name: str
    transition_bytes: int  # computed: all columns as they are, whole stacks
    message_bytes: float  # measured: a transition's part of a message of `send_items`
    replay_bytes: float  # computed: a transition's part of a full table
    weights_bytes: int  # computed: of the policy, as published
    updates_per_step: float  # as the preset has it
    batch_size: int
    copies: int
    send_items: int
    publish_every: int
    tables: int
    steps_per_second: float  # measured: one core, acting by the policy
    updates_per_second: float  # measured: one core


@dataclass(frozen=True, slots=True)
class ControlCosts:
    """Of one process that says once a second that it is there."""

    json_bytes: int  # measured: what it says
    call_bytes: int  # measured: the whole call as it is sent
    read_seconds: float  # measured: of the head, each time it looks


@dataclass(frozen=True, slots=True)
class Load:
    """Something that is used, and how much of it there is."""

    what: str
    value: float
    limit: float

    @property
    def share(self) -> float:
        return self.value / self.limit


@dataclass(frozen=True, slots=True)
class Size:
    """One workload on so many nodes, every actor as fast as it can."""

    workload: str
    nodes: int
    actors: int
    shards: int
    steps_per_second: float
    held_steps_per_second: float  # where the learner keeps to the preset's updates per step
    actors_needed: int  # for those
    updates_per_step: float  # at which the learner would keep up with all actors
    experience_mb_per_second: float
    messages_per_second: float
    weights_mb_per_second: float
    heartbeats_per_second: float
    heartbeat_mb_per_second: float
    head_cores: float
    price_per_hour: float
    price_per_million_steps: float


def measure(env_id: str, algorithm: str, seconds: float) -> Workload:
    config = resolve(env_id, [algorithm], overrides={"learner.random_steps": 0, "device": "cpu"})
    spec = probe(config.env)
    name = next(iter(config.learners))
    learner = LocalLearner(config, name, spec)
    layouts = tables_of(config)
    layout_name, layout = next(iter(layouts.items()))
    described = run_table(config, spec, layout, {name: learner.policy.extras})
    steps_per_second, batch = _act(config, spec, learner, seconds)
    signature = described.signature
    return Workload(
        name=f"{algorithm} on {env_id}",
        transition_bytes=sum(column.nbytes for column in signature.values()),
        message_bytes=_message_bytes(batch, signature, config.topology.send_items),
        replay_bytes=Capacity.of(signature, described.capacity).nbytes / described.capacity,
        weights_bytes=sum(array.nbytes for array in learner.snapshot().arrays.values()),
        updates_per_step=_off_policy(config, name).updates_per_step,
        batch_size=_off_policy(config, name).batch_size,
        copies=config.env.copies,
        send_items=config.topology.send_items,
        publish_every=config.topology.publish_every,
        tables=len(layouts),
        steps_per_second=steps_per_second,
        updates_per_second=_learn(learner, described.build(layout_name), layout, batch, seconds),
    )


def _off_policy(config: RunConfig, name: str) -> OffPolicyConfig:
    learner = config.learners[name]
    assert isinstance(learner, OffPolicyConfig)
    return learner


def _act(
    config: RunConfig, spec: Any, learner: LocalLearner, seconds: float
) -> tuple[float, TransitionBatch]:
    """Steps a second of one core, and some of what was seen."""
    rollout = rollout_for(config, spec, {learner.name: learner.policy}, Solo())
    try:
        needed = max(config.topology.send_items, _off_policy(config, learner.name).batch_size)
        rollout.collect(WARM_UP_STEPS)
        begun, steps = time.process_time(), 0
        while (spent := time.process_time() - begun) < seconds:
            steps += rollout.collect(config.topology.send_items).env_steps
        gathered = [rollout.collect(needed).batches for _ in range(MEASURED_MESSAGES)]
        batches = [next(iter(batch.values())) for batch in gathered if batch]
        return steps / spent, TransitionBatch.concatenate(batches)
    finally:
        rollout.close()


def _message_bytes(batch: TransitionBatch, signature: Any, send_items: int) -> float:
    """For each transition, on average over several messages as actors send them."""
    sizes = []
    for begin in range(0, len(batch) - send_items + 1, send_items):
        request = pb.InsertRequest(table="replay", signature_hash=2**63, sequence=10**6)
        items = batch.select(slice(begin, begin + send_items))
        wire.write_items(request, share_frames(items.columns(), signature))
        sizes.append(request.ByteSize() / send_items)
    return float(statistics.mean(sizes))


def _learn(
    learner: LocalLearner, table: Any, layout: Any, batch: TransitionBatch, seconds: float
) -> float:
    """Updates a second of one core."""
    table.insert(batch)
    learner.read(table, table, layout)
    learner.loop.run(2)
    begun, before = time.process_time(), learner.updates
    while (spent := time.process_time() - begun) < seconds:
        learner.loop.run(1)
    return (learner.updates - before) / spent


def heartbeat() -> str:
    """One sign of life of an actor, as JSON."""
    weights = {"version": 1_000_000, "checksum": "60eefb6c", "weights_age_seconds": 0.2910597324}
    now = 1_700_000_000.123456
    member = Member(
        role="worker",
        host="node-0123.cluster",
        process_id=1_234_567,
        incarnation=1,
        at=now,
        facts={
            "progress_at": now,
            "memory_bytes": 343_281_664,
            "env_steps": 10_000_000,
            "broken_episodes": 0,
            "weights": {"sac": weights},
            **weights,
            "lost_items": 0,
            "handed_over": 0,
        },
    )
    return json.dumps(asdict(member))


def heartbeat_bytes() -> tuple[int, int]:
    """Of the JSON, and of the whole call as it is sent."""
    text = heartbeat()
    key = "repertory:HalfCheetah-v5_sac_seed0_20260101-000000"
    commands: list[tuple[str | int, ...]] = [
        ("MULTI",),
        ("HSET", f"{key}:members", "worker-1234", text),
        ("HINCRBY", f"{key}:counters", "env_steps", 1000),
        ("EXEC",),
    ]
    return len(text), sum(_sent_bytes(words) for words in commands)


def _sent_bytes(words: Sequence[str | int]) -> int:
    """Of a command in Redis' protocol: the number of words, then each with its length."""
    encoded = [str(word).encode() for word in words]
    lines = [b"*%d" % len(encoded)]
    for word in encoded:
        lines += [b"$%d" % len(word), word]
    return sum(len(line) + 2 for line in lines)


def head_seconds() -> float:
    """That the head needs to read one member, on one core of this machine."""
    text = heartbeat()
    begun = time.process_time()
    for _ in range(MEASURED_PARSES):
        Member(**json.loads(text))
    return (time.process_time() - begun) / MEASURED_PARSES


def shard_speed(pixels: bool) -> float:
    """Transitions a second into one shard, measured by `make bench-replay`."""
    work = "pixels: insert" if pixels else "insert, ours from single steps"
    document = json.loads(REPLAY_RESULTS.read_text())
    rows = {row["work"]: row["ours"] for row in document["comparisons"]}
    return float(statistics.median(rows[work]))


def size(workload: Workload, nodes: int, options: Options, costs: ControlCosts) -> Size:
    actors = nodes * options.cores
    shards = min(LARGEST_SHARD_COUNT, max(1, round(actors / CORES_PER_SHARD)))
    steps = actors * workload.steps_per_second
    held_steps = min(steps, options.updates_per_second / workload.updates_per_step)
    published = options.updates_per_second / workload.publish_every
    beats = actors / EVERY_SECONDS
    price = actors * options.core_hour_price + options.gpu_hour_price
    return Size(
        workload=workload.name,
        nodes=nodes,
        actors=actors,
        shards=shards,
        steps_per_second=steps,
        held_steps_per_second=held_steps,
        actors_needed=max(1, round(held_steps / workload.steps_per_second)),
        updates_per_step=options.updates_per_second / steps,
        experience_mb_per_second=steps * workload.message_bytes / MB,
        messages_per_second=steps / workload.send_items,
        weights_mb_per_second=published * workload.weights_bytes * nodes / MB,
        heartbeats_per_second=beats,
        heartbeat_mb_per_second=beats * costs.call_bytes / MB,
        head_cores=HEAD_LOOKS_PER_SECOND * actors * costs.read_seconds,
        price_per_hour=price,
        price_per_million_steps=price / 3600 / steps * 1e6,
    )


def loads(one: Size, workload: Workload, options: Options) -> tuple[Load, ...]:
    """What each thing there is a limit to would carry, every actor as fast as it can."""
    server, ports = ServerConfig(address="unix:/shard", **MANY_CALLERS), Ports()
    network = options.network_gbit * 1e9 / 8 / MB
    streams = one.actors * workload.tables + LEARNER_STREAMS
    pixels = "ALE" in workload.name
    return (
        Load("streams of a shard", streams, server.max_streams),
        Load("connections of a shard", one.actors * workload.tables + 1, server.max_clients),
        Load("network in, MB/s", one.experience_mb_per_second, network),
        Load("network out, MB/s", one.weights_mb_per_second, network),
        Load("into a shard, 1/s", one.steps_per_second / one.shards, shard_speed(pixels=pixels)),
        Load("head, cores", one.head_cores, 1.0),
        Load("control calls, 1/s", one.heartbeats_per_second, options.control_calls_per_second),
        Load("control connections", one.actors * CONTROL_CONNECTIONS, MOST_CONTROL_CONNECTIONS),
        Load("ports of shards", one.shards, ports.shards.last - ports.shards.first + 1),
    )


def main(options: Options) -> None:
    torch.set_num_threads(1)
    costs = ControlCosts(*heartbeat_bytes(), read_seconds=head_seconds())
    workloads = [measure(env, algorithm, options.seconds) for env, algorithm in WORKLOADS]
    results = [
        (one := size(workload, nodes, options, costs), loads(one, workload, options))
        for workload in workloads
        for nodes in options.nodes
    ]
    console = Console(width=WIDTH)
    _print_workloads(console, workloads, costs)
    _print_sizes(console, [one for one, _ in results], options)
    _print_loads(console, results)
    report = {
        "machine": machine_facts(),
        "options": {**asdict(options), "out": options.out.name},
        "control": asdict(costs),
        "workloads": [asdict(one) for one in workloads],
        "sizes": [
            {**asdict(one), "loads": [{**asdict(load), "share": load.share} for load in of]}
            for one, of in results
        ],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    console.print(f"written to {options.out}")


def _print_workloads(console: Console, workloads: Sequence[Workload], costs: ControlCosts) -> None:
    table = Table(
        *("", "B a transition", "in a message", "in the replay", "weights, kB"),
        *("steps/s of a core", "updates/s of a core", "updates a step"),
        title="What one actor and one learner need",
    )
    for one in workloads:
        table.add_row(
            one.name,
            f"{one.transition_bytes:,}",
            f"{one.message_bytes:,.0f}",
            f"{one.replay_bytes:,.0f}",
            f"{one.weights_bytes / 1e3:,.0f}",
            f"{one.steps_per_second:,.0f}",
            f"{one.updates_per_second:,.0f}",
            f"{one.updates_per_step:g}",
        )
    console.print(table)
    console.print(
        f"a heartbeat: {costs.json_bytes} bytes of JSON, {costs.call_bytes} as it is sent; "
        f"the head reads one in {costs.read_seconds * 1e6:.1f} microseconds"
    )


def _print_sizes(console: Console, sizes: Sequence[Size], options: Options) -> None:
    table = Table(
        *("", "nodes", "actors", "steps/s", "updates a step", "experience MB/s"),
        *("weights MB/s", "beats/s", "an hour", "a million steps"),
        title=f"Nodes of {options.cores} cores, every actor as fast as it can",
    )
    for one in sizes:
        table.add_row(
            one.workload,
            f"{one.nodes:,}",
            f"{one.actors:,}",
            _short(one.steps_per_second),
            f"{one.updates_per_step:.2g}",
            _short(one.experience_mb_per_second),
            _short(one.weights_mb_per_second),
            f"{one.heartbeats_per_second:,.0f}",
            f"{one.price_per_hour:,.2f}",
            f"{one.price_per_million_steps:.4f}",
        )
    console.print(table)
    for one in sizes[:: len(options.nodes)]:
        console.print(
            f"{one.workload}: {options.updates_per_second:g} updates/s at the preset's ratio are "
            f"{one.held_steps_per_second:,.0f} steps/s, the work of {one.actors_needed} actors"
        )


def _print_loads(console: Console, results: Sequence[tuple[Size, Sequence[Load]]]) -> None:
    names = [load.what for load in results[0][1]]
    table = Table("", "nodes", *names, title="Of what there is: above 1 it is too much")
    for one, of in results:
        cells = [f"[{'red' if load.share > 1 else 'green'}]{load.share:.2g}[/]" for load in of]
        table.add_row(one.workload, f"{one.nodes:,}", *cells)
    console.print(table)


def _short(value: float) -> str:
    """To two digits."""
    rounded = float(f"{value:.2g}")
    return f"{rounded / 1e6:,.3g} M" if rounded >= 1e6 else f"{rounded:,.10g}"


if __name__ == "__main__":
    main(tyro.cli(Options))
