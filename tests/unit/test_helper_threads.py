"""Threads that make calls beside the one that learns: really built, really called."""

from __future__ import annotations

import ctypes
import gc
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from learner.calls import Call, build
from learner.helper_threads import HelperThreads

COMPILER = shutil.which("g++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
DEADLINE_SECONDS = 30.0
RUN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
    ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("helpers")
    build(made, str(COMPILER))
    return made


def call_of(function: Any, number: int) -> Call:
    return Call(run=ctypes.cast(function, ctypes.c_void_p), container=number)


def codes_of(helpers: HelperThreads, calls: list[Call]) -> list[int]:
    helpers.share(calls)
    return [call.code for call in calls]


def made_with_threads(folder: Path, count: int) -> tuple[HelperThreads, list[threading.Thread]]:
    before = set(threading.enumerate())
    helpers = HelperThreads(folder, count)
    return helpers, [one for one in threading.enumerate() if one not in before]


def await_sleep(thread: threading.Thread) -> None:
    stat = Path(f"/proc/self/task/{thread.native_id}/stat")
    deadline = time.monotonic() + DEADLINE_SECONDS
    while stat.read_text().rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < deadline, "it never sleeps"


def test_calls_are_made_at_the_same_time_and_each_has_its_code(folder: Path) -> None:
    helpers, together = HelperThreads(folder, 2), threading.Barrier(3)
    made_by: dict[int, int] = {}

    @RUN
    def meet(container: int, *rest: Any) -> int:
        together.wait(DEADLINE_SECONDS)  # nobody comes through alone
        made_by[container] = threading.get_ident()
        return container * 10

    for _ in range(20):
        calls = [call_of(meet, number) for number in (1, 2, 3)]
        assert codes_of(helpers, calls) == [10, 20, 30]
    assert made_by[1] == threading.get_ident()
    assert len(set(made_by.values())) == 3


def test_a_helper_that_went_to_sleep_is_woken(folder: Path) -> None:
    helpers, (thread,) = made_with_threads(folder, 1)

    @RUN
    def answer(container: int, *rest: Any) -> int:
        return container

    for _ in range(3):
        await_sleep(thread)
        assert codes_of(helpers, [call_of(answer, 4), call_of(answer, 5)]) == [4, 5]


def test_helpers_end_with_their_owner(folder: Path) -> None:
    helpers, threads = made_with_threads(folder, 2)
    assert len(threads) == 2
    del helpers
    gc.collect()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()
