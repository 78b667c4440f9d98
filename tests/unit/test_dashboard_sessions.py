"""Cookies and links: signed by the token, in time, links once."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from services.dashboard import sessions as module
from services.dashboard.sessions import Sessions
from services.secret_file import secret_in


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000_000.0]
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    return now


def test_the_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = secret_in(path)
    assert len(token) == 64
    assert secret_in(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Sessions(token).knows(token)
    assert not Sessions(token).knows(token[:-1])
    assert not Sessions(token).knows("")


def test_a_cookie_lasts_for_its_time_and_over_restarts(clock: list[float]) -> None:
    cookie = Sessions("token").cookie()
    assert Sessions("token").is_cookie(cookie)
    clock[0] += module.COOKIE_SECONDS + 1
    assert not Sessions("token").is_cookie(cookie)


def test_a_link_is_good_once_and_not_for_long(clock: list[float]) -> None:
    sessions = Sessions("token")
    link = sessions.link_code()
    assert sessions.redeem(link)
    assert not sessions.redeem(link)
    late = sessions.link_code()
    clock[0] += module.LINK_SECONDS + 1
    assert not sessions.redeem(late)


@pytest.mark.parametrize(
    "change", ["", "x", ".", "..", "1.2.3", "99999999999.0.ff", "é.0.0", "٣.0.0"]
)
def test_what_was_not_signed_is_refused(change: str) -> None:
    sessions = Sessions("token")
    assert not sessions.is_cookie(change)
    assert not sessions.redeem(change)


def test_neither_stands_for_the_other_nor_for_another_token() -> None:
    sessions, other = Sessions("token"), Sessions("other")
    assert not sessions.redeem(sessions.cookie())
    assert not sessions.is_cookie(sessions.link_code())
    assert not other.is_cookie(sessions.cookie())
    until, number, signature = sessions.cookie().split(".")
    assert not sessions.is_cookie(f"{int(until) + 1}.{number}.{signature}")
    assert sessions.cookie_name != other.cookie_name
    assert int(until) > time.time()
