"""The director of a portfolio, as the dashboard shows it: now, or as it was at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.dashboard.control_snapshot import Snapshot
from services.dashboard.event_log import EventLog
from services.dashboard.history import MetricHistory
from services.dashboard.run_settings import RunSettings
from services.dashboard.schemas import Candidate, DecisionLine, DirectorView

SHOWN = 50


def director_of(
    settings: RunSettings, snapshot: Snapshot, history: MetricHistory, events: EventLog
) -> DirectorView:
    if len(settings.learners) == 1:
        return DirectorView(
            strategy=None,
            decisions=None,
            regret=None,
            total_regret=None,
            candidates=[],
            newest=[],
        )
    member = snapshot.members.get("director")
    report: Mapping[str, Any] | None = None if member is None else member.facts.get("director")
    newest = events.decisions[:SHOWN]
    if report is None:
        return _as_recorded(settings, history, newest)
    return DirectorView(
        strategy=report["strategy"],
        decisions=report["decisions"],
        regret=report["regret"]["recent"],
        total_regret=report["regret"]["total"],
        candidates=[_candidate(name, report) for name in settings.learners],
        newest=newest,
    )


def _candidate(name: str, report: Mapping[str, Any]) -> Candidate:
    share, belief = report["shares"][name], report["estimates"][name]
    return Candidate(
        name=name,
        share=share["recent_choices"],
        step_share=share["recent_env_steps"],
        update_share=report["update_shares"][name],
        mean=belief["mean"],
        low=belief["low"],
        high=belief["high"],
        count=belief["count"],
        pinned=report["pinned"] == name,
        benched=name in report["benched"],
    )


def _as_recorded(
    settings: RunSettings, history: MetricHistory, newest: list[DecisionLine]
) -> DirectorView:
    """From the rows of metrics, which have no intervals."""

    def last(name: str, what: str) -> float | None:
        return history.newest(f"director/{name}/{what}")

    decisions = history.newest("director/decisions")
    strategy = settings.director.get("strategy", {})
    return DirectorView(
        strategy=strategy.get("name") if isinstance(strategy, dict) else str(strategy),
        decisions=None if decisions is None else int(decisions),
        regret=history.newest("director/regret"),
        total_regret=None,
        candidates=[
            Candidate(
                name=name,
                share=last(name, "share") or 0.0,
                step_share=last(name, "step_share") or 0.0,
                update_share=last(name, "update_share") or 0.0,
                mean=last(name, "estimate"),
                low=None,
                high=None,
                count=None,
                pinned=False,
                benched=False,
            )
            for name in settings.learners
        ],
        newest=newest,
    )
