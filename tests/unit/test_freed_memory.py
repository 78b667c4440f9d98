"""Memory that was freed is used again without asking the system for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own: what is set holds for all of it.
FAULTS = """
import resource, sys
import numpy as np
from repertory.freed_memory import keep_freed_memory

if not keep_freed_memory():
    sys.exit("not glibc")

def batches():
    for _ in range(10):
        frames = np.ones(3 * 2**20, np.uint8)
        columns = [np.ones(2 * 2**20, np.uint8) for _ in range(2)]
        del frames, columns

batches()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
batches()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_batches_cost_no_page_faults() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, timeout=60
    )
    if "not glibc" in done.stderr:
        pytest.skip("another C library")
    assert done.returncode == 0, done.stderr
    pages = 10 * 7 * 2**20 // 4096
    assert int(done.stdout) < pages // 20
