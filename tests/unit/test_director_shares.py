"""What the director guarantees, what it tells the strategy, and what it says of shares."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import pytest
from directed import (
    MEMBERS,
    SCRIPT,
    Stranger,
    Worst,
    director,
    policies,
    report,
    run,
    with_strategy,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from repertory.errors import UsageError
from repertory.types import EpisodeOutcome

# The minimum share


@settings(max_examples=25, deadline=None)
@given(min_share=st.sampled_from([0.02, 0.05, 0.1, 1 / 3]), start=st.integers(0, 400))
def test_a_strategy_that_starves_everybody_is_overruled(min_share: float, start: int) -> None:
    target = with_strategy(Worst, min_share=min_share)
    made = policies(run(target, 1000))[start : start + 500]
    for member in MEMBERS:
        assert made.count(member) >= min_share * 500 - len(MEMBERS)
    for member in MEMBERS[:-1]:  # and not more than that, where the strategy never wants it
        assert made.count(member) <= min_share * 500 + len(MEMBERS)


def test_a_member_that_comes_back_is_owed_nothing_for_before() -> None:
    target = with_strategy(Worst, min_share=0.1)
    run(target, 8)
    target.bench("td3")
    run(target, 20)
    target.release("td3")
    assert "td3" not in policies(run(target, 8))
    assert "td3" in policies(run(target, 3))


def test_decisions_by_the_minimum_share_say_so() -> None:
    made = run(with_strategy(Worst, min_share=0.1), 100)
    assert {d.reason for d in made if d.policy != "ppo"} == {"floor"}
    assert {d.reason for d in made if d.policy == "ppo"} == {"strategy"}


@pytest.mark.parametrize("strategy", [SCRIPT, "round_robin"])
def test_an_exact_order_is_left_alone(strategy: Any) -> None:
    made = run(director(strategy, min_share=1 / 3), 300)
    assert {decision.reason for decision in made} == {"strategy"}


def test_a_minimum_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"min_share = 0.4 is refused: 3 members would need 120%"):
        director(min_share=0.4)


def test_the_minimum_share_is_in_the_probability_that_a_strategy_is_told() -> None:
    target = director("exp3", members=("a", "b"), min_share=0.2)
    run(target, 2000, lambda decision: float(decision.policy == "a"))
    # The strategy alone would give b less.
    lease = target.lease("x", 100)
    assert {d.probability for d in lease if d.policy == "b"} == {0.2}
    assert {d.reason for d in lease if d.policy == "b"} >= {"floor"}


# Scores


def test_with_score_return_the_strategy_sees_returns() -> None:
    target = director("uniform")
    (decision,) = target.lease("a", 1)
    report(target, decision, -321.0)
    assert target.estimates()[decision.policy].mean == -321.0


def test_with_score_evaluation_it_sees_the_newest_evaluated_mean_of_who_acted() -> None:
    target = with_strategy(Worst, score="evaluation", min_share=0)
    run(target, 1)
    target.observe_evaluation("ppo", env_steps=100, mean=50.0)
    run(target, 1)
    target.observe_evaluation("ppo", env_steps=90, mean=-1.0)  # late, and older
    target.observe_evaluation("ppo", env_steps=200, mean=math.nan)
    run(target, 1)
    target.observe_evaluation("ppo", env_steps=300, mean=70.0)
    run(target, 1)
    strategy: Any = target._strategy
    assert [seen.score for seen in strategy.seen] == [None, 50.0, 50.0, 70.0]


def test_with_score_progress_it_sees_the_slope_of_the_returns() -> None:
    target = with_strategy(Worst, score="progress", min_share=0)
    for episode in range(8):
        (decision,) = target.lease("a", 1)
        report(target, decision, 100.0 - 3.0 * episode, env_steps=20 * episode)
    strategy: Any = target._strategy
    assert [seen.score for seen in strategy.seen[:4]] == [None] * 4
    # down by 3 in 20 steps is progress too: something is being learnt, or unlearnt
    assert [seen.score for seen in strategy.seen[4:]] == pytest.approx([0.15] * 4)


def test_a_return_that_is_no_number_counts_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    target = director("uniform")
    (decision,) = target.lease("a", 1)
    with caplog.at_level(logging.WARNING):
        report(target, decision, math.nan)
    assert target.estimates()[decision.policy].count == 0
    assert "returned nan" in caplog.text
    json.dumps(target.state(), allow_nan=False)


def test_a_strategy_that_chooses_a_stranger_is_named() -> None:
    with pytest.raises(UsageError, match=r"chose 'nobody': it must choose one of td3, sac, ppo"):
        with_strategy(Stranger, min_share=0).lease("a", 1)


# Shares, regret, updates


def test_shares_of_decisions_and_of_steps() -> None:
    target = director("round_robin", members=("a", "b"))
    for decision in target.lease("x", 4):
        report(target, decision, length=30 if decision.policy == "a" else 10)
    shares = target.shares()
    assert (shares["a"].choices, shares["a"].recent_choices) == (0.5, 0.5)
    assert (shares["a"].env_steps, shares["b"].recent_env_steps) == (0.75, 0.25)


def test_recent_shares_forget_and_total_ones_do_not() -> None:
    target = director("round_robin", members=("a", "b"))
    target.pin("a")
    run(target, 200)
    target.pin("b")
    run(target, 200)
    shares = target.shares()["b"]
    assert (shares.choices, shares.recent_choices) == (0.5, 1.0)
    assert (shares.env_steps, shares.recent_env_steps) == (0.5, 1.0)


def test_regret_is_the_best_members_mean_minus_what_was_obtained() -> None:
    target = director("round_robin", members=("a", "b"))
    assert target.regret().recent is None
    run(target, 500, lambda decision: 10.0 if decision.policy == "a" else 4.0)
    assert target.regret().recent == pytest.approx(3.0)
    assert target.regret().total == pytest.approx(400 * 3.0)  # two whole windows of 200


def test_equal_learners_get_the_same() -> None:
    target = director("ucb")
    assert target.update_shares() == pytest.approx(dict.fromkeys(MEMBERS, 1 / 3))
    assert target.update_factors() == pytest.approx(dict.fromkeys(MEMBERS, 1.0))


def test_updates_that_are_shared_are_as_many_as_one_learner_makes() -> None:
    factors = director("ucb", updates="shared").update_factors()
    assert factors == pytest.approx(dict.fromkeys(MEMBERS, 1 / 3))


def test_updates_by_choice_follow_who_acts_above_the_floor() -> None:
    target = director("ucb", learner_share="by_choice", min_share=0.1)
    assert target.update_shares() == pytest.approx(dict.fromkeys(MEMBERS, 1 / 3))
    target.pin("sac")
    run(target, 200)
    assert target.update_shares() == pytest.approx({"td3": 0.1, "sac": 0.8, "ppo": 0.1})
    assert target.update_factors() == pytest.approx({"td3": 0.3, "sac": 2.4, "ppo": 0.3})


def test_updates_by_choice_follow_steps_where_episodes_are_of_different_length() -> None:
    target = director("uniform", learner_share="by_choice", min_share=0.05)
    for place, length in enumerate((10, 60, 30)):  # one episode each
        target.observe(EpisodeOutcome(place, 0, 1.0, length, True, 10))
    assert target.update_shares() == pytest.approx({"td3": 0.1, "sac": 0.6, "ppo": 0.3})


def test_the_report_is_json_and_says_all() -> None:
    target = director()
    run(target, 10)
    target.bench("sac")
    said = json.loads(json.dumps(target.report(), allow_nan=False))
    assert (said["strategy"], said["decisions"], said["benched"]) == ("ucb", 10, ["sac"])
    assert set(said["shares"]) == set(said["estimates"]) == set(MEMBERS)


def test_an_outcome_is_of_the_member_at_that_place() -> None:
    target = director("uniform")
    target.observe(EpisodeOutcome(2, 0, 8.0, 10, True, 10))
    assert target.estimates()["ppo"].mean == 8.0
