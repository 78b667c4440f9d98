"""Several policies as one: who acts when, what most want, what they mean on average."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from bandits import outcome
from directed import director
from remembering import Counting

from actors.evaluator import evaluate
from repertory.config import EnvConfig
from repertory.director_config import DirectorConfig
from repertory.envs import probe
from repertory.errors import RepertoryError, UsageError
from repertory.parts import lookup
from repertory.policies.card import PolicyCard
from repertory.policies.policy import build_policy
from repertory.protocols import Episodic
from repertory.types import Acted, Array, WeightSnapshot
from services.director import Director
from services.ensemble import Ensemble
from services.ensemble_policies import Average, Directed, Vote, elect, standardised
from services.final_director import FinalDirector

CARTPOLE = EnvConfig(id="CartPole-v1")
PENDULUM = EnvConfig(id="Pendulum-v1")
DISCRETE, CONTINUOUS = probe(CARTPOLE), probe(PENDULUM)
MEMBERS = ("a", "b", "c")


class Always:
    """One action, whatever it sees."""

    def __init__(self, action: Any) -> None:
        self.rows: list[int] = []
        self._action = np.asarray(action)

    def act(self, observation: Array, rng: np.random.Generator | None) -> Acted:
        self.rows.append(len(observation))
        return Acted(np.broadcast_to(self._action, (len(observation), *self._action.shape)).copy())


class Valued:
    """The same action values in every state."""

    def __init__(self, *q: float) -> None:
        self._q = np.array(q)

    def act(self, observation: Array, rng: np.random.Generator | None) -> Acted:
        return Acted(np.full(len(observation), self._q.argmax()))

    def q_values(self, observation: Array) -> Array:
        return np.tile(self._q, (len(observation), 1))


def seen(copies: int = 1) -> Array:
    return np.zeros((copies, 4), np.float32)


def ended(target: Director | None = None, **config: Any) -> FinalDirector:
    """What a run leaves of a director."""
    settings = DirectorConfig(**{"strategy": "ucb", **config})
    target = target or Director(settings, MEMBERS)
    return FinalDirector(settings, target.state())


def scripted(*script: tuple[str, int], **config: Any) -> FinalDirector:
    return ended(strategy={"name": "scripted", "script": [list(one) for one in script]}, **config)


def directed(final: FinalDirector, seed: int = 0) -> Directed:
    """Member number k does k."""
    policies = {name: Always(k) for k, name in enumerate(MEMBERS)}
    return Directed(policies, final.chooser(seed), DISCRETE)


def actions(policy: Directed, copies: int = 1, steps: int = 1) -> list[list[int]]:
    return [policy.act(seen(copies), None).action.tolist() for _ in range(steps)]


def learnt(strategy: Any, episodes: int = 60, seed: int = 0, **config: Any) -> Director:
    """A director that has seen member k return 10 k on average."""
    target = director(strategy, MEMBERS, seed, **config)
    rng = np.random.default_rng(seed)
    for _ in range(episodes):
        (decision,) = target.lease("actor", 1)
        place = MEMBERS.index(decision.policy)
        target.observe(outcome(place, 10 * place + rng.standard_normal()), decision.number)
    return target


# By strategy


def test_who_is_chosen_acts_until_the_episode_ends():
    policy = directed(scripted(("a", 1), ("b", 1), ("c", 1)))
    assert actions(policy, steps=3) == [[0], [0], [0]]
    policy.begin()
    assert actions(policy, steps=2) == [[1], [1]]


def test_each_copy_has_a_choice_of_its_own_and_begins_by_itself():
    policy = directed(scripted(("a", 1), ("b", 1), ("c", 1)))
    assert actions(policy, copies=2, steps=2) == [[0, 1], [0, 1]]
    policy.begin(np.array([True, False]))
    assert actions(policy, copies=2) == [[2, 1]]
    policy.begin(np.array([True, True]))
    assert actions(policy, copies=2) == [[0, 1]]


def test_within_an_episode_it_changes_every_so_many_steps_where_the_run_did():
    policy = directed(scripted(("a", 1), ("b", 1), switch_every=2))
    assert actions(policy, steps=5) == [[0], [0], [1], [1], [0]]
    policy.begin()  # in the middle of a stretch: the next choice
    assert actions(policy, steps=3) == [[1], [1], [0]]


def test_another_number_of_rows_is_other_episodes():
    policy = directed(scripted(("a", 1), ("b", 1), ("c", 1)))
    assert actions(policy, copies=2) == [[0, 1]]
    assert actions(policy, copies=1) == [[2]]


def test_each_member_sees_only_the_rows_it_acts_in():
    policies = {name: Always(k) for k, name in enumerate(MEMBERS)}
    final = scripted(("a", 2), ("b", 1))
    policy = Directed(policies, final.chooser(0), DISCRETE)
    policy.act(seen(3), None)
    assert [policies[name].rows for name in MEMBERS] == [[2], [1], []]
    assert policy.acted() == pytest.approx({"a": 2 / 3, "b": 1 / 3, "c": 0})


def test_nobody_has_acted_before_the_first_step():
    assert directed(ended()).acted() == {"a": 0, "b": 0, "c": 0}


def test_actions_are_those_of_the_space():
    policies = {name: Always(np.float32([k / 4])) for k, name in enumerate(MEMBERS)}
    policy = Directed(policies, scripted(("b", 1), ("c", 1)).chooser(0), CONTINUOUS)
    action = policy.act(np.zeros((2, 3), np.float32), None).action
    assert action.dtype == np.float32
    assert action.tolist() == [[0.25], [0.5]]


def test_a_member_remembers_until_it_hands_over_or_the_episode_ends():
    final = scripted(("a", 1), ("b", 1), ("a", 2), switch_every=3)
    policy = Directed({name: Counting() for name in MEMBERS}, final.chooser(0), DISCRETE)
    # Its action is 0, 1, 0, 1, ... from where it begins: a, b, a, and a goes on after itself.
    found = [action for (action,) in actions(policy, steps=12)]
    assert found == [0, 1, 0, 0, 1, 0, 0, 1, 0, 1, 0, 1]
    policy.act(seen(), None)
    policy.begin()
    assert actions(policy, steps=2) == [[0], [1]]


# The director as it stood


def chosen(final: FinalDirector, seed: int, count: int = 40) -> list[str]:
    return [decision.policy for decision in final.chooser(seed).lease("x", count)]


@pytest.mark.parametrize("strategy", ["thompson", "exp3", "roulette", "uniform", "epsilon_greedy"])
def test_one_seed_chooses_twice_the_same_and_another_otherwise(strategy: str):
    settings = DirectorConfig(strategy=strategy)
    # Little seen: what is believed for certain is chosen whatever the seed.
    final = FinalDirector(settings, learnt(strategy, episodes=4).state())
    assert chosen(final, 1) == chosen(final, 1)
    assert chosen(final, 1) != chosen(final, 2)


def test_what_was_learnt_decides():
    final = ended(learnt("ucb"))
    # Means 0, 10 and 20 with deviation 1: nothing but the last is worth another look.
    assert set(chosen(final, 0)) == {"c"}


def test_the_minimum_share_is_not_kept():
    target = learnt("ucb", min_share=0.3)
    config = DirectorConfig(strategy="ucb", min_share=0.3)
    assert set(chosen(FinalDirector(config, target.state()), 0)) == {"c"}


def test_what_was_leased_and_not_played_is_forgotten():
    target, other = learnt("ucb"), learnt("ucb")
    target.lease("actor", 50)  # fifty tries of c are under way, so the others look better
    first, second = (ended(one).chooser(0) for one in (target, other))
    assert first.estimates() == second.estimates()
    assert first.shares() == second.shares()
    for numbered in (first, second):
        assert [d.reason for d in numbered.lease("x", 3)] == ["strategy"] * 3


def test_a_member_pinned_at_the_end_acts_alone():
    target = learnt("ucb")
    target.pin("a")
    assert set(chosen(ended(target), 0)) == {"a"}


def test_choosing_changes_nothing_in_what_was_kept():
    final = ended(learnt("thompson"), strategy="thompson")
    before = final.report()
    chosen(final, 0)
    assert final.report() == before
    assert before["shares"]["c"]["choices"] > 0.5


def test_a_director_goes_through_json_and_chooses_the_same():
    final = ended(learnt("thompson", episodes=5), strategy="thompson", switch_every=3)
    again = FinalDirector.from_json(final.to_json())
    assert chosen(again, 7) == chosen(final, 7)
    assert again.chooser(0).lease("x", 1)[0].steps == 3


# By vote


def voted(*votes: list[int], choices: int) -> list[int]:
    return elect(np.array(votes), choices).tolist()


def test_most_votes_win():
    assert voted([0, 1, 2], [1, 1, 0], [1, 2, 0], choices=3) == [1, 1, 0]


def test_of_as_many_votes_the_first_voter_decides():
    assert voted([2, 0], [1, 1], choices=3) == [2, 0]
    # 1 and 2 have two votes each; the first voter is for neither, the second for 2.
    assert voted([0], [2], [1], [1], [2], choices=3) == [2]


def test_dimensions_of_an_action_are_voted_on_one_by_one():
    spec = replace(
        DISCRETE,
        action_kind="multi_discrete",
        action_sizes=(2, 5),
        action_low=(0.0, 0.0),
        action_high=(1.0, 4.0),
        action_shape=(2,),
    )
    policy = Vote([Always([0, 4]), Always([1, 3]), Always([1, 4])], spec)
    assert policy.act(seen(2), None).action.tolist() == [[1, 4], [1, 4]]


def test_members_without_action_values_vote():
    policy = Vote([Always(0), Valued(0.0, 1.0), Valued(0.0, 1.0)], DISCRETE)
    assert policy.act(seen(2), None).action.tolist() == [1, 1]


def test_action_values_are_averaged_rather_than_voted_on():
    # A vote of two is the first's wish, 0. By hand, with mean 0 and deviation 1 over the actions:
    # (0.815, 0.593, -1.408) and (-0.707, 1.414, -0.707), in sum (0.108, 2.007, -2.115).
    policy = Vote([Valued(1.0, 0.9, 0.0), Valued(0.0, 1.0, 0.0)], DISCRETE)
    assert policy.act(seen(2), None).action.tolist() == [1, 1]


def test_a_large_scale_has_no_more_say():
    # Standardised, the first two are (1.225, 0, -1.225) and (-1.225, 0, 1.225): they cancel, and
    # the third decides, however small it is. Plain sums would be (2, 1001, 2000).
    policy = Vote([Valued(2, 1, 0), Valued(0, 1000, 2000), Valued(0, 0.001, 0)], DISCRETE)
    assert policy.act(seen(1), None).action.tolist() == [1]


def test_standardised_rows_have_mean_zero_and_deviation_one_or_are_zero():
    q = np.random.default_rng(0).normal(5, 100, size=(20, 4)).astype(np.float32)
    q[3] = 7
    found = standardised(q)
    np.testing.assert_array_equal(found[3], 0)
    others = np.delete(found, 3, axis=0)
    np.testing.assert_allclose(others.mean(-1), 0, atol=1e-5)  # float32 sums of four
    np.testing.assert_allclose(others.std(-1), 1, rtol=1e-5)


# On average


def test_continuous_actions_are_averaged():
    policy = Average([Always(np.float32([-1.0, 0.5])), Always(np.float32([0.5, 1.0]))])
    action = policy.act(np.zeros((3, 3), np.float32), None).action
    assert action.dtype == np.float32
    assert action.tolist() == [[-0.25, 0.75]] * 3


# The noun


def card(name: str, part: str, config: EnvConfig, mean: float | None = None) -> PolicyCard:
    spec = probe(config)
    settings = lookup("policy", part).Config(hidden_sizes=(8,))
    with torch.random.fork_rng():
        torch.manual_seed(sum(map(ord, name)))
        weights = build_policy(settings, spec).weights()
    return PolicyCard(part, settings, config, spec, WeightSnapshot(name, 3, weights), 100, mean)


def cards(config: EnvConfig, **parts: str) -> dict[str, PolicyCard]:
    return {name: card(name, part, config) for name, part in parts.items()}


QS = cards(CARTPOLE, a="greedy_q", b="greedy_q", c="stochastic")
ACTORS = cards(PENDULUM, a="deterministic", b="squashed_gaussian", c="stochastic")


@pytest.mark.parametrize(
    ("members", "mode", "words"),
    [
        (QS, "average", ["average", "CartPole-v1", "discrete", "use strategy or vote"]),
        (ACTORS, "vote", ["vote", "Pendulum-v1", "continuous", "use strategy or average"]),
        (QS, "dice", ["dice", "use strategy or vote"]),
    ],
)
def test_a_mode_that_does_not_fit_is_refused(
    members: Mapping[str, PolicyCard], mode: Any, words: list[str]
):
    with pytest.raises(UsageError) as refused:
        Ensemble(members, mode, ended(), 100)
    assert all(word in str(refused.value) for word in words)


def test_without_a_director_there_is_no_strategy_but_a_vote():
    with pytest.raises(RepertoryError, match="no director; use vote"):
        Ensemble(QS, "strategy", None, 100)
    assert isinstance(Ensemble(QS, "vote", None, 100).build(), Vote)


def test_a_director_of_other_members_is_refused():
    with pytest.raises(RepertoryError, match="not of one run"):
        Ensemble({"a": QS["a"], "b": QS["b"]}, "strategy", ended(), 100)


def test_ties_go_to_the_member_with_the_better_evaluation():
    members = {
        "a": card("a", "stochastic", CARTPOLE, 10.0),
        "b": card("b", "stochastic", CARTPOLE, None),
        "c": card("c", "stochastic", CARTPOLE, 30.0),
    }
    assert Ensemble(members, "vote", None, 100).ranking() == ["c", "a", "b"]
    two = {name: members[name] for name in ("a", "c")}
    observation = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    wishes = {name: m.build().act(observation, None).action for name, m in two.items()}
    assert (wishes["a"] != wishes["c"]).any()
    action = Ensemble(two, "vote", None, 100).build().act(observation, None).action
    np.testing.assert_array_equal(action, wishes["c"])


def test_the_q_values_of_a_greedy_policy_are_those_it_acts_by():
    policy = QS["a"].build()
    observation = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    wishes = policy.q_values(observation).argmax(-1)
    assert len(set(wishes.tolist())) == 2
    np.testing.assert_array_equal(policy.act(observation, None).action, wishes)


def test_an_average_of_policies_is_the_mean_of_their_actions():
    observation = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    expected = np.mean([m.build().act(observation, None).action for m in ACTORS.values()], axis=0)
    found = Ensemble(ACTORS, "average", None, 100).build().act(observation, None).action
    np.testing.assert_array_equal(found, expected)
    assert np.abs(found).max() <= 1


# Evaluated


class Watched(Directed):
    """Remembers how often it was told of episodes."""

    begun = 0

    def begin(self, starting: Array | None = None) -> None:
        self.begun += 0 if starting is None else int(starting.sum())
        super().begin(starting)


def test_an_evaluation_says_where_episodes_begin():
    config = EnvConfig(id="scripted_envs:Counter", kwargs={"lengths": [3]})
    policies = {name: Always(0) for name in MEMBERS}
    policy = Watched(policies, scripted(("a", 1), ("b", 2)).chooser(0), probe(config))
    assert isinstance(policy, Episodic)
    evaluate(policy, config, probe(config), episodes=20, seed=0)
    # Ten copies play two episodes of three steps each: ten times a or b, a third of them a.
    assert policy.begun == 20
    assert policy.acted() == pytest.approx({"a": 7 / 20, "b": 13 / 20, "c": 0})


def test_evaluating_twice_gives_the_same_returns_and_choices():
    config = CARTPOLE.model_copy(update={"max_episode_steps": 30})
    target = learnt("thompson", episodes=4)
    settings = DirectorConfig(strategy="thompson", switch_every=5)
    ensemble = Ensemble(QS, "strategy", FinalDirector(settings, target.state()), 100, seed=3)
    found = []
    for _ in range(2):
        policy = ensemble.build()
        returns = evaluate(policy, config, DISCRETE, episodes=8, seed=3)
        found.append((returns, policy.acted()))
    assert found[0] == found[1]
    assert sum(share > 0 for share in found[0][1].values()) > 1
