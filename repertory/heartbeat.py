"""A process's signs of life: what it says of itself, once a second, from a thread of its own.

The thread reports; the work marks its progress. A process whose work hangs goes on reporting, but
its `progress_at` stands still, and that is what the supervisor looks at. While the control server
is away nothing waits for it: counts are kept and added when it is back, events up to a bound.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from repertory.control import Control, ControlUnavailable, Member

logger = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
REPORTS_KEPT = 1000  # while the control server is away


class Heartbeat:
    """Begins to beat when made. Safe to share between threads."""

    def __init__(
        self,
        control: Control,
        name: str,
        role: str,
        incarnation: int,
        facts: Callable[[], Mapping[str, Any]] = dict,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        self._control = control
        self._name = name
        self._role = role
        self._incarnation = incarnation
        self._facts = facts
        self._every_seconds = every_seconds
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self.totals: dict[str, int] = {}  # of the whole run, as last heard: what was counted here
        self._reports: deque[Callable[[], None]] = deque(maxlen=REPORTS_KEPT)
        self._progress_at = time.time()
        self._away = False
        self._always = False
        self._stopped = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def progress(self) -> None:
        """The work goes on. Cheap enough for every step."""
        self._progress_at = time.time()

    def keep_progressing(self) -> None:
        """For processes that serve: as long as they can speak, they are well."""
        self._always = True

    def count(self, *, soon: bool = False, **counts: int) -> None:
        """Adds to the run's counters, with the next beat; soon: that comes at once."""
        self._keep(counts)
        if soon:
            self._wake.set()

    def event(self, kind: str, **details: Any) -> None:
        name = self._name
        self._reports.append(
            lambda: self._control.record_event(kind, member=name, said_by=name, **details)
        )

    def metrics(self, env_steps: int, metrics: Mapping[str, Any]) -> None:
        name = self._name
        self._reports.append(lambda: self._control.report_metrics(name, env_steps, metrics))

    def close(self) -> None:
        """One last beat, then silence."""
        self._stopped = True
        self._wake.set()
        self._thread.join(timeout=10.0)

    def _keep(self, counts: Mapping[str, int]) -> None:
        with self._lock:
            for name, count in counts.items():
                self._counts[name] = self._counts.get(name, 0) + count

    def _beat(self) -> None:
        while not self._stopped:
            self._wake.wait(self._every_seconds)
            self._wake.clear()
            self._report()
        self._report()

    def _report(self) -> None:
        if self._always:
            self.progress()
        try:
            with self._lock:
                counts, self._counts = self._counts, {}
            try:
                totals = self._control.heartbeat(self._name, self._member(), **counts)
                self.totals = {**self.totals, **totals}
            except ControlUnavailable:
                self._keep(counts)
                raise
            while self._reports:
                self._reports[0]()
                self._reports.popleft()
        except ControlUnavailable as error:
            if not self._away:
                logger.warning("%s; the work goes on, what there is to say is kept", error)
            self._away = True
            return
        if self._away:
            logger.info("the control server is back")
        self._away = False

    def _member(self) -> Member:
        return Member(
            role=self._role,
            host=socket.gethostname(),
            process_id=os.getpid(),
            incarnation=self._incarnation,
            at=time.time(),
            facts={"progress_at": self._progress_at, "memory_bytes": _memory(), **self._facts()},
        )


def _memory() -> int:
    """Resident bytes of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
