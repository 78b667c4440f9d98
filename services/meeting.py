"""How the replicas of one learner find each other and become a group of torch.distributed.

The first replica opens a store on its own machine and says where through the control plane; the
others come, and when all are there it lets them begin. A store serves one meeting: a replica that
finds its own name there already, or nobody at all, waits for a newer one. Where the first replica
is on this machine alone, so is the group; between machines the network must be one to trust, since
torch's stores and gloo's connections ask nobody who they are.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from learner.data_parallel import lost
from repertory.control import Control, ControlUnavailable
from repertory.errors import RepertoryError

logger = logging.getLogger(__name__)

MEETING_SECONDS = 60.0  # until all are there
STEP_SECONDS = 30.0  # until all have come to a common step
LOOK_SECONDS = 0.1
CONNECT_SECONDS = 5.0
BEGIN = "begin"


@dataclass(frozen=True, slots=True)
class Place:
    """One replica of a learner."""

    learner: str
    epoch: int  # of the learner; only the first replica has one
    rank: int
    replicas: int
    host: str  # where others reach this machine
    device: torch.device


class ToldToStop(Exception):
    """While waiting for the others."""


def meet(
    control: Control,
    place: Place,
    stopping: threading.Event,
    at_rest: Callable[[], None],
    timeout_seconds: float = MEETING_SECONDS,
) -> None:
    """Returns in a group; `at_rest` is called every so often while waiting."""
    deadline = time.monotonic() + timeout_seconds

    def rest() -> None:
        if stopping.wait(LOOK_SECONDS):
            raise ToldToStop
        if time.monotonic() > deadline:
            raise RepertoryError(
                f"replica {place.rank} of {place.learner} waited {timeout_seconds:g} s for the "
                f"other {place.replicas - 1}: are there cores for all of them?"
            )
        at_rest()

    store = _invite(control, place, rest) if place.rank == 0 else _come(control, place, rest)
    if place.host.startswith("127."):
        # Gloo listens where the machine's name leads to, unless it is told otherwise.
        loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if place.device.type == "cuda" else "gloo",
            store=store,
            rank=place.rank,
            world_size=place.replicas,
            timeout=timedelta(seconds=STEP_SECONDS),
        )
    except RuntimeError as error:
        raise lost(error) from error


def part() -> None:
    """Leaves the group, where there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _invite(control: Control, place: Place, rest: Callable[[], None]) -> Any:
    listener = socket.create_server((place.host, 0))
    port = listener.getsockname()[1]
    store = dist.TCPStore(  # type: ignore[attr-defined]
        place.host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=STEP_SECONDS),
        master_listen_fd=listener.detach(),
    )
    others = [_name(rank) for rank in range(1, place.replicas)]
    announced = False
    while not announced or not store.check(others):
        try:
            if not announced:
                control.announce_meeting(place.learner, place.epoch, f"{place.host}:{port}")
                announced = True
        except ControlUnavailable as error:
            logger.warning("%s", error)
        rest()
    store.set(BEGIN, "")
    return store


def _come(control: Control, place: Place, rest: Callable[[], None]) -> Any:
    stale = -1
    while True:
        try:
            meeting = control.meeting(place.learner)
        except ControlUnavailable as error:
            logger.warning("%s", error)
            meeting = None
        if meeting is not None and meeting.epoch > stale:
            try:
                return _enter(meeting.address, place, rest)
            except (RuntimeError, LookupError) as error:  # nobody there, or not for us
                logger.info("the meeting of epoch %d is over: %s", meeting.epoch, error)
                stale = meeting.epoch
        rest()


def _enter(address: str, place: Place, rest: Callable[[], None]) -> Any:
    host, _, port = address.rpartition(":")
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host,
        int(port),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=CONNECT_SECONDS),
    )
    if store.add(_name(place.rank), 1) > 1:
        raise LookupError(f"replica {place.rank} was there before")
    while not store.check([BEGIN]):
        rest()
    store.set_timeout(timedelta(seconds=STEP_SECONDS))
    return store


def _name(rank: int) -> str:
    return f"replica-{rank}"
