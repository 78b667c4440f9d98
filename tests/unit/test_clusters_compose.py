"""A cluster of containers: the compose file, the image's recipe, and what `up` and `down` do."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose
from rendered_clusters import Tools, assert_no_secret, secrets_of

from repertory.errors import RepertoryError, UsageError
from services.clusters import external_tool
from services.clusters.compose import ComposeCluster
from services.clusters.container_tunnel import ContainerTunnel
from services.clusters.inventory import ComposeInventory, read_inventory

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"


def cluster(**changes: Any) -> ComposeCluster:
    document = {"name": "lab", "provider": "compose", "wait_minutes": 0.1, **changes}
    return ComposeCluster(ComposeInventory.model_validate(document), Path("lab.yaml"))


def composed(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(cluster(**changes).render()["compose.yaml"])
    return document


def check(document: dict[str, Any]) -> None:
    PyCompose.from_yaml(yaml.safe_dump(document)).validate()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPERTORY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(external_tool, "LOOK_SECONDS", 0.02)
    return tmp_path / "home"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    tools = Tools(tmp_path / "tools", "docker")
    monkeypatch.setenv("PATH", f"{tools.folder}:{os.environ['PATH']}")
    return tools


@pytest.mark.parametrize(
    "changes", [{}, {"workers": 0}, {"head": {"gpus": 2}, "worker": {"cores": 3, "gpus": 1}}]
)
def test_it_is_a_compose_file(changes: dict[str, Any]) -> None:
    check(composed(**changes))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("services", "head", "shm_size"), {"much": 1}),
        (("services", "worker", "secrets"), ["of-nobody"]),
        (("services", "worker", "networks"), ["elsewhere"]),
        (("services", "worker", "no_such_key"), True),
        (("services", "worker", "depends_on", "head", "condition"), "service_nice"),
        (("services", "head", "healthcheck", "interval"), "soon"),
    ],
)
def test_the_validator_refuses_what_is_no_compose_file(place: tuple[str, ...], value: Any) -> None:
    document = composed()
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(ValueError, match=r"."):
        check(document)


@pytest.mark.skipif(
    shutil.which("docker") is None
    or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode != 0,
    reason="docker compose is not installed",
)
def test_docker_compose_itself_takes_it(home: Path) -> None:
    rendered = home / "clusters" / "lab" / "rendered"
    rendered.mkdir(parents=True)
    (rendered / "compose.yaml").write_text(cluster().render()["compose.yaml"])
    command = ["docker", "compose", "-f", str(rendered / "compose.yaml"), "config", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_what_the_inventory_says_is_where_it_belongs() -> None:
    document = composed(
        image="rl:2",
        workers=7,
        head={"cores": 4, "memory_gb": 6.5, "object_store_mb": 512},
        worker={"cores": 3, "gpus": 2},
    )
    head, worker = document["services"]["head"], document["services"]["worker"]
    assert head["image"] == worker["image"] == "rl:2"
    assert head["deploy"]["resources"] == {"limits": {"cpus": "4", "memory": "6656m"}}
    assert head["shm_size"] == "768m"
    assert worker["deploy"]["replicas"] == 7
    assert worker["deploy"]["resources"]["reservations"]["devices"] == [
        {"driver": "nvidia", "count": 2, "capabilities": ["gpu"]}
    ]
    assert worker["depends_on"] == {"head": {"condition": "service_healthy"}}
    assert "--role head" in head["entrypoint"][2]
    assert "--head-address head " in worker["entrypoint"][2]


def test_containers_can_do_little_and_publish_nothing() -> None:
    document = composed()
    assert document["networks"] == {"cluster": {"internal": True}}
    for service in document["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["user"] == f"{os.getuid()}:{os.getgid()}"
        assert "ports" not in service
        assert "privileged" not in service


def test_the_command_finds_name_and_address_out_in_the_container(tmp_path: Path) -> None:
    """As /bin/sh there would run it: compose makes one $ of two."""
    for role, expected in (("head", "10.0.0.5"), ("worker", "head")):
        script = composed()["services"][role]["entrypoint"][2].replace("$$", "$")
        programs = {
            "hostname": '#!/bin/sh\n[ "$1" = -i ] && echo "10.0.0.5 fd00::5" || echo "a b"\n',
            "repertory": "#!/bin/sh\nprintf '%s\\n' \"$@\"\n",
        }
        for name, text in programs.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        done = subprocess.run(
            ["/bin/sh", "-c", script],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=True,
        )
        words = done.stdout.splitlines()
        assert words[:4] == ["cluster", "node", "/etc/repertory/inventory.yaml", "--role"]
        assert words[words.index("--name") + 1] == "a b"
        assert words[words.index("--address") + 1] == "10.0.0.5"
        assert words[words.index("--head-address") + 1] == expected


def test_a_dollar_in_a_path_is_not_taken_for_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPERTORY_HOME", str(tmp_path / "a$HOME"))
    files = [one["file"] for one in composed()["secrets"].values()]
    assert all("a$$HOME" in file for file in files)


@pytest.mark.parametrize("image", ["a$(reboot)", "a\nb", 'a"b', ""])
def test_hostile_values_are_refused(tmp_path: Path, image: str) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(yaml.safe_dump({"name": "lab", "provider": "compose", "image": image}))
    with pytest.raises(UsageError):
        read_inventory(path)


def test_up_scale_status_logs_and_down(home: Path, tools: Tools) -> None:
    said: list[str] = []
    lab = cluster(workers=2)
    containers = [
        {"Name": "repertory-lab-worker-1", "Service": "worker", "State": "running", "Health": ""},
        {"Name": "repertory-lab-head-1", "Service": "head", "State": "running"}
        | {"Health": "healthy", "Status": "Up 2 minutes (healthy)"},
        {"Name": "repertory-lab-worker-2", "Service": "worker", "State": "exited"}
        | {"Status": "Exited (1) 3 seconds ago"},
    ]
    tools.answer(" ps ", "\n".join(map(json.dumps, containers)))
    lab.up(said.append)
    lab.up(said.append)
    ups = [call.words for call in tools.calls() if "up" in call.words]
    file = home / "clusters" / "lab" / "rendered" / "compose.yaml"
    place = ["compose", "-p", "repertory-lab", "-f", str(file)]
    start = ["up", "--detach", "--wait", "--wait-timeout", "6", "--scale"]
    assert ups == 2 * [[*place, *start, "worker=2"]]
    assert {path.name for path in file.parent.iterdir()} == {"compose.yaml", "inventory.yaml"}
    shown = [path.read_text() for path in file.parent.iterdir()]
    assert_no_secret(
        [*shown, *(call.line + call.stdin for call in tools.calls())], secrets_of(home, "lab")
    )
    assert [(one.name, one.role, one.state, one.reason) for one in lab.status()] == [
        ("repertory-lab-head-1", "head", "ready", ""),
        ("repertory-lab-worker-1", "worker", "starting", ""),
        ("repertory-lab-worker-2", "worker", "exited", "Exited (1) 3 seconds ago"),
    ]
    tools.answer(" ps ", json.dumps(containers))  # as older versions answer
    assert len(lab.status()) == 3

    lab.scale(5, said.append)
    assert tools.calls()[-1].words == [*place, *start, "worker=5"]
    lab.logs(host=None, lines=10, follow=False)
    assert tools.calls()[-1].words == [*place, "logs", "--tail", "10"]
    lab.logs(host="repertory-lab-worker-2", lines=10, follow=True)
    assert tools.calls()[-1].words[-3:] == ["10", "--follow", "repertory-lab-worker-2"]
    with pytest.raises(UsageError, match="no container"):
        lab.logs(host="--help", lines=10, follow=False)

    (home / "clusters" / "lab" / "runs" / "one").mkdir()
    lab.down(said.append)
    assert tools.calls()[-1].words == [*place, "down", "--timeout", "60"]
    assert (home / "clusters" / "lab" / "runs" / "one").is_dir()
    lab.down(said.append)
    assert sum("down" in call.words for call in tools.calls()) == 1
    assert lab.status() == []


def test_what_does_not_become_healthy_is_ended(home: Path, tools: Tools) -> None:
    tools.answer(" up ", ("", "container repertory-lab-head-1 is unhealthy", 1))
    with pytest.raises(RepertoryError, match="unhealthy"):
        cluster().up([].append)
    assert tools.calls()[-1].words[-3:] == ["down", "--timeout", "60"]
    assert not (home / "clusters" / "lab" / "compose.json").exists()


def test_a_cluster_that_was_up_before_stays_where_up_fails(home: Path, tools: Tools) -> None:
    tools.answer(" ps ", json.dumps([{"Name": "h", "Service": "head", "State": "running"}]))
    cluster().up([].append)
    tools.answer(" up ", ("", "no space left on device", 1))
    with pytest.raises(RepertoryError, match="no space"):
        cluster().up([].append)
    assert not any("down" in call.words for call in tools.calls())


def test_without_docker_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"docker is not on PATH.*--render-only"):
        cluster().up([].append)


def test_the_tunnel_carries_bytes_both_ways() -> None:
    """The command that would run in the container runs here."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()  # until the other side has said everything
        writer.write(data[::-1])
        writer.close()
        await writer.wait_closed()

    async def talk() -> list[bytes]:
        before = len(asyncio.all_tasks())
        inside = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = inside.sockets[0].getsockname()[1]
        program = Path(sys.executable).parent
        command = ["env", f"PATH={program}:{os.environ['PATH']}"]
        tunnel = await ContainerTunnel(command, port).open(0)
        here = tunnel.sockets[0].getsockname()[1]

        async def one(message: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", here)
            writer.write(message)
            writer.write_eof()
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            return answer

        async with inside, tunnel:
            answers = await asyncio.gather(one(b"abc" * 100_000), one(b"second"))
            while len(asyncio.all_tasks()) > before:  # nothing is left over
                await asyncio.sleep(0.01)
        return answers

    first, second = asyncio.run(asyncio.wait_for(talk(), 60))
    assert first == (b"abc" * 100_000)[::-1]
    assert second == b"dnoces"


def test_the_image_is_pinned_runs_as_nobody_in_particular_and_copies_what_is_there() -> None:
    lines = DOCKERFILE.read_text().splitlines()
    words = [line.split() for line in lines if line and not line.startswith(("#", " "))]
    base = next(line[1] for line in words if line[0] == "FROM")
    assert re.fullmatch(r"python:3\.11-slim-\w+", base)
    assert [line for line in words if line[0] == "USER"] == [["USER", "1000:1000"]]
    assert 'ENTRYPOINT ["repertory"]' in lines
    copied = [source for line in words if line[0] == "COPY" for source in line[1:-1]]
    assert "constraints.txt" in copied
    assert [source for source in copied if not (ROOT / source).exists()] == []
    allowed = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    assert allowed[1] == "*"
    assert {f"!{source}" for source in copied} == {line for line in allowed if line[0] == "!"}
    assert not re.search(r"token|password|secret|--build-arg \w*KEY", "\n".join(lines), re.I)


def test_the_image_has_all_packages_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    found = re.search(r"include = \[(.*)\]", project)
    assert found is not None
    packages = {name.strip(' "*') for name in found[1].split(",")}
    assert {f"COPY {name} ./{name}" for name in packages} <= set(
        DOCKERFILE.read_text().splitlines()
    )


def test_the_example_is_an_inventory_of_its_provider() -> None:
    example = ROOT / "deploy" / "examples" / "compose.yaml"
    found = read_inventory(example)
    assert isinstance(found, ComposeInventory)
    check(yaml.safe_load(ComposeCluster(found, example).render()["compose.yaml"]))
