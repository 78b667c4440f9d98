"""Updates follow the director and people: what is told to the shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from repertory.config import resolve
from repertory.errors import UsageError
from services import learner_time as module
from services.learner_time import LearnerTime
from services.shard_link import ShardLink

LINKS = [ShardLink("unix:/a", "unix:/a"), ShardLink("unix:/b", "unix:/b")]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Mapping[int, float]]]:
    """Address and ratios of each call."""
    heard: list[tuple[str, Mapping[int, float]]] = []

    class Client:
        def __init__(self, settings: Any) -> None:
            self._address = settings.address

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None: ...

        def configure_consumers(self, ratios: Mapping[int, float]) -> None:
            heard.append((self._address, ratios))

    monkeypatch.setattr(module, "ReplayClient", Client)
    return heard


def config(*algorithms: str, **overrides: Any) -> Any:
    settings = {f"learners.{name}.batch_size": 100 for name in algorithms if name != "ppo"}
    settings |= {f"learners.{name}.updates_per_step": 1.0 for name in algorithms if name != "ppo"}
    return resolve("Pendulum-v1", list(algorithms), overrides={**settings, **overrides})


def test_without_wishes_and_equal_shares_nothing_is_said() -> None:
    assert LearnerTime(config("td3", "sac"), LINKS, {}, {}).settled
    assert LearnerTime(config("td3"), LINKS, {}, {}).settled
    assert not LearnerTime(
        config("td3", "sac", **{"director.updates": "shared"}), LINKS, {}, {}
    ).settled


def test_a_wish_changes_one_learner_on_every_shard(told: list[Any]) -> None:
    time = LearnerTime(config("td3", "sac"), LINKS, {}, {})
    time.ask("sac", 0.25)
    assert not time.settled
    time.apply(None)
    assert told == [("unix:/a", {0: 100.0, 1: 25.0}), ("unix:/b", {0: 100.0, 1: 25.0})]


def test_wishes_and_shares_are_multiplied(told: list[Any]) -> None:
    time = LearnerTime(config("td3", "sac"), LINKS[:1], {"sac": 0.5, "gone": 3.0}, {})
    time.apply({"td3": 1.5, "sac": 0.5})
    assert told == [("unix:/a", {0: 150.0, 1: 25.0})]


@pytest.mark.parametrize(("learner", "words"), [("dqn", "choose of td3, ppo"), ("ppo", "round")])
def test_wishes_that_make_no_sense_are_refused(learner: str, words: str) -> None:
    time = LearnerTime(config("td3", "ppo"), LINKS, {}, {})
    with pytest.raises(UsageError, match=words):
        time.ask(learner, 1.0)
    assert time.settled
