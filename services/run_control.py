"""Where the control plane of a run is, for those who look at it or steer it: a file in its folder.

Light: commands and the dashboard need neither Ray nor torch for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from repertory.checkpoints import write_atomically
from repertory.control import TIMEOUT_SECONDS, Control, ControlAddress, ControlUnavailable
from repertory.errors import RepertoryError, UsageError

CONTROL_FOLDER = "control"  # in the run directory of every distributed run
ADDRESS_FILE = "address.json"


def write_address(run_dir: Path, address: ControlAddress) -> None:
    document = json.dumps(address.to_json()).encode()
    write_atomically(run_dir / CONTROL_FOLDER / ADDRESS_FILE, document)


def run_id(run_dir: Path) -> str:
    """Its name in the control plane: the folder's, which is unique to who looks at one folder."""
    return run_dir.resolve().name


def control_of(run_dir: Path, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Control:
    """The control plane of a run that is going on, for those who look at it or steer it."""
    try:
        document = json.loads((run_dir / CONTROL_FOLDER / ADDRESS_FILE).read_text())
    except OSError:
        raise UsageError(
            f"{run_dir} is not a distributed run: only those can be looked at and steered"
        ) from None
    address = ControlAddress.from_json(document)
    return Control(address, run_id(run_dir), timeout_seconds=timeout_seconds)


@contextmanager
def steering(run_dir: Path) -> Iterator[Control]:
    """The same, for as long as a command needs it; says so where the run has ended."""
    with control_of(run_dir) as control:
        try:
            yield control
        except ControlUnavailable as error:
            raise RepertoryError(
                f"{run_dir} is not running, or its control server is away: `repertory resume "
                f"{run_dir}` goes on with a run that has ended ({error})"
            ) from error
