"""What holds a run back now, in plain words, and what would help. Pure: facts in, sentences out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.dashboard.schemas import Holdup, State

MUCH = 0.5  # of the time
SOME = 0.2
SILENT_SECONDS = 10.0
LAG_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Facts:
    """Of a run, at one moment."""

    state: State
    env_steps: int
    learning_starts: int = 0  # the latest of its learners'
    waiting_shares: Mapping[str, float] = field(default_factory=dict)  # of learners, for data
    held_inserts: Mapping[str, str] = field(default_factory=dict)  # callers that wait, and why
    workers: int = 0
    silent: Sequence[str] = ()  # processes that were not heard of for a while
    pending: Mapping[str, str] = field(default_factory=dict)  # processes that do not begin, and why
    lag_seconds: float | None = None
    skipped_updates: int = 0


def holdups(facts: Facts) -> list[Holdup]:
    """The worst first; never empty."""
    ended = {
        "finished": Holdup(level="fine", text="This run has finished.", remedy=None),
        "stopped": Holdup(
            level="notice",
            text="This run was stopped before its last step.",
            remedy="`repertory resume` goes on with it.",
        ),
        "failed": Holdup(
            level="warning",
            text="This run has failed: the event log says why.",
            remedy="`repertory resume` goes on from its newest checkpoint.",
        ),
        "lost": Holdup(
            level="warning",
            text="This run ended without a word: its head was killed, or its machine went away.",
            remedy="`repertory resume` goes on from its newest checkpoint.",
        ),
    }
    if facts.state in ended:
        return [ended[facts.state]]
    if facts.state == "paused":
        return [Holdup(level="notice", text="Paused by a person.", remedy="Press Resume.")]
    found = [*_trouble(facts), *_balance(facts)]
    return found or [
        Holdup(level="fine", text="Nothing: actors and learners keep each other busy.", remedy=None)
    ]


def _trouble(facts: Facts) -> list[Holdup]:
    def warning(text: str, remedy: str | None = None) -> Holdup:
        return Holdup(level="warning", text=text, remedy=remedy)

    found = [warning(f"{name} has not begun: {why}.") for name, why in facts.pending.items()]
    if facts.silent:
        text = f"Not heard of for {SILENT_SECONDS:g} s: {_listed(facts.silent)}."
        found.append(warning(text, "It is started again by itself; its log may say more."))
    if facts.workers == 0 and facts.env_steps > 0:
        found.append(warning("Nobody acts: there are no actors.", "Scale up."))
    if facts.skipped_updates:
        text = f"{facts.skipped_updates} updates in a row were not finite and were skipped."
        found.append(warning(text, "Lower learner.lr or set learner.max_grad_norm."))
    # Who is held by the limiter has no use for newer ones meanwhile.
    lagging = facts.lag_seconds is not None and facts.lag_seconds > LAG_SECONDS
    if lagging and not facts.held_inserts:
        text = f"Actors use weights that are {facts.lag_seconds:.0f} s behind the learner's."
        found.append(warning(text, "Look whether the machine or the network is overloaded."))
    return found


def _balance(facts: Facts) -> list[Holdup]:
    """Who waits for whom."""
    if facts.env_steps < facts.learning_starts:
        left = facts.learning_starts - facts.env_steps
        return [
            Holdup(
                level="notice",
                text=f"Filling the replay: learning begins in {left:,} steps.",
                remedy=None,
            )
        ]
    if facts.held_inserts:
        callers = _listed(list(facts.held_inserts))
        return [
            Holdup(
                level="notice",
                text=f"Actors wait for the learner ({callers} held by the limiter).",
                remedy="Fewer actors, a faster device, or fewer updates per step.",
            )
        ]
    hungry = {name: share for name, share in facts.waiting_shares.items() if share > SOME}
    if hungry:
        name, share = max(hungry.items(), key=lambda item: item[1])
        return [
            Holdup(
                level="notice" if share > MUCH else "fine",
                text=f"{name} waits for data {share:.0%} of the time.",
                remedy="Raise the number of actors." if share > MUCH else None,
            )
        ]
    return []


def _listed(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
