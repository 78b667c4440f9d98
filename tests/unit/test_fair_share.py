"""How runs that take what there is share it."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from repertory.control import Claim
from services.fair_share import share

RUNS = st.text("abcdef", min_size=1, max_size=4)


def claim(*, actors: int | None, since: float = 0.0, learner_cores: float = 0.0) -> Claim:
    return Claim(learner_cores, actors, since, since)


CLAIMS = st.builds(
    claim,
    actors=st.none() | st.integers(0, 20),
    since=st.integers(0, 3).map(float),
    learner_cores=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
)
MANY = st.dictionaries(RUNS, CLAIMS, min_size=1, max_size=8)
CORES = st.integers(0, 400).map(lambda eighths: eighths / 4)


def shares(cores: float, claims: dict[str, Claim]) -> dict[str, int]:
    """Of those that take what there is, oldest first."""
    names = [name for name, one in claims.items() if one.actors is None]
    names.sort(key=lambda name: (claims[name].since, name))
    return {name: share(cores, claims, name) for name in names}


def left(cores: float, claims: dict[str, Claim]) -> int:
    """Whole cores that nobody has asked for by a number."""
    rest = cores
    for one in claims.values():
        rest -= one.learner_cores
        rest -= 0 if one.actors is None else one.actors
    return max(0, int(rest))


@given(CORES, MANY)
def test_they_add_up_to_what_is_left(cores: float, claims: dict[str, Claim]) -> None:
    found = shares(cores, claims)
    if found:
        assert sum(found.values()) == max(left(cores, claims), len(found))


@given(CORES, MANY)
def test_everyone_gets_one_and_nobody_two_more_than_another(
    cores: float, claims: dict[str, Claim]
) -> None:
    found = shares(cores, claims)
    if found:
        assert min(found.values()) >= 1
        assert max(found.values()) - min(found.values()) <= 1


@given(CORES, MANY)
def test_the_oldest_get_what_does_not_divide(cores: float, claims: dict[str, Claim]) -> None:
    found = list(shares(cores, claims).values())
    assert found == sorted(found, reverse=True)


@given(CORES, MANY, st.randoms())
def test_the_order_in_which_claims_are_read_does_not_matter(
    cores: float, claims: dict[str, Claim], random: Random
) -> None:
    items = list(claims.items())
    random.shuffle(items)
    assert shares(cores, dict(items)) == shares(cores, claims)


def test_a_run_alone_gets_all() -> None:
    assert shares(16.0, {"a": claim(actors=None, learner_cores=2.0)}) == {"a": 14}


def test_runs_with_a_number_of_their_own_come_first() -> None:
    claims = {
        "young": claim(actors=None, since=2.0),
        "old": claim(actors=None, since=1.0),
        "fixed": claim(actors=5, since=3.0, learner_cores=1.0),
    }
    assert shares(13.0, claims) == {"old": 4, "young": 3}


def test_where_nothing_is_left_each_still_has_one() -> None:
    claims = {"a": claim(actors=None), "b": claim(actors=None), "fixed": claim(actors=40)}
    assert shares(8.0, claims) == {"a": 1, "b": 1}


def test_part_of_a_core_is_no_actor() -> None:
    assert shares(4.0, {"a": claim(actors=None, learner_cores=0.5)}) == {"a": 3}
