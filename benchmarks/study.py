"""Many training runs for one table: made a few at a time, kept, and not made again.

A study can be stopped at any moment and called again; its tables are made of the runs there are.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Protocol

from rich.console import Console


class Job(Protocol):
    """One run; it can be pickled."""

    @property
    def path(self) -> Path:
        """Of its record, which is there when the run has been made."""
        ...

    @property
    def title(self) -> str: ...

    def make(self) -> float:
        """Writes the record; returns how many seconds it took."""
        ...


def run_all(jobs: Sequence[Job], *, processes: int, minutes: float, console: Console) -> None:
    """Those that are not there yet; after so many minutes no further one is begun."""
    waiting = [job for job in jobs if not job.path.exists()]
    console.print(f"{len(jobs)} runs, of which {len(jobs) - len(waiting)} are in the cache")
    deadline = time.monotonic() + 60 * minutes
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        under_way: dict[Future[float], Job] = {}
        while waiting or under_way:
            if time.monotonic() > deadline and waiting:
                console.print(f"{len(waiting)} runs are left for another time")
                waiting.clear()
            while waiting and len(under_way) < processes:
                job = waiting.pop(0)
                under_way[pool.submit(job.make)] = job
            if not under_way:
                break
            done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                job = under_way.pop(future)
                console.print(
                    f"{job.title}: {future.result():.0f} s, {len(waiting) + len(under_way)} to go"
                )


class Place:
    """Where in a page a program writes its results."""

    END = "<!-- end of results -->"

    def __init__(self, program: str) -> None:
        self.begin = f"<!-- results: written by python -m {program} -->"

    def filled(self, page: str, results: str) -> str:
        """The page with what is between the marks replaced."""
        before, begin, rest = page.partition(self.begin)
        _, end, after = rest.partition(self.END)
        if not begin or not end:
            raise ValueError(
                f"the page has no place for results: it lacks {self.begin!r} or {self.END!r}"
            )
        return f"{before}{self.begin}\n\n{results}\n\n{self.END}{after}"
