"""A machine as a member: what its folder says, and how its processes find it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster_fakes import bring, node_in

from repertory.errors import RepertoryError, UsageError
from services.clusters.authority import Authority
from services.clusters.inventory import LocalInventory, Shape
from services.clusters.node import CARD, VARIABLE, Node
from services.clusters.node_plan import SECRETS, node_files, plan_node


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPERTORY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "home" / "nodes").mkdir(parents=True)
    return tmp_path / "home"


def written(folder: Path, **changes: Any) -> Node:
    node = replace(node_in(folder), **changes)
    folder.mkdir(parents=True, exist_ok=True)
    node.write()
    return node


# read


def test_what_was_written_is_read(tmp_path: Path) -> None:
    node = written(tmp_path / "lab")
    assert Node.read(tmp_path / "lab") == node


def test_its_folder_is_where_it_is_read(tmp_path: Path) -> None:
    """Not where it was written: paths may differ between machines."""
    written(tmp_path / "lab")
    (tmp_path / "lab").rename(tmp_path / "moved")
    assert Node.read(tmp_path / "moved").folder == tmp_path / "moved"


def test_a_relative_folder_becomes_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "lab")
    monkeypatch.chdir(tmp_path)
    node = Node.read(Path("lab"))
    assert node.token_file == tmp_path / "lab" / "token"


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"shard_ports": 3}'])
def test_a_broken_card_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / CARD).write_text(text)
    with pytest.raises(UsageError, match="is not the folder of a cluster's node"):
        Node.read(tmp_path)


def test_a_card_of_another_version_is_told(tmp_path: Path) -> None:
    document = written(tmp_path).to_json() | {"of_tomorrow": 1}
    (tmp_path / CARD).write_text(json.dumps(document))
    with pytest.raises(UsageError, match="of_tomorrow"):
        Node.read(tmp_path)


def test_a_folder_without_a_card_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none is not the folder of a cluster's node"):
        Node.read(tmp_path / "none")


# here


def test_outside_of_clusters_there_is_none() -> None:
    assert Node.here() is None


def test_a_process_finds_the_folder_by_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = written(tmp_path / "lab")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "lab"))
    assert Node.here() == node


def test_the_variable_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = written(tmp_path / "lab")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "~/lab")
    assert Node.here() == node


def test_a_variable_that_leads_nowhere_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    with pytest.raises(UsageError, match="none"):
        Node.here()


# at


@pytest.mark.parametrize("asked", ["lab", "127.0.0.1:6379"])
def test_a_node_of_this_machine_is_found_by_name_and_by_address(home: Path, asked: str) -> None:
    written(home / "nodes" / "another", cluster="another", ray_address="10.0.0.9:6379")
    node = written(home / "nodes" / "lab")
    assert Node.at(asked) == node


def test_one_that_is_not_here_is_none(home: Path) -> None:
    written(home / "nodes" / "lab")
    assert Node.at("10.0.0.1:6379") is None
    assert Node.at("auto") is None


def test_without_any_folder_there_is_none(home: Path) -> None:
    (home / "nodes").rmdir()
    assert Node.at("lab") is None


def test_of_several_on_this_machine_the_head_is_found(home: Path) -> None:
    written(home / "nodes" / "lab.worker-1", name="worker-1", is_head=False)
    head = written(home / "nodes" / "lab")
    assert Node.at("lab") == head


def test_the_one_that_the_variable_names_comes_first(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(home / "nodes" / "lab")
    given = written(tmp_path / "elsewhere")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "elsewhere"))
    assert Node.at("lab") == given


def test_a_broken_folder_of_another_cluster_is_no_harm(home: Path) -> None:
    # Once: one broken folder, and no cluster is found any more, nor any Ray that is not ours.
    (home / "nodes" / "broken").mkdir()
    (home / "nodes" / "broken" / CARD).write_text("{")
    node = written(home / "nodes" / "lab")
    assert Node.at("lab") == node
    assert Node.at("auto") is None


def test_a_node_is_up_as_long_as_it_has_its_token(tmp_path: Path) -> None:
    node = bring(node_in(tmp_path / "lab"), Authority(tmp_path / "authority"))
    assert node.check_up() is node
    node.token_file.unlink()
    with pytest.raises(RepertoryError, match="the cluster lab is down on this machine"):
        node.check_up()


# What it shows to others


def test_nothing_secret_is_in_what_processes_are_handed(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    node = bring(node_in(tmp_path / "lab"), authority, b"a-token")
    key = node.key.read_text().splitlines()[1]
    handed = json.dumps([node.ray_environment(), node.to_json(), node.control.to_json()])
    assert "a-token" not in handed
    assert key not in handed


def test_a_head_with_an_ipv6_address_can_be_reached(tmp_path: Path) -> None:
    # Once: the inventory takes `address: fd00::1`, but HOST:PORT is then written without brackets.
    node = bring(node_in(tmp_path / "lab", address="fd00::1"), Authority(tmp_path / "authority"))
    kwargs = node.control.connect().connection_pool.connection_kwargs
    assert (kwargs["host"], kwargs["port"]) == ("fd00::1", 6380)


# How it is planned


def plan(shape: Shape, *, is_head: bool = False, fixed_ports: bool = True, **ports: Any) -> Node:
    return plan_node(
        LocalInventory(name="lab", provider="local", ports=ports),
        shape,
        name="beta",
        is_head=is_head,
        address="10.0.0.2",
        head_address="10.0.0.1",
        folder=Path("/node"),
        fixed_ports=fixed_ports,
    )


def test_a_worker_knows_where_the_head_is() -> None:
    node = plan(Shape(), ray=7001, control=7002, shards="7100-7110")
    assert (node.ray_address, node.control_address) == ("10.0.0.1:7001", "10.0.0.1:7002")
    assert node.shard_ports == (7100, 7110)
    assert node.dashboard_port is None


def test_ray_listens_on_the_ports_of_the_inventory_and_no_others() -> None:
    node = plan(Shape(), node="6500-6502", processes="11000-11010")
    assert {name: value for name, value in node.ray.items() if "port" in name} == {
        "node-manager-port": 6500,
        "object-manager-port": 6501,
        "runtime-env-agent-port": 6502,
        "min-worker-port": 11000,
        "max-worker-port": 11010,
    }


def test_several_nodes_of_one_machine_have_ports_of_their_own() -> None:
    assert not [name for name in plan(Shape(), fixed_ports=False).ray if "port" in name]


def test_what_a_machine_offers_is_what_its_shape_says() -> None:
    node = plan(Shape(cores=3, gpus=2, runs=("learners",), object_store_mb=100))
    assert node.ray["num-cpus"] == 3
    assert node.ray["num-gpus"] == 2
    assert node.ray["object-store-memory"] == 100 * 2**20
    assert list(json.loads(node.ray["resources"])) == ["learners"]
    assert "num-cpus" not in plan(Shape()).ray


def test_only_the_head_has_a_dashboard_and_names_the_folder() -> None:
    head = plan(Shape(), is_head=True)
    assert head.dashboard_port == 8600
    assert head.ray["temp-dir"] == head.ray_folder
    assert "temp-dir" not in plan(Shape()).ray


def test_its_files_are_all_that_it_reads(tmp_path: Path) -> None:
    node = node_in(tmp_path / "lab")
    files = node_files(node, Authority(tmp_path / "authority"), b"a-token")
    read = {node.token_file, node.authority, node.certificate, node.key, node.folder / CARD}
    assert {node.folder / name for name in files} == read
    assert set(SECRETS) <= set(files)
