"""Secrets in files: whole, made once, for their owner alone."""

from __future__ import annotations

import os
import re
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from repertory.errors import UsageError
from services.secret_file import make_secret, secret_in, write_secret


def test_a_secret_has_256_bits_and_is_another_each_time(tmp_path: Path) -> None:
    one, other = secret_in(tmp_path / "one"), secret_in(tmp_path / "other")
    assert re.fullmatch("[0-9a-f]{64}", one)
    assert one != other


def test_a_secret_that_is_there_stays(tmp_path: Path) -> None:
    assert make_secret(tmp_path / "token")
    content = (tmp_path / "token").read_bytes()
    assert not make_secret(tmp_path / "token")
    assert not write_secret(tmp_path / "token", b"another")
    assert secret_in(tmp_path / "token").encode() == content


def test_one_of_your_own_is_read_without_the_line_end(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("mine\n")
    assert secret_in(tmp_path / "token") == "mine"


def test_only_its_owner_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_secret(tmp_path / "token")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


def test_of_those_that_race_one_makes_it_and_all_see_it_whole(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def make(path: Path) -> tuple[bool, bytes]:
        together.wait(10)
        return write_secret(path, os.urandom(50_000)), path.read_bytes()

    with ThreadPoolExecutor(8) as pool:
        for place in range(20):
            made = list(pool.map(make, [tmp_path / str(place)] * 8))
            assert sum(first for first, _ in made) == 1
            assert {len(content) for _, content in made} == {50_000}
            assert len({content for _, content in made}) == 1


def test_nothing_else_is_left_beside_it(tmp_path: Path) -> None:
    write_secret(tmp_path / "token", b"x")
    write_secret(tmp_path / "token", b"y")
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


@pytest.mark.parametrize("make", [make_secret, secret_in])
def test_a_folder_that_is_missing_is_told(tmp_path: Path, make: object) -> None:
    assert callable(make)
    with pytest.raises(UsageError, match=r"cannot make .*none/token, a secret: No such file"):
        make(tmp_path / "none" / "token")
