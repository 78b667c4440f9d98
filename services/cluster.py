"""Our way into Ray: a cluster of our own on this machine, or one that is there already.

Ray core only. What we start listens on this machine alone, and of Ray's servants only those that we
need: no dashboard, no autoscaler, nobody who reads logs. Ray puts the driver's
folder first on the path of its workers: they get an empty one instead, so that nobody's `services/`
or `actors/` takes the place of ours. `services.ray_environment` comes before this is imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import ray
from ray._private import node, worker

from repertory.closing import Closing
from repertory.errors import RepertoryError, UsageError
from services.guardian import Guardian

LOOPBACK = "127.0.0.1"
OBJECT_STORE_BYTES = 256 * 2**20  # weights, a few versions of each policy
NAMESPACE = "repertory"
CONNECT_SECONDS = 5.0
TRIES_TO_START = 3
# Ray starts them whatever it is told: a process each, that imports for a second. The last of them
# `ray.init` even waits for, with `include_dashboard=False` too.
SPARED = ("start_monitor", "start_log_monitor", "start_api_server")

logger = logging.getLogger(__name__)


class _NotStarted(Exception):
    """Ray, here, for the reason given."""


class Cluster(Closing):
    """Connected when made; `close` leaves, and ends what we started."""

    def __init__(self, address: str | None = None, cores: int | None = None) -> None:
        """Without an address Ray is started here, for this run alone."""
        failures = 0
        while True:
            self._folder = Path(tempfile.mkdtemp(prefix="repertory-ray-"))  # sockets: a short path
            self._guardian = Guardian(self._folder)
            try:
                with _private_folder(self._folder), self._guardian.marking(), _few_servants():
                    self._connect(address, cores)
                return
            except _NotStarted as error:
                ray.shutdown()
                self._guardian.clear()  # what was started is of no use, and would stay
                failures += 1
                if failures == TRIES_TO_START:
                    raise RepertoryError(
                        f"Ray did not start here, {failures} times in a row: {error}; "
                        "the machine may have too much to do, or too little memory left"
                    ) from error
                logger.warning("Ray did not start, and is started again: %s", error)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        ray.shutdown()
        self._guardian.clear()  # some of Ray's own end a little later

    def _connect(self, address: str | None, cores: int | None) -> None:
        _quiet_errors()
        if address is None:
            self._start(cores)
        else:
            _join(address)

    def _start(self, cores: int | None) -> None:
        """Ray gives a machine half a minute, which one that is busy may not have."""
        try:
            ray.init(
                address="local",
                num_cpus=cores,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                logging_level=logging.ERROR,
                log_to_driver=False,
                namespace=NAMESPACE,
                _node_ip_address=LOOPBACK,
                _temp_dir=str(self._folder / "ray"),
            )
        except Exception as error:  # nothing more special is raised
            raise _NotStarted(" ".join(str(error).split())[:300].rstrip(".")) from error


def _join(address: str) -> None:
    _check_that_somebody_listens(address)
    said = ""
    try:
        with _stderr_of_ray() as stderr:
            try:
                ray.init(
                    address=address,
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                    namespace=NAMESPACE,
                )
            finally:
                said = stderr()
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        if "InvalidAuthToken" in said or "Unauthenticated" in said:
            file = os.environ["RAY_AUTH_TOKEN_PATH"]
            raise RepertoryError(
                f"the Ray cluster at {address} refuses the token in {file}: "
                "give --token-file with the one it was started with"
            ) from error
        raise RepertoryError(_why_not_let_in(address, str(error))) from error


def _quiet_errors() -> None:
    """Ray prints pages about machines that are gone; the run says so in an event."""
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda data, *_, **__: logger.info("Ray: %s", data)


def _check_that_somebody_listens(address: str) -> None:
    """Ray itself would try for a long time."""
    if address.startswith("ray://"):
        raise UsageError(
            f"--address {address} is refused: Ray's client protocol cannot watch processes; "
            "give HOST:PORT of the head, from a machine of the cluster"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--address {address} is refused: write HOST:PORT of the cluster's head")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise RepertoryError(
            f"no Ray cluster answers at {address}: {error.strerror or error}; start one with "
            "`ray start --head`, or leave --address out"
        ) from error


def _why_not_let_in(address: str, said: str) -> str:
    """In a sentence of ours, where it is one of the usual reasons."""
    if said.startswith("Version mismatch"):
        # Ray's message names both, theirs first, each on a line of its own.
        theirs, ours = (
            f"Ray {version} on Python {python}"
            for version, python in re.findall(r"Ray: (\S+)\s+Python: (\S+)", said)
        )
        return (
            f"the Ray cluster at {address} runs {theirs}, and this is {ours}: "
            "the same versions must be installed on both sides"
        )
    return f"the Ray cluster at {address} does not let us in: {' '.join(said.split())[:300]}"


@contextlib.contextmanager
def _stderr_of_ray() -> Iterator[Callable[[], str]]:
    """What Ray's C++ writes there is not for people; the function gives what it was so far."""
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)

        def said() -> str:
            file.seek(0)
            return file.read().decode(errors="replace")

        try:
            yield said
        finally:
            os.dup2(before, 2)
            os.close(before)


@contextlib.contextmanager
def _few_servants() -> Iterator[None]:
    """While Ray starts, it starts none of those that nobody here asks for anything."""
    # Another version of Ray, without these methods, starts them as it likes.
    methods = {name: getattr(node.Node, name) for name in SPARED if hasattr(node.Node, name)}
    try:
        for name in methods:
            setattr(node.Node, name, _nothing)
        yield
    finally:
        for name, method in methods.items():
            setattr(node.Node, name, method)


def _nothing(*_: object, **__: object) -> None:
    pass


@contextlib.contextmanager
def _private_folder(folder: Path) -> Iterator[None]:
    """While Ray looks for the driver's folder and script, both are here."""
    before, script = Path.cwd(), sys.argv[0]
    private = folder / "empty"
    private.mkdir()
    os.chdir(private)
    sys.argv[0] = str(private / "repertory")
    try:
        yield
    finally:
        os.chdir(before)
        sys.argv[0] = script
