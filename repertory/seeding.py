"""One seed for a run, and from it a generator of its own for every part that needs one."""

from __future__ import annotations

import zlib

import numpy as np


def derive_seed(run_seed: int, *path: str | int) -> int:
    """A seed for one purpose of a run: `derive_seed(7, "learner", "td3")`."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    return int(np.random.SeedSequence((run_seed, *words)).generate_state(1)[0])
