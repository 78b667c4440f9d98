"""How the updates of a portfolio are shared out among its learners. Used by the director."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def equal(members: Sequence[str]) -> dict[str, float]:
    return dict.fromkeys(members, 1 / len(members))


def by_choice(recent: Mapping[str, float], floor: float) -> dict[str, float]:
    """In proportion to how much each acted of late, and none below the floor.

    Those below are lifted to it, and the rest share what remains in proportion. That may push
    another below the floor, which is then lifted too.
    """
    if sum(recent.values()) <= 0:
        return equal(list(recent))
    lifted: set[str] = set()
    while True:
        remains = 1 - floor * len(lifted)
        total = sum(share for member, share in recent.items() if member not in lifted)
        shares = {
            member: floor if member in lifted else remains * share / total
            for member, share in recent.items()
        }
        below = {member for member, share in shares.items() if share < floor - 1e-12}
        if not below - lifted:
            return shares
        lifted |= below
        if len(lifted) == len(recent):  # members times floor is 1, but for rounding
            return equal(list(recent))
