"""A cluster as a job of SLURM: what is rendered, and what `up` and `down` do, with stand-ins.

The scripts themselves are run, on this machine, by a stand-in for srun.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rendered_clusters import Tools, assert_no_secret, secrets_of

from repertory.errors import RepertoryError, UsageError
from services.clusters import external_tool
from services.clusters.inventory import PROVIDERS, SlurmInventory, read_inventory
from services.clusters.slurm import SlurmCluster

SHELLCHECK = Path(sys.executable).with_name("shellcheck")


def inventory(folder: Path, **changes: Any) -> SlurmInventory:
    document = {
        "name": "lab",
        "provider": "slurm",
        "environment": str(folder / "env"),
        "folder": str(folder / "shared"),
        "wait_minutes": 0.2,
        **changes,
    }
    return SlurmInventory.model_validate(document)


def rendered(folder: Path, **changes: Any) -> dict[str, str]:
    return dict(SlurmCluster(inventory(folder, **changes), folder / "lab.yaml").render())


def options(script: str) -> dict[str, str]:
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH ")]
    return {
        name: value
        for name, _, value in (line.removeprefix("#SBATCH --").partition("=") for line in lines)
    }


def shellcheck(*texts: str) -> str:
    return "".join(
        subprocess.run(
            [SHELLCHECK, "-S", "style", "-s", "bash", "-"],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        ).stdout
        for text in texts
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPERTORY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(external_tool, "LOOK_SECONDS", 0.02)
    return tmp_path / "home"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    tools = Tools(tmp_path / "tools", "sbatch", "squeue", "scancel", "scontrol")
    monkeypatch.setenv("PATH", f"{tools.folder}:{os.environ['PATH']}")
    return tools


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train": ["CartPole-v1", "--set", "learner.lr=1e-3", "a b", "*"]},
        {"modules": ["cuda/12.4"], "workers": 0, "account": "rl", "partition": "gpu,long"},
    ],
)
@pytest.mark.skipif(not SHELLCHECK.exists(), reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say(tmp_path: Path, home: Path, changes: dict[str, Any]) -> None:
    files = rendered(tmp_path, **changes)
    assert shellcheck(files["job.sh"], files["node.sh"]) == ""


@pytest.mark.skipif(not SHELLCHECK.exists(), reason="shellcheck is not installed")
def test_shellcheck_sees_a_broken_script(tmp_path: Path, home: Path) -> None:
    script = rendered(tmp_path)["node.sh"]
    assert "SC2086" in shellcheck(script.replace('rm -rf -- "$folder"', "rm -rf -- $folder"))


def test_what_the_inventory_asks_for_is_what_the_job_asks_for(tmp_path: Path, home: Path) -> None:
    given = options(
        rendered(
            tmp_path,
            workers=4,
            head={"cores": 8},
            worker={"cores": 16, "gpus": 2},
            memory_gb=31.5,
            partition="gpu",
            account="rl",
            time="1-12:00:00",
        )["job.sh"]
    )
    assert given == {
        "job-name": "repertory-lab",
        "nodes": "5",
        "ntasks-per-node": "1",
        "cpus-per-task": "16",
        "mem": "32256M",
        "gpus-per-node": "2",
        "time": "1-12:00:00",
        "partition": "gpu",
        "account": "rl",
        "output": str(tmp_path / "shared" / "lab" / "logs" / "job-%j.log"),
        "signal": "B:TERM@120",
        "no-kill": "",
    }


def test_without_a_number_of_cores_the_nodes_are_the_jobs_alone(tmp_path: Path, home: Path) -> None:
    given = options(rendered(tmp_path, workers=0, head={"gpus": 0}, worker={"gpus": 4})["job.sh"])
    assert "exclusive" in given
    assert "cpus-per-task" not in given
    assert "gpus-per-node" not in given  # there is no worker that would want one


def test_the_nodes_read_the_inventory_that_was_given(tmp_path: Path, home: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(
        rendered(tmp_path, ports={"ray": 7777, "shards": "9000-9009"})["inventory.yaml"]
    )
    again = read_inventory(path)
    assert (again.ports.ray, str(again.ports.shards)) == (7777, "9000-9009")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("partition", "gpu --wrap=reboot"),
        ("partition", "gpu\n#SBATCH --wrap=reboot"),
        ("account", "$(reboot)"),
        ("account", "-x"),
        ("folder", "/shared/%j"),
        ("folder", "/shared/a b"),
        ("folder", "relative"),
        ("environment", "/env'; reboot; '"),
        ("modules", ["cuda; reboot"]),
        ("train", ["$(reboot)"]),
        ("train", ["a\nb"]),
        ("train", ["it's"]),
        ("name", "lab;reboot"),
        ("time", "1:00:00 --x"),
    ],
)
def test_what_could_become_words_of_its_own_is_refused(
    tmp_path: Path, field: str, value: object
) -> None:
    path = tmp_path / "lab.yaml"
    document = {"name": "lab", "provider": "slurm", "environment": "/env", "folder": "/shared"}
    path.write_text(yaml.safe_dump(document | {field: value}))
    with pytest.raises(UsageError):
        read_inventory(path)


def test_words_that_say_where_a_run_goes_are_refused(tmp_path: Path, home: Path) -> None:
    with pytest.raises(UsageError, match="--address"):
        rendered(tmp_path, train=["CartPole-v1", "--address=elsewhere"])


class Submitted:
    """`up`, where the job is ready as soon as it runs."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.cluster = SlurmCluster(inventory(folder, **changes), folder / "lab.yaml")
        self.base = folder / "shared" / "lab"
        self.said: list[str] = []

    def be_ready(self, job: str = "17") -> None:
        nodes = self.base / "jobs" / job / "nodes"
        nodes.mkdir(parents=True, exist_ok=True)
        (nodes.parent / "ready").touch()
        for name, role, address in (("n2", "worker", "10.0.0.2"), ("n1", "head", "10.0.0.1")):
            (nodes / f"{name}.card").write_text(json.dumps({"role": role, "address": address}))
            (nodes / f"{name}.json").write_text(
                json.dumps({"phase": "ready", "reason": "", "version": "0.1.0", "restarts": 1})
            )

    def up(self) -> None:
        self.cluster.up(self.said.append)


def test_up_submits_once_waits_and_down_ends_just_that_job(
    tmp_path: Path, home: Path, tools: Tools
) -> None:
    submitted = Submitted(tmp_path)
    tools.answer("^sbatch", "17;cluster\n")
    tools.answer("^squeue", "PENDING|Resources\n", "RUNNING|None\n")
    submitted.be_ready()
    submitted.up()
    submitted.up()
    assert [call.words for call in tools.calls("sbatch")] == [
        ["--parsable", str(submitted.base / "job.sh")]
    ]
    secrets = submitted.base / "secrets"
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in secrets.iterdir()}
    assert files == {"authority.pem": 0o600, "authority.key": 0o600, "token": 0o600}
    hidden = secrets_of(home, "lab")
    shown = [path.read_text() for path in submitted.base.glob("*.*") if path.is_file()]
    assert_no_secret([*shown, *(call.line for call in tools.calls())], hidden)
    status = submitted.cluster.status()
    assert [(one.name, one.role, one.address, one.state, one.restarts) for one in status] == [
        ("n1", "head", "10.0.0.1", "ready", 1),
        ("n2", "worker", "10.0.0.2", "ready", 1),
    ]
    tunnel = submitted.cluster.details()["tunnel"]
    assert tunnel == "ssh -N -L 8600:127.0.0.1:8600 n1"

    tools.answer("^squeue", "RUNNING|None\n", "COMPLETING|None\n", ("", "Invalid job id", 1))
    (submitted.base / "runs").mkdir()
    submitted.cluster.down(submitted.said.append)
    assert [call.words for call in tools.calls("scancel")] == [["--full", "17"]]
    assert not secrets.exists()
    assert (submitted.base / "runs").is_dir()
    submitted.cluster.down(submitted.said.append)
    assert len(tools.calls("scancel")) == 1
    assert submitted.cluster.status() == []


def test_a_job_that_sbatch_refuses_leaves_no_secret_and_no_record(
    tmp_path: Path, home: Path, tools: Tools
) -> None:
    submitted = Submitted(tmp_path)
    tools.answer("^sbatch", ("", "sbatch: error: invalid partition specified: gpu", 1))
    with pytest.raises(RepertoryError, match="invalid partition"):
        submitted.up()
    assert not (submitted.base / "secrets").exists()
    assert not (home / "clusters" / "lab" / "slurm.json").exists()
    assert tools.calls("scancel") == []


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        (["RUNNING|None\n", "", ""], "ended"),
        (["PENDING|Resources\n"], r"PENDING \(Resources\)"),
    ],
)
def test_a_job_that_does_not_become_ready_is_cancelled(
    tmp_path: Path, home: Path, tools: Tools, replies: list[str], message: str
) -> None:
    submitted = Submitted(tmp_path, wait_minutes=0.005)
    tools.answer("^sbatch", "17\n")
    tools.answer("^squeue", *replies)
    if len(replies) == 1:  # it is gone once it was cancelled
        (tools.folder / "scancel").write_text(
            f'#!/bin/sh\necho \'[["^squeue", [["", "", 0]]]]\' >{tools.folder}/answers.json\n'
        )
    with pytest.raises(RepertoryError, match=message):
        submitted.up()
    assert not (submitted.base / "secrets").exists()
    assert not (home / "clusters" / "lab" / "slurm.json").exists()


def test_only_a_job_that_still_waits_can_ask_for_another_number_of_nodes(
    tmp_path: Path, home: Path, tools: Tools
) -> None:
    submitted = Submitted(tmp_path)
    with pytest.raises(UsageError, match="is not up"):
        submitted.cluster.scale(3, submitted.said.append)
    tools.answer("^sbatch", "17\n")
    tools.answer("^squeue", "RUNNING|None\n")
    submitted.be_ready()
    submitted.up()
    with pytest.raises(UsageError, match="no more nodes"):
        submitted.cluster.scale(3, submitted.said.append)
    tools.answer("^squeue", "PENDING|Priority\n")
    submitted.cluster.scale(3, submitted.said.append)
    assert [call.words for call in tools.calls("scontrol")] == [
        ["update", "JobId=17", "NumNodes=4"]
    ]


def test_logs_of_one_node_and_of_one_that_is_not_there(
    tmp_path: Path, home: Path, tools: Tools, capfd: pytest.CaptureFixture[str]
) -> None:
    submitted = Submitted(tmp_path)
    tools.answer("^sbatch", "17\n")
    tools.answer("^squeue", "RUNNING|None\n")
    submitted.be_ready()
    submitted.up()
    logs = submitted.base / "logs" / "17" / "n1"
    logs.mkdir(parents=True)
    (logs / "keeper.log").write_text("one\ntwo\nthree\n")
    submitted.cluster.logs(host="n1", lines=2, follow=False)
    assert capfd.readouterr().out == "two\nthree\n"
    with pytest.raises(UsageError, match="n1"):
        submitted.cluster.logs(host="n9; reboot", lines=2, follow=False)


def test_without_slurm_it_says_which_tool_is_missing(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"sbatch is not on PATH.*--render-only"):
        Submitted(tmp_path).up()


SRUN = """#!/bin/bash
# As srun on one node: hands signals on to its task.
printf '%s\\n' "$@" >"$FAKE/srun"
SLURMD_NODENAME=n1 bash "${@: -1}" &
task=$!
trap 'kill -TERM $task' TERM
while kill -0 $task 2>/dev/null; do wait $task; done
"""
REPERTORY = """#!/bin/bash
# As `repertory`: a node that is ready at once, and a run that ends when it is told to.
if [ "$1" = train ]; then
  [ -z "$FAKE_TRAIN_WAITS" ] || trap 'touch "$FAKE/saved"; exit 7' TERM
  printf '%s\\n' "$REPERTORY_NODE" "$@" >"$FAKE/train"
  [ -z "$FAKE_TRAIN_WAITS" ] || { sleep 30 & wait; }
  exit "${FAKE_TRAIN_CODE:-0}"
fi
printf '%s\\n' "$@" >"$FAKE/node"
[ -z "$FAKE_NODE_FAILS" ] || exit 3
trap 'touch "$FAKE/stopped"; exit 0' TERM
echo '{"phase": "ready", "version": "0.1.0"}' >"${@: -1}/state.json"
sleep 60 &
wait
"""


class Job:
    """A job script that runs here, as SLURM would start it."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.fake = folder / "fake"
        self.base = folder / "shared" / "lab"
        self.id = f"{os.getpid()}{time.monotonic_ns() % 10**6}"
        programs = {"srun": SRUN, "repertory": REPERTORY, "scontrol": "#!/bin/sh\necho n1\n"}
        binaries = folder / "env" / "bin"
        for place in (self.fake, binaries, self.base):
            place.mkdir(parents=True)
        for name, text in programs.items():
            (binaries / name).write_text(text)
            (binaries / name).chmod(0o755)
        self._environment = {
            "PATH": os.environ["PATH"],
            "FAKE": str(self.fake),
            "SLURM_JOB_ID": self.id,
            "SLURM_JOB_NUM_NODES": "1",
            "SLURM_JOB_NODELIST": "n1",
            **environment,
        }

    def start(self, files: dict[str, str]) -> subprocess.Popen[bytes]:
        for name, text in files.items():
            (self.base / name).write_text(text)
        return subprocess.Popen(["bash", self.base / "job.sh"], env=self._environment)

    def recorded(self, name: str) -> list[str]:
        return (self.fake / name).read_text().splitlines()

    @property
    def node_folder(self) -> Path:
        return Path(f"/tmp/repertory-lab-{self.id}")


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_job_trains_on_the_head_and_ends_with_the_runs_exit_code(tmp_path: Path) -> None:
    job = Job(tmp_path, FAKE_TRAIN_CODE="5")
    files = rendered(tmp_path, workers=0, train=["CartPole-v1", "--set", "a b", "*"])
    assert job.start(files).wait(30) == 5
    node, *words = job.recorded("train")
    assert words == ["train", "CartPole-v1", "--set", "a b", "*", "--address", "lab"]
    assert node == str(job.node_folder)
    given = job.recorded("node")
    assert given[:3] == ["cluster", "node", str(job.base / "inventory.yaml")]
    said = dict(zip(given[3::2], given[4::2], strict=True))
    assert (said["--role"], said["--name"]) == ("head", "n1")
    assert said["--address"] == said["--head-address"]
    assert said["--secrets"] == str(job.base / "secrets")
    assert (job.fake / "stopped").exists()
    assert not job.node_folder.exists()


def test_before_its_time_is_over_a_run_is_told_to_stop_and_saves(tmp_path: Path) -> None:
    job = Job(tmp_path, FAKE_TRAIN_WAITS="yes")
    process = job.start(rendered(tmp_path, workers=0, train=["CartPole-v1"]))
    eventually((job.fake / "train").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 7
    assert (job.fake / "saved").exists()
    assert (job.fake / "stopped").exists()


def test_a_cluster_without_a_run_waits_until_it_is_told_to_stop(tmp_path: Path) -> None:
    job = Job(tmp_path)
    process = job.start(rendered(tmp_path, workers=0))
    state = job.base / "jobs" / job.id
    eventually((state / "ready").exists)
    assert json.loads((state / "nodes" / "n1.json").read_text())["phase"] == "ready"
    assert (job.node_folder / "runs").resolve() == (job.base / "runs").resolve()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert (job.fake / "stopped").exists()
    assert not job.node_folder.exists()
    assert not (state / "ready").exists()


def test_a_job_whose_nodes_end_before_they_are_ready_fails(tmp_path: Path) -> None:
    job = Job(tmp_path, FAKE_NODE_FAILS="yes")
    assert job.start(rendered(tmp_path, workers=0, train=["CartPole-v1"])).wait(30) == 1
    assert not (job.fake / "train").exists()
    assert not job.node_folder.exists()


def test_a_worker_joins_the_head_that_has_said_where_it_is(tmp_path: Path) -> None:
    job = Job(tmp_path)
    files = rendered(tmp_path)
    (job.base / "node.sh").write_text(files["node.sh"])
    state = job.base / "jobs" / job.id
    (state / "nodes").mkdir(parents=True)
    environment = {
        "PATH": f"{tmp_path / 'env' / 'bin'}:{os.environ['PATH']}",
        "FAKE": str(job.fake),
        "SLURM_JOB_ID": job.id,
        "SLURMD_NODENAME": "n2",
        "REPERTORY_HEAD_HOST": "n1",
    }
    process = subprocess.Popen(["bash", job.base / "node.sh"], env=environment)
    try:
        time.sleep(0.3)
        assert not (job.fake / "node").exists()
        (state / "head").write_text("10.1.2.3\n")
        eventually((state / "nodes" / "n2.json").exists)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    said = job.recorded("node")
    assert said[said.index("--role") + 1] == "worker"
    assert said[said.index("--head-address") + 1] == "10.1.2.3"


def test_the_example_is_an_inventory_of_its_provider(home: Path) -> None:
    example = Path(__file__).parents[2] / "deploy" / "examples" / "slurm.yaml"
    found = read_inventory(example)
    assert isinstance(found, PROVIDERS["slurm"])
    assert isinstance(found, SlurmInventory)
    assert set(SlurmCluster(found, example).render()) == {"job.sh", "node.sh", "inventory.yaml"}
