"""What a keeper says of itself, how others see that it is there, and how long it waits."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from repertory.errors import RepertoryError, UsageError
from services.clusters import keeper
from services.clusters.keeper import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    SETTLED_SECONDS,
    STATE,
    KeeperState,
    _lock,
    _make_private,
    _next_pause,
    is_kept,
)
from services.commands.cluster import healthy

READY = KeeperState("ready", "", 12, 1.0, 2.0, 3, "1.0")


def write(folder: Path, state: KeeperState) -> None:
    (folder / STATE).write_text(json.dumps(asdict(state)))


# Its state


def test_what_it_said_is_read(tmp_path: Path) -> None:
    write(tmp_path, READY)
    assert KeeperState.read(tmp_path) == READY


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"phase": "ready"}', '{"more": 1}'])
def test_what_is_no_state_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / STATE).write_text(text)
    assert KeeperState.read(tmp_path) is None


def test_a_state_of_another_version_is_none(tmp_path: Path) -> None:
    document: dict[str, Any] = asdict(READY) | {"of_tomorrow": 1}
    (tmp_path / STATE).write_text(json.dumps(document))
    assert KeeperState.read(tmp_path) is None


def test_where_nobody_was_there_is_none(tmp_path: Path) -> None:
    assert KeeperState.read(tmp_path / "none") is None


# Its lock


def test_a_folder_is_kept_as_long_as_somebody_holds_it(tmp_path: Path) -> None:
    assert not is_kept(tmp_path)
    with _lock(tmp_path):
        assert is_kept(tmp_path)
        assert is_kept(tmp_path)  # looking does not take it
    assert not is_kept(tmp_path)


def test_a_folder_that_is_not_there_is_not_kept(tmp_path: Path) -> None:
    assert not is_kept(tmp_path / "none")


def test_nobody_else_can_keep_it(tmp_path: Path) -> None:
    with _lock(tmp_path), pytest.raises(UsageError, match="is kept already"):
        _lock(tmp_path)


def test_looking_leaves_it_to_others(tmp_path: Path) -> None:
    _lock(tmp_path).close()
    assert not is_kept(tmp_path)
    with _lock(tmp_path):
        assert is_kept(tmp_path)


def test_a_keeper_that_is_killed_keeps_nothing(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from services.clusters.keeper import _lock\n"
        "held = _lock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert is_kept(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not is_kept(tmp_path)


# How long it waits


def test_pauses_grow_to_a_limit_while_ray_ends_at_once() -> None:
    pauses = list(
        itertools.accumulate(range(6), lambda pause, _: _next_pause(pause, 1.0), initial=1.0)
    )
    assert pauses == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]


def test_ray_that_ran_for_long_begins_anew() -> None:
    assert _next_pause(LONGEST_PAUSE_SECONDS, SETTLED_SECONDS + 1) == FIRST_PAUSE_SECONDS
    assert _next_pause(LONGEST_PAUSE_SECONDS, SETTLED_SECONDS - 1) == LONGEST_PAUSE_SECONDS


# The folder for Ray's sockets, in /tmp


def test_its_folder_is_for_itself_alone(tmp_path: Path) -> None:
    _make_private(tmp_path / "ray")
    assert (tmp_path / "ray").stat().st_mode & 0o777 == 0o700
    _make_private(tmp_path / "ray")


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "ray").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="belongs to somebody else"):
        _make_private(tmp_path / "ray")


def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ray").mkdir()
    owner = (tmp_path / "ray").stat().st_uid
    monkeypatch.setattr(keeper.os, "getuid", lambda: owner + 1)
    with pytest.raises(UsageError, match="belongs to somebody else"):
        _make_private(tmp_path / "ray")


def test_a_folder_of_ours_that_others_may_enter_is_closed_to_them(tmp_path: Path) -> None:
    # Once: it stays as it was, and Ray's sockets with it.
    (tmp_path / "ray").mkdir(mode=0o755)
    (tmp_path / "ray").chmod(0o777)
    _make_private(tmp_path / "ray")
    assert (tmp_path / "ray").stat().st_mode & 0o077 == 0


# `repertory cluster healthy`


def test_a_machine_that_is_kept_and_ready_is_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, READY)
    with _lock(tmp_path):
        healthy(tmp_path)
    assert capsys.readouterr().out == "ready\n"


def test_a_machine_that_is_not_kept_is_not_healthy_whatever_it_said(tmp_path: Path) -> None:
    write(tmp_path, READY)
    with pytest.raises(RepertoryError, match="nobody keeps this machine"):
        healthy(tmp_path)


def test_a_machine_that_waits_is_not_healthy_and_says_why(tmp_path: Path) -> None:
    write(tmp_path, KeeperState("waiting", "Ray ended", 12, 1.0, 2.0, 3, "1.0"))
    with _lock(tmp_path), pytest.raises(RepertoryError, match="waiting Ray ended"):
        healthy(tmp_path)
