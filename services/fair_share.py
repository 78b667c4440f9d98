"""How many actors a run has that takes what there is, beside others that do the same.

Each run says what it claims; a claim that is not said again soon ends. Cores that learners and runs
with a number of their own leave are shared out equally among the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

from repertory.control import Claim


def share(acting_cores: float, claims: Mapping[str, Claim], run: str) -> int:
    """Actors of this run, of one core each: at least one."""
    taken = sum(claim.learner_cores + (claim.actors or 0) for claim in claims.values())
    left = max(0, int(acting_cores - taken))
    sharing = sorted(
        (name for name, claim in claims.items() if claim.actors is None),
        key=lambda name: (claims[name].since, name),
    )
    if run not in sharing:  # the server has lost it: it is said again soon
        return 1
    each, over = divmod(left, len(sharing))
    return max(1, each + (sharing.index(run) < over))  # the oldest get what does not divide
