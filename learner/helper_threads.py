"""Threads that call compiled libraries beside the one that learns.

Python starts them and never hears of them again until they end: handing work over takes no lock of
Python's, and a helper that has just worked is found awake (`calls.cpp`).
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from ctypes import c_void_p
from pathlib import Path

import torch

from learner import calls
from learner.calls import Call

PATIENCE_NS = 500_000  # as long as what comes between two steps takes


class HelperThreads:
    """So many; they end with this object."""

    def __init__(self, folder: Path, count: int) -> None:
        self._library = library = calls.load(folder)
        self._helpers = (c_void_p * count)(
            *(library.helper_create(PATIENCE_NS) for _ in range(count))
        )
        for helper in self._helpers:
            thread = threading.Thread(
                target=_serve, args=(library, helper), name="rows", daemon=True
            )
            thread.start()
            weakref.finalize(self, library.helper_end, helper)

    def share(self, work: Sequence[Call]) -> None:
        """Makes all calls at the same time, the first here."""
        places = (c_void_p * len(work))(*(ctypes.addressof(call) for call in work))
        self._library.helpers_share(self._helpers, places, len(work))


def _serve(library: ctypes.CDLL, helper: int) -> None:
    torch.set_num_threads(1)
    library.helper_serve(helper)
