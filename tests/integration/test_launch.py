"""What a distributed run refuses before it starts, and what must not disturb it."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from distributed_runs import Train

from services.embedded_redis import EmbeddedRedis

pytestmark = pytest.mark.timeout(900)

QUICK_SECONDS = 30.0
QUICK_RATIO = 5.0  # to a command that only says what it would do: imports are most of both
TRAIN = (sys.executable, "-m", "services.cli", "train")
TINY_RUN = (
    "--steps", "600", "--actors", "1", "--set", "learner.learning_starts=100",
    "--set", "evaluation.every=600", "--set", "evaluation.episodes=1",
)  # fmt: skip


@functools.cache
def quick_seconds() -> float:
    """As long as a refusal may take here, on a machine that may be busy."""
    begin = time.monotonic()
    dry = [*TRAIN, "CartPole-v1", "--algo", "dqn", "--dry-run"]
    subprocess.run(dry, capture_output=True, check=True)
    return max(QUICK_SECONDS, QUICK_RATIO * (time.monotonic() - begin))


def refusal(run_dir: Path, *arguments: str) -> str:
    """The one sentence; nothing is left behind."""
    done = subprocess.run(
        [*TRAIN, "CartPole-v1", "--algo", "dqn", "--run-dir", str(run_dir), *arguments],
        capture_output=True,
        text=True,
        timeout=quick_seconds(),
        check=False,
    )
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1, done.stderr
    assert not run_dir.exists()
    return done.stderr


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def test_a_redis_that_does_not_answer(tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    sentence = refusal(tmp_path / "run", "--redis-url", url)
    assert url in sentence
    assert "Without --redis-url one is started here" in sentence


def test_a_redis_that_refuses_the_password(tmp_path: Path, server: EmbeddedRedis) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("not this one")
    options = ("--redis-url", server.address.url, "--redis-password-file", str(wrong))
    assert "refuses the password" in refusal(tmp_path / "run", *options)


def test_an_address_where_no_ray_is(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    options = ("--address", address, "--token-file", str(tmp_path / "token"))
    assert f"no Ray cluster answers at {address}" in refusal(tmp_path / "run", *options)


def test_more_gpus_than_there_are(tmp_path: Path) -> None:
    sentence = refusal(tmp_path / "run", "--set", "topology.gpus=512")
    assert "topology.gpus = 512 is refused: there are" in sentence


@dataclass(frozen=True)
class RayCluster:
    address: str
    token_file: Path

    @property
    def options(self) -> tuple[str, ...]:
        return ("--address", self.address, "--token-file", str(self.token_file))


@contextlib.contextmanager
def started_ray(folder: Path, version: str | None = None) -> Iterator[RayCluster]:
    """With a token. `version` is the one that it takes itself for."""
    token_file = folder / "token"
    token_file.write_text(secrets.token_hex(32))
    port = free_port()
    pretence = "" if version is None else f"ray.__version__ = {version!r}; "
    program = f"import ray; {pretence}from ray.scripts.scripts import main; main()"
    head = subprocess.Popen(
        [
            sys.executable, "-c", program, "start", "--head", "--block", "--port", str(port),
            "--num-cpus", "2", "--include-dashboard", "false",
        ],
        env={
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token_file),
            "RAY_USAGE_STATS_ENABLED": "0",
        },
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60.0
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            break
        except OSError:
            assert time.monotonic() < deadline
            with contextlib.suppress(subprocess.TimeoutExpired):
                head.wait(0.1)
                raise AssertionError("ray start has ended") from None
    try:
        yield RayCluster(f"127.0.0.1:{port}", token_file)
    finally:
        head.terminate()
        head.wait(60)


@pytest.fixture(scope="module")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """Somebody else's."""
    with started_ray(tmp_path_factory.mktemp("ray")) as cluster:
        yield cluster


def test_a_wrong_token(tmp_path: Path, ray_cluster: RayCluster) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text(secrets.token_hex(32))
    options = ("--address", ray_cluster.address, "--token-file", str(wrong))
    assert f"refuses the token in {wrong}" in refusal(tmp_path / "run", *options)


def test_a_cluster_of_another_version(tmp_path: Path) -> None:
    with started_ray(tmp_path, version="2.0.0") as cluster:
        sentence = refusal(tmp_path / "run", *cluster.options)
    assert f"the Ray cluster at {cluster.address} runs Ray 2.0.0 on Python" in sentence
    assert "the same versions must be installed on both sides" in sentence


def test_two_runs_in_one_cluster_do_not_disturb_each_other(
    tmp_path: Path, ray_cluster: RayCluster
) -> None:
    runs = [Train(tmp_path / name) for name in ("first", "second")]
    try:
        for run in runs:
            run.run_dir.parent.mkdir()
            run.start(
                "train", "CartPole-v1", "--algo", "dqn", "--run-dir", str(run.run_dir),
                *TINY_RUN, *ray_cluster.options,
            )  # fmt: skip
        for run in runs:
            assert "finished:" in run.finish()
            assert run.events("restarting") == []
    finally:
        for run in runs:
            run.end()


def test_packages_of_the_user_with_our_names_change_nothing(tmp_path: Path) -> None:
    """Ray puts the folder of the driver first on the path of its workers, were it not for us."""
    for decoy in ("services/__init__.py", "actors.py", "learner/__init__.py", "repertory.py"):
        path = tmp_path / "user" / decoy
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise SystemExit('the decoy was imported')\n")
    # The environment of the user is in that folder too, and must be found.
    (tmp_path / "user" / "my_envs.py").write_text(
        "import gymnasium\n\ndef make(**kwargs):\n"
        "    return gymnasium.make('CartPole-v1', **kwargs)\n"
    )
    # And so is the run directory, by a path that means something else to processes elsewhere.
    run_dir = Path("runs") / "mine"
    script = Path(sys.executable).with_name("repertory")
    done = subprocess.run(
        [script, "train", "my_envs:make", "--algo", "dqn", "--run-dir", run_dir, *TINY_RUN],
        cwd=tmp_path / "user",
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "finished:" in done.stdout
    assert "restarting" not in (tmp_path / "user" / run_dir / "events.jsonl").read_text()
