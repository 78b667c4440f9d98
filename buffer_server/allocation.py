"""How many items of a batch each shard gives: pure arithmetic over what the shards hold.

A batch of B items is drawn in strata, as within one shard (`samplers.prioritized`). The masses of
the shards stand end to end, and one position falls into each of B equal parts of the whole,

    (j + u_j) / B,   j = 0 ... B - 1,   u_j uniform in [0, 1).

A shard gives as many items as positions fall to it: B q_k on average, q_k = m_k / sum_l m_l.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from buffer_server.draws import Population
from repertory.types import Array

_BELOW_ONE = float(np.nextafter(1.0, 0.0))


@dataclass(frozen=True, slots=True)
class Allocation:
    """What each shard gives, in the order in which the shards were named."""

    sizes: list[int]  # items, own ones included
    own_items: list[int]
    chances: list[float]  # how likely one draw was to fall to each


def allocate(
    populations: Sequence[Population],
    size: int,
    own_items: int,
    rng: np.random.Generator,
    *,
    whole: bool = False,
) -> Allocation:
    """Own items in proportion to what each shard has of them, the rest in proportion to its mass.

    Where no shard has own items, all come from all. Where nothing is known to be anywhere, all
    shards count alike: who waits for the first items must wait somewhere. With `whole` one shard,
    drawn with these chances, gives everything.
    """
    if len(populations) == 1:
        return Allocation([size], [own_items if populations[0].own_items else 0], [1.0])

    def counts(chances: Array, items: int) -> Array:
        return count_strata(chances, 1, rng) * items if whole else count_strata(chances, items, rng)

    masses = np.array([population.mass for population in populations])
    chances = _chances(masses if masses.any() else np.ones(len(masses)))
    own_masses = np.array([population.own_items for population in populations], dtype=np.float64)
    if not own_items or not own_masses.any():
        sizes = counts(chances, size)
        return Allocation(sizes.tolist(), [0] * len(sizes), chances.tolist())
    own = counts(_chances(own_masses), own_items)
    rest = counts(chances, size - own_items)
    return Allocation((own + rest).tolist(), own.tolist(), chances.tolist())


def count_strata(chances: Array, size: int, rng: np.random.Generator) -> Array:
    """[K] int64: how many of `size` strata fall to each shard. None where there is no chance."""
    positions = (np.arange(size) + rng.random(size)) / max(1, size)
    np.minimum(positions, _BELOW_ONE, out=positions)  # rounding may have put the last one at 1
    upto = chances.cumsum()
    upto[np.flatnonzero(chances)[-1] :] = 1.0  # wherever rounding has put the end
    counts: Array = np.bincount(upto.searchsorted(positions, side="right"), minlength=len(chances))
    return counts


def _chances(masses: Array) -> Array:
    chances: Array = masses / masses.sum()
    return chances
