"""The hub of weights: newest only, never back, nothing from a learner that was replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from services.weights import Published, WeightHub


def weights(version: int, epoch: int = 1, policy: str = "td3") -> Published:
    return Published(policy, epoch, version, 0, 0.0, [])


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


def test_versions_only_rise() -> None:
    async def story() -> list[bool]:
        hub = WeightHub()
        taken = [await hub.publish(weights(version)) for version in (0, 5, 4, 5, 6)]
        assert await hub.versions() == {"td3": 6}
        return taken

    assert run(story()) == [True, True, False, True, True]  # the same one may be said again


def test_a_learner_that_was_replaced_is_refused() -> None:
    async def story() -> None:
        hub = WeightHub()
        assert await hub.publish(weights(5, epoch=1))
        assert await hub.publish(weights(6, epoch=2))
        assert not await hub.publish(weights(7, epoch=1))
        assert await hub.publish(weights(1, epoch=1, policy="sac"))

    run(story())


def test_what_is_there_comes_at_once_and_only_if_it_is_newer() -> None:
    async def story() -> None:
        hub = WeightHub()
        await hub.publish(weights(5))
        await hub.publish(weights(2, policy="sac"))
        assert [one.version for one in await hub.newer({"td3": 4}, 0.0)] == [5]
        assert await hub.newer({"td3": 5}, 0.0) == []
        assert len(await hub.newer({"td3": -1, "sac": -1}, 0.0)) == 2

    run(story())


def test_whoever_waits_is_woken_by_the_next() -> None:
    async def story() -> None:
        hub = WeightHub()
        waiting = asyncio.create_task(hub.newer({"td3": 5}, 30.0))
        await hub.publish(weights(1, policy="sac"))
        await asyncio.sleep(0)
        assert not waiting.done()
        await hub.publish(weights(6))
        assert [one.version for one in await waiting] == [6]

    run(story())


def test_nothing_new_is_said_at_the_deadline() -> None:
    async def story() -> None:
        hub = WeightHub()
        await hub.publish(weights(5))
        assert await hub.newer({"td3": 5}, 0.001) == []

    run(story())
