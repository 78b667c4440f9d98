"""A cluster of machines that one reaches: what is done where, in which order, and taken back."""

from __future__ import annotations

import importlib.metadata
import json
import time
from pathlib import Path
from typing import Any

import pytest
from cluster_fakes import AWAY, HERE, Call, FakeShell, good_facts, said, unpacked

from repertory.errors import RepertoryError, UsageError
from services.clusters import hosts_cluster
from services.clusters.hosts_cluster import HostsCluster, Refused
from services.clusters.inventory import SshInventory
from services.clusters.shell import Done

NAMES = ("alpha", "beta", "gamma")
NOT_JOINED = said({"ok": False, "begun": True, "reason": "no way to the head"})


class Lab:
    """Three machines, alpha the head, with the environment there already."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Call] = []
        self.home = folder / "home"
        self.node_folder = folder / "node"
        packages = {"repertory": importlib.metadata.version("repertory")}
        environment = {"python": HERE, "packages": packages}
        self.shells = {
            name: FakeShell(name, self.calls, good_facts(environment=environment), clock=time.time)
            for name in NAMES
        }
        self.said: list[str] = []
        monkeypatch.setenv("REPERTORY_HOME", str(self.home))
        monkeypatch.setattr(hosts_cluster, "SshShell", lambda host, _: self.shells[host])
        monkeypatch.setattr(hosts_cluster, "lock", lambda _: {})

    def cluster(self, **changes: Any) -> HostsCluster:
        document = {
            "name": "lab",
            "provider": "ssh",
            "head": {"host": "alpha"},
            "workers": [{"host": "beta"}, {"host": "gamma"}],
            "folder": str(self.node_folder),
            "python": {"install": False, "environment": "/opt/rl"},
            **changes,
        }
        return HostsCluster(SshInventory.model_validate(document), Path("lab.yaml"))

    def say(self, text: str) -> None:
        self.said.append(text)

    def up(self, **changes: Any) -> None:
        self.cluster(**changes).up(self.say)

    def runs_already(self, *names: str) -> None:
        for machine in self.cluster()._machines:
            if machine.name in names:
                shell = self.shells[machine.name]
                shell.running = True
                shell.facts["card"] = json.loads(json.dumps(machine.node.to_json()))

    def told(self, verb: str) -> list[str]:
        """Machines, in the order in which they were told this."""
        return [call.machine for call in self.calls if call.verb == verb]

    def verbs(self) -> list[str]:
        return [call.verb for call in self.calls]

    @property
    def running(self) -> set[str]:
        return {name for name, shell in self.shells.items() if shell.running}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


# up


def test_every_machine_is_looked_at_before_any_is_changed_and_the_head_starts_first(
    lab: Lab,
) -> None:
    lab.up()
    assert lab.verbs() == ["look"] * 3 + ["bring"] * 3 + ["start"] * 3
    assert lab.told("start")[0] == "alpha"
    assert set(lab.told("start")) == set(NAMES)
    assert lab.running == set(NAMES)


def test_the_head_alone_is_a_cluster(lab: Lab) -> None:
    lab.up(workers=[])
    assert lab.running == {"alpha"}


def test_what_is_up_already_is_left_as_it_is(lab: Lab) -> None:
    lab.runs_already(*NAMES)
    lab.up()
    assert set(lab.verbs()) == {"look", "start"}
    assert "all of them are in the cluster already" in lab.said


def test_only_what_is_missing_is_brought(lab: Lab) -> None:
    lab.runs_already("alpha", "gamma")
    lab.up()
    assert lab.told("bring") == ["beta"]
    assert lab.running == set(NAMES)


def test_the_same_is_installed_on_new_machines(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = []

    class Installation:
        def __init__(self, *_: Any) -> None: ...

        def on(self, machine: Any) -> None:
            assert lab.told("bring") == []
            installed.append(machine.name)

    monkeypatch.setattr(hosts_cluster, "Installation", Installation)
    lab.runs_already("alpha")
    lab.up(python={"install": True, "environment": "/opt/rl"})
    assert sorted(installed) == ["beta", "gamma"]


# Refused


def test_one_thing_wrong_and_nothing_is_started(lab: Lab) -> None:
    lab.shells["gamma"].facts["disk_bytes"] = 0
    lab.shells["beta"].facts["taken_ports"] = [6381]
    with pytest.raises(Refused) as refused:
        lab.up()
    assert refused.value.exit_code == 2
    assert set(lab.verbs()) == {"look"}
    assert lab.running == set()
    findings = refused.value.findings
    assert {one.machine for one in findings} == set(NAMES)
    assert {(one.machine, one.check) for one in findings if not one.ok} == {
        ("gamma", "disk"),
        ("beta", "ports"),
    }
    assert str(refused.value).startswith(f"2 of {len(findings)} checks failed, the first: beta")
    assert str(refused.value).endswith("nothing was started")


def test_a_machine_that_ssh_does_not_reach_refuses_all(lab: Lab) -> None:
    lab.shells["beta"].answers["look"] = AWAY
    with pytest.raises(Refused, match=r"beta: ssh: .*No route to host"):
        lab.up()
    assert set(lab.verbs()) == {"look"}


def test_a_machine_that_runs_with_other_settings_refuses_all(lab: Lab) -> None:
    lab.runs_already("alpha")
    with pytest.raises(Refused, match="alpha: ports: is in the cluster with other settings"):
        lab.up(ports={"ray": 7777})
    assert lab.running == {"alpha"}


def test_where_it_is_refused_no_secret_is_made_yet(lab: Lab) -> None:
    lab.shells["beta"].answers["look"] = AWAY
    with pytest.raises(Refused):
        lab.up()
    assert not (lab.home / "clusters" / "lab" / "secrets").exists()


def test_where_it_is_refused_what_was_wanted_before_stays(lab: Lab) -> None:
    lab.runs_already(*NAMES)
    lab.cluster().scale(1, lab.say)
    lab.shells["beta"].answers["look"] = AWAY
    with pytest.raises(Refused):
        lab.up()
    lab.shells["alpha"].state = lab.shells["beta"].state = keeper("ready")
    assert states(lab)["gamma"][0] == "not used"


# Taken back


def test_a_worker_that_does_not_join_takes_back_what_was_started(lab: Lab) -> None:
    lab.shells["gamma"].answers["start"] = NOT_JOINED
    with pytest.raises(RepertoryError, match="gamma did not join: no way to the head"):
        lab.up()
    assert set(lab.told("stop")) == set(NAMES)
    assert lab.running == set()
    assert any(text.startswith("that failed: ending") for text in lab.said)


def test_machines_that_ran_before_stay(lab: Lab) -> None:
    lab.runs_already("alpha", "beta")
    lab.shells["gamma"].answers["start"] = NOT_JOINED
    with pytest.raises(RepertoryError, match="gamma did not join"):
        lab.up()
    assert lab.told("stop") == ["gamma"]
    assert set(lab.told("remove")) <= {"gamma"}
    assert lab.running == {"alpha", "beta"}


def test_a_head_that_does_not_start_keeps_workers_from_being_started(lab: Lab) -> None:
    lab.shells["alpha"].answers["start"] = NOT_JOINED
    with pytest.raises(RepertoryError, match="alpha did not join"):
        lab.up()
    assert lab.told("start") == ["alpha"]


def test_a_machine_that_fell_silent_while_it_started_is_told_to_stop_too(lab: Lab) -> None:
    lab.shells["gamma"].answers["start"] = Done(255, "", "no answer in 180 s")
    with pytest.raises(RepertoryError, match="gamma: start: no answer in 180 s"):
        lab.up()
    assert "gamma" in lab.told("stop")
    assert lab.running == set()


def test_a_folder_that_cannot_be_written_takes_all_back(lab: Lab) -> None:
    lab.shells["beta"].answers["bring"] = Done(1, "", "tar: no space left on device")
    with pytest.raises(RepertoryError, match=r"beta: cannot write to .*: tar: no space left"):
        lab.up()
    assert lab.told("start") == []
    assert set(lab.told("stop")) == set(NAMES)  # which takes the secrets away


def test_one_that_cannot_be_told_to_stop_does_not_keep_the_others_running(lab: Lab) -> None:
    lab.shells["gamma"].answers |= {"start": NOT_JOINED, "stop": AWAY}
    with pytest.raises(RepertoryError, match="gamma did not join"):
        lab.up()
    assert lab.running == set()


def test_one_that_cannot_be_told_to_stop_is_named(lab: Lab) -> None:
    # Once: nobody hears that something may still run there.
    lab.shells["gamma"].answers |= {"start": NOT_JOINED}
    lab.shells["beta"].answers |= {"stop": AWAY}
    with pytest.raises(RepertoryError) as error:
        lab.up()
    assert "No route to host" in "\n".join([str(error.value), *lab.said])


def test_an_interruption_takes_back_what_was_started(lab: Lab) -> None:
    lab.shells["gamma"].answers["start"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        lab.up()
    assert lab.running == set()


def test_the_logs_that_are_named_are_there(lab: Lab) -> None:
    # Once: "its logs are in FOLDER/logs there", and then they are removed.
    lab.runs_already("alpha", "beta")
    lab.shells["gamma"].answers["start"] = NOT_JOINED
    (lab.node_folder / "logs").mkdir(parents=True)
    (lab.node_folder / "logs" / "ray.log").write_text("why it did not join\n")
    with pytest.raises(RepertoryError, match=f"its logs are in {lab.node_folder}/logs"):
        lab.up()
    assert (lab.node_folder / "logs" / "ray.log").exists()


def test_what_an_earlier_cluster_left_there_stays(lab: Lab) -> None:
    # Once: the control server's data, with what is known of every run, is removed from a head that
    # was up before, because a worker does not join today.
    lab.shells["gamma"].answers["start"] = NOT_JOINED
    for name in ("control/appendonlydir/a.aof", "runs/cartpole/checkpoints/1"):
        (lab.node_folder / name).parent.mkdir(parents=True)
        (lab.node_folder / name).write_text("x")
    with pytest.raises(RepertoryError, match="gamma did not join"):
        lab.up()
    assert (lab.node_folder / "runs" / "cartpole" / "checkpoints" / "1").exists()
    assert (lab.node_folder / "control" / "appendonlydir" / "a.aof").exists()


# Secrets


def everything_secret(lab: Lab) -> list[str]:
    """The token, and a line of each key."""
    folder = lab.home / "clusters" / "lab" / "secrets"
    keys = [(folder / "authority.key").read_text()]
    keys += [
        unpacked(call.stdin)["key.pem"].content.decode()
        for call in lab.calls
        if call.verb == "bring"
    ]
    return [(folder / "token").read_text().strip(), *(key.splitlines()[1] for key in keys)]


def test_secrets_travel_on_standard_input_alone(lab: Lab) -> None:
    cluster = lab.cluster()
    cluster.up(lab.say)
    for shell in lab.shells.values():
        shell.state = keeper("ready")
    cluster.status()
    cluster.scale(1, lab.say)
    cluster.down(lab.say)
    secrets = everything_secret(lab)
    assert len(set(secrets)) == 5
    for call in lab.calls:
        words = [*call.words, *lab.shells[call.machine].command(call.words)]
        for secret in secrets:
            assert not any(secret in word for word in words)
            if call.verb != "bring":
                assert secret.encode() not in call.stdin
    assert not any(secret in text for secret in secrets for text in lab.said)


def test_each_machine_gets_the_token_and_a_key_of_its_own(lab: Lab) -> None:
    lab.up()
    boxes = [unpacked(call.stdin) for call in lab.calls if call.verb == "bring"]
    assert len({box["token"].content for box in boxes}) == 1
    assert len({box["key.pem"].content for box in boxes}) == 3
    assert {box[name].mode for box in boxes for name in ("token", "key.pem")} == {0o600}
    assert not any("authority.key" in box for box in boxes)


def test_a_token_of_ones_own_is_used(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("my-own-token\n")
    lab.up(token_file=tmp_path / "mine", workers=[])
    (call,) = [call for call in lab.calls if call.verb == "bring"]
    assert unpacked(call.stdin)["token"].content == b"my-own-token"


def test_nothing_secret_is_rendered_and_nobody_is_asked(lab: Lab) -> None:
    lab.up()
    before = len(lab.calls)
    files = lab.cluster().render()
    assert len(lab.calls) == before
    assert {"inventory.yaml", "lock.txt", "alpha/node.json", "gamma/commands.txt"} <= set(files)
    for secret in everything_secret(lab):
        assert not any(secret in text for text in files.values())


def test_modules_of_ones_own_travel_along(lab: Lab, tmp_path: Path) -> None:
    code = tmp_path / "code"
    for name in ("envs/maze.py", "envs/__pycache__/maze.pyc"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("x")
    lab.up(code=code, workers=[])
    (call,) = [call for call in lab.calls if call.verb == "bring"]
    assert [name for name in unpacked(call.stdin) if name.startswith("code")] == [
        "code/envs/maze.py"
    ]


# down


def test_workers_leave_before_the_head(lab: Lab) -> None:
    lab.runs_already(*NAMES)
    lab.cluster().down(lab.say)
    assert lab.told("stop")[-1] == "alpha"
    assert lab.running == set()
    assert lab.said == ["beta has left", "gamma has left", "alpha has left"]


def test_down_goes_on_over_machines_that_do_not_answer_and_names_them(lab: Lab) -> None:
    lab.runs_already(*NAMES)
    lab.shells["beta"].answers["stop"] = AWAY
    with pytest.raises(RepertoryError) as error:
        lab.cluster().down(lab.say)
    assert "1 of 3 machines did not answer, and may still run something" in str(error.value)
    assert "beta: stop: ssh: connect to host beta" in str(error.value)
    assert lab.running == {"beta"}
    assert lab.said == ["gamma has left", "alpha has left"]


def test_runs_are_told_to_stop_before_any_machine_leaves(lab: Lab) -> None:
    lab.runs_already(*NAMES)
    lab.shells["alpha"].runs = ["cartpole"]
    lab.cluster().down(lab.say)
    assert lab.verbs()[0] == "stop-runs"
    assert lab.told("stop-runs") == ["alpha"]
    assert lab.said[0] == "run cartpole has stopped"


def test_runs_that_cannot_be_told_to_stop_keep_no_machine(lab: Lab) -> None:
    lab.runs_already(*NAMES)
    lab.shells["alpha"].answers["stop-runs"] = Done(1, "", "the control server is away")
    lab.cluster().down(lab.say)
    assert lab.running == set()
    assert "no run could be told to stop: alpha: stop-runs: the control server" in lab.said[0]


def test_a_run_that_does_not_stop_is_named(lab: Lab) -> None:
    # Once: a run that goes on was ended with the machines, and nobody heard.
    lab.runs_already(*NAMES)
    lab.shells["alpha"].answers["stop-runs"] = said({"stopped": [], "left": ["pendulum"]})
    lab.cluster().down(lab.say)
    assert any("pendulum" in text for text in lab.said)


def test_down_can_be_said_again(lab: Lab) -> None:
    lab.cluster().down(lab.say)
    assert lab.told("stop")[-1] == "alpha"


# scale


def test_more_than_the_inventory_has_is_refused(lab: Lab) -> None:
    with pytest.raises(UsageError, match=r"--workers 3 is refused: lab\.yaml names 2; add mach"):
        lab.cluster().scale(3, lab.say)
    assert lab.calls == []


def test_fewer_workers_are_the_first_of_them(lab: Lab) -> None:
    lab.runs_already(*NAMES)
    lab.cluster().scale(1, lab.say)
    assert lab.told("stop") == ["gamma"]
    assert lab.running == {"alpha", "beta"}


def test_more_workers_join_those_that_run(lab: Lab) -> None:
    lab.runs_already("alpha", "beta")
    lab.cluster().scale(2, lab.say)
    assert lab.told("bring") == ["gamma"]
    assert lab.running == set(NAMES)


def test_none_are_none(lab: Lab) -> None:
    lab.runs_already(*NAMES)
    lab.cluster().scale(0, lab.say)
    assert lab.running == {"alpha"}


# status


def keeper(phase: str, reason: str = "") -> dict[str, Any]:
    return {
        "phase": phase,
        "reason": reason,
        "process_id": 7,
        "started_at": 0.0,
        "at": time.time(),
        "restarts": 2,
        "version": "1.0",
    }


def member(name: str, *, alive: bool = True, cores: float = 4.0) -> dict[str, Any]:
    return {"name": name, "alive": alive, "resources": {"CPU": cores}}


def states(lab: Lab) -> dict[str, tuple[str, str]]:
    return {one.name: (one.state, one.reason) for one in lab.cluster().status()}


def test_a_cluster_that_is_well_is_ready(lab: Lab) -> None:
    lab.runs_already(*NAMES)
    for shell in lab.shells.values():
        shell.state = keeper("ready")
    lab.shells["alpha"].members = [member(name) for name in NAMES]
    found = lab.cluster().status()
    assert [(one.name, one.role, one.state) for one in found] == [
        ("alpha", "head", "ready"),
        ("beta", "worker", "ready"),
        ("gamma", "worker", "ready"),
    ]
    assert found[1].resources == {"CPU": 4.0}
    assert (found[1].restarts, found[1].version) == (2, "1.0")
    assert found[1].heard_seconds is not None
    assert found[1].heard_seconds < 60


def test_each_machine_that_is_not_ready_says_why(lab: Lab) -> None:
    lab.runs_already("alpha", "gamma")
    lab.shells["alpha"].state = keeper("ready")
    lab.shells["alpha"].members = [member("alpha"), member("gamma", alive=False)]
    lab.shells["beta"].answers["status"] = AWAY
    lab.shells["gamma"].state = keeper("waiting", "Ray ended: exit code 1")
    found = states(lab)
    assert found["alpha"] == ("ready", "")
    assert found["beta"][0] == "unreachable"
    assert "No route to host" in found["beta"][1]
    assert found["gamma"] == ("waiting", "Ray ended: exit code 1")


def test_one_that_the_head_has_given_up_is_not_ready_whatever_it_says(lab: Lab) -> None:
    lab.runs_already(*NAMES)
    for shell in lab.shells.values():
        shell.state = keeper("ready")
    lab.shells["alpha"].members = [member("alpha"), member("gamma")]
    assert states(lab)["beta"] == ("waiting", "the head does not count it among its own")


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_one_that_is_back_is_ready_though_its_former_life_is_listed(
    lab: Lab, order: tuple[bool, bool]
) -> None:
    lab.runs_already(*NAMES)
    for shell in lab.shells.values():
        shell.state = keeper("ready")
    lab.shells["alpha"].members = [
        *(member("beta", alive=alive, cores=4.0 if alive else 0.0) for alive in order),
        member("alpha"),
        member("gamma"),
    ]
    found = lab.cluster().status()[1]
    assert (found.state, found.resources) == ("ready", {"CPU": 4.0})


def test_those_that_were_let_go_are_not_used_and_those_that_ended_are_down(lab: Lab) -> None:
    lab.runs_already(*NAMES)
    lab.cluster().scale(1, lab.say)
    lab.shells["beta"].running = False
    lab.shells["alpha"].state = keeper("ready")
    lab.shells["alpha"].members = [member("alpha")]
    assert {name: state for name, (state, _) in states(lab).items()} == {
        "alpha": "ready",
        "beta": "down",
        "gamma": "not used",
    }


def test_a_head_that_is_away_is_the_reason_of_all(lab: Lab) -> None:
    lab.runs_already(*NAMES)
    for shell in lab.shells.values():
        shell.state = keeper("ready")
    lab.shells["alpha"].answers |= {"status": AWAY, "members": AWAY}
    found = states(lab)
    assert found["alpha"][0] == "unreachable"
    assert found["beta"][0] == "waiting"
    assert "alpha: members" in found["beta"][1]


def test_one_that_has_only_just_begun_is_starting(lab: Lab) -> None:
    # Once: TypeError. It is kept from the moment it has the lock, and says so a moment later.
    lab.runs_already(*NAMES)
    lab.shells["alpha"].members = [member("alpha")]
    assert states(lab)["beta"][0] == "starting"


# logs


def test_logs_of_an_unknown_machine_are_refused(lab: Lab) -> None:
    with pytest.raises(UsageError, match=r"--host delta is not in lab\.yaml: choose of alpha, b"):
        lab.cluster().logs(host="delta", lines=3, follow=False)
