"""How words get to a machine: whole, however they are written."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.clusters.inventory import Ssh
from services.clusters.shell import Done, LocalShell, SshShell

# As ssh and sshd do: what comes after the host is joined, and one shell gets it.
FAKE_SSH = """#!/bin/sh
printf '%s\\n' "$@" > "{folder}/given"
while [ "$1" != -- ]; do shift; done
shift
exec sh -c "$*"
"""
SHOW = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshShell:
    program = tmp_path / "ssh"
    program.write_text(FAKE_SSH.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return SshShell("beta", Ssh())


AWKWARD = [
    "two words",
    "it's",
    'say "hello"',
    "$(touch stolen)",
    "`touch stolen`",
    "$HOME",
    "a;b|c&d>e<f",
    "back\\slash",
    "line\nbreak",
    "*",
    "",
    "-x",
    "--",
    "#",
    "~",
    "~root/x",
    "a~/b",
    "ümlaut",
]


def test_awkward_words_arrive_as_they_are(ssh: SshShell) -> None:
    done = ssh.run([*SHOW, *AWKWARD], timeout_seconds=30)
    assert json.loads(done.output) == AWKWARD


def test_home_is_that_of_the_machine_there(ssh: SshShell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of them")
    words = ["~/nodes/lab", "~/it's $(id)", "~/"]
    done = ssh.run([*SHOW, *words], timeout_seconds=30)
    assert json.loads(done.output) == [
        "/home/of them/nodes/lab",
        "/home/of them/it's $(id)",
        "/home/of them/",
    ]


@settings(max_examples=200)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_every_word_is_one_word_to_a_shell(words: list[str]) -> None:
    """`read` by a shell's own rules, without starting one for each example."""
    sent = SshShell("beta", Ssh()).command(words)[-1]
    assert shlex.split(sent) == words


def test_what_is_said_and_how_it_ended_comes_back(ssh: SshShell) -> None:
    done = ssh.run(["sh", "-c", "cat; echo bad >&2; exit 3"], stdin=b"in\xff", timeout_seconds=30)
    assert (done.code, done.output, done.errors) == (3, "in\ufffd", "bad\n")


def test_nobody_is_asked_for_a_password_and_a_dead_connection_ends(
    ssh: SshShell, tmp_path: Path
) -> None:
    ssh.run(["true"], timeout_seconds=30)
    given = (tmp_path / "given").read_text().splitlines()
    for option in ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5"):
        assert given[given.index(option) - 1] == "-o"
    assert given[given.index("--") - 1] == "beta"


def test_a_config_of_ones_own_is_used() -> None:
    command = SshShell("beta", Ssh(config=Path("/my/config"))).command(["true"])
    assert command[:3] == ["ssh", "-F", "/my/config"]


@pytest.mark.parametrize(("seconds", "option"), [(0.1, 1), (2.6, 3), (300.0, 300)])
def test_the_time_to_connect_is_whole_seconds_and_never_none(seconds: float, option: int) -> None:
    command = SshShell("beta", Ssh(connect_seconds=seconds)).command(["true"])
    assert f"ConnectTimeout={option}" in command


def test_openssh_itself_takes_the_options() -> None:
    command = SshShell("beta", Ssh(config=Path("/dev/null"))).command(["true"])
    try:
        done = subprocess.run(["ssh", "-G", *command[1:]], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no ssh here")
    assert done.returncode == 0, done.stderr
    assert "batchmode yes" in done.stdout
    assert "serveralivecountmax 3" in done.stdout


@pytest.mark.parametrize("kind", ["local", "ssh"])
def test_a_machine_that_does_not_answer_is_given_up(ssh: SshShell, kind: str) -> None:
    shell = ssh if kind == "ssh" else LocalShell()
    began = time.monotonic()
    done = shell.run(["sleep", "60"], timeout_seconds=0.3)
    assert time.monotonic() - began < 30
    assert (done.code, done.said) == (255, "no answer in 0.3 s")


def test_without_ssh_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = SshShell("beta", Ssh()).run(["true"], timeout_seconds=30)
    assert (done.code, done.said) == (127, "ssh is not installed here")


def test_a_command_that_reads_nothing_is_no_harm() -> None:
    done = LocalShell().run(["true"], stdin=b"x" * 2**20, timeout_seconds=30)
    assert done.code == 0


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (Done(1, "out\n", "one\n\n  two  \n\n"), "two"),
        (Done(1, "out\nmore\n", ""), "more"),
        (Done(4, "", " \n"), "exit code 4"),
        (Done(1, "", "x" * 1000), "x" * 300),
    ],
)
def test_its_last_words_are_what_is_shown(done: Done, said: str) -> None:
    assert done.said == said
