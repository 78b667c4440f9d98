"""The dashboard as a process: started, asked over its socket, ended."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from dashboard_runs import DashboardProcess, add_rows, make_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    rows = [{"step": step, "rollout/ep_rew_mean": 1.0, "learner/loss": 2.0} for step in range(50)]
    make_run(tmp_path / "one", rows=rows, evaluations={0: [1.0], 50: [2.0]})
    make_run(tmp_path / "two", rows=rows, learners={"a": "dqn", "b": "ppo"})
    return tmp_path


def test_schemathesis_finds_nothing(runs: Path) -> None:
    """Every address, with what fits its description and with what does not."""
    with DashboardProcess(runs) as dashboard:
        result = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")),
                "run",
                f"{dashboard.address}/api/openapi.json",
                "--header",
                f"Authorization: Bearer {dashboard.token}",
                "--max-examples=10",
                "--seed=1",
                "--workers=1",
                "--generation-database=none",
                "--no-color",
            ],
            cwd=runs,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Traceback" not in dashboard.errors


def test_a_stream_tells_what_is_new(runs: Path) -> None:
    with DashboardProcess(runs) as dashboard:
        request = urllib.request.Request(
            f"{dashboard.address}/api/runs/one/live?parts=rows&parts=overview",
            headers={"authorization": f"Bearer {dashboard.token}"},
        )
        with urllib.request.urlopen(request, timeout=30) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert stream.readline() == b"event: overview\n"
            add_rows(runs / "one", [{"step": 60, "rollout/ep_rew_mean": 5.0}])
            for line in stream:
                if line == b"event: rows\n":
                    break
            assert stream.readline() == b"id: 51\n"
            assert b'"rollout/ep_rew_mean": 5.0' in stream.readline()
    assert dashboard.exit_code == 0  # and the stream that was open did not hold it up


def test_ctrl_c_ends_it_without_a_word(runs: Path) -> None:
    with DashboardProcess(runs) as dashboard:
        pass
    assert dashboard.exit_code == 0
    assert dashboard.errors == ""


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services.cli", "dashboard", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_wrong_calls_are_refused_in_a_sentence(runs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, words in (
            ([str(runs / "none")], "is not a folder"),
            ([str(runs), "--host", "0.0.0.0"], "--tls-certificate"),
            ([str(runs), "--port", "70000"], "0 to 65535"),
            ([str(runs), "--port", port], "choose another --port"),
            ([str(runs), "--tls-key", "x"], "go together"),
        ):
            result = command(*arguments)
            assert result.returncode == 2, result
            assert words in result.stderr
            assert "Traceback" not in result.stderr
