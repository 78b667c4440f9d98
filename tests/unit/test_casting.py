"""Castings: one player for ever; leased decisions, their order, their refill, their editions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from actors.casting import Assignment, Leased, Solo
from repertory.errors import UsageError


@dataclass(frozen=True)
class Said:
    number: int
    policy: str = "td3"
    edition: int = 0
    steps: int | None = None


class FakeLease:
    """Answers when the test says so; `answer_while_waiting` answers as soon as somebody waits."""

    def __init__(self, answer_while_waiting: bool = False) -> None:
        self.edition = 0
        self.requests: list[int] = []
        self.returned: list[int] = []
        self.waits: list[float] = []
        self._answer: list[Said] | None = None
        self._next = 0
        self._answer_while_waiting = answer_while_waiting

    def request(self, count: int) -> None:
        self.requests.append(count)

    def answer(self, edition: int | None = None) -> None:
        numbers = range(self._next, self._next + self.requests[-1])
        self._next += self.requests[-1]
        edition = self.edition if edition is None else edition
        self._answer = [Said(number, "td3" if number % 2 else "sac", edition) for number in numbers]

    def take(self) -> Sequence[Said] | None:
        answer, self._answer = self._answer, None
        return answer

    def wait(self, timeout_seconds: float) -> None:
        self.waits.append(timeout_seconds)
        if self._answer_while_waiting:
            self.answer()

    def give_back(self, decisions: Sequence[int]) -> None:
        self.returned += decisions


def leased(lease: FakeLease, room: int = 8) -> Leased:
    return Leased(lease, ("sac", "td3"), room, wait_seconds=0.25)


def numbers(assignments: Sequence[Assignment] | None) -> list[int]:
    assert assignments is not None
    return [assignment.decision for assignment in assignments]


def filled(room: int = 8) -> tuple[Leased, FakeLease]:
    lease = FakeLease(answer_while_waiting=True)
    casting = leased(lease, room)
    casting.assign([0])
    lease.waits.clear()
    return casting, lease


# Solo


def test_solo_casts_the_only_player_for_ever_under_numbers_of_its_own():
    solo = Solo()
    assert solo.assign([0, 1]) == [Assignment(0, 0, None), Assignment(1, 0, None)]
    assert solo.assign([1]) == [Assignment(2, 0, None)]


def test_solo_goes_on_with_its_numbers():
    solo, restored = Solo(), Solo()
    solo.assign([0, 1, 2])
    restored.load_state(solo.state())
    assert restored.assign([0]) == solo.assign([0])


# Leased


def test_decisions_are_played_in_the_order_in_which_they_came():
    casting, _ = filled()
    assert numbers(casting.assign([0, 1])) == [1, 2]
    assert numbers(casting.assign([1])) == [3]


def test_assignment_says_what_was_decided():
    lease = FakeLease()
    casting = leased(lease)
    casting.assign([0])
    lease._answer = [Said(7, "td3", steps=5), Said(9, "sac")]
    assert casting.assign([0, 1]) == [Assignment(7, 1, 5), Assignment(9, 0, None)]


def test_nobody_is_known_until_the_answer_comes():
    lease = FakeLease()
    casting = leased(lease)
    assert casting.assign([0]) is None
    assert casting.assign([0]) is None
    assert lease.requests == [8]  # asked once
    assert lease.waits == [0.25, 0.25]
    lease.answer()
    assert numbers(casting.assign([0])) == [0]


def test_too_few_are_kept_until_there_are_enough():
    lease = FakeLease()
    casting = leased(lease, room=4)
    casting.assign([0, 1, 2])
    lease._answer = [Said(0), Said(1)]
    assert casting.assign([0, 1, 2]) is None
    assert lease.requests == [4, 2]
    lease._answer = [Said(2), Said(3)]
    assert numbers(casting.assign([0, 1, 2])) == [0, 1, 2]


def test_more_is_asked_for_when_less_than_half_is_left():
    casting, lease = filled(room=8)  # one of eight is played
    for _ in range(3):
        casting.assign([0])
    assert lease.requests == [8]  # four are left: half
    casting.assign([0])
    assert lease.requests == [8, 5]  # three


def test_it_does_not_wait_while_it_holds_enough():
    casting, lease = filled(room=8)
    for _ in range(7):
        assert casting.assign([0]) is not None
    assert lease.waits == []
    assert lease.requests == [8, 5]  # and did not ask twice


def test_it_never_holds_more_than_there_is_room_for():
    casting, lease = filled(room=8)
    for _ in range(4):
        casting.assign([0])
    lease.answer()
    casting.assign([0])
    held = casting.state()["held"]
    assert [decision["number"] for decision in held] == list(range(6, 13))


def test_decisions_of_an_older_edition_are_given_back_and_asked_for_anew():
    casting, lease = filled(room=4)
    lease.edition = 1
    assert numbers(casting.assign([0])) == [4]
    assert lease.returned == [1, 2, 3]
    assert lease.requests == [4, 4]


def test_an_answer_of_a_newer_edition_voids_what_is_held():
    casting, lease = filled(room=4)
    casting.assign([0])  # 2 and 3 are left
    casting.assign([0])  # and now 3 alone
    lease.answer(edition=1)  # before the edition is known otherwise
    assert numbers(casting.assign([0])) == [4]
    assert lease.returned == [3]


def test_an_answer_that_is_void_when_it_comes_is_given_back_and_asked_for_anew():
    lease = FakeLease()
    casting = leased(lease, room=2)
    casting.assign([0])
    lease.answer(edition=0)
    lease.edition = 1
    assert casting.assign([0]) is None
    assert lease.returned == [0, 1]
    assert lease.requests == [2, 2]  # before it is asked again
    lease.answer()
    assert numbers(casting.assign([0])) == [2]


def test_what_came_to_nothing_goes_back():
    casting, lease = filled()
    casting.give_back([0])
    assert lease.returned == [0]


def test_state_holds_what_is_not_played_and_what_has_just_come():
    casting, lease = filled(room=4)
    casting.assign([0])
    casting.assign([0])  # 3 is left, more is asked for
    lease.answer()
    restored = leased(FakeLease(), room=4)
    restored.load_state(casting.state())
    assert numbers(restored.assign([0, 1, 2, 3])) == [3, 4, 5, 6]
    assert restored.assign([0]) is None  # it held no more


def test_a_policy_that_is_not_played_here_is_refused_by_name():
    lease = FakeLease()
    casting = leased(lease)
    lease._answer = [Said(0, "ppo")]
    with pytest.raises(UsageError, match=r"'ppo'.*sac, td3"):
        casting.assign([0])


def test_more_copies_than_room_are_refused_with_a_remedy():
    with pytest.raises(UsageError, match=r"3 copies.*room for 2.*at least 3"):
        leased(FakeLease(), room=2).assign([0, 1, 2])
