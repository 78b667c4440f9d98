"""Gradient updates per environment step: what is asked of each learner, and what it makes."""

from __future__ import annotations

from services.dashboard.control_snapshot import Snapshot
from services.dashboard.run_settings import RunSettings
from services.dashboard.schemas import LearnerRatio


def ratios_of(settings: RunSettings, snapshot: Snapshot) -> list[LearnerRatio]:
    """Of off-policy learners: the others update once for each round of their own."""
    factors, asked = _factors(settings, snapshot), snapshot.desired.updates_per_step
    ratios = []
    for name, setting in settings.updates_per_step.items():
        factor = factors.get(name, 1.0)
        if name in asked or factor != 1.0:
            measured = _lately(name, snapshot)
        else:
            measured = _altogether(name, snapshot, settings.learning_starts)
        target = asked.get(name, setting) * factor
        ratios.append(LearnerRatio(learner=name, target=target, measured=measured))
    return ratios


def _altogether(learner: str, snapshot: Snapshot, learning_starts: int) -> float | None:
    """Over the whole run."""
    member = snapshot.members.get(f"learner-{learner}")
    updates = None if member is None else member.facts.get("updates")
    taken = snapshot.counters.get("env_steps", 0) - learning_starts
    return updates / taken if updates and taken > 0 else None


def _lately(learner: str, snapshot: Snapshot) -> float | None:
    """Where the target changes; jumps about, as reports come in."""
    speed = snapshot.rate(f"learner-{learner}", "updates")
    steps = sum(rate for (_, fact), rate in snapshot.rates.items() if fact == "env_steps")
    return speed / steps if speed is not None and steps > 0 else None


def _factors(settings: RunSettings, snapshot: Snapshot) -> dict[str, float]:
    """What the director gives each learner, as `Director.update_factors` has it."""
    member = snapshot.members.get("director")
    report = None if member is None else member.facts.get("director")
    if report is None:
        return {}
    shared = settings.director.get("updates") == "shared"
    count = 1 if shared else len(settings.learners)
    return {name: count * share for name, share in report["update_shares"].items()}
