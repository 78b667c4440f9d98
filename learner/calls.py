"""Calls of compiled libraries as C has them (`calls.cpp`, built beside what is compiled)."""

from __future__ import annotations

import ctypes
import subprocess
from ctypes import POINTER, c_int, c_long, c_size_t, c_void_p
from pathlib import Path

SOURCE = Path(__file__).with_name("calls.cpp")
LIBRARY = "calls.so"
BUILD_SECONDS = 60.0


class Call(ctypes.Structure):
    """One call; `code` is 0 once it was made and nothing went wrong."""

    _fields_ = (
        ("run", c_void_p),
        ("new_handle", c_void_p),
        ("container", c_void_p),
        ("kept", c_void_p),
        ("kept_count", c_size_t),
        ("given", c_void_p),
        ("given_count", c_size_t),
        ("outputs", c_void_p),
        ("output_count", c_size_t),
        ("code", c_int),
    )


def build(folder: Path, compiler: str) -> None:
    options = ["-O2", "-shared", "-fPIC", "-pthread", "-std=c++20"]
    command = [compiler, *options, "-o", LIBRARY, str(SOURCE)]
    subprocess.run(command, cwd=folder, check=True, timeout=BUILD_SECONDS, capture_output=True)


def load(folder: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(folder / LIBRARY))
    library.call_make.argtypes = [POINTER(Call)]
    library.helper_create.restype, library.helper_create.argtypes = c_void_p, [c_long]
    library.helper_serve.argtypes = library.helper_end.argtypes = [c_void_p]
    library.helpers_share.argtypes = [c_void_p, c_void_p, c_size_t]
    return library
