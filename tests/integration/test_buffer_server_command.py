"""`repertory buffer-server` as a launcher uses it: a real process, killed and started again."""

from __future__ import annotations

import json
import resource
import signal
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from replay_shards import LONG_SECONDS, numbered, until, write_token

from buffer_server.client import ClientConfig, ReplayClient
from buffer_server.statuses import ReplayDenied
from buffer_server.table_config import read_tables
from repertory.errors import RepertoryError

COMMAND = [sys.executable, "-m", "services.cli", "buffer-server"]
DEADLINE_SECONDS = 120.0
SECONDS_UNTIL_NEVER = "86400"


@dataclass
class Shard:
    """A running command."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    folder: Path

    def client(self, **settings: Any) -> ReplayClient:
        arguments = {"address": self.ready["address"], "table": "replay"}
        return ReplayClient(ClientConfig(**{**arguments, **settings}))

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Its exit code, and what it said."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=DEADLINE_SECONDS)
        return self.process.returncode, said


Start = Callable[..., Shard]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    columns = {
        name: {"dtype": spec.dtype, "shape": list(spec.shape)}
        for name, spec in numbered(0, 1).signature().items()
    }
    table = {"columns": columns, "capacity": 1000, "sampler": "prioritized"}
    (tmp_path / "tables.yaml").write_text(yaml.safe_dump({"tables": {"replay": table}}))
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts a shard and waits until it is ready; whatever is left is killed at the end."""
    with ExitStack() as stack:

        def run(*options: str, command: list[str] = COMMAND, address: str = "") -> Shard:
            address = address or f"unix:{folder}/s"
            process = subprocess.Popen(
                [*command, "--tables", "tables.yaml", "--address", address, "--json", *options],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                text=True,
            )
            stack.callback(_end, process)
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            return Shard(process, json.loads(line), folder)

        yield run


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(DEADLINE_SECONDS)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def kept(*more: str) -> tuple[str, ...]:
    """Checkpoints only when they are asked for."""
    return ("--checkpoint-dir", "saved", "--checkpoint-every", SECONDS_UNTIL_NEVER, *more)


def test_a_shard_says_where_it_is_and_serves_there(start: Start) -> None:
    shard = start("--token-file", "token", address="127.0.0.1:0")
    assert shard.ready["pid"] == shard.process.pid
    assert shard.ready["tables"] == ["replay"]
    token = shard.folder / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert len(bytes.fromhex(token.read_text())) == 32
    with shard.client(token_file=token) as client:
        client.insert(numbered(0, 10))
        assert len(client.sample(4, timeout_seconds=LONG_SECONDS).batch) == 4
    for wrong in (None, write_token(shard.folder / "other")):
        with pytest.raises(ReplayDenied):
            shard.client(token_file=wrong)


def test_what_was_saved_survives_kill_9_and_nothing_is_done_twice(start: Start) -> None:
    shard = start(*kept())
    with shard.client() as client:
        client.insert(numbered(0, 50))
        keys = client.sample(4, timeout_seconds=LONG_SECONDS).keys
        client.checkpoint(timeout_seconds=LONG_SECONDS)
        client.insert(numbered(50, 50))  # lost with the process
        shard.process.kill()
        shard.process.wait(DEADLINE_SECONDS)
        assert Path(shard.ready["address"].removeprefix("unix:")).exists()  # a stale socket
        again = start(*kept())
        statistics = client.statistics()  # the same client finds it again
        assert statistics.tables["replay"].size == 50
        assert statistics.checkpoint is not None
        assert statistics.checkpoint.items == 50
        fresh = client.sample(100, timeout_seconds=LONG_SECONDS)
        assert set(fresh.batch.reward.tolist()) <= set(range(50))
        assert not set(fresh.keys.tolist()) & set(keys.tolist())
        client.update_priorities(keys, np.full(4, 1e9))  # of items that have other keys now
    _, said = again.stop()
    assert "restored 50 items" in said


def test_sigterm_drains_writes_a_checkpoint_and_ends_well(start: Start) -> None:
    shard = start(*kept())
    with shard.client() as client:
        client.insert(numbered(0, 30))
    code, said = shard.stop()
    assert code == 0
    assert "SIGTERM: draining" in said
    assert "last checkpoint: 30 items" in said
    assert "Traceback" not in said
    with start(*kept()).client() as client:
        assert client.statistics().tables["replay"].size == 30


def test_a_shard_ends_well_when_nobody_listens_any_more(start: Start) -> None:
    shard = start(*kept())
    for pipe in (shard.process.stdout, shard.process.stderr):
        assert pipe is not None
        pipe.close()
    with shard.client() as client:
        client.insert(numbered(0, 5))
    shard.process.terminate()
    assert shard.process.wait(DEADLINE_SECONDS) == 0
    assert list((shard.folder / "saved").glob("step_*"))


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(start: Start) -> None:
    shard = start(*kept())
    with shard.client() as client:
        for first in (0, 10):
            client.insert(numbered(first, 10))
            newest = Path(client.checkpoint(timeout_seconds=LONG_SECONDS))
    shard.process.kill()
    shard.process.wait(DEADLINE_SECONDS)
    file = shard.folder / newest / "table_0.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    again = start(*kept())
    with again.client() as client:
        assert client.statistics().tables["replay"].size == 10
    code, said = again.stop()
    assert code == 0
    assert f"{newest.name} is corrupt" in said


def test_a_full_disk_is_loud_and_the_shard_goes_on(start: Start) -> None:
    shard = start("--checkpoint-dir", "saved", "--checkpoint-every", "1")
    pid = shard.process.pid
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    with shard.client() as client:
        client.insert(numbered(0, 500))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (5000, most))  # as good as a full disk
        until(lambda: client.statistics().checkpoint.failures > 0)
        client.insert(numbered(500, 10))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
        until(lambda: client.statistics().checkpoint.items == 510)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (5000, most))
    code, said = shard.stop()
    assert code == 1  # what came after the checkpoint before is lost
    assert said.count("File too large; the one before is kept") >= 2
    assert "Traceback" not in said


def test_metrics_are_scraped(start: Start) -> None:
    shard = start(*kept("--metrics-address", "127.0.0.1:0"))
    with shard.client() as client:
        client.insert(numbered(0, 25))
        for _ in range(3):
            client.sample(5, timeout_seconds=LONG_SECONDS)
        client.checkpoint(timeout_seconds=LONG_SECONDS)
    with urllib.request.urlopen(shard.ready["metrics"], timeout=LONG_SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    expected = {
        'size_items{table="replay"}': 25,
        'inserted_items_total{table="replay"}': 25,
        'sampled_items_total{table="replay"}': 15,
        'request_seconds_count{operation="sample"}': 3,
        'blocked_callers{operation="insert",table="replay"}': 0,
        "checkpoint_items": 25,
        "checkpoint_failures_total": 0,
        "draining": 0,
        "clients": 1,
    }
    found = {name: float(values[f"repertory_replay_{name}"]) for name in expected}
    assert found == expected
    assert float(values["repertory_replay_checkpoint_age_seconds"]) < LONG_SECONDS


def test_two_shards_become_one(start: Start, folder: Path) -> None:
    for name, first in (("a", 0), ("b", 100)):
        shard = start("--checkpoint-dir", name, address=f"unix:{folder}/{name}.sock")
        with shard.client() as client:
            client.insert(numbered(first, 40))
        assert shard.stop()[0] == 0
    options = kept("--restore-from", "a", "b", "--shard", "0/1")
    shard = start(*options)
    with shard.client() as client:
        assert client.statistics().tables["replay"].size == 80
        client.insert(numbered(200, 5))
    assert "80 items" in shard.stop()[1]
    # Its own checkpoint counts from now on.
    with start(*options).client() as client:
        assert client.statistics().tables["replay"].size == 85


def test_a_shard_goes_with_its_parent(start: Start) -> None:
    parent = [sys.executable, "-c"]
    parent += ["import subprocess, sys; subprocess.run(sys.argv[1:])", *COMMAND]
    shard = start(*kept("--exit-with-parent"), command=parent)
    assert shard.ready["pid"] != shard.process.pid
    with shard.client() as client:
        client.insert(numbered(0, 7))
    shard.process.kill()
    _, said = shard.process.communicate(timeout=DEADLINE_SECONDS)  # ends when both are gone
    assert "the parent process is gone: draining" in said
    assert "last checkpoint: 7 items" in said


def test_a_second_sigint_ends_it_at_once(start: Start) -> None:
    never_saved = """
import threading
from buffer_server.checkpoint import ShardCheckpoints
from services.cli import main
ShardCheckpoints.save = lambda self, **options: threading.Event().wait()
main()
"""
    shard = start(*kept(), command=[sys.executable, "-c", never_saved, "buffer-server"])
    shard.process.send_signal(signal.SIGINT)
    assert shard.process.stderr is not None
    assert shard.process.stderr.readline() == "SIGINT: draining\n"
    assert shard.stop(signal.SIGINT)[0] == 130


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ([], 2, "which tables"),
        (["--tables", "none.yaml"], 2, "cannot read config file none.yaml"),
        (["--tables", "tables.yaml"], 2, "give a token file"),
        (["--tables", "tables.yaml", "--address", "nowhere"], 2, "is no address"),
        (["--tables", "tables.yaml", "--address", "unix:/s", "--shard", "2/2"], 2, "counted from"),
        (["--tables", "tables.yaml", "--address", "unix:/s", "--shard", "two"], 2, "INDEX/COUNT"),
        (["--tables", "tables.yaml", "--address", "unix:/s", "--keep", "0"], 2, "keep = 0"),
        (["--tables", "tables.yaml", "--address", "unix:/s", "--restore-from", "x"], 2, "its own"),
        (["--tables", "tables.yaml", "--address", "unix:/s", "--capacity", "9" * 12], 2, "GiB"),
        (["--tables", "tables.yaml", "--address", "unix:/no/s"], 2, "there is no folder /no"),
        (["CartPole-v1", "--tables", "tables.yaml"], 2, "--tables says it all"),
        (["CartPole-v1", "--algo", "td3", "--address", "unix:/s"], 2, "does not fit"),
        (
            ["--tables", "tables.yaml", "--address", "unix:/s", "--metrics-address", "0.0.0.0:0"],
            2,
            "anybody could read",
        ),
    ],
)
def test_wrong_calls_are_refused_with_one_sentence(
    options: list[str], code: int, words: str, folder: Path, call: Callable[..., tuple[int, str]]
) -> None:
    found, said = call(folder, *options)
    assert found == code
    assert words in said
    assert said.count("\n") == 1


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """The command in this process, up to where it would serve."""
    from services import cli

    def run(folder: Path, *options: str) -> tuple[int, str]:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["repertory", "buffer-server", *options])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"capcity": 5}, r"tables.replay.capcity is not a setting: did you mean .*capacity\?"),
        ({"sampler": {"name": "prioritized", "alfa": 1}}, "sampler.alfa .*sampler.alpha"),
        ({"capacity": 0}, "tables.replay.capacity = 0 is refused"),
        ({"columns": None}, "tables.replay.columns = None is refused"),
        ({"limiter": {"min_siz": 3}}, "limiter.min_siz .*limiter.min_size"),
    ],
)
def test_a_wrong_tables_file_is_refused_by_its_key(
    change: dict[str, Any], words: str, folder: Path
) -> None:
    document = yaml.safe_load((folder / "tables.yaml").read_text())
    document["tables"]["replay"] |= change
    (folder / "tables.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(RepertoryError, match=rf"tables.yaml: .*{words}"):
        read_tables(folder / "tables.yaml")


def test_a_taken_socket_is_refused(start: Start) -> None:
    shard = start()
    options = ["--tables", "tables.yaml", "--address", shard.ready["address"]]
    second = subprocess.run(
        [*COMMAND, *options],
        cwd=shard.folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert second.returncode == 2
    assert "another server does" in second.stderr
    assert second.stderr.count("\n") == 1
    with shard.client() as client:
        assert client.insert(numbered(0, 1)) == 1


def test_the_tables_of_a_run_are_printed_and_can_be_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from services import cli

    monkeypatch.setattr(
        sys,
        "argv",
        [
            *("repertory", "buffer-server", "CartPole-v1", "--algo", "dqn", "--dry-run"),
            *("--set", "replay.capacity=1001", "--set", "steps=5000", "--shard", "1/2"),
        ],
    )
    cli.main()
    printed = capsys.readouterr().out
    (folder / "printed.yaml").write_text(printed)
    tables = read_tables(folder / "printed.yaml")
    assert tables["replay"].capacity == 501  # one shard's half
    assert tables["replay"].columns["observation"].shape == (4,)
