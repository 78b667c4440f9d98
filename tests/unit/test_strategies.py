"""What each strategy chooses, by hand or by NumPy; what they all share."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from bandits import make
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from repertory.director_config import DirectorConfig
from repertory.errors import UsageError
from repertory.parts import SHORT_NAMES, lookup
from services.strategies.score_window import ScoreWindow
from services.strategies.strategy import Anticipating, Outcome, Randomised

MEMBERS = ("td3", "sac", "ppo")
NAMES = sorted(SHORT_NAMES["strategy"])
SCRIPT = [["td3", 2], ["ppo", 1], ["sac", 3]]
REQUIRED: dict[str, dict[str, Any]] = {"scripted": {"script": SCRIPT}}
SCALE_FREE = ["epsilon_greedy", "ucb", "thompson", "exp3", "epochal", "roulette"]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def strategy(name: str, members: Sequence[str] = MEMBERS, **config: Any) -> Any:
    return make(name, members, **{**REQUIRED.get(name, {}), **config})


def tell(target: Any, *scores: tuple[str, float]) -> None:
    for member, score in scores:
        target.observe(Outcome(member, score))


# What all of them share


def test_there_are_nine() -> None:
    assert NAMES == [
        "epochal",
        "epsilon_greedy",
        "exp3",
        "roulette",
        "round_robin",
        "scripted",
        "thompson",
        "ucb",
        "uniform",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_short_name_in_the_settings_makes_that_strategy(name: str) -> None:
    settings_of_part = DirectorConfig(strategy={"name": name, **REQUIRED.get(name, {})}).strategy
    assert settings_of_part.name == name
    assert isinstance(settings_of_part, lookup("strategy", name).Config)


@pytest.mark.parametrize("name", NAMES)
def test_only_candidates_are_chosen(name: str) -> None:
    target = strategy(name)
    tell(target, ("td3", 9.0), ("sac", 1.0), ("ppo", 5.0))
    generator = rng()
    assert {target.choose(["sac", "ppo"], generator) for _ in range(50)} <= {"sac", "ppo"}
    assert target.choose(["ppo"], generator) == "ppo"


@pytest.mark.parametrize("name", NAMES)
def test_a_portfolio_of_one_is_no_special_case(name: str) -> None:
    config = {"script": [["only", 1]]} if name == "scripted" else {}
    target = make(name, ["only"], **config)
    generator = rng()
    for score in (3.0, 3.0, -5.0):
        assert target.choose(["only"], generator) == "only"
        target.observe(Outcome("only", score, probability=1.0))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_makes_the_same_choices(name: str) -> None:
    def choices(seed: int) -> list[str]:
        target, generator, made = strategy(name), rng(seed), []
        for number in range(60):
            made.append(target.choose(MEMBERS, generator))
            score = math.sin(number) + len(made[-1])
            target.observe(Outcome(made[-1], score, probability=0.5))
        return made

    assert choices(1) == choices(1)
    if name not in ("round_robin", "scripted"):
        assert choices(1) != choices(2)


@pytest.mark.parametrize("name", SCALE_FREE)
@pytest.mark.parametrize(("scale", "shift"), [(1500.0, -1600.0), (1e-4, 7.0), (1e6, 0.0)])
def test_scaling_and_shifting_all_scores_changes_no_choice(
    name: str, scale: float, shift: float
) -> None:
    def choices(scale: float, shift: float) -> list[str]:
        target, generator, noise = strategy(name), rng(3), rng(4)
        made = []
        for _ in range(500):
            chances = target.probabilities(MEMBERS) if isinstance(target, Randomised) else {}
            made.append(target.choose(MEMBERS, generator))
            score = MEMBERS.index(made[-1]) + 2 * float(noise.standard_normal())
            target.observe(
                Outcome(made[-1], scale * score + shift, probability=chances.get(made[-1]))
            )
        return made

    plain = choices(1.0, 0.0)
    assert choices(scale, shift) == plain
    assert len(set(plain)) == 3


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    scores=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=60),
    cut=st.integers(0, 60),
    lost=st.integers(0, 3),
)
def test_a_state_that_went_through_json_has_the_same_future(
    name: str, scores: list[float], cut: int, lost: int
) -> None:
    small = {"window": 7} if name not in ("thompson", "epochal") else {}
    config = {"epochal": {"first_epoch": 4, "longest_epoch": 16}}.get(name, small)
    kept, generator = strategy(name, **config), rng(5)
    for score in scores[:cut]:
        member = kept.choose(MEMBERS, generator)
        kept.expect(member)
        kept.observe(Outcome(member, score, length=2, probability=0.4))
    for _ in range(lost):
        kept.expect(kept.choose(MEMBERS, generator))
    restored = strategy(name, **config)
    restored.load_state(json.loads(json.dumps(kept.state(), allow_nan=False)))
    other = np.random.Generator(np.random.PCG64())
    other.bit_generator.state = generator.bit_generator.state
    for score in [*scores, *scores]:
        member = kept.choose(MEMBERS, generator)
        assert restored.choose(MEMBERS, other) == member
        for each in (kept, restored):
            each.expect(member)
            each.observe(Outcome(member, score, length=2, probability=0.4))
    assert restored.state() == kept.state()
    assert restored.estimates() == kept.estimates()


@pytest.mark.parametrize("name", NAMES)
def test_estimates_are_the_means_of_what_was_seen(name: str) -> None:
    target = strategy(name)
    assert target.estimates()["td3"].mean is None
    tell(target, ("td3", 2.0), ("sac", -7.0))
    estimates = target.estimates()
    assert (estimates["td3"].mean, estimates["sac"].mean) == (2.0, -7.0)
    assert estimates["ppo"].mean is None
    assert estimates["ppo"].count == 0
    assert estimates["td3"].low <= 2.0 <= estimates["td3"].high


def test_an_interval_is_that_of_the_mean() -> None:
    target = strategy("uniform")
    tell(target, *[("td3", score) for score in (1.0, 3.0, 5.0, 7.0)])
    estimate = target.estimates()["td3"]
    assert (estimate.mean, estimate.count) == (4.0, 4)
    # The deviation of 1, 3, 5, 7 is sqrt(5); of the mean of four, half of it.
    assert estimate.high - estimate.mean == pytest.approx(1.96 * math.sqrt(5) / 2)
    assert estimate.mean - estimate.low == pytest.approx(1.96 * math.sqrt(5) / 2)


@pytest.mark.parametrize("name", ["epsilon_greedy", "ucb", "uniform", "roulette", "exp3"])
def test_only_the_window_counts(name: str) -> None:
    target = strategy(name, window=3)
    tell(target, ("td3", 100.0), ("td3", 1.0), ("td3", 2.0), ("sac", 5.0))
    assert target.estimates()["td3"].mean == 1.5


@pytest.mark.parametrize("name", NAMES)
def test_an_outcome_without_a_score_changes_no_estimate(name: str) -> None:
    target = strategy(name)
    tell(target, ("td3", 2.0))
    before = target.estimates()
    target.observe(Outcome("sac", None, length=5))
    assert target.estimates() == before


def test_a_window_that_has_slid_far_keeps_the_newest_in_order() -> None:
    window = ScoreWindow(members=2, size=3)
    for number in range(20):
        window.append(number % 2, float(number))
    assert window.rows() == [(1, 17.0), (0, 18.0), (1, 19.0)]


def test_moments_agree_with_numpy() -> None:
    window = ScoreWindow(members=3, size=50)
    who, scores = rng().integers(0, 2, 30), rng(1).normal(-1000, 3, 30)  # nobody is member 2
    for member, score in zip(who.tolist(), scores.tolist(), strict=True):
        window.append(member, score)
    moments = window.moments(discount=0.9)
    weights = 0.9 ** np.arange(29, -1, -1)
    for member in (0, 1):
        mine = who == member
        mean = np.average(scores[mine], weights=weights[mine])
        variance = np.average((scores[mine] - mean) ** 2, weights=weights[mine])
        assert moments.counts[member] == pytest.approx(weights[mine].sum())
        assert moments.means[member] == pytest.approx(mean)
        assert moments.deviations[member] == pytest.approx(math.sqrt(variance))
    mean = np.average(scores, weights=weights)
    assert moments.deviation**2 == pytest.approx(np.average((scores - mean) ** 2, weights=weights))
    assert moments.counts[2] == 0
    assert math.isnan(moments.means[2])


# Choices that are handed out before their outcomes are known


@pytest.mark.parametrize("name", ["epsilon_greedy", "ucb", "thompson", "epochal"])
def test_before_the_first_outcome_choices_are_spread_evenly(name: str) -> None:
    target, generator = strategy(name), rng()
    assert isinstance(target, Anticipating)
    chosen: Counter[str] = Counter()
    for _ in range(30):
        member = target.choose(MEMBERS, generator)
        target.expect(member)
        chosen[member] += 1
    assert chosen == dict.fromkeys(MEMBERS, 10)


@pytest.mark.parametrize("name", ["ucb", "thompson", "epochal"])
def test_a_member_without_a_score_is_tried_once_and_not_again_until_the_news(name: str) -> None:
    target, generator = strategy(name), rng()
    tell(target, ("td3", 5.0), ("sac", 5.0))
    assert target.choose(MEMBERS, generator) == "ppo"
    target.expect("ppo")
    assert {target.choose(MEMBERS, generator) for _ in range(20)} <= {"td3", "sac"}
    target.forget("ppo")  # nothing came of it
    assert target.choose(MEMBERS, generator) == "ppo"


@pytest.mark.parametrize("name", ["epsilon_greedy", "ucb", "thompson", "epochal"])
def test_a_choice_that_has_ended_is_no_longer_under_way(name: str) -> None:
    target, generator = strategy(name), rng()
    tell(target, ("td3", 5.0), ("sac", 5.0))
    target.expect("ppo")
    target.observe(Outcome("ppo", None))  # and nothing is known of it still
    assert target.choose(MEMBERS, generator) == "ppo"


def test_ucb_counts_choices_under_way_as_tries() -> None:
    target, generator = strategy("ucb", members=["a", "b"]), rng()
    tell(target, ("a", 0.0), ("a", 2.0), ("b", 0.0), ("b", 2.0))
    target.expect("a")
    assert target.choose(["a", "b"], generator) == "b"
    for _ in range(2):
        target.expect("b")
    assert target.choose(["a", "b"], generator) == "a"


# uniform, round_robin


def test_uniform_chooses_all_alike() -> None:
    target, generator = strategy("uniform"), rng()
    counts = Counter(target.choose(MEMBERS, generator) for _ in range(3000))
    # the deviation of a count is sqrt(3000 * 1/3 * 2/3) = 26
    assert all(abs(counts[member] - 1000) < 4 * 26 for member in MEMBERS)
    assert target.probabilities(["td3", "ppo"]) == {"td3": 0.5, "ppo": 0.5}


def test_round_robin_takes_turns_and_passes_over_who_is_missing() -> None:
    target, generator = strategy("round_robin"), rng()
    assert [target.choose(MEMBERS, generator) for _ in range(4)] == ["td3", "sac", "ppo", "td3"]
    some = ["td3", "ppo"]
    assert [target.choose(some, generator) for _ in range(3)] == ["ppo", "td3", "ppo"]
    assert target.choose(MEMBERS, generator) == "td3"


# scripted


def scripted_choices(target: Any, count: int, candidates: Sequence[str] = MEMBERS) -> list[str]:
    return [target.choose(candidates, rng()) for _ in range(count)]


def test_a_script_is_kept_to_the_letter_and_repeats() -> None:
    once = ["td3", "td3", "ppo", "sac", "sac", "sac"]
    assert scripted_choices(strategy("scripted"), 15) == once + once + once[:3]


def test_a_script_may_stay_at_its_last_entry() -> None:
    target = strategy("scripted", after="stay")
    assert scripted_choices(target, 20) == ["td3", "td3", "ppo", *["sac"] * 17]


def test_a_script_passes_over_who_is_benched_and_starts_the_next_entry_whole() -> None:
    target = strategy("scripted")
    assert scripted_choices(target, 1) == ["td3"]
    assert scripted_choices(target, 2, ["td3", "sac"]) == ["td3", "sac"]
    assert scripted_choices(target, 3) == ["sac", "sac", "td3"]


def test_what_was_used_of_a_benched_entry_does_not_shorten_the_next() -> None:
    target = strategy("scripted")
    assert scripted_choices(target, 1) == ["td3"]
    assert scripted_choices(target, 5, ["sac", "ppo"]) == ["ppo", "sac", "sac", "sac", "ppo"]


def test_a_script_that_names_no_candidate_gives_way_to_the_first() -> None:
    target = strategy("scripted", script=[["td3", 1]])
    assert target.choose(["sac", "ppo"], rng()) == "sac"


def test_a_script_in_steps_moves_on_when_so_many_have_ended() -> None:
    target = strategy("scripted", unit="steps", script=[["td3", 100], ["sac", 50]])
    seen = []
    for length in (60, 39, 1, 49, 1, 250, 1):
        seen.append(target.choose(MEMBERS, rng()))
        target.observe(Outcome(seen[-1], None, length=length))
    # 60, 99, 100 | 149, 150 | 400: twice through 150 and on to 100 | 401
    assert seen == ["td3", "td3", "td3", "sac", "sac", "td3", "sac"]


def test_a_script_in_steps_that_stays_ends_with_its_last_entry() -> None:
    target = strategy(
        "scripted", unit="steps", after="stay", script=[["td3", 10], ["sac", 10], ["ppo", 10]]
    )
    target.observe(Outcome("td3", 1.0, length=1000))
    assert scripted_choices(target, 3) == ["ppo"] * 3


def test_a_script_with_a_stranger_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"names 'dqn', which is not in the portfolio: use td3"):
        strategy("scripted", script=[["td3", 1], ["dqn", 1]])


def test_a_script_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"script is empty: give a list .*\[\[td3, 10\]\]"):
        strategy("scripted", script=[])


# epsilon_greedy


def test_epsilon_greedy_exploits_and_explores_in_proportion() -> None:
    target, generator = strategy("epsilon_greedy", epsilon=0.3), rng()
    tell(target, ("td3", 1.0), ("sac", 3.0), ("ppo", 2.0))
    counts = Counter(target.choose(MEMBERS, generator) for _ in range(3000))
    # 0.1 for each by exploring; the deviation of 300 is 16
    assert abs(counts["td3"] - 300) < 4 * 17
    assert abs(counts["sac"] - 2400) < 4 * 22


# ucb


def test_ucb_chooses_by_the_formula() -> None:
    scores = {"td3": [1.0, 2.0, 6.0], "sac": [2.5], "ppo": [3.0, 3.5]}
    target = strategy("ucb", exploration=0.7)
    tell(target, *[(member, score) for member, mine in scores.items() for score in mine])
    spread = np.std(np.concatenate(list(scores.values())))
    for member, mine in scores.items():
        bonus = 2 * spread * math.sqrt(0.7 * math.log(6) / len(mine))
        assert target.estimates()[member].high == pytest.approx(np.mean(mine) + bonus)
    assert target.choose(MEMBERS, rng()) == "sac"  # 5.83 against 4.92 and 5.60


def test_ucb_takes_the_logarithm_of_no_more_than_the_window() -> None:
    target = strategy("ucb", members=["a", "b"], window=4)
    tell(target, *[("a", 0.0), ("b", 2.0)] * 5)
    assert target.estimates()["a"].high == pytest.approx(2 * math.sqrt(0.6 * math.log(4) / 2))
    target.expect("b")  # a fifth, which the window does not hold
    assert target.estimates()["a"].high == pytest.approx(2 * math.sqrt(0.6 * math.log(4) / 2))


# thompson


def test_thompson_draws_from_the_discounted_belief() -> None:
    """How often b is above a, against the normal distribution of the difference."""
    target = strategy("thompson", members=["a", "b"], discount=0.5)
    tell(target, ("a", 0.0), ("b", 1.0), ("a", 4.0))  # weights 1/4, 1/2, 1
    mean_a = 4.0 / 1.25
    mean = (4.0 + 0.5) / 1.75
    weights, scores = np.array([0.25, 0.5, 1.0]), np.array([0.0, 1.0, 4.0])
    variance = (weights * (scores - mean) ** 2).sum() / 1.75
    z = (1.0 - mean_a) / math.sqrt(variance * (1 / 1.25 + 1 / 0.5))
    expected = 0.5 * (1 + math.erf(z / math.sqrt(2)))
    generator = rng()
    share = np.mean([target.choose(["a", "b"], generator) == "b" for _ in range(5000)])
    assert share == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(5000))


def test_thompson_forgets_who_is_not_seen() -> None:
    target = strategy("thompson", members=["a", "b"], discount=0.9)
    tell(target, ("a", 1.0), *[("b", 5.0)] * 20)
    assert target.estimates()["a"].count == pytest.approx(0.9**20)
    tell(target, *[("b", 5.0)] * 50)  # by now it weighs less than a thousandth
    assert target.estimates()["a"].mean is None
    assert target.choose(["a", "b"], rng()) == "a"


# exp3


def test_exp3_moves_its_weights_by_the_formula() -> None:
    target = strategy("exp3", members=["a", "b"], gamma=0.2, alpha=0.01)
    target.observe(Outcome("a", 10.0, probability=0.5))  # a range of nothing counts as one half
    first = np.array([0.5 * math.exp(0.2 * 0.5 / (0.5 * 2)), 0.5]) + math.e * 0.01 / 2
    first /= first.sum()
    target.observe(Outcome("b", 30.0, probability=0.25))  # the highest so far: 1
    second = np.array([first[0], first[1] * math.exp(0.2 * 1 / (0.25 * 2))]) + math.e * 0.01 / 2
    second /= second.sum()
    target.observe(Outcome("a", 15.0, probability=0.4))  # a quarter of the way from 10 to 30
    third = np.array([second[0] * math.exp(0.2 * 0.25 / (0.4 * 2)), second[1]])
    third += math.e * 0.01 / 2
    third /= third.sum()
    chances = target.probabilities(["a", "b"])
    assert [chances["a"], chances["b"]] == pytest.approx((0.8 * third + 0.1).tolist())


def test_exp3_learns_nothing_from_what_a_person_pinned() -> None:
    target = strategy("exp3", members=["a", "b"])
    tell(target, *[("a", float(score)) for score in range(50)])
    assert target.probabilities(["a", "b"]) == {"a": 0.5, "b": 0.5}


def test_exp3_chooses_by_its_probabilities() -> None:
    target, generator = strategy("exp3", members=["a", "b"], gamma=0.2), rng()
    for _ in range(10):
        target.observe(Outcome("a", 0.0, probability=0.5))
        target.observe(Outcome("b", 1.0, probability=0.5))
    expected = target.probabilities(["a", "b"])["b"]
    share = np.mean([target.choose(["a", "b"], generator) == "b" for _ in range(5000)])
    assert 0.6 < expected < 0.9
    assert share == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(5000))


def test_exp3_does_not_overflow() -> None:
    target = strategy("exp3", members=["a", "b"], gamma=1.0, alpha=0)
    for _ in range(5000):
        target.observe(Outcome("a", 0.0, probability=0.5))
        target.observe(Outcome("b", 1.0, probability=0.5))
    assert target.probabilities(["a", "b"]) == {"a": 0.5, "b": 0.5}  # gamma 1 only explores
    assert target.probabilities(["a"]) == {"a": 1.0}


# epochal


def test_epochal_forgets_all_at_the_end_of_epochs_that_double_up_to_the_longest() -> None:
    target = strategy("epochal", members=["a", "b"], first_epoch=2, longest_epoch=8)
    ends = []
    for number in range(1, 40):
        tell(target, ("a", float(number)))
        if target.estimates()["a"].mean is None:
            ends.append(number)
    assert ends == [2, 6, 14, 22, 30, 38]


def test_epochal_tries_everybody_again_in_a_new_epoch() -> None:
    target, generator = strategy("epochal", members=["a", "b"], first_epoch=4), rng()
    tell(target, *[("a", 9.0), ("b", 0.0)] * 2)
    first = target.choose(["a", "b"], generator)
    tell(target, (first, 0.0))
    assert {first, target.choose(["a", "b"], generator)} == {"a", "b"}


def test_epochal_chooses_by_the_formula() -> None:
    target = strategy("epochal", members=["a", "b"], exploration=2.0)
    tell(target, ("a", 1.0), ("a", 2.0), ("b", 0.0))
    spread = np.std([1.0, 2.0, 0.0])
    assert target.estimates()["b"].high == pytest.approx(2 * spread * math.sqrt(2 * math.log(3)))
    assert target.estimates()["a"].high == pytest.approx(1.5 + 2 * spread * math.sqrt(math.log(3)))


def test_epochal_refuses_a_first_epoch_that_is_the_longer_one() -> None:
    with pytest.raises(ValidationError, match=r"first_epoch = 9 is longer than longest_epoch = 8"):
        strategy("epochal", first_epoch=9, longest_epoch=8)


# roulette


def test_roulette_spins_by_the_formula() -> None:
    target = strategy("roulette", exploration=0.5, temperature=0.4)
    tell(target, ("td3", 10.0), ("td3", 20.0), ("sac", 0.0), ("ppo", 12.0))
    values, counts = np.array([0.75, 0.0, 0.6]), np.array([2, 1, 1])
    scores = values + 0.5 * np.sqrt(math.log(4) / counts)
    expected = np.exp(scores / 0.4) / np.exp(scores / 0.4).sum()
    chances = target.probabilities(MEMBERS)
    assert [chances[member] for member in MEMBERS] == pytest.approx(expected.tolist())


def test_roulette_gives_a_member_without_a_score_the_best_sector() -> None:
    target = strategy("roulette")
    tell(target, ("td3", 10.0), ("sac", 0.0))
    chances = target.probabilities(MEMBERS)
    assert chances["ppo"] == chances["td3"] > chances["sac"]


# Settings that are refused


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("epsilon_greedy", {"epsilon": 1.1}),
        ("ucb", {"window": 0}),
        ("ucb", {"exploration": -0.1}),
        ("thompson", {"discount": 1.0}),
        ("exp3", {"gamma": 0.0}),
        ("exp3", {"alpha": 1.0}),
        ("roulette", {"temperature": 0.0}),
        ("scripted", {"script": [["td3", 0]]}),
        ("uniform", {"speed": 3}),
    ],
)
def test_a_setting_out_of_its_range_is_refused(name: str, config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(config))):
        strategy(name, **config)
