"""A cluster over ssh, on hosts with addresses, disks and processes of their own.

Three hosts in namespaces of this machine (`tests/lan.py`); everything is launched from outside of
them by the command line.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import strangers
from cluster_on_hosts import FOLDER, NAME, Cluster, logs_of, until
from lan import Host, Lan, Listener, why_not

from services.clusters.authority import Authority

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        why_not() is not None, reason=f"NO HOSTS: clusters are not tested over ssh: {why_not()}"
    ),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "lan"
    folder.mkdir()
    with Lan(folder) as lan:
        made = Cluster(tmp_path, lan)
        try:
            yield made
        except BaseException:
            for host in lan.hosts:
                sys.stdout.write(f"--- {host.name}\n{logs_of(host)}\n")
            raise
        finally:
            made.close()


def test_a_run_over_three_hosts_that_come_and_go(cluster: Cluster) -> None:
    alpha, beta, gamma = cluster.lan.hosts
    everybody = {alpha.name, beta.name, gamma.name}
    said = cluster.call("up")
    assert f"{NAME} is up" in said
    assert "ssh -F" in said  # the tunnel
    assert cluster.states() == dict.fromkeys(everybody, "ready")
    assert "already" in cluster.call("up")

    train = cluster.train("one", "CartPole-v1", "--algo", "dqn", "--steps", "2000000")
    until(lambda: cluster.hosts_of_workers("one") == everybody, "actors on all three")
    members = cluster.members("one").values()
    at_home = {member.host for member in members if member.role != "worker"}
    assert at_home == {alpha.name}
    assert {host.name for host in cluster.lan.hosts if has_log(host, "worker-")} == everybody

    nobody_gets_anything(cluster)

    cluster.call("scale", "--workers", "1")
    assert cluster.states()[gamma.name] == "not used"
    assert gamma.processes() == {}
    until(lambda: gamma.name not in cluster.hosts_of_workers("one"), "gamma is not used")
    cluster.call("scale", "--workers", "2")
    until(lambda: cluster.hosts_of_workers("one") == everybody, "gamma is used again")

    heard = len(cluster.events("one"))
    gamma.cut()
    until(lambda: gamma.name not in cluster.hosts_of_workers("one"), "gamma is missed")
    before = cluster.steps("one")
    until(lambda: cluster.steps("one") > before + 500, "the others go on")
    until(lambda: fewer_actors(cluster.events("one")[heard:]), "gamma is given up")
    gamma.mend()
    until(lambda: cluster.hosts_of_workers("one") == everybody, "gamma is back")

    assert f"{alpha.name} one/logs/learner-dqn.jsonl" in cluster.call("logs", "--lines", "2")
    cluster.call("exec", "--", "stop", f"{FOLDER}/runs/one")
    output, _ = train.communicate(timeout=120)
    assert train.returncode == 0, output
    assert "stopped by stop command" in output
    assert "Traceback" not in output

    cluster.call("down")
    for host in cluster.lan.hosts:
        assert host.processes() == {}
        assert host.listeners() == []
        assert host.run("sh", "-c", "ls -d /tmp/repertory*", check=False).stdout == ""
        assert secrets_on(host) == []
    assert alpha.run("ls", f"{FOLDER}/runs/one/checkpoints").stdout != ""


def has_log(host: Host, prefix: str) -> bool:
    found = host.run("sh", "-c", f"ls {FOLDER}/runs/one/logs/{prefix}*", check=False)
    return found.returncode == 0


def fewer_actors(events: list[dict[str, Any]]) -> bool:
    return any(one["event"] == "actors" and one["number"] < one["before"] for one in events)


def secrets_on(host: Host) -> list[str]:
    names = ("token", "key.pem", "certificate.pem")
    found = host.run("ls", FOLDER, check=False).stdout.split()
    return [name for name in found if name in names]


def nobody_gets_anything(cluster: Cluster) -> None:
    """Every port of every host that others can reach, without certificate or without token."""
    secrets = cluster.folder / "operator" / "clusters" / NAME / "secrets"
    foreign = cluster.folder / "foreign"
    own = _issue(Authority(foreign), cluster.folder / "stranger")
    member = _issue(Authority(secrets), cluster.folder / "member")
    credentials = grpc.ssl_channel_credentials(
        (secrets / "authority.pem").read_bytes(), member[1].read_bytes(), member[0].read_bytes()
    )

    def try_it(place: tuple[Host, Listener]) -> set[str]:
        """What a certificate without the token gets."""
        host, listener = place
        at, who = (host.address, listener.port), f"{listener.process} at {host.name}"
        if listener.address.startswith("127."):
            assert strangers.plain_text(*at)["http"] == b"", who
            return set()
        answers = {
            "plain": strangers.plain_text(*at),
            "no certificate": strangers.tls_without_certificate(*at),
            "foreign certificate": strangers.tls(*at, *own),
        }
        for how, answer in answers.items():
            for greeting, got in answer.items():
                assert strangers.is_nothing(got), f"{who}, {how}, {greeting}: {got[:200]!r}"
        assert strangers.calls(*at, None) == {}, who
        # With a certificate of the cluster, but without its token. That it is there is all it
        # hears from Ray, whose own machines ask that without one.
        heard = set(strangers.calls(*at, credentials))
        assert heard <= {strangers.HEALTH}, who
        got = strangers.tls(*at, *member)["redis"]
        assert strangers.is_nothing(got) or got.startswith(b"-NOAUTH"), f"{who}: {got!r}"
        return heard

    places = [(host, one) for host in cluster.lan.hosts for one in host.listeners()]
    with ThreadPoolExecutor(max_workers=16) as pool:
        heard = list(pool.map(try_it, places))
    assert len(heard) >= 3 * 4  # three ports of Ray on each host, the head's, shards, processes
    assert {strangers.HEALTH} in heard  # they were reached, and it was they who refused


def _issue(authority: Authority, folder: Path) -> tuple[Path, Path]:
    folder.mkdir()
    issued = authority.issue(["stranger", "127.0.0.1"])
    (folder / "certificate.pem").write_bytes(issued.certificate)
    (folder / "key.pem").write_bytes(issued.key)
    return folder / "certificate.pem", folder / "key.pem"


def test_what_is_wrong_with_hosts_is_one_table_and_nothing_is_started(cluster: Cluster) -> None:
    alpha, beta, gamma = cluster.lan.hosts
    # Another version of the project.
    beta.run("mkdir", "-p", "/root/other/bin")
    beta.run("sh", "-c", "cat > /root/other/bin/python", input=OTHER_VERSION)
    beta.run("chmod", "+x", "/root/other/bin/python")
    for host in (alpha, gamma):
        host.run("ln", "-s", sys.prefix, "/root/other")
    # A port that is taken.
    alpha.run(
        "sh", "-c", f"{sys.executable} -m http.server 6379 --bind {alpha.address} >/dev/null 2>&1 &"
    )
    until(lambda: any(one.port == 6379 for one in alpha.listeners()), "the port is taken")
    before = {host.name: host.processes() for host in cluster.lan.hosts}
    cluster.write(
        python={"environment": "/root/other", "install": False},
        require={"disk_gb": 10_000_000, "memory_gb": 0.5},
    )
    said = cluster.call("up", code=2)
    assert "taken: 6379" in said
    assert "repertory 0.0.9 there" in said
    assert "10000000 asked for" in said.replace("1e+07", "10000000")
    assert "nothing was started" in said
    assert "Traceback" not in said
    assert {host.name: host.processes() for host in cluster.lan.hosts} == before
    for host in cluster.lan.hosts:
        assert host.run("ls", FOLDER, check=False).returncode != 0


OTHER_VERSION = """#!/bin/sh
echo '{"python": [3, 11, 0], "packages": {"repertory": "0.0.9"}}'
"""


def test_hosts_that_do_not_let_us_in_are_named(cluster: Cluster) -> None:
    beta = cluster.lan.hosts[1]
    config = cluster.folder / "ssh_config"
    text = cluster.lan.ssh_config.read_text()
    config.write_text("Host unheard-of\n  HostName 10.255.255.1\n  ConnectTimeout 2\n\n" + text)
    beta.run("sh", "-c", "rm -f /root/.ssh/authorized_keys")  # our key is no longer known there
    head, worker, _ = ({"host": host.name, "address": host.address} for host in cluster.lan.hosts)
    cluster.write(
        ssh={"config": str(config), "connect_seconds": 2},
        head=head,
        workers=[worker, {"host": "unheard-of", "address": "10.255.255.1"}],
    )
    said = cluster.call("up", code=2)
    assert "Permission denied" in said
    assert "unheard-of" in said
    assert "nothing was started" in said
    assert all(host.processes() == {} for host in cluster.lan.hosts)


def test_a_host_that_does_not_join_takes_the_others_back(cluster: Cluster) -> None:
    gamma = cluster.lan.hosts[2]
    # Nothing is wrong with it that one could see before: its Ray folder belongs to somebody else.
    gamma.run("sh", "-c", f"mkdir /tmp/repertory-{NAME} && chown nobody /tmp/repertory-{NAME}")
    said = cluster.call("up", code=1)
    assert f"{gamma.name} did not join" in said
    assert "belongs to somebody else" in said
    for host in cluster.lan.hosts:
        assert host.processes() == {}
        assert secrets_on(host) == []


def test_everything_can_be_read_before_it_is_done(cluster: Cluster) -> None:
    folder = cluster.folder / "rendered"
    cluster.call("up", "--render-only", str(folder))
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    hosts = [host.name for host in cluster.lan.hosts]
    assert names == {"inventory.yaml", "lock.txt"} | {
        f"{host}/{file}" for host in hosts for file in ("node.json", "commands.txt")
    }
    assert all(host.processes() == {} for host in cluster.lan.hosts)


def test_the_deploy_script_is_the_command(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "deploy" / "launch"
    if not (script.parent.parent / ".venv" / "bin" / "repertory").exists():
        pytest.skip("not in a checkout with its own environment")
    with contextlib.chdir(tmp_path):
        done = subprocess.run(
            [str(script), "nowhere.yaml"],
            capture_output=True,
            text=True,
            timeout=120,
            env=dict(os.environ),
            check=False,
        )
    assert done.returncode == 2
    assert "cannot read inventory nowhere.yaml" in done.stderr
