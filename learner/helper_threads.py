"""Threads that call compiled libraries beside the one that learns (`helper.cpp`).

Python starts them and never hears of them again until they end: handing work over takes no lock of
Python's, and a helper that has just worked is found awake.
"""

from __future__ import annotations

import ctypes
import subprocess
import threading
import weakref
from collections.abc import Sequence
from ctypes import POINTER, c_int, c_long, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).with_name("helper.cpp")
LIBRARY = "helpers.so"
BUILD_SECONDS = 60.0
PATIENCE_NS = 500_000  # as long as what comes between two steps takes


class Call(ctypes.Structure):
    """One call of a compiled library, as `helper.cpp` has it."""

    _fields_ = (
        ("run", c_void_p),
        ("container", c_void_p),
        ("inputs", c_void_p),
        ("input_count", c_size_t),
        ("outputs", c_void_p),
        ("output_count", c_size_t),
        ("code", c_int),
    )


def build(folder: Path, compiler: str) -> None:
    command = [compiler, "-O2", "-shared", "-fPIC", "-std=c++17", "-o", LIBRARY, str(SOURCE)]
    subprocess.run(command, cwd=folder, check=True, timeout=BUILD_SECONDS, capture_output=True)


class HelperThreads:
    """So many; they end with this object."""

    def __init__(self, folder: Path, count: int) -> None:
        library: Any = ctypes.CDLL(str(folder / LIBRARY))
        library.helper_create.restype, library.helper_create.argtypes = c_void_p, [c_long]
        library.helper_serve.argtypes = library.helper_end.argtypes = [c_void_p]
        library.helpers_share.argtypes = [c_void_p, POINTER(Call), c_size_t]
        self._library = library
        self._helpers = (c_void_p * count)(
            *(library.helper_create(PATIENCE_NS) for _ in range(count))
        )
        for helper in self._helpers:
            thread = threading.Thread(
                target=_serve, args=(library, helper), name="rows", daemon=True
            )
            thread.start()
            weakref.finalize(self, library.helper_end, helper)

    def share(self, calls: Sequence[Call]) -> list[int]:
        """Makes all of them at the same time, the first here; returns their codes."""
        together = (Call * len(calls))(*calls)
        self._library.helpers_share(self._helpers, together, len(calls))
        return [call.code for call in together]


def _serve(library: Any, helper: int) -> None:
    torch.set_num_threads(1)
    library.helper_serve(helper)
