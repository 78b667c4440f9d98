"""How many actors a run has in a cluster that grows and shrinks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster_fakes import node_in

from repertory.control import Claim, ControlUnavailable
from services import elastic
from services.elastic import Elastic
from services.plan import Machines


class FakeControl:
    """One hash, as Redis has it."""

    def __init__(self) -> None:
        self.run_id = "run-1"
        self.said: dict[str, Claim] = {}
        self.away = False

    def _answer(self) -> None:
        if self.away:
            raise ControlUnavailable("the control server at nowhere: gone")

    def claim(self, claim: Claim) -> None:
        self._answer()
        self.said[self.run_id] = claim

    def claims(self) -> dict[str, Claim]:
        self._answer()
        return dict(self.said)

    def withdraw_claim(self) -> None:
        self._answer()
        del self.said[self.run_id]


class FakePlacement:
    def __init__(self, node: Any, cores: float) -> None:
        self.node = node
        self.cores = cores
        self.home_acts = True

    def machines(self) -> Machines:
        return Machines(cores=1000.0, memory_bytes=1, gpus=0.0, acting_cores=self.cores)


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


@pytest.fixture
def placement(tmp_path: Path) -> FakePlacement:
    return FakePlacement(node_in(tmp_path), 8.0)


def make(control: Any, placement: Any, own_number: int | None = None) -> Elastic:
    return Elastic(control, placement, learner_cores=2.0, own_number=own_number)


@pytest.fixture(autouse=True)
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "LOOK_SECONDS", 0.0)


def test_outside_of_clusters_it_is_silent(control: FakeControl) -> None:
    alone = make(control, FakePlacement(None, 8.0))
    assert alone.look() is None
    alone.close()
    assert control.said == {}


def test_it_follows_the_machines(control: FakeControl, placement: FakePlacement) -> None:
    run = make(control, placement)
    assert run.look() == 6
    placement.cores = 12.0
    assert run.look() == 10
    placement.cores = 3.0
    assert run.look() == 1


def test_learners_on_a_machine_without_actors_take_no_cores_of_theirs(
    control: FakeControl, placement: FakePlacement
) -> None:
    placement.home_acts = False
    assert make(control, placement).look() == 8
    assert control.said["run-1"].learner_cores == 0.0


def test_it_makes_room_for_another_run_and_takes_it_back(
    control: FakeControl, placement: FakePlacement
) -> None:
    run = make(control, placement)
    run.look()
    control.said["run-2"] = replace(control.said["run-1"], since=0.0)
    assert run.look() == 2
    del control.said["run-2"]
    assert run.look() == 6


def test_it_says_what_it_claims_and_since_when(
    control: FakeControl, placement: FakePlacement
) -> None:
    run = make(control, placement)
    run.look()
    first = control.said["run-1"]
    assert (first.learner_cores, first.actors) == (2.0, None)
    run.look()
    second = control.said["run-1"]
    assert second.since == first.since
    assert second.at > first.at


def test_the_number_stays_while_the_control_server_is_away(
    control: FakeControl, placement: FakePlacement, caplog: pytest.LogCaptureFixture
) -> None:
    run = make(control, placement)
    control.away = True
    assert run.look() is None
    assert "the number of actors stays" in caplog.text
    control.away = False
    assert run.look() == 6


def test_a_number_that_was_asked_for_holds_and_is_told_to_others(
    control: FakeControl, placement: FakePlacement
) -> None:
    run = make(control, placement, own_number=3)
    assert run.look() == 3
    placement.cores = 100.0
    assert run.look() == 3
    assert control.said["run-1"].actors == 3


def test_a_number_can_be_asked_for_and_given_back(
    control: FakeControl, placement: FakePlacement
) -> None:
    run = make(control, placement)
    run.own_number = 2
    assert run.look() == 2
    run.own_number = None
    assert run.look() == 6


def test_it_looks_only_every_so_often(
    control: FakeControl, placement: FakePlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic, "LOOK_SECONDS", 3600.0)
    run = make(control, placement)
    assert run.look() == 6
    assert run.look() is None


def test_a_run_that_ends_claims_nothing(control: FakeControl, placement: FakePlacement) -> None:
    run = make(control, placement)
    run.look()
    run.close()
    assert control.said == {}


def test_a_run_can_end_while_the_control_server_is_away(
    control: FakeControl, placement: FakePlacement, caplog: pytest.LogCaptureFixture
) -> None:
    run = make(control, placement)
    run.look()
    control.away = True
    run.close()
    assert "gone" in caplog.text


def test_a_server_that_forgets_the_claim_at_once_does_not_end_the_run(
    control: FakeControl, placement: FakePlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Once: ZeroDivisionError. A control server that is killed loses its last second, and clocks
    # that jump make a claim old.
    run = make(control, placement)
    monkeypatch.setattr(control, "claims", dict)
    assert run.look() in (None, 6)
