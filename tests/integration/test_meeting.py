"""How replicas find each other: through a real control server, in processes of their own."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from replica_processes import run_all

from learner.data_parallel import highest
from repertory.control import Control, ControlAddress
from repertory.errors import RepertoryError
from services.meeting import Place, ToldToStop, meet, part

pytestmark = pytest.mark.timeout(300)


def place(rank: int, epoch: int = 0) -> Place:
    return Place("td3", epoch, rank, 2, "127.0.0.1", torch.device("cpu"))


def nothing() -> None: ...


def come(rank: int, epoch: int, address: ControlAddress, folder: Path) -> None:
    """Meets, and says the highest number that both have."""
    control = Control(address, "run-1")
    meet(control, place(rank, epoch), threading.Event(), nothing, timeout_seconds=100.0)
    found = int(highest(torch.tensor(10 * (rank + 1))))
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    part()
    control.close()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_replicas_meet_although_an_older_meeting_is_still_announced(
    control: Control, tmp_path: Path
) -> None:
    control.announce_meeting("td3", 1, f"127.0.0.1:{closed_port()}")
    works = [(come, (rank, 2, control.address, tmp_path)) for rank in (1, 0)]
    assert run_all(works) == [0, 0]  # type: ignore[arg-type]
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert found == [20, 20]


def test_a_meeting_where_this_replica_was_before_is_not_for_it(control: Control) -> None:
    """Its first replica is about to end: it lost the one that was here."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        store = dist.TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    store.set("begin", "")
    store.add("replica-1", 1)
    control.announce_meeting("td3", 1, f"127.0.0.1:{port}")
    with pytest.raises(RepertoryError, match=r"replica 1 of td3 waited 0\.5 s for the other 1"):
        meet(control, place(1), threading.Event(), nothing, timeout_seconds=0.5)
    assert not dist.is_initialized()


@pytest.mark.parametrize("rank", [0, 1])
def test_whoever_waits_in_vain_gives_up(control: Control, rank: int) -> None:
    with pytest.raises(RepertoryError, match=f"replica {rank} of td3 waited"):
        meet(control, place(rank, 1), threading.Event(), nothing, timeout_seconds=0.3)


@pytest.mark.parametrize("rank", [0, 1])
def test_whoever_waits_can_be_told_to_stop_and_rests_meanwhile(control: Control, rank: int) -> None:
    stopping, rests = threading.Event(), []

    def at_rest() -> None:
        rests.append(1)
        if len(rests) == 2:
            stopping.set()

    with pytest.raises(ToldToStop):
        meet(control, place(rank, 1), stopping, at_rest)
    assert len(rests) == 2


def test_a_meeting_is_read_as_it_was_announced_and_does_not_stay(control: Control) -> None:
    assert control.meeting("td3") is None
    control.announce_meeting("td3", 4, "10.0.0.1:99")
    found = control.meeting("td3")
    assert found is not None
    assert (found.epoch, found.address) == (4, "10.0.0.1:99")
    assert control.meeting("sac") is None
    key = f"repertory:{control.run_id}:meeting:td3"
    assert 0 < control.address.connect().ttl(key) <= 120
