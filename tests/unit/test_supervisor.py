"""What the supervisor makes of what it sees, without a process or a clock of its own."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repertory.config import RestartConfig
from services.supervisor import (
    End,
    GiveUp,
    Instruction,
    Observed,
    Start,
    Supervisor,
)

CONFIG = RestartConfig(
    first_pause_seconds=1.0,
    longest_pause_seconds=8.0,
    healthy_seconds=20.0,
    max_failures=3,
    start_seconds=10.0,
    silence_seconds=5.0,
)
GONE = Observed(running=False, reason="killed by signal 9")


class World:
    """A supervisor and its clock."""

    def __init__(self, *wanted: str) -> None:
        self.supervisor = Supervisor(CONFIG)
        self.wanted = list(wanted)
        self.now = 0.0

    def step(self, seconds: float = 0.0, **observed: Observed) -> list[Instruction]:
        self.now += seconds
        return self.supervisor.step(self.now, self.wanted, observed)

    def up(self) -> Observed:
        return Observed(running=True, last_sign=self.now)

    def bring_up(self, *names: str) -> None:
        self.step()
        self.step(0.1, **{name: Observed(running=True, last_sign=self.now + 0.1) for name in names})
        assert {self.phase(name) for name in names} == {"up"}

    def phase(self, name: str) -> str:
        return self.supervisor.status(self.now)[name].phase

    def seconds_until_restart(self) -> float:
        """How long after now the next start comes."""
        begin = self.now
        while not self.step(0.01):
            assert self.now - begin < 100
        return self.now - begin


def test_what_is_wanted_is_started_once() -> None:
    world = World("shard", "learner")
    assert world.step() == [Start("shard", 1, ""), Start("learner", 1, "")]
    running = Observed(running=True)
    assert world.step(1.0, shard=running, learner=running) == []


def test_one_that_ends_is_started_again_and_the_others_are_left_alone() -> None:
    world = World("a", "b")
    world.bring_up("a", "b")
    assert world.step(1.0, a=GONE, b=world.up()) == []
    assert world.phase("a") == "waiting"
    assert world.step(1.0, b=world.up()) == [Start("a", 2, "killed by signal 9")]


def test_pauses_double_up_to_the_longest_and_are_drawn_at_random() -> None:
    world = World("a")
    world.bring_up("a")
    pauses = []
    for _ in range(CONFIG.max_failures):
        world.step(a=GONE)
        pauses.append(world.seconds_until_restart())
        world.step(0.1, a=Observed(running=True, last_sign=world.now + 0.1))
    for pause, bound in zip(pauses, [1.0, 2.0, 4.0], strict=True):
        assert bound / 2 <= pause <= bound + 0.02  # the loop above looks every 10 ms
    other = Supervisor(CONFIG, seed=1)
    assert other._pause_seconds(1) != Supervisor(CONFIG, seed=2)._pause_seconds(1)
    assert other._pause_seconds(50) <= 8.0


def test_after_too_many_failures_in_a_row_it_is_given_up() -> None:
    world = World("a")
    for _ in range(CONFIG.max_failures):
        world.seconds_until_restart()
        assert world.step(0.1, a=GONE) == []
    world.seconds_until_restart()
    assert world.step(0.1, a=GONE) == [GiveUp("a", 4, "killed by signal 9")]
    assert world.step(1000.0) == []
    assert world.phase("a") == "given_up"


def test_failures_are_forgotten_once_it_was_healthy() -> None:
    world = World("a")
    world.bring_up("a")
    for _ in range(3 * CONFIG.max_failures):
        world.step(CONFIG.healthy_seconds + 1, a=GONE)
        assert world.seconds_until_restart() <= 1.02  # the first pause, every time
        world.step(0.1, a=Observed(running=True, last_sign=world.now + 0.1))


def test_one_that_gives_no_sign_of_life_after_its_start_is_ended() -> None:
    world = World("a")
    world.step()
    running = Observed(running=True)
    assert world.step(9.0, a=running) == []
    (end,) = world.step(2.0, a=running)
    assert isinstance(end, End)
    assert "no sign of life in 10 s" in end.reason
    assert world.step(1.0, a=running) == []  # told once
    world.step(a=GONE)
    (start,) = world.step(1.0)
    assert isinstance(start, Start)
    assert "no sign of life" in start.after


def test_a_sign_of_life_from_before_the_start_does_not_count() -> None:
    world = World("a")
    world.step(100.0)
    world.step(1.0, a=Observed(running=True, last_sign=99.0))
    assert world.phase("a") == "starting"


def test_one_that_falls_silent_is_ended_and_started_again_with_that_reason() -> None:
    world = World("a")
    world.bring_up("a")
    sign = world.now
    assert world.step(4.0, a=Observed(running=True, last_sign=sign)) == []
    assert world.step(2.0, a=Observed(running=True, last_sign=sign)) == [
        End("a", "said nothing for 6 s")
    ]
    world.step(0.1, a=GONE)
    assert world.step(1.0) == [Start("a", 2, "said nothing for 6 s")]


def test_what_is_no_longer_wanted_is_ended_once_and_forgotten() -> None:
    world = World("a", "b")
    world.bring_up("a", "b")
    world.wanted = ["b"]
    assert world.step(1.0, a=world.up(), b=world.up()) == [End("a", "no longer wanted")]
    assert world.step(1.0, a=world.up(), b=world.up()) == []
    assert world.step(1.0, a=GONE, b=world.up()) == []
    assert list(world.supervisor.status(world.now)) == ["b"]
    world.wanted = ["a", "b"]
    assert world.step(1.0, b=world.up()) == [Start("a", 1, "")]


def test_one_that_waits_for_its_restart_and_is_no_longer_wanted_is_forgotten() -> None:
    world = World("a")
    world.bring_up("a")
    world.step(1.0, a=GONE)
    world.wanted = []
    assert world.step(100.0) == []
    assert world.supervisor.status(world.now) == {}


def test_one_whose_work_is_done_is_not_started_again() -> None:
    world = World("a")
    world.bring_up("a")
    assert world.step(1.0, a=Observed(running=False, finished=True)) == []
    assert world.step(100.0) == []
    assert world.phase("a") == "finished"


def test_status_says_for_how_long_how_often_and_why() -> None:
    world = World("a")
    world.bring_up("a")
    world.step(1.0, a=GONE)
    world.step(0.25)
    status = world.supervisor.status(world.now)["a"]
    assert (status.phase, status.seconds, status.restarts) == ("waiting", 0.25, 0)
    assert status.reason == "killed by signal 9"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_happens_no_two_of_one_name_run_at_once(data: st.DataObject) -> None:
    """A little world that does as it is told, with faults at any moment."""
    names = ["a", "b", "c"]
    supervisor = Supervisor(CONFIG)
    running: dict[str, int] = {}
    dead: dict[str, Observed] = {}
    incarnations: dict[str, int] = dict.fromkeys(names, 0)
    now = 0.0
    for _ in range(data.draw(st.integers(1, 40))):
        now += data.draw(st.sampled_from([0.0, 0.1, 3.0, 30.0]))
        wanted = [name for name in names if data.draw(st.integers(0, 5))]
        for name in list(running):
            if data.draw(st.integers(0, 4)) == 0:
                del running[name]
                dead[name] = GONE
        silent = data.draw(st.booleans())
        observed: Mapping[str, Observed] = {
            **{n: Observed(running=True, last_sign=None if silent else now) for n in running},
            **dead,
        }
        dead = {}
        for instruction in supervisor.step(now, wanted, observed):
            name = instruction.name
            if isinstance(instruction, Start):
                assert name not in running
                assert name in wanted
                running[name] = instruction.incarnation
                incarnations[name] += 1
            elif isinstance(instruction, End):
                assert name in running
                del running[name]
                dead[name] = GONE
    # When the faults are over, everything that was not given up comes up, and only that.
    for _ in range(20):
        now += 10.0
        observed = {
            **{name: Observed(running=True, last_sign=now) for name in running},
            **dead,
        }
        dead = {}
        for instruction in supervisor.step(now, names, observed):
            if isinstance(instruction, Start):
                running[instruction.name] = instruction.incarnation
            elif isinstance(instruction, End):
                del running[instruction.name]
                dead[instruction.name] = GONE
    status = supervisor.status(now)
    assert set(running) == {name for name in names if status[name].phase != "given_up"}


@pytest.mark.parametrize("field", ["first_pause_seconds", "silence_seconds", "max_failures"])
def test_settings_that_mean_nothing_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        RestartConfig(**{field: 0})
