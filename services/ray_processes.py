"""The processes of one run under Ray: started, looked at, ended. Decides nothing by itself.

`services.supervisor` decides; it gets from here what each process looks like. A process is up while
its `run` has not returned; when it last did something it says itself, through the control plane.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray

from repertory.control import Control, ControlUnavailable, Member
from repertory.errors import RepertoryError
from services.supervisor import Observed

logger = logging.getLogger(__name__)

STOP_SECONDS = 30.0  # to finish by itself, when told to
TAKES_ORDERS = "worker-"  # through the control plane: its only thread of Ray's is at work


@dataclass(slots=True)
class _Started:
    handle: Any
    running: Any  # the reference that `run` will fill
    incarnation: int
    kill_at: float | None = None  # it was told to stop


class RayProcesses:
    """By name. One thread uses it."""

    def __init__(self, control: Control, make: Callable[[str, int], Any]) -> None:
        """`make(name, incarnation)` returns the handle of a new Ray actor with a method `run`."""
        self._control = control
        self._make = make
        self._started: dict[str, _Started] = {}
        self._members: Mapping[str, Member] = {}  # as last heard
        self._control_back_at = time.time()
        self._control_away = False

    def start(self, name: str, incarnation: int) -> None:
        handle = self._make(name, incarnation)
        self._started[name] = _Started(handle, handle.run.remote(), incarnation)

    def end(self, name: str, *, gently: bool) -> None:
        """Gently: it is told to stop, and killed only if it takes too long."""
        started = self._started[name]
        if gently:
            started.kill_at = time.time() + STOP_SECONDS
            self._tell(name, "stop")
        else:
            ray.kill(started.handle)

    def end_all(self) -> None:
        for started in self._started.values():
            ray.kill(started.handle)

    def handle(self, name: str) -> Any:
        """None where it is not running now."""
        started = self._started.get(name)
        return None if started is None else started.handle

    def tell_all(self, prefix: str, method: str, *arguments: Any) -> None:
        for name in self._started:
            if name.startswith(prefix):
                self._tell(name, method, *arguments)

    def _tell(self, name: str, method: str, *arguments: Any) -> None:
        started = self._started[name]
        if not name.startswith(TAKES_ORDERS):
            getattr(started.handle, method).remote(*arguments)
            return
        try:
            self._control.order(name, started.incarnation, method, *arguments)
        except ControlUnavailable as error:
            logger.warning("%s was not told to %s: %s", name, method, error)

    def fact(self, key: str) -> dict[str, Any]:
        """What each process that is running last said of this, where it said anything."""
        return {
            name: member.facts[key]
            for name, member in self._members.items()
            if name in self._started
            and member.incarnation == self._started[name].incarnation
            and key in member.facts
        }

    def why_pending(self, name: str, needs: Mapping[str, float]) -> str:
        """Of one that was started and has not begun: what it waits for, as far as one can see."""
        member = self._members.get(name)
        if member is not None and member.incarnation == self._started[name].incarnation:
            return f"it is being made on {member.host} (imports, environments, restoring)"
        free = ray.available_resources()
        short = [
            f"{need:g} {kind} of which {free.get(kind, 0.0):g} are free"
            for kind, need in needs.items()
            if need > free.get(kind, 0.0)
        ]
        if short:
            return f"it waits for {' and '.join(short)}; lower topology.* or add machines"
        return "its process is being started"

    def observe(self) -> dict[str, Observed]:
        """Everything that was started; what has ended is named for the last time."""
        signs = self._signs_of_life()
        references = {started.running: name for name, started in self._started.items()}
        ended: list[Any] = []
        if references:
            ended, _ = ray.wait(list(references), num_returns=len(references), timeout=0)
        observed = {}
        for name, started in list(self._started.items()):
            if started.running in ended:
                del self._started[name]
                observed[name] = _how_it_ended(started)
                continue
            if started.kill_at is not None and time.time() > started.kill_at:
                ray.kill(started.handle)
            observed[name] = Observed(
                running=True, last_sign=signs.get((name, started.incarnation))
            )
        return observed

    def _signs_of_life(self) -> dict[tuple[str, int], float]:
        """While the control server is away nobody is silent by their own fault."""
        try:
            members = self._control.members()
        except ControlUnavailable:
            self._control_away = True
            now = time.time()
            return {(name, one.incarnation): now for name, one in self._started.items()}
        self._members = members
        if self._control_away:
            self._control_away, self._control_back_at = False, time.time()
        return {
            (name, member.incarnation): max(
                float(member.facts["progress_at"]), self._control_back_at
            )
            for name, member in members.items()
            if "progress_at" in member.facts
        }


def _how_it_ended(started: _Started) -> Observed:
    try:
        ray.get(started.running)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, RepertoryError) else error
        return Observed(running=False, reason=in_one_line(cause))
    except ray.exceptions.RayError as error:
        return Observed(running=False, reason=in_one_line(error))
    return Observed(running=False, finished=started.kill_at is not None, reason="it returned")


def in_one_line(error: BaseException) -> str:
    """The sentence that says most: Ray's own messages are pages."""
    text = " ".join(str(error).split())
    if "node has died" in text or "node died" in text:
        return "its machine is gone"
    if "died" in text and "Worker exit detail" in text:
        return text.partition("Worker exit detail: ")[2][:120]
    if 'File "' in text:  # a traceback: its last line is the error
        text = str(error).strip().splitlines()[-1].strip()
    return (text or type(error).__name__)[-300:]
