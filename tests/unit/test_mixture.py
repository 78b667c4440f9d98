"""Sampling by provenance: whose experience, and how old."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_shards import make_table, numbered

from buffer_server.draws import DrawRequest
from buffer_server.samplers.mixture import MOST_POLICIES, Mixture
from repertory.errors import UsageError

# The 99.9 % quantile of the chi-square distribution with 9 degrees of freedom, for fixed seeds.
CHI_SQUARE_9_DEGREES = 27.88


class Items:
    """A sampler and, apart from it, what was inserted: (policy, version) of each key."""

    def __init__(self, capacity: int = 100) -> None:
        self.sampler = Mixture(Mixture.Config(), capacity)
        self.made: list[tuple[int, int]] = []

    def add(self, *items: tuple[int, int]) -> Items:
        keys = np.arange(len(self.made), len(self.made) + len(items))
        columns = {
            "policy_id": np.array([policy for policy, _ in items], np.int32),
            "policy_version": np.array([version for _, version in items], np.int64),
        }
        self.sampler.on_insert(keys, columns, None)
        self.made += items
        return self

    @property
    def live(self) -> range:
        return range(max(0, len(self.made) - self.sampler.capacity), len(self.made))

    def draw(self, request: DrawRequest, seed: int = 0) -> np.ndarray:
        return self.sampler.select(request, self.live, np.random.default_rng(seed)).keys

    def policies(self, keys: Sequence[int]) -> list[int]:
        return [self.made[key][0] for key in keys]


def test_the_floor_of_own_items_is_kept_and_the_rest_comes_from_all() -> None:
    items = Items(capacity=1000).add(*[(0, 0)] * 100, *[(1, 0)] * 900)
    drawn = items.draw(DrawRequest(2000, own_items=1000, own_policy=0))
    own = items.policies(drawn).count(0)
    # 1000 by the floor, and of the other 1000 about a tenth: 4 standard deviations are 38.
    assert abs(own - 1100) < 38


def test_all_items_are_equally_likely_without_wishes() -> None:
    items = Items(capacity=10).add(*[(policy % 3, policy) for policy in range(25)])
    counts = np.bincount(items.draw(DrawRequest(20_000)) - 15, minlength=10)
    assert ((counts - 2000) ** 2 / 2000).sum() < CHI_SQUARE_9_DEGREES


def test_own_items_are_equally_likely() -> None:
    items = Items().add(*[(place % 2, 0) for place in range(20)])
    drawn = items.draw(DrawRequest(20_000, own_items=20_000, own_policy=1))
    counts = np.bincount(drawn, minlength=20)
    assert counts[::2].sum() == 0
    assert ((counts[1::2] - 2000) ** 2 / 2000).sum() < CHI_SQUARE_9_DEGREES


def test_a_policy_without_items_takes_all_from_everybody() -> None:
    items = Items().add((0, 0), (1, 0))
    drawn = items.draw(DrawRequest(200, own_items=100, own_policy=7))
    assert set(items.policies(drawn)) == {0, 1}


def test_old_versions_are_left_out_for_each_policy_by_itself() -> None:
    # Policy 0 is at version 100, policy 1 only at 4: its items are not old.
    items = Items().add((0, 90), (0, 97), (1, 2), (1, 4), (0, 100), (0, 96))
    drawn = items.draw(DrawRequest(500, max_age=3))
    assert set(drawn.tolist()) == {1, 2, 3, 4}


def test_of_those_that_are_new_enough_all_are_equally_likely() -> None:
    # 10 of policy 0 and 10 of policy 1, half of each too old.
    items = Items().add(*[(place % 2, place // 10) for place in range(20)])
    counts = np.bincount(items.draw(DrawRequest(20_000, max_age=0)), minlength=20)
    assert counts[:10].sum() == 0
    assert ((counts[10:] - 2000) ** 2 / 2000).sum() < CHI_SQUARE_9_DEGREES


def test_laggards_between_fresh_items_are_never_drawn() -> None:
    items = Items(capacity=5000).add((0, 100), *[(0, 1)] * 4000, (0, 100))
    drawn = items.draw(DrawRequest(64, own_items=64, own_policy=0, max_age=5))
    assert set(drawn.tolist()) == {0, 4001}


def test_where_only_laggards_are_left_they_are_drawn() -> None:
    items = Items(capacity=3).add((0, 9), (0, 1), (0, 2), (0, 3))  # version 9 is overwritten
    drawn = items.draw(DrawRequest(64, own_items=64, own_policy=0, max_age=0))
    assert set(drawn.tolist()) == {1, 2, 3}


def test_the_population_counts_own_items_and_those_new_enough() -> None:
    items = Items().add((0, 1), (1, 1), (0, 2), (1, 2), (1, 3))
    whole = items.sampler.population(DrawRequest(4, own_items=2, own_policy=1), items.live)
    assert (whole.items, whole.mass, whole.own_items) == (5, 5.0, 3)
    young = items.sampler.population(DrawRequest(4, 2, own_policy=1, max_age=0), items.live)
    assert (young.items, young.mass, young.own_items) == (2, 2.0, 1)


def test_shares_name_each_policys_items_and_its_newest_version() -> None:
    items = Items(capacity=3).add((4, 1), (4, 7), (2, 3), (4, 5))
    assert items.sampler.shares(items.live) == {2: (1, 3), 4: (2, 7)}


@settings(max_examples=80, deadline=None)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=8), max_size=12
    ),
    capacity=st.integers(8, 20),
    own_policy=st.integers(0, 3),
    max_age=st.none() | st.integers(0, 3),
    own_items=st.integers(0, 16),
)
def test_only_live_items_that_were_asked_for_are_drawn(
    batches: list[list[tuple[int, int]]],
    capacity: int,
    own_policy: int,
    max_age: int | None,
    own_items: int,
) -> None:
    items = Items(capacity)
    for batch in batches:
        items.add(*batch)
    if not items.live:
        return
    drawn = items.draw(DrawRequest(16, own_items, own_policy, max_age))
    assert len(drawn) == 16
    assert set(drawn.tolist()) <= set(items.live)
    own = [key for key in items.live if items.made[key][0] == own_policy]
    if own:
        assert items.policies(drawn).count(own_policy) >= own_items
    if max_age is not None:
        for key in drawn:
            policy, version = items.made[key]
            newest = max(v for p, v in items.made if p == policy)
            young = [
                k
                for k in items.live
                if items.made[k][0] == policy and items.made[k][1] >= newest - max_age
            ]
            assert version >= newest - max_age or not young


def test_a_restored_sampler_draws_the_same() -> None:
    items = Items(capacity=10).add(*[(place % 3, place) for place in range(17)])
    restored = Items(capacity=10)
    restored.made = items.made
    restored.sampler.load_arrays(items.sampler.arrays(items.live), items.live)
    request = DrawRequest(50, own_items=25, own_policy=1, max_age=6)
    np.testing.assert_array_equal(restored.draw(request, seed=3), items.draw(request, seed=3))


def test_restored_into_less_room_the_newest_are_kept() -> None:
    items = Items(capacity=10).add(*[(place % 3, place) for place in range(10)])
    restored = Mixture(Mixture.Config(), 4)
    restored.load_arrays(items.sampler.arrays(items.live), range(6, 10))
    assert restored.shares(range(6, 10)) == {0: (2, 9), 1: (1, 7), 2: (1, 8)}


def test_too_many_policies_are_refused_and_change_nothing() -> None:
    items = Items(capacity=1000).add(*[(policy, 0) for policy in range(MOST_POLICIES)])
    with pytest.raises(UsageError, match=f"more than {MOST_POLICIES} policies"):
        items.sampler.on_insert(
            np.array([MOST_POLICIES]),
            {"policy_id": np.array([-5]), "policy_version": np.array([0])},
            None,
        )
    assert len(items.sampler.shares(items.live)) == MOST_POLICIES


def test_segments_belong_to_the_policy_of_their_first_step() -> None:
    sampler = Mixture(Mixture.Config(), 4)
    policies = np.array([[1, 2, 2], [2, 1, 1]], np.int32)
    columns = {"policy_id": policies, "policy_version": policies.astype(np.int64)}
    sampler.on_insert(np.arange(2), columns, None)
    assert sampler.shares(range(2)) == {1: (1, 1), 2: (1, 2)}


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"own_items": 5, "own_policy": 0}, "5 own items of 4 were asked for: give from 0 to 4"),
        ({"own_items": -1, "own_policy": 0}, "-1 own items of 4"),
        ({"own_items": 1}, "1 own items were asked for, but not whose"),
        ({"max_age": -1}, "an age of at most -1 versions: give 0 or more"),
    ],
)
def test_wishes_that_mean_nothing_are_refused(wishes: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DrawRequest(4, **wishes)


def test_other_samplers_refuse_to_tell_whose_items_they_are() -> None:
    table = make_table("uniform")
    table.insert(numbered(0, 4))
    with pytest.raises(UsageError, match="'replay' does not know whose experience"):
        table.draw(DrawRequest(2, own_items=1, own_policy=0), timeout_seconds=0.0)
