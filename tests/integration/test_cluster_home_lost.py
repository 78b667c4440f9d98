"""The machine with the learners and the replay is lost: the run goes on around another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_on_hosts import Cluster, until
from lan import Lan, why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        why_not() is not None, reason=f"NO HOSTS: clusters are not tested over ssh: {why_not()}"
    ),
]


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The head takes actors only; `request.param` workers take learners too."""
    folder = tmp_path / "lan"
    folder.mkdir()
    with Lan(folder) as lan:
        made = Cluster(tmp_path, lan)
        shapes = [
            {"host": host.name, "address": host.address, "cores": 2, "object_store_mb": 100}
            for host in lan.hosts
        ]
        takes = [["actors"], *([["learners", "actors"]] * request.param), *([["actors"]] * 2)]
        head, *workers = (
            shape | {"runs": runs} for shape, runs in zip(shapes, takes, strict=False)
        )
        made.write(head=head, workers=workers)
        yield made
        made.close()


def home_of(cluster: Cluster) -> set[str]:
    members = cluster.members("one")
    return {members[name].host for name in ("learner-dqn", "shard-0") if name in members}


@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_learners_and_shards_move(cluster: Cluster) -> None:
    cluster.call("up")
    train = cluster.train(
        *("one", "CartPole-v1", "--algo", "dqn", "--steps", "2000000"),
        *("--set", "checkpoint.every=2000"),
    )
    until(lambda: cluster.steps("one") > 5000, "it learns")
    (first,) = home_of(cluster)
    lost = next(host for host in cluster.lan.hosts if host.name == first)
    lost.crash()
    until(lambda: any(one["event"] == "moved" for one in cluster.events("one")), "it moves")
    before = cluster.steps("one")
    until(lambda: cluster.steps("one") > before + 2000, "it goes on")
    (second,) = home_of(cluster)
    assert second not in (first, cluster.lan.hosts[0].name)
    updates = cluster.members("one")["learner-dqn"].facts["updates"]
    assert updates > 0
    lost.boot()
    cluster.call("up")
    until(lambda: lost.name in cluster.hosts_of_workers("one"), "it is used again")
    cluster.call("down")
    output, _ = train.communicate(timeout=120)
    assert train.returncode == 0, output


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_a_run_waits_for_the_only_machine_that_takes_learners(cluster: Cluster) -> None:
    cluster.call("up")
    train = cluster.train(
        *("one", "CartPole-v1", "--algo", "dqn", "--steps", "2000000"),
        *("--set", "checkpoint.every=2000"),
    )
    until(lambda: cluster.steps("one") > 3000, "it learns")
    home = cluster.lan.hosts[1]
    home.crash()
    until(lambda: any(one["event"] == "homeless" for one in cluster.events("one")), "it waits")
    home.boot()
    cluster.call("up")
    before = cluster.steps("one")
    until(lambda: cluster.steps("one") > before + 1000, "it goes on")
    assert home_of(cluster) == {home.name}
    cluster.call("down")
    output, _ = train.communicate(timeout=120)
    assert train.returncode == 0, output
    assert "waiting for a machine" in output
