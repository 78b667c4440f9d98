"""The hub of weights: newest only, never back, nothing from a learner that was replaced.

And those who speak with it, by a stand-in for Ray that answers at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from repertory.errors import RepertoryError
from repertory.types import WeightSnapshot
from services import weights as weights_module
from services.weights import (
    Edition,
    SilentPublisher,
    WeightHub,
    WeightPublisher,
    WeightSource,
)

ARRAYS = {"w": np.arange(3.0)}


def edition(version: int, epoch: int = 1, policy: str = "td3") -> Edition:
    return Edition(policy, epoch, version, 0, 0.0)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


def test_versions_only_rise() -> None:
    async def story() -> list[bool]:
        hub = WeightHub()
        taken = [await hub.publish(edition(version), ARRAYS) for version in (0, 5, 4, 5, 6)]
        assert await hub.versions() == {"td3": 6}
        return taken

    assert run(story()) == [True, True, False, True, True]  # the same one may be said again


def test_a_learner_that_was_replaced_is_refused() -> None:
    async def story() -> None:
        hub = WeightHub()
        assert await hub.publish(edition(5, epoch=1), ARRAYS)
        assert await hub.publish(edition(6, epoch=2), ARRAYS)
        assert not await hub.publish(edition(7, epoch=1), ARRAYS)
        assert await hub.publish(edition(1, epoch=1, policy="sac"), ARRAYS)

    run(story())


def test_what_is_there_comes_at_once_and_only_if_it_is_newer() -> None:
    async def story() -> None:
        hub = WeightHub()
        await hub.publish(edition(5), ARRAYS)
        await hub.publish(edition(2, policy="sac"), ARRAYS)
        assert [one.edition.version for one in await hub.newer({"td3": 4}, 0.0)] == [5]
        assert await hub.newer({"td3": 5}, 0.0) == []
        assert len(await hub.newer({"td3": -1, "sac": -1}, 0.0)) == 2

    run(story())


def test_whoever_waits_is_woken_by_the_next() -> None:
    async def story() -> None:
        hub = WeightHub()
        waiting = asyncio.create_task(hub.newer({"td3": 5}, 30.0))
        await hub.publish(edition(1, policy="sac"), ARRAYS)
        await asyncio.sleep(0)
        assert not waiting.done()
        await hub.publish(edition(6), ARRAYS)
        assert [one.edition.version for one in await waiting] == [6]

    run(story())


def test_nothing_new_is_said_at_the_deadline() -> None:
    async def story() -> None:
        hub = WeightHub()
        await hub.publish(edition(5), ARRAYS)
        assert await hub.newer({"td3": 5}, 0.001) == []

    run(story())


def test_a_new_hub_learns_from_actors_how_far_versions_have_come() -> None:
    async def story() -> None:
        hub = WeightHub()  # the one before died, and so did the learner
        await hub.newer({"td3": 40, "sac": -1}, 0.0)
        await hub.newer({"td3": 38}, 0.0)
        assert await hub.versions() == {"td3": 40, "sac": -1}

    run(story())


class RemoteHub:
    """A real hub behind `method.remote(...)`; answers are there at once.

    A reference is the value itself, except where a future is made of it.
    """

    def __init__(self) -> None:
        self.hub = WeightHub()
        for name in ("publish", "newer", "versions"):
            setattr(self, name, SimpleNamespace(remote=self._caller(name)))

    def _caller(self, name: str) -> Any:
        def answer(*arguments: Any) -> Any:
            value = run(getattr(self.hub, name)(*arguments))
            return Answer(value) if name == "newer" else value

        return answer


class Answer:
    """What stands for Ray's reference to it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self._value)
        return future


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> RemoteHub:
    """References are the values themselves."""
    fake = SimpleNamespace(
        get=lambda value, timeout=None: value,
        put=lambda value: value,
        wait=lambda values, timeout=None: (values, []),
        exceptions=weights_module.ray.exceptions,
    )
    monkeypatch.setattr(weights_module, "ray", fake)
    return RemoteHub()


def test_a_version_is_the_number_of_updates_until_it_is_renewed(hub: RemoteHub) -> None:
    publisher = WeightPublisher(hub, "td3", epoch=1, updates=0)
    versions = [publisher.publish(ARRAYS, updates) for updates in (0, 1)]
    publisher.renew()
    versions += [publisher.publish(ARRAYS, updates) for updates in (1, 2)]
    assert versions == [0, 1, 2, 3]
    assert run(hub.hub.versions()) == {"td3": 3}


def test_a_learner_from_an_older_checkpoint_begins_above_the_last_version(hub: RemoteHub) -> None:
    WeightPublisher(hub, "td3", epoch=1, updates=0).publish(ARRAYS, 40)
    publisher = WeightPublisher(hub, "td3", epoch=2, updates=30)
    assert [publisher.publish(ARRAYS, updates) for updates in (30, 31)] == [41, 42]


def test_a_learner_whose_hub_forgot_begins_above_what_an_actor_has(hub: RemoteHub) -> None:
    publisher = WeightPublisher(hub, "td3", epoch=2, updates=30, acted_with=50)
    assert [publisher.publish(ARRAYS, updates) for updates in (30, 31)] == [51, 52]
    assert WeightPublisher(hub, "td3", epoch=3, updates=90, acted_with=50).offset == 0


def test_a_replica_counts_as_the_first_one_does(hub: RemoteHub) -> None:
    first = WeightPublisher(hub, "td3", epoch=1, updates=0)
    other = SilentPublisher(first.offset)
    for updates in (0, 1, 1, 2):
        assert first.publish(ARRAYS, updates) == other.publish(ARRAYS, updates)
        first.renew()
        other.renew()


def test_a_source_says_what_it_handed_out(hub: RemoteHub) -> None:
    WeightPublisher(hub, "td3", epoch=1, updates=0).publish(ARRAYS, 5)
    source = WeightSource(hub, "td3")
    snapshot = source.newest()
    assert snapshot is not None
    assert (source.version, source.checksum) == (5, WeightSnapshot("td3", 5, ARRAYS).checksum)
    assert source.checksum != 0


def test_weights_that_are_not_what_was_published_are_refused(hub: RemoteHub) -> None:
    WeightPublisher(hub, "td3", epoch=1, updates=0).publish(ARRAYS, 5)
    (newest,) = run(hub.hub.newer({"td3": -1}))
    run(hub.hub.publish(replace(newest.edition, version=6), {"w": np.zeros(3)}))
    source = WeightSource(hub, "td3")
    with pytest.raises(RepertoryError, match="checksum"):
        source.newest()
    assert source.version == -1
