"""The command line as people use it: exit codes, one-sentence errors, signals, a real terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import imageio.v3 as iio
import imageio_ffmpeg
import pytest
from small_runs import settings, small_run

from repertory.checkpoints import CheckpointStore
from repertory.parts import SHORT_NAMES
from services import cli

Invoke = Callable[..., tuple[int, str, str]]
DEADLINE_SECONDS = 120.0


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Invoke:
    """Runs the command in this process; returns exit code, standard output and error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["repertory", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "dqn"
    small_run("dqn", path)
    return path


def set_flags(algo: str, **changes: object) -> list[str]:
    flags = []
    for key, value in settings(algo, **changes).items():
        flags += ["--set", f"{key}={json.dumps(value)}"]
    return flags


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["Nope-v0"], 2, ["no environment 'Nope-v0'"]),
        (["CartPole-v7", "--algo", "dqn"], 2, ["did you mean CartPole-v1"]),
        (["CartPole-v1", "--algo", "td4"], 2, ["td4", "did you mean td3"]),
        (["Pendulum-v1", "--algo", "dqn"], 2, ["dqn", "discrete", "what fits is", "sac, td3"]),
        (["CartPole-v1", "--algo", "sac"], 2, ["sac", "continuous", "what fits is", "dqn", "ppo"]),
        (["CartPole-v1", "--algo", "dqn", "--set", "learner.lr=-1"], 2, ["learner.lr = -1", "0"]),
        (["CartPole-v1", "--algo", "dqn", "--set", "learer.lr=1"], 2, ["did you mean learner.lr"]),
        (["CartPole-v1", "--algo", "dqn", "--set", "learner.lr"], 2, ["key=value"]),
        (["CartPole-v1", "--algo", "dqn", "--steps", "0"], 2, ["steps = 0"]),
        (["CartPole-v1", "--algo", "dqn", "--device", "cuda:99"], 2, ["cuda:99"]),
        (["CartPole-v1", "--algo", "dqn", "--config", "nowhere.yaml"], 2, ["nowhere.yaml"]),
        (["CartPole-v1", "--algo", "dqn,td3"], 2, ["td3 does not fit", "continuous"]),
        (
            ["CartPole-v1", "--algo", "dqn,ppo", "--set", "replay.sampler=prioritized"],
            2,
            ["replay.sampler = prioritized", "dqn, ppo", "use uniform"],
        ),
        (["CartPole-v1", "--algo", "dqn,ppo", "--strategy", "ubc"], 2, ["ubc", "did you mean ucb"]),
        (
            ["CartPole-v1", "--algo", "dqn,ppo", "--set", "director.min_share=0.6"],
            2,
            ["director.min_share = 0.6", "at most 0.5"],
        ),
        (
            ["CartPole-v1", "--algo", "dqn", "--set", "learner.exploration=gaussian"],
            2,
            ["gaussian", "epsilon_greedy"],
        ),
        (
            [
                "CartPole-v1",
                "--algo",
                "dqn",
                "--steps",
                "100000000000",
                "--set",
                "replay.capacity=100000000000",
            ],
            2,
            ["replay.capacity = 100000000000", "GiB"],
        ),
        (["CartPole-v1", "--algo", "dqn", "--run-dir", "/proc/x"], 1, ["/proc/x", "--run-dir"]),
        ([], 2, ["no environment"]),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_sentence(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    arguments: list[str], code: int, words: list[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    exit_code, out, err = invoke("train", *arguments, "--local")
    assert exit_code == code
    assert out == ""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    for word in words:
        assert word in err
    # Nothing half-written: at the most an empty `runs`, the parent of what would have been there.
    assert [path for path in tmp_path.rglob("*") if path != tmp_path / "runs"] == []


def test_a_dry_run_prints_the_resolved_config_and_starts_nothing(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = invoke("train", "Pendulum-v1", "--algo", "td3", "--dry-run", "--seed", 5)
    assert code == 0
    assert "seed: 5" in out
    assert "algorithm: td3" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("env", "algo"), [("CartPole-v1", "ppo"), ("Pendulum-v1", "sac")])
def test_without_algo_one_that_fits_is_chosen(invoke: Invoke, env: str, algo: str) -> None:
    _, out, _ = invoke("train", env, "--dry-run")
    assert f"algorithm: {algo}" in out


def test_settings_come_from_preset_then_file_then_command_line(
    invoke: Invoke, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("learner: {lr: 0.005, gamma: 0.9}\n")
    arguments = ["CartPole-v1", "--algo", "dqn", "--dry-run", "--config", file]
    _, out, _ = invoke("train", *arguments, "--set", "learner.gamma=0.8")
    assert "batch_size: 64" in out  # of the preset
    assert "lr: 0.005" in out  # of the file
    assert "gamma: 0.8" in out  # of the command line


def test_train_resume_and_overwrite(invoke: Invoke, tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = ["CartPole-v1", "--algo", "dqn", "--local", "--run-dir", run, *set_flags("dqn")]
    code, out, err = invoke("train", *flags)
    assert code == 0, err
    assert "finished: 1000 steps" in out
    assert str(run / "checkpoints") in out
    code, _, err = invoke("train", *flags)
    assert code == 2
    assert "--overwrite" in err
    assert invoke("train", *flags, "--overwrite")[0] == 0
    code, out, _ = invoke("resume", run, "--steps", 1100)
    assert code == 0
    assert "finished: 1100 steps" in out


def test_eval_prints_one_json_object(invoke: Invoke, run_dir: Path) -> None:
    code, out, _ = invoke("eval", run_dir, "--policy", "best", "--episodes", 3, "--json")
    document = json.loads(out)
    assert code == 0
    assert {"policy", "episodes", "mean_return", "std_return", "returns"} <= document.keys()
    assert document["policy"] == "best"
    assert len(document["returns"]) == document["episodes"] == 3
    assert document["mean_return"] == pytest.approx(sum(document["returns"]) / 3)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["eval", "nowhere"], "not a run"),
        (["play", "nowhere"], "not a run"),
        (["resume", "nowhere"], "not a run"),
        (["plot", "nowhere"], "not a run"),
        (["export", "nowhere"], "not a run"),
    ],
)
def test_a_folder_that_is_no_run_is_named(invoke: Invoke, arguments: list[str], word: str) -> None:
    code, _, err = invoke(*arguments)
    assert code == 2
    assert word in err
    assert "nowhere" in err


def test_an_unknown_policy_is_refused_with_those_there_are(invoke: Invoke, run_dir: Path) -> None:
    code, _, err = invoke("eval", run_dir, "--policy", "worst")
    assert code == 2
    assert "best, last, ensemble, dqn" in err


def test_play_writes_a_gif_and_an_mp4_that_move(
    invoke: Invoke, run_dir: Path, tmp_path: Path
) -> None:
    gif, mp4 = tmp_path / "a.gif", tmp_path / "a.mp4"
    code, out, err = invoke("play", run_dir, "--gif", gif, "--mp4", mp4)
    assert code == 0, err
    assert "returns" in out
    frames = iio.imread(gif)
    assert frames.ndim == 4
    assert len(frames) > 2
    assert (frames[0] != frames[-1]).any()
    assert imageio_ffmpeg.count_frames_and_secs(str(mp4))[0] > 2


def test_a_window_without_a_screen_is_refused(
    invoke: Invoke, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    code, _, err = invoke("play", run_dir, "--window")
    assert code == 2
    assert "--gif" in err


def test_plot_and_export_say_what_they_wrote(invoke: Invoke, run_dir: Path, tmp_path: Path) -> None:
    code, out, _ = invoke("plot", run_dir, "--out", tmp_path / "c.png")
    assert code == 0
    assert (tmp_path / "c.png").exists()
    assert (tmp_path / "c.html").exists()
    code, out, _ = invoke("export", run_dir, "--out", tmp_path / "export")
    assert code == 0
    assert out.split() == [
        str(tmp_path / "export" / name) for name in ("policy.safetensors", "policy.json")
    ]


def test_a_corrupt_newest_checkpoint_is_named_and_the_one_before_evaluated(
    invoke: Invoke, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small_run("dqn", tmp_path / "run")
    newest, before, *_ = CheckpointStore(tmp_path / "run" / "checkpoints").paths()
    (newest / "policy-dqn.safetensors").write_bytes(b"garbage")
    code, out, _ = invoke("eval", tmp_path / "run", "--policy", "last", "--json")
    assert code == 0
    assert newest.name in caplog.text
    assert json.loads(out)["env_steps"] == int(before.name.removeprefix("step_"))


def test_algorithms_describe_and_doctor_answer(invoke: Invoke) -> None:
    code, out, _ = invoke("algorithms")
    assert code == 0
    assert all(name in out for name in sorted(SHORT_NAMES["algorithm"]))
    code, out, _ = invoke("describe", "Pendulum-v1")
    assert code == 0
    assert "200" in out
    assert "does not fit" in out
    code, out, _ = invoke("doctor")
    assert code == 0
    assert "torch" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_checkpoints_and_exits_0(tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    command = [
        sys.executable, "-m", "services.cli", "train", "CartPole-v1", "--algo", "dqn", "--local",
        "--run-dir", str(run), *set_flags("dqn", steps=10_000_000),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step "):
                break
        process.send_signal(number)
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert f"repertory resume {run}" in out
    checkpoint = CheckpointStore(run / "checkpoints").newest_valid()
    assert checkpoint.env_steps > 0


def test_a_terminal_shows_a_live_display(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "services.cli", "train", "CartPole-v1", "--algo", "dqn", "--local",
        "--run-dir", str(tmp_path / "run"), *set_flags("dqn"),
    ]  # fmt: skip
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(command, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    screen = b""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        ready, _, _ = select.select([master], [], [], deadline - time.monotonic())
        try:
            chunk = os.read(master, 65536) if ready else b""
        except OSError:  # the other side has closed the terminal
            break
        if not chunk:
            break
        screen += chunk
    os.close(master)
    assert process.wait(timeout=DEADLINE_SECONDS) == 0
    text = screen.decode(errors="replace")
    for word in ("steps/s", "updates/s", "evaluation", "ETA", "1,000/1,000 steps", "finished"):
        assert word in text


def test_code_in_the_current_folder_is_importable_and_decoys_change_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "my_envs.py").write_text(
        "import gymnasium as gym\n"
        "def make_env():\n"
        "    return gym.make('CartPole-v1', disable_env_checker=True)\n"
    )
    for decoy in ("actors.py", "learner.py"):
        (tmp_path / decoy).write_text("raise RuntimeError('the decoy was imported')\n")
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "__init__.py").write_text("raise RuntimeError('the decoy')\n")
    process = subprocess.run(
        [Path(sys.executable).parent / "repertory", "train", "my_envs:make_env", "--algo", "dqn",
         "--local", "--run-dir", "run", *set_flags("dqn")],
        cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "finished" in process.stdout


def test_resume_auto_starts_a_run_and_then_goes_on_with_it(invoke: Invoke, tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = ["CartPole-v1", "--algo", "dqn", "--local", "--run-dir", run, "--resume", "auto"]
    code, out, err = invoke("train", *flags, *set_flags("dqn"))
    assert code == 0, err
    assert "resuming" not in out
    code, out, err = invoke("train", *flags, *set_flags("dqn", steps=1200))
    assert code == 0, err
    assert f"resuming {run} at step 1000 of 1200" in out
    assert "finished: 1200 steps" in out


def test_an_environment_that_breaks_ends_the_run_in_one_sentence(
    invoke: Invoke, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    flags = set_flags("dqn", **{"env.kwargs": {"after": 450}, "env.copies": 1})
    code, _, err = invoke(
        "train", "broken_envs:FailsLater", "--algo", "dqn", "--local", "--run-dir", run, *flags
    )
    assert code == 1
    assert err.count("\n") == 1
    assert "RuntimeError: the simulator is on fire" in err
    assert f"repertory resume {run}" in err
    assert CheckpointStore(run / "checkpoints").newest_valid().env_steps == 300
    last = json.loads((run / "events.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "failed"
    assert "on fire" in last["traceback"]
