"""What is brought to each machine, and what a machine does with it. Without a network."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cluster_fakes import machine_with, unpacked

from repertory.errors import RepertoryError
from services.clusters import installation
from services.clusters.hosts_cluster import _UNPACK
from services.clusters.installation import _SCRIPT, STAMP, Installation, _pack, tar_of
from services.clusters.inventory import Python
from services.clusters.machine import Machine
from services.clusters.shell import LocalShell

LOCK = {"numpy": "2.3.1", "ray": "2.49.0"}
SHELLCHECK = Path(sys.prefix) / "bin" / "shellcheck"


def wheel(folder: Path, content: str = "x = 1\n", year: int = 2020) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "repertory-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in (("repertory/__init__.py", content), ("repertory-1.0/RECORD", "r\n")):
            archive.writestr(zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0)), text)
    return path


def digest(path: Path, lock: dict[str, str] | None = None, **python: Any) -> str:
    return _pack(path, Python(**python), LOCK if lock is None else lock)[1]


def test_when_it_was_built_does_not_matter(tmp_path: Path) -> None:
    one, other = wheel(tmp_path / "1", year=2020), wheel(tmp_path / "2", year=2024)
    assert one.read_bytes() != other.read_bytes()
    assert digest(one) == digest(other)


def test_everything_else_does(tmp_path: Path) -> None:
    one, other = wheel(tmp_path / "1"), wheel(tmp_path / "2", content="x = 2\n")
    digests = [
        digest(one),
        digest(other),
        digest(one, {**LOCK, "ray": "2.48.0"}),
        digest(one, {}),
        digest(one, extras=("atari",)),
        digest(one, extras=("atari", "video")),
        digest(one, setup=("true",)),
        digest(one, setup=("true", "true")),
    ]
    assert len(set(digests)) == len(digests)


def test_the_box_has_all_that_is_needed(tmp_path: Path) -> None:
    project = wheel(tmp_path / "1")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "ray-2.49.0-py3-none-any.whl").write_bytes(b"ray")
    (tmp_path / "wheels" / "notes.txt").write_text("no wheel")
    python = Python(wheels=tmp_path / "wheels", setup=("a", "b"))
    box = unpacked(_pack(project, python, LOCK)[0])
    assert {name: file.content for name, file in box.items()} == {
        f"project/{project.name}": project.read_bytes(),
        "lock.txt": b"numpy==2.3.1\nray==2.49.0\n",
        "setup.sh": b"a\nb\n",
        "ray-2.49.0-py3-none-any.whl": b"ray",
    }


def test_secrets_in_a_tar_are_for_their_owner_alone() -> None:
    files = {"token": b"t", "node.json": b"{}", "key.pem": b"k"}
    modes = {
        name: file.mode for name, file in unpacked(tar_of(files, ("token", "key.pem"))).items()
    }
    assert modes == {"token": 0o600, "node.json": 0o644, "key.pem": 0o600}


@pytest.mark.parametrize("script", [_SCRIPT.format(stamp=STAMP), _UNPACK])
def test_shellcheck_finds_nothing_in_a_script(script: str) -> None:
    done = subprocess.run(
        [SHELLCHECK, "--shell=sh", "-"],
        input=script,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "")


# The script itself, with a Python that only says what it is told


FAKE_PYTHON = """#!/bin/sh
echo "$*" >> "{told}"
case "$*" in
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
*" pip install "*) [ ! -e "{told}.fail" ] || {{ echo no such package >&2; exit 1; }} ;;
esac
"""


class Bench:
    """A machine here, whose environments are made by a stand-in."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._told = folder / "told"
        self.interpreter = folder / "my python"
        self.interpreter.write_text(FAKE_PYTHON.format(told=self._told))
        self.interpreter.chmod(0o755)
        self.content = "x = 1\n"
        monkeypatch.setattr(
            installation, "_project_wheel", lambda where: wheel(where, self.content)
        )
        self.machine: Machine = machine_with(LocalShell(), folder / "my node")

    @property
    def environment(self) -> Path:
        return Path(self.machine.environment)

    def told(self) -> list[str]:
        lines = self._told.read_text().splitlines() if self._told.exists() else []
        self._told.unlink(missing_ok=True)
        return lines

    def fail(self, *, on: bool) -> None:
        (Path(f"{self._told}.fail").touch if on else Path(f"{self._told}.fail").unlink)()

    def install(self, lock: dict[str, str] | None = None, **python: Any) -> None:
        settings = Python(interpreter=str(self.interpreter), **python)
        Installation(settings, LOCK if lock is None else lock).on(self.machine)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_an_environment_is_made_and_the_wheel_installed_under_the_lock(bench: Bench) -> None:
    bench.install(extras=("atari", "video"))
    made, installed = bench.told()
    assert made == f"-m venv {bench.environment}"
    assert installed.startswith("-m pip install --no-input")
    assert "--constraint /" in installed
    assert installed.endswith("repertory-1.0-py3-none-any.whl[atari,video]")
    assert "--no-index" not in installed


def test_the_second_time_nothing_is_done(bench: Bench) -> None:
    bench.install()
    bench.told()
    bench.install()
    assert bench.told() == []


def test_a_change_is_installed_into_the_same_environment(bench: Bench) -> None:
    bench.install()
    bench.told()
    bench.content = "x = 2\n"
    bench.install()
    (installed,) = bench.told()
    assert "pip install" in installed


def test_wheels_that_come_along_are_all_there_is(bench: Bench) -> None:
    (bench.folder / "wheels").mkdir()
    bench.install(wheels=bench.folder / "wheels")
    assert "--no-index --find-links /" in bench.told()[-1]


def test_commands_of_ones_own_run_in_the_environment(bench: Bench) -> None:
    marker = bench.folder / "ran"
    bench.install(setup=(f"command -v python > {marker}",))
    assert marker.read_text().strip() == str(bench.environment / "bin" / "python")


def test_a_failure_is_told_and_tried_again_the_next_time(bench: Bench) -> None:
    bench.fail(on=True)
    with pytest.raises(RepertoryError, match=r"beta: the installation failed: no such package"):
        bench.install()
    bench.fail(on=False)
    bench.told()
    bench.install()
    assert len(bench.told()) == 1


def test_a_command_that_fails_is_told_and_tried_again_the_next_time(bench: Bench) -> None:
    with pytest.raises(RepertoryError, match="the installation failed"):
        bench.install(setup=("false", "true"))
    with pytest.raises(RepertoryError, match="the installation failed"):
        bench.install(setup=("false", "true"))


def test_what_was_half_replaced_is_not_taken_for_whole(bench: Bench) -> None:
    # Once: the old stamp stays while the new version is being installed; after a failure the old
    # one is "there already", though its packages are half those of the new one.
    bench.install()
    bench.content = "x = 2\n"
    bench.fail(on=True)
    with pytest.raises(RepertoryError, match="no such package"):
        bench.install()
    bench.fail(on=False)
    bench.told()
    bench.content = "x = 1\n"
    bench.install()
    assert len(bench.told()) == 1


def test_nothing_is_left_in_the_folder_for_temporary_files(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = bench.folder / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    bench.install()
    bench.fail(on=True)
    with pytest.raises(RepertoryError, match="failed"):
        bench.install({})
    assert list(place.iterdir()) == []


def test_a_wheel_that_cannot_be_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RepertoryError, match=r"no wheel of .* could be made"):
        Installation(Python(), LOCK)
