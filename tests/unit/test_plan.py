"""How many of what, and why."""

from __future__ import annotations

from typing import Any

import pytest

from repertory.config import resolve
from repertory.errors import UsageError
from services.plan import Machines, Plan, make_plan

GIB = 2**30
LAPTOP = Machines(cores=2, memory_bytes=16 * GIB, gpus=0)
NODE = Machines(cores=64, memory_bytes=512 * GIB, gpus=8)
CLUSTER = Machines(cores=64, memory_bytes=512 * GIB, gpus=8, nodes=4)


def plan(machines: Machines, algorithm: str = "dqn", **overrides: Any) -> Plan:
    env = "Pendulum-v1" if algorithm == "td3" else "CartPole-v1"
    return make_plan(resolve(env, [algorithm], overrides=overrides), machines)


def test_a_laptop_runs_one_actor_beside_its_learner() -> None:
    made = plan(LAPTOP)
    assert (made.actors, made.shards, made.learner_cores) == (1, 1, 1.0)
    assert made.learner_gpus == {"dqn": 0.0}


def test_a_large_node_is_filled() -> None:
    made = plan(NODE)
    assert (made.actors, made.shards) == (63, 4)
    assert made.learner_gpus == {"dqn": 1.0}


def test_on_one_machine_actors_set_no_cores_aside_on_several_they_are_spread() -> None:
    assert plan(NODE).actor_cores == 0.0
    assert plan(CLUSTER, **{"topology.actors": 40}).actor_cores == 1.0


@pytest.mark.parametrize("actors", [2, 8, 12, 13, 50, 200])
@pytest.mark.parametrize("cores", [(2, 2, 2), (2, 2), (1, 1, 1, 1, 8), (16, 3, 5)])
def test_all_actors_have_room_however_cores_are_spread(cores: tuple[int, ...], actors: int) -> None:
    machines = Machines(float(sum(cores)), 512 * GIB, 0, nodes=len(cores))
    made = plan(machines, **{"topology.actors": actors})
    for home in range(len(cores)):  # of the learner, as far as it has the cores
        spare = [n - made.learner_cores * (place == home) for place, n in enumerate(cores)]
        room = sum(int(round(max(0, free) / made.actor_cores, 6)) for free in spare)
        assert room >= actors - 1, "the first one asks for none"


@pytest.mark.parametrize("machines", [LAPTOP, CLUSTER])
@pytest.mark.parametrize("actors", [0, 1, 32, 1000])
def test_what_is_asked_for_always_fits_into_the_cores(machines: Machines, actors: int) -> None:
    made = plan(machines, **{"topology.actors": actors, "topology.shards": 3})
    assert (made.actors, made.shards) == (actors, 3)
    used = made.actors * made.actor_cores + made.learner_cores
    # Fractions are rounded to four places: a thousand actors may be off by a twentieth of a core.
    assert used <= machines.cores + 0.05


def test_little_memory_means_fewer_actors() -> None:
    made = plan(Machines(cores=64, memory_bytes=4 * GIB, gpus=0))
    assert made.actors == 8
    assert "250 MB each in half of 4 GiB" in made.reasons["actors"]


def test_a_queue_needs_one_shard() -> None:
    made = plan(NODE, "ppo")
    assert made.shards == 1
    assert "queue" in made.reasons["shards"]


def test_threads_of_a_learner_are_at_most_half_the_cores() -> None:
    made = plan(LAPTOP, **{"threads": 16})
    assert made.learner_cores == 1.0
    assert "at most half of 2 cores" in made.reasons["cores of a learner"]


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="device = cuda is refused: there are 0 GPUs"):
        plan(LAPTOP, device="cuda")


def test_cpu_leaves_gpus_alone() -> None:
    assert plan(NODE, device="cpu").learner_gpus == {"dqn": 0.0}


def test_processes_of_one_learner_share_the_gpus_and_half_of_the_cores() -> None:
    made = plan(NODE, **{"topology.replicas": 16})
    assert made.learner_gpus == {"dqn": 0.5}
    assert made.actors == 64 - 16 * made.learner_cores
    assert "16 processes each" in made.reasons["learners"]
    assert plan(LAPTOP, **{"topology.replicas": 4}).learner_cores == 0.25


@pytest.mark.parametrize("machines", [LAPTOP, NODE])
def test_more_gpus_than_there_are_is_refused_with_both_numbers(machines: Machines) -> None:
    with pytest.raises(UsageError, match=rf"gpus = 9 is refused: there are {machines.gpus:g} GPUs"):
        plan(machines, **{"topology.gpus": 9})


def test_fewer_gpus_than_there_are_can_be_asked_for() -> None:
    assert plan(NODE, **{"topology.gpus": 0.5}).learner_gpus == {"dqn": 0.5}
    assert plan(NODE, **{"topology.gpus": 0}).learner_gpus == {"dqn": 0.0}


def test_every_number_has_a_reason() -> None:
    lines = plan(CLUSTER).lines()
    assert [line.partition(":")[0] for line in lines] == [
        "learners", "gpus", "cores of a learner", "actors", "shards", "cores of an actor",
    ]  # fmt: skip
    assert plan(LAPTOP).lines()[1] == "gpus: 0, there are 0 GPUs"
