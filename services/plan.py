"""How a run is laid out on the machines there are: how many of what, and why.

Pure arithmetic over what was asked for and what Ray reports; `--dry-run` prints it. A number that
was asked for is taken; `auto` is worked out here, and each comes with its reason.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from repertory.config import OffPolicyConfig, RunConfig
from repertory.errors import UsageError
from services.threads import threads_of

WORKER_BYTES = 250 * 2**20  # a rollout process with torch and a small environment
LARGEST_SHARD_COUNT = 64
PARTS_OF_A_CORE = 10_000  # in which Ray counts
CORES_PER_SHARD = 16  # one shard serves what so many cores of actors and learners produce


@dataclass(frozen=True, slots=True)
class Machines:
    """All nodes together."""

    cores: float
    memory_bytes: int
    gpus: float
    nodes: int = 1
    acting_cores: float | None = None  # of those that take actors; None: all

    @property
    def cores_for_actors(self) -> float:
        return self.cores if self.acting_cores is None else self.acting_cores


@dataclass(frozen=True, slots=True)
class Plan:
    """Numbers of processes and what Ray should set aside for each."""

    actors: int
    shards: int
    actor_cores: float
    learner_cores: float
    learner_gpus: Mapping[str, float]  # for each process of a learner
    reasons: Mapping[str, str]  # by name of a number

    def lines(self) -> list[str]:
        """For people, in a fixed order."""
        return [f"{name}: {reason}" for name, reason in self.reasons.items()]


def this_machine() -> Machines:
    """What Ray would find here, known without starting it."""
    return Machines(
        cores=float(len(os.sched_getaffinity(0))),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=float(torch.cuda.device_count()),
    )


def make_plan(config: RunConfig, machines: Machines) -> Plan:
    reasons: dict[str, str] = {}
    learners = len(config.learners) * config.topology.replicas
    reasons["learners"] = _learners(config)
    gpus = _gpus(config, machines, learners, reasons)
    learner_cores = _learner_cores(config, machines, learners, reasons)
    actors = _actors(config, machines, learner_cores * learners, reasons)
    shards = _shards(config, machines, reasons)
    acting = machines.cores_for_actors
    spare = max(acting - learner_cores * learners, acting / 2)
    # On one machine nothing is to be spread, and actors must never wait for cores to be set aside:
    # a laptop runs more of them than it has cores on purpose.
    actor_cores = 0.0
    if machines.nodes > 1:
        actor_cores = _actor_cores(spare, actors, machines.nodes)
        reasons["cores of an actor"] = f"{actor_cores:g}, so that Ray spreads them over the nodes"
    return Plan(actors, shards, actor_cores, learner_cores, gpus, reasons)


def _learners(config: RunConfig) -> str:
    names = ", ".join(config.learners)
    replicas = config.topology.replicas
    if replicas == 1:
        return f"{len(config.learners)} ({names}), a process each"
    return f"{len(config.learners)} ({names}), {replicas} processes each, topology.replicas"


def _gpus(
    config: RunConfig, machines: Machines, learners: int, reasons: dict[str, str]
) -> dict[str, float]:
    asked = config.topology.gpus
    there = f"there are {machines.gpus:g} GPUs"
    if asked != "auto" and asked > machines.gpus:
        raise UsageError(
            f"topology.gpus = {asked:g} is refused: {there}; ask for at most that many, or for auto"
        )
    if config.device.startswith("cuda") and machines.gpus < 1:
        raise UsageError(f"device = {config.device} is refused: {there}; use auto or cpu")
    gpus = machines.gpus if asked == "auto" else asked
    if config.device == "cpu" or gpus == 0:
        why = "device = cpu" if config.device == "cpu" else there
        reasons["gpus"] = f"0, {why}" if asked == "auto" else "0, as asked for"
        return dict.fromkeys(config.learners, 0.0)
    share = min(1.0, gpus / learners)
    reasons["gpus"] = f"{share:g} for each of {learners} learner processes; {there}"
    return dict.fromkeys(config.learners, share)


def _learner_cores(
    config: RunConfig, machines: Machines, learners: int, reasons: dict[str, str]
) -> float:
    threads = max(threads_of(config, name, int(machines.cores)) for name in config.learners)
    wanted = float(threads)
    most = machines.cores / (2 * learners)
    cores = max(min(wanted, most), 0.1)
    limit = "" if cores == wanted else f", at most half of {machines.cores:g} cores for all"
    reasons["cores of a learner"] = f"{cores:g}, threads = {threads}{limit}"
    return round(cores, 4)


def _actors(
    config: RunConfig, machines: Machines, taken_cores: float, reasons: dict[str, str]
) -> int:
    asked = config.topology.actors
    if asked != "auto":
        reasons["actors"] = f"{asked}, as asked for"
        return asked
    free = machines.cores_for_actors - taken_cores
    by_cores = max(1, int(free))
    by_memory = max(1, int(machines.memory_bytes / 2 // WORKER_BYTES))
    actors = min(by_cores, by_memory)
    limit = (
        f"one for each of the {free:g} cores that learners leave"
        if by_cores <= by_memory
        else f"{WORKER_BYTES // 2**20} MB each in half of {machines.memory_bytes / 2**30:.0f} GiB"
    )
    reasons["actors"] = f"{actors}, {limit}; {config.env.copies} copies of the environment each"
    return actors


def _actor_cores(spare: float, actors: int, nodes: int) -> float:
    """So little that all have room, however the spare cores are spread over the nodes.

    A node of x spare cores takes floor(x / c) of them, more than x / c - 1: all nodes more than
    spare / c - nodes, and all actors but the first, which waits for no core, are to be among those.
    """
    cores = min(1.0, spare / max(1, actors - 1 + nodes))
    return math.floor(cores * PARTS_OF_A_CORE) / PARTS_OF_A_CORE


def _shards(config: RunConfig, machines: Machines, reasons: dict[str, str]) -> int:
    asked = config.topology.shards
    if asked != "auto":
        reasons["shards"] = f"{asked}, as asked for"
        return asked
    if not any(isinstance(learner, OffPolicyConfig) for learner in config.learners.values()):
        reasons["shards"] = "1, a queue of segments is small"
        return 1
    shards = min(LARGEST_SHARD_COUNT, max(1, round(machines.cores / CORES_PER_SHARD)))
    reasons["shards"] = f"{shards}, one for every {CORES_PER_SHARD} of {machines.cores:g} cores"
    return shards
