"""Transitions in hindsight against what can be told of each episode by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import hindsight as hindsight_module
from actors.goal_choices import Episode, Final, Future
from actors.hindsight import Hindsight
from repertory.specs import GoalSpec
from repertory.types import TransitionBatch

GAMMA = 0.9
WANTED = -5.0  # the goal that everybody was given


class FakeJudge:
    """Pays 10 * achieved - desired and, where asked to, ends where the two are the same."""

    goals = GoalSpec(achieved=(1, 2), desired=(2, 3))

    def __init__(self, ends: bool = False) -> None:
        self._ends = ends

    def rewards(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        return (10 * achieved - desired)[:, 0]

    def terminated(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray | None:
        return (achieved == desired)[:, 0] if self._ends else None


@dataclass(frozen=True)
class Tick:
    columns: dict[str, np.ndarray]
    terminated: np.ndarray
    boundary: np.ndarray
    valid: np.ndarray


def make_ticks(pattern: list[str]) -> list[Tick]:
    """`pattern[copy][t]` is `-` (goes on), `T` (terminated), `C` (cut), `B` (both) or `.` (reset).

    An observation is [copy, achieved, wanted]; what step t achieves is t + 1, it began at t.
    """
    ticks = []
    for t, marks in enumerate(zip(*pattern, strict=True)):
        copies = len(marks)
        mark = np.array(marks)
        observation = np.stack(
            [np.arange(copies), np.full(copies, t), np.full(copies, WANTED)], 1
        ).astype(np.float32)
        columns = {
            "observation": observation,
            "action": np.full(copies, 100 + t),
            "reward": np.full(copies, -1, np.float32),
            "discount": np.zeros(copies, np.float32),
            "next_observation": observation + np.float32([0, 1, 0]),
            "policy_id": np.full(copies, t % 2, np.int32),
            "policy_version": np.full(copies, t, np.int64),
            "extras/log_prob": np.full(copies, -t, np.float32),
        }
        terminated = np.isin(mark, ["T", "B"])
        ticks.append(Tick(columns, terminated, terminated | (mark == "C"), mark != "."))
    return ticks


def make(choice=Future, goals: int = 4, *, ends: bool = False, seed: int = 0) -> Hindsight:
    return Hindsight(
        choice(choice.Config(goals=goals)), FakeJudge(ends), GAMMA, np.random.PCG64(seed)
    )


def feed(assembler: Hindsight, ticks: list[Tick]) -> list[dict[str, np.ndarray]]:
    """The rows of everything that it emits."""
    rows = []
    for tick in ticks:
        batch = assembler.add(tick.columns, tick.terminated, tick.boundary, tick.valid)
        rows += rows_of(batch)
    return rows


def rows_of(batch: TransitionBatch | None) -> list[dict[str, np.ndarray]]:
    if batch is None:
        return []
    return [
        {name: column[index] for name, column in batch.columns().items()}
        for index in range(len(batch))
    ]


def is_original(row: dict[str, np.ndarray]) -> bool:
    return bool(row["observation"][2] == WANTED)


def test_final_goals_of_an_episode_of_three_by_hand():
    rows = feed(make(Final, goals=1), make_ticks(["--C"]))
    told = [
        (*row["observation"], *row["next_observation"], row["action"], row["reward"])
        for row in rows
    ]
    assert told == [
        (0, 0, -5, 0, 1, -5, 100, -1),
        (0, 1, -5, 0, 2, -5, 101, -1),
        (0, 2, -5, 0, 3, -5, 102, -1),
        # The last step achieved 3. Reward 10 * next achieved - goal: 10 * 1 - 3, 10 * 2 - 3, ...
        (0, 0, 3, 0, 1, 3, 100, 7),
        (0, 1, 3, 0, 2, 3, 101, 17),
        (0, 2, 3, 0, 3, 3, 102, 27),
    ]


def test_who_acted_and_what_it_recorded_stay_with_the_transition():
    rows = feed(make(Final, goals=2), make_ticks(["--C"]))
    assert len(rows) == 9
    for row in rows:
        t = row["observation"][1]
        assert (row["policy_id"], row["policy_version"]) == (t % 2, t)
        assert row["extras/log_prob"] == -t
        assert row["reward"].dtype == row["discount"].dtype == np.float32


@pytest.mark.parametrize(("end", "last"), [("T", 0.0), ("B", 0.0), ("C", GAMMA)])
def test_termination_stays_where_the_environment_does_not_say_what_the_goal_changes(end, last):
    rows = feed(make(Future, goals=3), make_ticks(["-" + end]))
    for row in rows:
        expected = last if row["observation"][1] == 1 else GAMMA
        assert row["discount"] == np.float32(expected)


@pytest.mark.parametrize("end", ["T", "C"])
def test_discount_follows_the_goal_where_the_environment_says_so(end):
    rows = feed(make(Episode, goals=6, ends=True), make_ticks(["--" + end]))
    relabelled = [row for row in rows if not is_original(row)]
    assert {row["discount"] for row in relabelled} == {np.float32(0), np.float32(GAMMA)}
    for row in relabelled:
        reached = row["next_observation"][1] == row["next_observation"][2]
        assert row["discount"] == np.float32(0 if reached else GAMMA)
    (last,) = [row for row in rows if is_original(row) and row["observation"][1] == 2]
    assert last["discount"] == np.float32(0 if end == "T" else GAMMA)


@st.composite
def patterns(draw) -> list[str]:
    """Random ends for several copies; some are followed by a step that only resets."""
    length = draw(st.integers(1, 20))
    copies = []
    for _ in range(draw(st.integers(1, 3))):
        marks = ""
        while len(marks) < length:
            mark = draw(st.sampled_from("----TCB"))
            marks += mark + ("." if mark != "-" and draw(st.booleans()) else "")
        copies.append(marks[:length])
    return copies


def episodes(pattern: list[str]) -> list[tuple[int, list[int]]]:
    """(copy, times of its steps) of every episode that ended, brute force."""
    found = []
    for copy, marks in enumerate(pattern):
        times: list[int] = []
        for t, mark in enumerate(marks):
            if mark != ".":
                times.append(t)
            if mark in "TCB":
                found.append((copy, times))
                times = []
    return found


@given(
    pattern=patterns(),
    choice=st.sampled_from([Future, Final, Episode]),
    goals=st.integers(1, 5),
    seed=st.integers(0, 100),
)
@settings(max_examples=150, deadline=None)
def test_goals_are_those_of_the_same_episode_and_never_of_another(pattern, choice, goals, seed):
    rows = feed(make(choice, goals, seed=seed), make_ticks(pattern))
    episode_of = {(copy, t): times for copy, times in episodes(pattern) for t in times}
    counted: Counter[tuple[int, int, bool]] = Counter()
    for row in rows:
        copy, t, goal = (int(value) for value in row["observation"])
        counted[copy, t, is_original(row)] += 1
        assert tuple(row["next_observation"]) == (copy, t + 1, goal)
        if is_original(row):
            assert row["reward"] == -1
            continue
        assert row["reward"] == 10 * (t + 1) - goal  # of the next achieved goal
        times = episode_of[copy, t]
        allowed = {Future: [u for u in times if u >= t], Final: times[-1:], Episode: times}[choice]
        assert goal in [u + 1 for u in allowed]  # step u achieved u + 1
    expected = {(*place, True): 1 for place in episode_of}
    expected |= {(*place, False): goals for place in episode_of}
    assert counted == expected  # running episodes have given nothing yet


def test_lost_episode_gives_nothing():
    assembler = make(Final, goals=1)
    ticks = make_ticks(["--C-C", "--C-C"])
    feed(assembler, ticks[:2])
    assembler.forget(np.array([True, False]))
    rows = feed(assembler, ticks[2:])
    of_first = [row["observation"][1] for row in rows if row["observation"][0] == 0]
    assert sorted(of_first) == [2, 2, 3, 3, 4, 4]  # what came before the loss is gone
    assert {row["observation"][2] for row in rows if row["observation"][1] == 2} == {WANTED, 3}


def test_step_that_was_none_is_not_an_end():
    assembler = make(Final, goals=1)
    first, none, last = make_ticks(["-CC"])
    assert feed(assembler, [first]) == []
    not_valid = Tick(none.columns, none.terminated, none.boundary, np.array([False]))
    assert feed(assembler, [not_valid]) == []
    rows = feed(assembler, [last])
    assert sorted(row["observation"][1] for row in rows) == [0, 0, 2, 2]


def test_hand_over_to_another_policy_keeps_the_episode_whole():
    assembler = make(Final, goals=1)
    ticks = make_ticks(["--C"])
    feed(assembler, ticks[:1])
    assert assembler.cut(np.array([True])) is None
    rows = feed(assembler, ticks[1:])
    assert {row["observation"][2] for row in rows} == {WANTED, 3}
    assert len(rows) == 6


def test_episode_without_end_is_relabelled_in_stretches(monkeypatch):
    monkeypatch.setattr(hindsight_module, "LONGEST_STRETCH", 3)
    rows = feed(make(Final, goals=1), make_ticks(["-------"]))
    goals = [row["observation"][2] for row in rows if not is_original(row)]
    assert goals == [3, 3, 3, 6, 6, 6]
    assert {row["discount"] for row in rows} == {np.float32(GAMMA)}


def test_room_grows_with_the_longest_episode(monkeypatch):
    monkeypatch.setattr(hindsight_module, "FIRST_ROOM", 2)
    rows = feed(make(Final, goals=1), make_ticks(["-----------C", "-C---------C"]))
    assert Counter(row["observation"][0] for row in rows) == {0: 24, 1: 24}
    first = [row["observation"][1] for row in rows if row["observation"][0] == 0]
    assert first == [*range(12), *range(12)]


@pytest.mark.parametrize("after", [0, 3, 5])
def test_restored_assembler_goes_on_the_same(after):
    """5: just after an end, when nothing is kept."""
    ticks = make_ticks(["----C----C", "--C-C---TC"])
    whole, cut = make(Future, seed=3), make(Future, seed=3)
    feed(whole, ticks[:after])
    feed(cut, ticks[:after])
    state = cut.state()
    feed(cut, ticks[after:])  # what goes on does not reach into what was kept
    restored = make(Future, seed=99)
    restored.load_state(state)
    expected, found = feed(whole, ticks[after:]), feed(restored, ticks[after:])
    assert len(expected) == len(found) > 0
    for one, other in zip(expected, found, strict=True):
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)


def test_draws_differ_by_seed():
    ticks = make_ticks(["---------C"])
    goals = [[row["observation"][2] for row in feed(make(seed=seed), ticks)] for seed in (0, 1)]
    assert goals[0] != goals[1]
