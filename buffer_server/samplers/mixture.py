"""Uniform sampling that can tell whose experience an item is: for learners that share a replay.

A learner asks for a floor of its own policy's items and takes the rest from everybody's, its own
included; it may also refuse items that are more than `max_age` versions behind the newest that
came from the same policy (both in `DrawRequest`; each learner asks for what it wants). Where a
policy has no items yet, all come from everybody's. Without such wishes this is `Uniform`.

The keys of each policy are kept in the order of their insertion. Versions rise in that order but
for actors that lag: everything before the first version that is new enough is left out at once, and
the few laggards after it are drawn again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from buffer_server.draws import DrawRequest, Population, Selection
from buffer_server.frames import Column
from repertory.errors import UsageError
from repertory.settings import PartSettings
from repertory.types import Array

MOST_POLICIES = 256
REDRAWS = 32  # of what was too old, before all items are looked at


class Mixture:
    """Items by the policy that made them and by its version."""

    class Config(PartSettings):
        name: str = "mixture"

    consumes: ClassVar[bool] = False
    knows_provenance: ClassVar[bool] = True
    per_item: ClassVar[frozenset[str]] = frozenset({"policy_id", "policy_version"})

    def __init__(self, config: Config, capacity: int) -> None:
        self.config = config
        self.capacity = capacity
        self._lanes: dict[int, _Lane] = {}
        # By slot: who made the item, and with which version.
        self._policies = np.zeros(capacity, dtype=np.int32)
        self._versions = np.zeros(capacity, dtype=np.int64)

    def on_insert(
        self, keys: Array, columns: Mapping[str, Column], priorities: Array | None
    ) -> None:
        self._add(keys, _first(columns["policy_id"]), _first(columns["policy_version"]))

    def on_evict(self, keys: Array) -> None:
        """Nothing to note: lanes drop what is no longer live."""

    def available(self, live: range) -> int:
        return len(live)

    def population(self, request: DrawRequest, live: range) -> Population:
        items = len(live)
        if request.max_age is not None:
            lanes = self._lanes.values()
            items = sum(len(lane.places(live, request.max_age)) for lane in lanes)
        own = self._own_places(request, live)
        return Population(items, float(items), len(own))

    def select(self, request: DrawRequest, live: range, rng: np.random.Generator) -> Selection:
        own_items = request.own_items if len(self._own_places(request, live)) else 0
        parts = []
        if own_items:
            assert request.own_policy is not None
            own = self._lanes[request.own_policy]
            parts.append(self._from_lane(own, own_items, live, request.max_age, rng))
        rest = request.size - own_items
        if rest and request.max_age is None:
            parts.append(rng.integers(live.start, live.stop, size=rest, dtype=np.int64))
        elif rest:
            parts.append(self._from_all(rest, live, request.max_age, rng))
        return Selection(np.concatenate(parts))

    def update(self, keys: Array, priorities: Array) -> None:
        """Nothing to note: a learner need not know which sampler it feeds."""

    def arrays(self, live: range) -> dict[str, Array]:
        slots = np.arange(live.start, live.stop, dtype=np.int64) % self.capacity
        return {
            "policy_id": self._policies[slots],
            "policy_version": self._versions[slots],
        }

    def load_arrays(self, arrays: Mapping[str, Array], live: range) -> None:
        self._lanes = {}
        saved = len(arrays["policy_id"])
        self._add(
            np.arange(live.start, live.stop, dtype=np.int64),
            arrays["policy_id"][saved - len(live) :],
            arrays["policy_version"][saved - len(live) :],
        )

    def shares(self, live: range) -> dict[int, tuple[int, int]]:
        """By policy: how many items it has here, and the newest version that came from it."""
        lanes = sorted(self._lanes.items())
        return {policy: (len(lane.places(live, None)), lane.newest) for policy, lane in lanes}

    def _own_places(self, request: DrawRequest, live: range) -> range:
        lane = None if request.own_policy is None else self._lanes.get(request.own_policy)
        return range(0) if lane is None else lane.places(live, request.max_age)

    def _add(self, keys: Array, policies: Array, versions: Array) -> None:
        present = [int(policy) for policy in np.unique(policies)]
        new = [policy for policy in present if policy not in self._lanes]
        if len(self._lanes) + len(new) > MOST_POLICIES:
            raise UsageError(
                f"items of policy {new[0]} would make more than {MOST_POLICIES} policies in one "
                "table: is policy_id the place in the portfolio?"
            )
        slots = keys % self.capacity
        self._policies[slots] = policies
        self._versions[slots] = versions
        for policy in present:
            lane = self._lanes.get(policy)
            if lane is None:
                lane = self._lanes[policy] = _Lane(self.capacity)
            chosen = policies == policy
            lane.append(keys[chosen], versions[chosen])

    def _from_all(
        self, size: int, live: range, max_age: int | None, rng: np.random.Generator
    ) -> Array:
        """Each lane in proportion to what it has that is new enough, in random order."""
        # In the order of the portfolio, not of their first items: a restored table draws the same.
        lanes = [lane for _, lane in sorted(self._lanes.items())]
        counts = np.array([len(lane.places(live, max_age)) for lane in lanes], dtype=np.float64)
        shares = rng.multinomial(size, counts / counts.sum())
        parts = [
            self._from_lane(lane, int(share), live, max_age, rng)
            for lane, share in zip(lanes, shares, strict=True)
            if share
        ]
        return np.concatenate(parts)

    def _from_lane(
        self, lane: _Lane, size: int, live: range, max_age: int | None, rng: np.random.Generator
    ) -> Array:
        places = lane.places(live, max_age)
        keys = lane.keys(rng.integers(places.start, places.stop, size=size, dtype=np.int64))
        if max_age is None:
            return keys
        oldest = lane.newest - max_age
        for _ in range(REDRAWS):
            late = self._versions[keys % self.capacity] < oldest
            if not late.any():
                return keys
            again = rng.integers(places.start, places.stop, size=int(late.sum()), dtype=np.int64)
            keys[late] = lane.keys(again)
        everything = lane.keys(np.arange(places.start, places.stop, dtype=np.int64))
        young = everything[self._versions[everything % self.capacity] >= oldest]
        # None is left where the newest version was overwritten before those of slower actors.
        return rng.choice(young if len(young) else everything, size=size)


class _Lane:
    """The keys of one policy, in the order of their insertion; a place is a number in that order.

    Only the last `capacity` places can be live. Pages of the rings are taken when first written.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._keys = np.zeros(capacity, dtype=np.int64)
        self._highest = np.zeros(capacity, dtype=np.int64)  # version up to each place: never falls
        self._first = 0  # places before it are no longer live
        self._stop = 0
        self.newest = np.iinfo(np.int64).min

    def append(self, keys: Array, versions: Array) -> None:
        places = np.arange(self._stop, self._stop + len(keys)) % self._capacity
        self._keys[places] = keys
        highest = np.maximum(np.maximum.accumulate(versions), self.newest)
        self._highest[places] = highest
        self.newest = int(highest[-1])
        self._stop += len(keys)
        self._first = max(self._first, self._stop - self._capacity)

    def places(self, live: range, max_age: int | None) -> range:
        """Where the keys are that live, from the first that is new enough on."""
        everything = range(self._first, self._stop)
        self._first += bisect_left(everything, live.start, key=self._key_at)
        everything = range(self._first, self._stop)
        if max_age is None:
            return everything
        return everything[bisect_left(everything, self.newest - max_age, key=self._highest_at) :]

    def keys(self, places: Array) -> Array:
        keys: Array = self._keys[places % self._capacity]
        return keys

    def _key_at(self, place: int) -> int:
        return int(self._keys[place % self._capacity])

    def _highest_at(self, place: int) -> int:
        return int(self._highest[place % self._capacity])


def _first(column: Column) -> Array:
    """[B]: of a segment, its first step."""
    assert isinstance(column, np.ndarray)
    return column if column.ndim == 1 else column[:, 0]
