"""What the director hands out and takes back, and what a person can tell it."""

from __future__ import annotations

import json

import pytest
from bandits import outcome
from directed import SCRIPT, director, numbers, policies, report, run

from repertory.errors import UsageError
from services.decision import lease_record

# Leases


def test_numbers_are_consecutive_over_all_actors() -> None:
    target = director()
    leases = [target.lease("a", 3), target.lease("b", 2), target.lease("a", 1)]
    assert [numbers(lease) for lease in leases] == [[0, 1, 2], [3, 4], [5]]


def test_a_lease_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="lease of 0 decisions is refused: ask for at least 1"):
        director().lease("a", 0)


def test_a_decision_says_why_and_what_was_believed() -> None:
    target = director("uniform")
    report(target, target.lease("a", 1)[0], 7.0)
    (decision,) = target.lease("a", 1)
    assert (decision.reason, decision.edition, decision.steps) == ("strategy", 0, None)
    assert decision.probability == pytest.approx(1 / 3)
    assert [e.mean for e in decision.estimates.values() if e.mean is not None] == [7.0]


def test_a_decision_holds_for_as_many_steps_as_are_set() -> None:
    assert director(switch_every=50).lease("a", 1)[0].steps == 50


def test_what_an_actor_did_not_begin_goes_out_again_under_its_numbers() -> None:
    target = director(SCRIPT)
    lease = target.lease("a", 4)
    report(target, lease[0])
    target.give_back(numbers(lease)[2:])
    again = target.lease("b", 3)
    assert numbers(again) == [2, 3, 4]
    assert policies(again) == ["sac", "ppo", "ppo"]


def test_a_dead_actors_decisions_go_to_others_and_those_of_others_stay() -> None:
    target = director("round_robin")
    dead, alive = target.lease("dead", 3), target.lease("alive", 3)
    report(target, dead[0])
    target.forget("dead")
    assert numbers(target.lease("new", 3)) == [1, 2, 6]
    target.forget("alive")
    assert numbers(target.lease("new", 3)) == numbers(alive)


def test_what_is_given_back_twice_or_was_never_leased_does_no_harm() -> None:
    target = director()
    lease = target.lease("a", 2)
    target.give_back([0, 0, 77])
    target.forget("nobody")
    assert numbers(target.lease("a", 2)) == [0, 2]
    assert numbers(lease) == [0, 1]


def test_a_report_that_comes_twice_counts_once() -> None:
    target = director("uniform")
    (decision,) = target.lease("a", 1)
    for _ in range(2):
        report(target, decision, 5.0)
    assert target.estimates()[decision.policy].count == 1


def test_an_actor_that_was_given_up_too_early_is_heard_and_its_number_not_played_again() -> None:
    target = director("uniform")
    (decision,) = target.lease("slow", 1)
    target.forget("slow")
    report(target, decision, 5.0)
    assert target.estimates()[decision.policy].count == 1
    assert numbers(target.lease("b", 1)) == [1]


def test_a_report_without_a_number_closes_the_oldest_of_that_policy() -> None:
    target = director("round_robin", members=("a", "b"))
    target.lease("x", 4)  # a b a b
    target.observe(outcome(1, 1.0))
    target.forget("x")
    assert numbers(target.lease("y", 3)) == [0, 2, 3]


def test_a_report_from_after_the_last_saved_state_counts_and_its_number_is_not_used_again() -> None:
    target = director("uniform")
    saved = target.state()
    lease = target.lease("a", 3)
    restored = director("uniform")
    restored.load_state(saved)
    report(restored, lease[2], 4.0)
    assert restored.estimates()[lease[2].policy].mean == 4.0
    assert numbers(restored.lease("a", 1)) == [3]


def test_decisions_that_never_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.director.MOST_OPEN", 10)
    target = director("round_robin")
    for _ in range(5):
        target.lease("a", 6)
    assert len(target.state()["open"]) == 10
    assert target.shares()["td3"].choices == pytest.approx(1 / 3, abs=0.1)


def test_a_whole_lease_is_one_record_of_json() -> None:
    target = director("uniform", members=("a", "b"))
    run(target, 6, lambda decision: 3.0)
    lease = target.lease("actor-1", 2)
    record = json.loads(json.dumps(lease_record("actor-1", lease), allow_nan=False))
    assert (record["actor"], record["edition"]) == ("actor-1", 0)
    assert record["decisions"] == [[d.number, d.policy, "strategy", 0.5] for d in lease]
    assert record["estimates"]["a"][0] == 3.0


# Pin, bench, release


def test_while_one_is_pinned_only_it_acts() -> None:
    target = director("round_robin")
    target.pin("ppo")
    lease = target.lease("a", 5)
    assert set(policies(lease)) == {"ppo"}
    assert {decision.reason for decision in lease} == {"pinned"}
    target.release("ppo")
    assert policies(target.lease("a", 3)) == ["td3", "sac", "ppo"]


def test_a_benched_member_does_not_act_until_it_is_released() -> None:
    target = director("round_robin")
    target.bench("sac")
    assert policies(target.lease("a", 4)) == ["td3", "ppo", "td3", "ppo"]
    target.release("sac")
    assert policies(target.lease("a", 3)) == ["td3", "sac", "ppo"]


def test_the_minimum_share_does_not_bring_a_benched_member_back() -> None:
    target = director("ucb", min_share=0.3)
    target.bench("sac")
    assert "sac" not in policies(run(target, 200))


def test_every_command_that_changes_something_raises_the_edition() -> None:
    target = director()
    editions = []
    for command in (
        lambda: target.pin("td3"),
        lambda: target.pin("td3"),  # as it was
        lambda: target.release("td3"),
        lambda: target.bench("sac"),
        lambda: target.bench("sac"),  # as it was
        lambda: target.release("ppo"),  # nothing to release
        lambda: target.release(),
        lambda: target.release(),  # nothing to release
    ):
        command()
        editions.append(target.edition)
    assert editions == [1, 1, 2, 3, 3, 3, 4, 4]
    assert target.lease("a", 1)[0].edition == 4


def test_release_of_nobody_in_particular_releases_all() -> None:
    target = director()
    target.bench("sac")
    target.pin("td3")
    target.release()
    assert (target.pinned, target.benched) == (None, ())


def test_after_a_pin_what_was_given_back_waits_for_the_release() -> None:
    target = director(SCRIPT)
    target.lease("a", 4)  # td3 td3 sac ppo
    target.pin("sac")
    target.give_back([1, 2, 3])
    pinned = target.lease("a", 2)
    assert (numbers(pinned), policies(pinned)) == ([4, 5], ["sac", "sac"])
    target.release()
    after = target.lease("a", 5)
    assert numbers(after) == [1, 2, 3, 6, 7]
    assert policies(after) == ["td3", "sac", "ppo", "ppo", "ppo"]


def test_a_pinned_decision_that_was_not_begun_is_decided_anew_after_the_release() -> None:
    target = director("round_robin")
    target.pin("ppo")
    pinned = target.lease("a", 2)
    target.release()
    target.give_back(numbers(pinned))
    anew = target.lease("a", 3)
    assert numbers(anew) == [0, 1, 2]
    assert policies(anew) == ["td3", "sac", "ppo"]
    assert target.shares()["ppo"].choices == pytest.approx(1 / 3)


def test_a_decision_for_who_is_benched_by_now_is_decided_anew_under_its_number() -> None:
    target = director("round_robin")
    lease = target.lease("a", 3)
    target.bench("sac")
    target.give_back(numbers(lease))
    assert [(d.number, d.policy) for d in target.lease("a", 3)] == [
        (0, "td3"),
        (1, "td3"),
        (2, "ppo"),
    ]


def test_the_last_member_is_not_benched() -> None:
    target = director()
    target.bench("td3")
    target.bench("ppo")
    with pytest.raises(UsageError, match="sac cannot be benched: it is the last"):
        target.bench("sac")
    assert target.candidates == ("sac",)


def test_who_is_pinned_is_not_benched_and_the_other_way_round() -> None:
    target = director()
    target.pin("td3")
    with pytest.raises(UsageError, match="td3 cannot be benched: it is pinned"):
        target.bench("td3")
    target.bench("sac")
    with pytest.raises(UsageError, match="sac cannot be pinned: it is benched"):
        target.pin("sac")


@pytest.mark.parametrize("command", ["pin", "bench", "release"])
def test_a_command_for_a_stranger_is_refused_by_name(command: str) -> None:
    with pytest.raises(UsageError, match=r"no policy 'dqn' in this run: choose one of td3, sac"):
        getattr(director(), command)("dqn")
