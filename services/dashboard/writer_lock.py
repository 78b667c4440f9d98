"""Whether somebody trains in a run directory at this moment, without getting into its way.

Trying the lock would make a run that is just starting believe that another one has it; the kernel's
list of locks tells as much.
"""

from __future__ import annotations

import os
from pathlib import Path

LOCKS = Path("/proc/locks")


def is_locked(path: Path, locks: Path = LOCKS) -> bool | None:
    """None: it cannot be told here."""
    try:
        facts = path.stat()
        lines = locks.read_text().splitlines()
    except FileNotFoundError:
        return None if not locks.exists() else False
    except OSError:
        return None
    device = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}"
    place = f"{device}:{facts.st_ino}"
    # 1: FLOCK  ADVISORY  WRITE 3902 08:01:1310730 0 EOF; with "->" behind the number it waits.
    return any(words[1] == "FLOCK" and words[5] == place for words in map(str.split, lines))
