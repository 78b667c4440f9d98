"""The control plane on a real server: what is written is read, and survives a kill."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repertory import control as control_plane
from repertory.control import Control, ControlAddress, ControlUnavailable, Member, RunCard
from repertory.errors import RepertoryError, UsageError
from services.embedded_redis import EmbeddedRedis

CARD = RunCard("runs/a", "CartPole-v1", {"dqn": "dqn"}, 1000, 5.0, "here", 7)


def kill(server: EmbeddedRedis) -> None:
    assert server.process_id is not None
    os.kill(server.process_id, signal.SIGKILL)
    while server.alive():
        os.sched_yield()


def test_a_run_is_known_by_its_card(server: EmbeddedRedis, control: Control) -> None:
    assert control.card() is None
    control.register(CARD)
    assert control.card() == CARD
    assert control_plane.runs(server.address) == ["run-1"]


def test_what_is_not_named_stays_desired(control: Control) -> None:
    assert control.desired() == control_plane.Desired("running", None)
    control.desire(actors=4)
    control.desire(state="paused")
    assert control.desired() == control_plane.Desired("paused", 4)


def test_an_unknown_wish_is_refused(control: Control) -> None:
    with pytest.raises(TypeError, match="speed"):
        control.desire(speed=2)


def test_members_are_listed_until_dismissed(control: Control) -> None:
    member = Member("worker", "here", 12, 1, time.time(), {"env_steps": 5})
    control.heartbeat("worker-0", member)
    control.heartbeat("worker-1", member)
    control.dismiss("worker-1")
    control.dismiss()
    assert control.members() == {"worker-0": member}
    assert control.members()["worker-0"].age_seconds < 60


def test_counters_add_up(control: Control) -> None:
    member = Member("worker", "here", 12, 1, time.time())
    assert control.heartbeat("worker-0", member) == {}
    told = control.heartbeat("worker-0", member, env_steps=10, episodes=1)
    assert told == {"env_steps": 10, "episodes": 1}
    assert control.heartbeat("worker-1", member, env_steps=5) == {"env_steps": 15}
    control.set_counters(env_steps=100)
    assert control.counters() == {"env_steps": 100, "episodes": 1}


def test_epochs_rise_for_each_learner_by_itself(control: Control) -> None:
    assert [control.next_epoch("td3"), control.next_epoch("td3"), control.next_epoch("sac")] == [
        1,
        2,
        1,
    ]


def test_who_comes_later_hears_only_what_comes_from_now_on(control: Control) -> None:
    assert control.newest_id("commands") == "0"
    control.send("stop")
    place = control.newest_id("commands")
    assert control.commands(after=place) == (place, [])
    control.send("scale", actors=2)
    _, (command,) = control.commands(after=place)
    assert command.name == "scale"


def test_streams_are_read_on_from_where_one_was(control: Control) -> None:
    control.report_metrics("learner", 10, {"loss": 0.5})
    control.report_metrics("learner", 20, {"loss": 0.25})
    first, second = control.read("metrics")
    assert first.fields == {"source": "learner", "env_steps": 10, "metrics": {"loss": 0.5}}
    assert control.read("metrics", after=first.id) == [second]
    control.record_event("restarted", member="worker-0")
    (event,) = control.read("events")
    assert (event.fields["event"], event.fields["member"]) == ("restarted", "worker-0")


def test_streams_are_bounded(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_plane, "EVENTS_KEPT", 100)
    for number in range(1000):
        control.record_event("tick", number=number)
    kept = control.read("events", limit=2000)
    assert kept[-1].fields["number"] == 999
    assert len(kept) < 300  # whole blocks of 100 are dropped


def test_what_a_director_decided_is_recorded_with_its_state_or_not_at_all(
    control: Control,
) -> None:
    record = {"kind": "decisions", "said_by": "director", "decisions": [[0, "dqn"]]}
    control.save_director_state({"next_number": 1}, [record])
    with pytest.raises(TypeError):
        control.save_director_state({"next_number": 2}, [{**record, "decisions": {1}}])
    assert control.director_state() == {"next_number": 1}
    (entry,) = control.read("events")
    assert entry.fields["event"] == "decisions"
    assert entry.fields["decisions"] == [[0, "dqn"]]
    control.save_director_state(None)
    assert control.director_state() is None


def test_a_command_is_answered(control: Control) -> None:
    id_ = control.send("scale", actors=3)
    place, (command,) = control.commands(after="0")
    assert (command.name, command.arguments) == ("scale", {"actors": 3})
    control.reply(command, actors=3)
    assert control.await_reply(id_, 10.0) == {"actors": 3}
    assert control.commands(after=place) == (place, [])


def test_a_command_that_failed_raises(control: Control) -> None:
    id_ = control.send("scale", actors=-1)
    _, (command,) = control.commands(after="0")
    control.reply(command, error="-1 actors: give at least 0")
    with pytest.raises(RepertoryError, match="-1 actors"):
        control.await_reply(id_, 10.0)


def test_nobody_answers(control: Control) -> None:
    with pytest.raises(RepertoryError, match=r"run-1 did not answer within 0\.1 s"):
        control.await_reply(control.send("scale", actors=1), 0.1)


def test_everything_is_there_after_a_kill(server: EmbeddedRedis, control: Control) -> None:
    control.register(CARD)
    control.set_counters(env_steps=12)
    kill(server)
    with pytest.raises(ControlUnavailable, match="unix://"):
        control.counters()
    server.start()
    assert control.counters() == {"env_steps": 12}
    assert control.card() == CARD


def test_the_password_is_asked_for_and_kept_from_others(
    server: EmbeddedRedis, tmp_path: Path
) -> None:
    assert server.address.password_file is not None
    assert stat.S_IMODE(server.address.password_file.stat().st_mode) == 0o600
    password = server.address.password_file.read_text()
    arguments = Path(f"/proc/{server.process_id}/cmdline").read_bytes()
    assert password.encode() not in arguments
    wrong = tmp_path / "wrong"
    wrong.write_text("guess")
    with pytest.raises(ControlUnavailable, match="password"):
        Control(ControlAddress(server.address.url, wrong), "run-1").counters()


def test_an_address_means_the_same_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret").write_text("password")
    address = ControlAddress("redis://127.0.0.1:1/0", Path("secret"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    address.connect().close()  # reads the file


def test_a_server_that_is_not_there_is_said_so() -> None:
    control = Control(ControlAddress("redis://127.0.0.1:1/0"), "run-1")
    with pytest.raises(ControlUnavailable, match=r"redis://127\.0\.0\.1:1/0"):
        control.counters()


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(UsageError, match="'here:6379' is not the address of a Redis"):
        ControlAddress("here:6379").connect()


def test_the_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, signal; from pathlib import Path\n"
        "from services.embedded_redis import EmbeddedRedis\n"
        "redis = EmbeddedRedis(Path(sys.argv[1])); redis.start()\n"
        "print(redis.process_id, flush=True); signal.pause()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "control")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    server_id = int(parent.stdout.readline())
    watch = os.pidfd_open(server_id)
    parent.kill()
    parent.wait(30)
    parent.stdout.close()
    assert select.select([watch], [], [], 30.0)[0]  # readable once it has ended
    os.close(watch)
