"""The inventory: what it takes, what it refuses, and in which words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from repertory.errors import UsageError
from services.clusters.inventory import (
    AnyInventory,
    ComposeInventory,
    KubernetesInventory,
    LocalInventory,
    PortRange,
    SlurmInventory,
    SshInventory,
    read_inventory,
)

HEAD = {"host": "alpha", "address": "10.0.0.1"}
BETA = {"host": "beta", "address": "10.0.0.2"}


def ssh(**changes: Any) -> dict[str, Any]:
    return {"name": "lab", "provider": "ssh", "head": HEAD, **changes}


def read(folder: Path, document: Any) -> AnyInventory:
    path = folder / "lab.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return read_inventory(path)


def read_ssh(folder: Path, **changes: Any) -> SshInventory:
    inventory = read(folder, ssh(**changes))
    assert isinstance(inventory, SshInventory)
    return inventory


def refusal(folder: Path, document: Any) -> str:
    with pytest.raises(UsageError) as refused:
        read(folder, document)
    assert refused.value.exit_code == 2
    text = str(refused.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"name": "lab", "provider": "local"}, LocalInventory),
        (ssh(), SshInventory),
        (
            {"name": "lab", "provider": "slurm", "environment": "/shared/env", "folder": "~/lab"},
            SlurmInventory,
        ),
        ({"name": "lab", "provider": "kubernetes", "image": "rl:1"}, KubernetesInventory),
        ({"name": "lab", "provider": "compose"}, ComposeInventory),
    ],
)
def test_each_provider_has_an_inventory_of_its_own(
    tmp_path: Path, document: dict[str, Any], kind: type
) -> None:
    assert type(read(tmp_path, document)) is kind


def test_what_is_left_out_has_defaults(tmp_path: Path) -> None:
    inventory = read_ssh(tmp_path, workers=[BETA])
    assert inventory.head.runs == ("learners", "actors")
    assert inventory.workers[0].runs == ("actors",)
    assert inventory.workers[0].cores is None
    assert inventory.workers[0].gpus == 0
    assert (inventory.ports.ray, inventory.ports.control) == (6379, 6380)
    assert inventory.ports.shards == PortRange(first=7000, last=7099)
    assert inventory.python.install
    assert inventory.python.interpreter == "python3"
    assert inventory.folder is None
    assert inventory.token_file is None


def test_all_default_ports_are_apart(tmp_path: Path) -> None:
    ports = read_ssh(tmp_path).ports
    single = [ports.ray, ports.control, ports.dashboard]
    ranges = [ports.node, ports.shards, ports.processes]
    everything = single + [port for one in ranges for port in range(one.first, one.last + 1)]
    assert len(everything) == len(set(everything))


def test_a_port_range_is_written_with_a_dash(tmp_path: Path) -> None:
    ports = read_ssh(tmp_path, ports={"shards": "7100-7109"}).ports
    assert (ports.shards.first, ports.shards.last) == (7100, 7109)
    assert 7109 in ports.shards
    assert 7110 not in ports.shards


@pytest.mark.parametrize("written", ["7100", 7100])
def test_a_single_port_is_a_range_of_one(tmp_path: Path, written: Any) -> None:
    # Once: YAML makes a number of it, and that is "not a valid dictionary".
    assert read_ssh(tmp_path, ports={"shards": written}).ports.shards == PortRange(
        first=7100, last=7100
    )


# What is not an inventory at all


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read inventory .*none\.yaml"):
        read_inventory(tmp_path / "none.yaml")


def test_a_folder_is_no_inventory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read inventory"):
        read_inventory(tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"lab\.yaml"):
        read_inventory(path)


@pytest.mark.parametrize("text", ["a: [1", "{", "- ssh", "ssh", ""])
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    assert "lab.yaml" in refusal(tmp_path, text)


@pytest.mark.parametrize("provider", ["aws", None, ["ssh"], 3, "SSH"])
def test_an_unknown_provider_is_refused_and_all_are_named(tmp_path: Path, provider: Any) -> None:
    text = refusal(tmp_path, ssh(provider=provider))
    assert f"provider = {provider!r}" in text
    assert "local, ssh, slurm, kubernetes, compose" in text


def test_a_missing_provider_is_refused(tmp_path: Path) -> None:
    assert "provider" in refusal(tmp_path, {"name": "lab", "head": HEAD})


# Keys


@pytest.mark.parametrize(
    ("changes", "found", "meant"),
    [
        ({"haed": HEAD}, "haed", "head"),
        ({"worker": []}, "worker", "workers"),
        ({"head": {**HEAD, "adress": "a"}}, "head.adress", "head.address"),
        ({"ports": {"contrl": 7}}, "ports.contrl", "ports.control"),
        (
            {"ports": {"shards": {"first": 7000, "last": 7001, "frist": 1}}},
            "ports.shards.frist",
            "ports.shards.first",
        ),
        ({"ssh": {"confg": "x"}}, "ssh.confg", "ssh.config"),
        ({"python": {"extra": []}}, "python.extra", "python.extras"),
        ({"require": {"disk": 3}}, "require.disk", "require.disk_gb"),
        # Once: nothing is suggested in the entries of `workers`, where most people write most keys.
        ({"workers": [BETA | {"gpu": 1}]}, "workers.0.gpu", "workers.0.gpus"),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_named(
    tmp_path: Path, changes: dict[str, Any], found: str, meant: str
) -> None:
    text = refusal(tmp_path, ssh(**changes))
    assert f"{found} is not a setting: did you mean {meant}?" in text


def test_an_unknown_key_far_from_all_others_gets_the_list(tmp_path: Path) -> None:
    text = refusal(tmp_path, ssh(ssh={"zzz": 1}))
    assert text.endswith("ssh.zzz is not a setting: the settings here are config, connect_seconds")


@pytest.mark.parametrize("key", ["learners", "zzz"])
def test_only_keys_of_inventories_are_suggested(tmp_path: Path, key: str) -> None:
    # Once: `learner`, which is a key of a run's settings, is suggested here too.
    text = refusal(tmp_path, ssh(**{key: 2}))
    suggested = text.partition("not a setting")[2]
    assert "learner" not in suggested


def test_a_key_of_another_provider_is_refused(tmp_path: Path) -> None:
    assert "image is not a setting" in refusal(tmp_path, ssh(image="rl:1"))


def test_a_key_that_is_no_text_is_refused(tmp_path: Path) -> None:
    assert "1" in refusal(tmp_path, ssh() | {1: 2})


@pytest.mark.parametrize(
    ("document", "missing"),
    [
        ({"provider": "ssh", "head": HEAD}, "name"),
        ({"provider": "ssh", "name": "lab"}, "head"),
        (ssh(head={"address": "10.0.0.1"}), "head.host"),
        (ssh(workers=[{"address": "10.0.0.1"}]), "workers.0.host"),
        (ssh(ports={"shards": {"first": 7000}}), "ports.shards.last"),
        ({"provider": "kubernetes", "name": "lab"}, "image"),
        ({"provider": "slurm", "name": "lab", "folder": "/shared/lab"}, "environment"),
    ],
)
def test_a_missing_key_is_named_with_what_to_do(
    tmp_path: Path, document: dict[str, Any], missing: str
) -> None:
    text = refusal(tmp_path, document)
    assert text.endswith(f"{missing} is missing: write it into the inventory")


# Values


@pytest.mark.parametrize(
    ("changes", "place", "value"),
    [
        ({"name": "Lab"}, "name", "Lab"),
        ({"name": ""}, "name", ""),
        ({"name": "9lab"}, "name", "9lab"),
        ({"name": "a" * 41}, "name", "a" * 41),
        ({"name": "lab\n"}, "name", "lab\n"),
        ({"name": "../lab"}, "name", "../lab"),
        ({"head": {"host": "-oProxyCommand=x"}}, "head.host", "-oProxyCommand=x"),
        ({"head": {"host": "a b"}}, "head.host", "a b"),
        ({"head": {"host": "$(id)"}}, "head.host", "$(id)"),
        ({"head": {"host": "alpha\n"}}, "head.host", "alpha\n"),
        ({"head": HEAD | {"address": "10.0.0.1; id"}}, "head.address", "10.0.0.1; id"),
        ({"head": HEAD | {"gpus": -1}}, "head.gpus", -1),
        ({"head": HEAD | {"gpus": 65}}, "head.gpus", 65),
        ({"head": HEAD | {"cores": 0}}, "head.cores", 0),
        ({"head": HEAD | {"cores": "many"}}, "head.cores", "many"),
        ({"head": HEAD | {"object_store_mb": 79}}, "head.object_store_mb", 79),
        ({"head": HEAD | {"runs": ["dashboards"]}}, "head.runs.0", "dashboards"),
        # Once: "it Tuple should have at least 1 item after validation".
        ({"head": HEAD | {"runs": []}}, "head.runs", []),
        ({"workers": 3}, "workers", 3),
        ({"workers": [BETA | {"gpus": 1.5}]}, "workers.0.gpus", 1.5),
        ({"ports": {"ray": 80}}, "ports.ray", 80),
        ({"ports": {"ray": 65536}}, "ports.ray", 65536),
        ({"ports": {"control": "x"}}, "ports.control", "x"),
        ({"ports": {"shards": "a-b"}}, "ports.shards", "a-b"),
        ({"ssh": {"connect_seconds": 0}}, "ssh.connect_seconds", 0),
        ({"require": {"open_files": 3}}, "require.open_files", 3),
        ({"require": {"clock_seconds": 0}}, "require.clock_seconds", 0),
        ({"python": {"extras": ["a;b"]}}, "python.extras.0", "a;b"),
        ({"folder": ""}, "folder", ""),
    ],
)
def test_a_value_outside_its_limits_is_refused_with_its_place(
    tmp_path: Path, changes: dict[str, Any], place: str, value: Any
) -> None:
    assert f"{place} = {value!r} is refused: it should" in refusal(tmp_path, ssh(**changes))


@pytest.mark.parametrize("sign", ["\n", "`", "$", '"', "'", "\\", ";", "|", "&", "<", ">"])
@pytest.mark.parametrize("place", ["folder", "environment", "interpreter"])
def test_text_that_a_shell_could_take_for_more_is_refused(
    tmp_path: Path, sign: str, place: str
) -> None:
    value = f"/opt/a{sign}b"
    changes: Any = {"folder": value} if place == "folder" else {"python": {place: value}}
    text = refusal(tmp_path, ssh(**changes))
    assert f"{value!r} has {sign!r} in it" in text


def test_a_space_in_a_path_is_no_harm(tmp_path: Path) -> None:
    inventory = read(tmp_path, ssh(folder="/opt/my lab"))
    assert isinstance(inventory, SshInventory)
    assert inventory.folder == "/opt/my lab"


# Ports


@pytest.mark.parametrize(
    ("ports", "names"),
    [
        ({"ray": 6380}, ("ports.ray", "ports.control")),
        ({"control": 7050}, ("ports.control", "ports.shards")),
        ({"dashboard": 10500}, ("ports.dashboard", "ports.processes")),
        ({"shards": "8601-10002"}, ("ports.shards", "ports.processes")),
        ({"node": "6379-6381"}, ("ports.node", "ports.ray")),
        ({"shards": "6382-6382"}, ("ports.shards", "ports.node")),
    ],
)
def test_overlapping_ports_are_refused_and_both_named(
    tmp_path: Path, ports: dict[str, Any], names: tuple[str, str]
) -> None:
    text = refusal(tmp_path, ssh(ports=ports))
    assert "overlap" in text
    assert all(name in text for name in names)


def test_ranges_that_only_touch_do_not_overlap(tmp_path: Path) -> None:
    ports = read_ssh(tmp_path, ports={"shards": "7000-7099", "dashboard": 7100}).ports
    assert ports.dashboard == 7100


def test_a_range_that_ends_before_it_begins_is_refused(tmp_path: Path) -> None:
    text = refusal(tmp_path, ssh(ports={"shards": "7099-7000"}))
    assert "7099-7000 end before they begin" in text


def test_ray_needs_three_ports_on_each_host(tmp_path: Path) -> None:
    text = refusal(tmp_path, ssh(ports={"node": "6381-6382"}))
    assert "ports.node has to be three ports, not 6381-6382" in text


@pytest.mark.parametrize("written", ["-7000", "²-³", "-"])
def test_a_range_that_is_badly_written_is_named(tmp_path: Path, written: str) -> None:
    # Once: "invalid literal for int() with base 10: ''", without the key.
    assert f"ports.shards = {written!r} is refused" in refusal(
        tmp_path, ssh(ports={"shards": written})
    )


# Hosts


def test_a_host_twice_is_refused(tmp_path: Path) -> None:
    text = refusal(tmp_path, ssh(workers=[BETA, {"host": "beta", "address": "10.0.0.3"}]))
    assert "host beta is there twice: each machine once" in text


def test_the_head_is_no_worker_too(tmp_path: Path) -> None:
    assert "host alpha is there twice" in refusal(tmp_path, ssh(workers=[{"host": "alpha"}]))


def test_an_address_twice_is_refused(tmp_path: Path) -> None:
    text = refusal(tmp_path, ssh(workers=[BETA, {"host": "gamma", "address": "10.0.0.2"}]))
    assert "address 10.0.0.2 is there twice: each machine once" in text


def test_a_name_that_is_the_address_of_another_is_refused(tmp_path: Path) -> None:
    # Once: without an address the name is the address, and that is not compared.
    workers = [{"host": "10.0.0.2"}, {"host": "gamma", "address": "10.0.0.2"}]
    assert "10.0.0.2 is there twice" in refusal(tmp_path, ssh(workers=workers))


# Files


def with_file(key: str, value: str) -> dict[str, Any]:
    """The inventory with that file at this dotted key."""
    first, _, second = key.partition(".")
    return ssh(**{first: {second: value} if second else value})


def file_of(inventory: SshInventory, key: str) -> Path:
    found: Any = inventory
    for part in key.split("."):
        found = getattr(found, part)
    assert isinstance(found, Path)
    return found


FILES = ["token_file", "code", "ssh.config", "python.wheels"]


def make(path: Path, key: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if key in ("code", "python.wheels"):
        path.mkdir()
    else:
        path.write_text("x")


@pytest.mark.parametrize("key", FILES)
def test_a_relative_path_starts_at_the_inventory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    folder = tmp_path / "inventories"
    make(folder / "beside", key)
    monkeypatch.chdir(tmp_path)
    (folder / "lab.yaml").write_text(yaml.safe_dump(with_file(key, "beside")))
    inventory = read_inventory(Path("inventories/lab.yaml"))
    assert isinstance(inventory, SshInventory)
    assert file_of(inventory, key) == folder / "beside"


@pytest.mark.parametrize("key", FILES)
def test_an_absolute_path_stays(tmp_path: Path, key: str) -> None:
    make(tmp_path / "elsewhere" / "it", key)
    folder = tmp_path / "inventories"
    folder.mkdir()
    inventory = read(folder, with_file(key, str(tmp_path / "elsewhere" / "it")))
    assert isinstance(inventory, SshInventory)
    assert file_of(inventory, key) == tmp_path / "elsewhere" / "it"


@pytest.mark.parametrize("key", FILES)
def test_a_path_may_begin_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    # Once: token_file and code are looked for in a folder that is called `~`.
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    make(tmp_path / "home" / "it", key)
    inventory = read(tmp_path, with_file(key, "~/it"))
    assert isinstance(inventory, SshInventory)
    assert file_of(inventory, key) == tmp_path / "home" / "it"


@pytest.mark.parametrize("key", FILES)
def test_a_file_that_is_not_there_is_refused_with_its_key_and_whole_path(
    tmp_path: Path, key: str
) -> None:
    text = refusal(tmp_path, with_file(key, "none"))
    assert f"{key}: there is no " in text
    assert f"{tmp_path / 'none'}: make it, or leave {key} out" in text


def test_a_home_of_nobody_is_refused(tmp_path: Path) -> None:
    # Once: RuntimeError("Could not determine home directory.")
    assert "~nobody-of-that-name/token" in refusal(
        tmp_path, ssh(token_file="~nobody-of-that-name/token")
    )


@pytest.mark.parametrize("key", FILES)
def test_a_file_where_a_folder_belongs_and_the_other_way_round_are_refused(
    tmp_path: Path, key: str
) -> None:
    # Once: taken; `up` then ends with a traceback, or silently brings nothing along.
    make(tmp_path / "it", "code" if key in ("token_file", "ssh.config") else "token_file")
    assert key in refusal(tmp_path, with_file(key, "it"))


# The command line


def test_up_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(ssh(ports={"contrl": 7})))
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "cluster", "up", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"repertory: inventory {path}: ports.contrl is not a setting: did you mean ports.control?"
    ]
