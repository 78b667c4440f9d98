"""The newest lines of a machine's logs, and those that come."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.clusters.tail import show

SECONDS = 20.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path


def shown(folder: Path, capsys: pytest.CaptureFixture[str], lines: int = 20) -> list[str]:
    show(folder, lines=lines, follow=False)
    return capsys.readouterr().out.splitlines()


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


# Once


def test_the_newest_lines_of_each_file_are_shown_with_its_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "logs" / "ray.log").write_text("a\nb\nc\n")
    (folder / "logs" / "keeper.log").write_text("d\n")
    assert shown(folder, capsys, lines=2) == ["keeper.log: d", "ray.log: b", "ray.log: c"]


def test_logs_of_runs_are_shown_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "runs" / "cartpole" / "logs").mkdir(parents=True)
    (folder / "runs" / "cartpole" / "logs" / "worker-0.log").write_text("hello\n")
    assert shown(folder, capsys) == ["cartpole/logs/worker-0.log: hello"]


def test_a_folder_among_them_is_no_harm(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Once: IsADirectoryError, for whatever else a run may have in its logs.
    (folder / "runs" / "cartpole" / "logs" / "older").mkdir(parents=True)
    (folder / "logs" / "ray.log").write_text("a\n")
    assert shown(folder, capsys) == ["ray.log: a"]


def test_where_there_are_no_logs_nothing_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(tmp_path / "none", capsys) == []


def test_no_lines_are_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "logs" / "ray.log").write_text("a\n")
    assert shown(folder, capsys, lines=0) == []


def test_a_last_line_without_an_end_is_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "logs" / "ray.log").write_text("a\nhal")
    assert shown(folder, capsys) == ["ray.log: a", "ray.log: hal"]


def test_a_line_that_is_too_long_is_cut_and_bytes_that_are_no_text_are_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "logs" / "ray.log").write_bytes(b"x" * 5000 + b"\n\xff\n")
    assert shown(folder, capsys) == [f"ray.log: {'x' * 2000}", "ray.log: \ufffd"]


# Going on


class Follower:
    """A process that follows; what it says is read line by line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdout is not None
        self._descriptor = process.stdout.fileno()
        self._rest = b""

    def line(self) -> str:
        while b"\n" not in self._rest:
            assert select.select([self._descriptor], [], [], SECONDS)[0], "nothing came"
            self._rest += os.read(self._descriptor, 2**16)
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def hang_up(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def following(folder: Path, lines: int = 20) -> Iterator[Follower]:
    program = (
        "import sys; from pathlib import Path; from services.clusters import tail;"
        "tail.LOOK_SECONDS = 0.05;"
        "tail.show(Path(sys.argv[1]), lines=int(sys.argv[2]), follow=True)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder), str(lines)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield Follower(process)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def test_lines_that_are_added_are_shown_once(folder: Path) -> None:
    log = folder / "logs" / "ray.log"
    log.write_text("old\n")
    with following(folder) as follower:
        assert follower.line() == "ray.log: old"
        append(log, "one\ntwo\n")
        assert [follower.line(), follower.line()] == ["ray.log: one", "ray.log: two"]
        append(log, "three\n")
        assert follower.line() == "ray.log: three"


def test_new_files_are_shown_from_their_beginning(folder: Path) -> None:
    (folder / "logs" / "ray.log").write_text("old\n")
    with following(folder) as follower:
        assert follower.line() == "ray.log: old"
        (folder / "runs" / "new" / "logs").mkdir(parents=True)
        append(folder / "runs" / "new" / "logs" / "learner.log", "a\nb\n")
        assert follower.line() == "new/logs/learner.log: a"
        assert follower.line() == "new/logs/learner.log: b"


def test_a_file_that_is_begun_anew_is_shown_from_its_beginning(folder: Path) -> None:
    log = folder / "logs" / "ray.log"
    log.write_text("a long line of before\n")
    with following(folder) as follower:
        follower.line()
        log.write_text("new\n")
        assert follower.line() == "ray.log: new"


def test_half_a_line_waits_for_the_rest(folder: Path) -> None:
    log, other = folder / "logs" / "a.log", folder / "logs" / "b.log"
    log.touch()
    other.write_text("ready\n")
    with following(folder) as follower:
        assert follower.line() == "b.log: ready"
        append(log, "one ha")
        append(other, "between\n")
        assert follower.line() == "b.log: between"
        append(log, "lf\n")
        assert follower.line() == "a.log: one half"


def test_half_a_line_that_is_there_at_first_waits_too(folder: Path) -> None:
    # Once: it is shown as two lines.
    log = folder / "logs" / "ray.log"
    log.write_text("ready\none ha")
    with following(folder) as follower:
        assert follower.line() == "ray.log: ready"
        append(log, "lf\n")
        assert follower.line() == "ray.log: one half"


def test_a_file_that_goes_away_is_no_harm(folder: Path) -> None:
    gone, log = folder / "logs" / "gone.log", folder / "logs" / "ray.log"
    gone.write_text("a\n")
    log.write_text("b\n")
    with following(folder) as follower:
        assert [follower.line(), follower.line()] == ["gone.log: a", "ray.log: b"]
        gone.unlink()
        append(log, "c\n")
        assert follower.line() == "ray.log: c"


def test_it_ends_without_a_traceback_when_nobody_reads_any_more(folder: Path) -> None:
    # Once: BrokenPipeError.
    log = folder / "logs" / "ray.log"
    log.write_text("a\n")
    with following(folder) as follower:
        follower.line()
        follower.hang_up()
        append(log, "b\n")
        append(log, "c\n")
        assert follower.process.wait(SECONDS) >= 0
        assert follower.process.stderr is not None
        assert follower.process.stderr.read() == b""


def test_it_ends_when_nobody_reads_though_nothing_is_written(folder: Path) -> None:
    # Once: it lives until the next line comes: on a quiet machine each `logs --follow` that was
    # ended leaves a process behind.
    (folder / "logs" / "ray.log").write_text("a\n")
    with following(folder) as follower:
        follower.line()
        follower.hang_up()
        follower.process.wait(5)
