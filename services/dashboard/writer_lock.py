"""Whether somebody trains in a run directory at this moment, without getting into its way.

Trying the lock would make a run that is just starting believe that another one has it; the kernel's
list of locks tells as much.
"""

from __future__ import annotations

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
    # 1: FLOCK  ADVISORY  WRITE 3902 08:01:1310730 0 EOF. Layered file systems name another device
    # here than `stat` does, so the file is known by its inode alone.
    inode = str(facts.st_ino)
    return any(
        words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode
        for words in map(str.split, lines)
    )
