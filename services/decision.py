"""What the director hands out, and the lines of `events.jsonl` that say so and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from repertory.types import DecisionOutcome
from services.strategies.strategy import Estimate

# "floor": the minimum share was due.
Reason = Literal["strategy", "floor", "pinned"]


@dataclass(frozen=True, slots=True)
class Decision:
    """Who acts in one episode, or for `steps` steps of it."""

    number: int
    policy: str
    reason: Reason
    edition: int
    steps: int | None  # None: until the episode ends
    probability: float | None  # with which the director chose so, where the strategy can tell
    estimates: Mapping[str, Estimate]  # when it was handed out; one mapping for a whole lease


def lease_record(actor: str, decisions: Sequence[Decision]) -> dict[str, Any]:
    """One line of `events.jsonl` for a whole lease."""
    return {
        "actor": actor,
        "edition": decisions[0].edition,
        "decisions": [[d.number, d.policy, d.reason, d.probability] for d in decisions],
        "estimates": {
            member: [belief.mean, belief.low, belief.high, belief.count]
            for member, belief in decisions[0].estimates.items()
        },
    }


def outcomes_record(
    actor: str, members: Sequence[str], ended: Sequence[DecisionOutcome]
) -> dict[str, Any]:
    """One line for all decisions of one report: number, policy, version, return, own steps."""
    return {
        "actor": actor,
        "outcomes": [
            [
                one.decision,
                members[one.outcome.policy_id],
                one.outcome.policy_version,
                one.outcome.episode_return,
                one.outcome.length,
            ]
            for one in ended
        ],
    }
