"""A director that was killed goes on exactly where it was."""

from __future__ import annotations

import contextlib
import json
import logging
from typing import Any

import pytest
from bandits import outcome
from directed import (
    MEMBERS,
    SCRIPT,
    director,
    numbers,
    policies,
    report,
    run,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from repertory.errors import UsageError
from repertory.parts import SHORT_NAMES
from services.decision import Decision
from services.director import Director

STRATEGIES: list[Any] = [
    SCRIPT if name == "scripted" else name for name in sorted(SHORT_NAMES["strategy"])
]


def restored(target: Director, strategy: Any, **config: Any) -> Director:
    other = director(strategy, seed=99, **config)
    other.load_state(json.loads(json.dumps(target.state(), allow_nan=False)))
    return other


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("lease"), st.integers(1, 5)),
        st.tuples(st.just("report"), st.floats(-1500, 500)),
        st.tuples(st.sampled_from(["give_back", "forget", "release"]), st.just(0)),
        st.tuples(st.sampled_from(["pin", "bench"]), st.integers(0, 2)),
        st.tuples(st.just("evaluation"), st.floats(-1500, 500)),
    ),
    max_size=60,
)


class Player:
    """Carries out events, and knows what is in the actor's hands."""

    def __init__(self, target: Director) -> None:
        self.target = target
        self.held: list[Decision] = []
        self.steps = 0

    def carry_out(self, kind: str, value: Any) -> list[tuple[int, str]]:
        target = self.target
        if kind == "lease":
            lease = target.lease("actor", value)
            self.held += lease
            return [(decision.number, decision.policy) for decision in lease]
        if kind == "report" and self.held:
            self.steps += 7
            report(target, self.held.pop(0), value, length=7, env_steps=self.steps)
        elif kind == "give_back" and self.held:
            target.give_back([self.held.pop().number])
        elif kind == "forget":
            self.held.clear()
            target.forget("actor")
        elif kind == "release":
            target.release()
        elif kind == "evaluation":
            target.observe_evaluation("sac", self.steps, value)
        elif kind in ("pin", "bench"):
            with contextlib.suppress(UsageError):
                getattr(target, kind)(MEMBERS[value])
        return []


@settings(max_examples=150, deadline=None)
@given(
    strategy=st.sampled_from(STRATEGIES),
    score=st.sampled_from(["return", "evaluation", "progress"]),
    events=EVENTS,
    cut=st.integers(0, 60),
)
def test_killed_and_restored_at_any_moment_it_goes_on_as_it_would_have(
    strategy: Any, score: Any, events: list[tuple[str, Any]], cut: int
) -> None:
    kept = Player(director(strategy, score=score))
    for event in events[:cut]:
        kept.carry_out(*event)
    other = Player(restored(kept.target, strategy, score=score))
    other.held, other.steps = list(kept.held), kept.steps
    for event in [*events[cut:], ("lease", 20), ("report", 3.0), ("lease", 20)]:
        assert other.carry_out(*event) == kept.carry_out(*event)
    assert other.target.state() == kept.target.state()
    assert other.target.report() == kept.target.report()


@settings(max_examples=100, deadline=None)
@given(strategy=st.sampled_from(STRATEGIES), events=EVENTS)
def test_no_number_is_ever_in_two_hands_and_none_is_skipped(
    strategy: Any, events: list[tuple[str, Any]]
) -> None:
    player = Player(director(strategy))
    issued: set[int] = set()
    for kind, value in events:
        before = {decision.number for decision in player.held}
        new = {number for number, _ in player.carry_out(kind, value)}
        assert not new & before
        issued |= new
    assert issued == set(range(len(issued)))


def test_a_script_is_exact_over_kills_and_dead_actors() -> None:
    """The whole log of (number, policy), with a kill after each lease, is that of the script."""
    once = ["td3", "td3", "sac", "ppo", "ppo", "ppo"]
    target, played = director(SCRIPT), {}
    for turn in range(30):
        actor = f"actor-{turn % 3}"
        lease = target.lease(actor, 1 + turn % 4)
        target = restored(target, SCRIPT)
        for place, decision in enumerate(lease):
            if turn % 5 == 4 and place > 0:
                target.forget(actor)  # it died after its first episode
                break
            report(target, decision)
            assert decision.number not in played
            played[decision.number] = decision.policy
    for decision in target.lease("last", len(target.state()["returned"]) or 1):
        played[decision.number] = decision.policy
    assert sorted(played) == list(range(len(played)))
    assert [played[number] for number in range(len(played))] == [
        once[number % 6] for number in range(len(played))
    ]


def test_a_state_of_other_members_is_refused() -> None:
    other = director(members=("td3", "dqn"))
    with pytest.raises(UsageError, match=r"chose among td3, dqn, this run has td3, sac, ppo"):
        director().load_state(other.state())


def test_another_strategy_starts_without_a_memory_and_numbers_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = director("ucb")
    run(target, 10)
    other = director("exp3")
    with caplog.at_level(logging.WARNING):
        other.load_state(target.state())
    assert "was ucb and is now exp3" in caplog.text
    assert other.estimates()["td3"].count == 0
    assert numbers(other.lease("a", 1)) == [10]


def test_a_seed_makes_the_same_sequence_and_another_seed_another() -> None:
    sequences = [policies(run(director("uniform", seed=seed), 50)) for seed in (1, 1, 2)]
    assert sequences[0] == sequences[1] != sequences[2]


def under_way(target: Director) -> dict[str, int]:
    counts: dict[str, int] = target.state()["strategy"]["state"]["under_way"]
    return counts


def test_a_choice_that_is_decided_anew_is_no_longer_expected() -> None:
    target = director("ucb", members=("a", "b"), min_share=0)
    target.pin("b")
    pinned = target.lease("actor", 4)
    assert under_way(target) == {"a": 0, "b": 4}
    target.release()
    target.give_back(numbers(pinned))
    target.lease("actor", 4)
    assert sum(under_way(target).values()) == 4


def test_a_report_that_nobody_expected_does_not_stand_for_another() -> None:
    target = director("ucb", members=("a", "b"), min_share=0)
    (decision,) = target.lease("actor", 1)
    target.observe(outcome(target.members.index(decision.policy), 1.0), decision=50)
    assert under_way(target)[decision.policy] == 1


def test_a_dead_actors_episodes_are_not_waited_for() -> None:
    """What is lost goes out again: a strategy does not count it as tried twice."""
    target = director("ucb", members=("a", "b"), min_share=0)
    for _ in range(20):
        target.lease("dies", 2)
        target.forget("dies")
    assert under_way(target) == {"a": 1, "b": 1}
