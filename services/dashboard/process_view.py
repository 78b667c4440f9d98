"""The processes of a run, as the dashboard shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repertory.control import Member
from services.dashboard.control_snapshot import Snapshot
from services.dashboard.event_log import EventLog
from services.dashboard.history import MetricHistory
from services.dashboard.run_settings import RunSettings
from services.dashboard.schemas import Learner, Learners, Process, Processes, WeightsView
from services.run_status import STALE_SECONDS, spoken


def processes_of(snapshot: Snapshot, events: EventLog) -> Processes:
    versions = {
        name.removeprefix("learner-"): int(member.facts["version"])
        for name, member in snapshot.of_role("learner").items()
        if "version" in member.facts
    }
    return Processes(
        processes=[
            _process(name, member, snapshot, versions, events)
            for name, member in snapshot.members.items()
        ],
        wanted_actors=snapshot.desired.actors,
    )


def _process(
    name: str,
    member: Member,
    snapshot: Snapshot,
    versions: Mapping[str, int],
    events: EventLog,
) -> Process:
    facts = member.facts
    age = max(0.0, snapshot.at - member.at)
    restart = events.last_restart.get(name)
    return Process(
        name=name,
        role=member.role,
        host=member.host,
        process_id=member.process_id,
        starts=member.incarnation,
        heard_seconds=age,
        stale=age > STALE_SECONDS,
        memory_bytes=facts.get("memory_bytes"),
        env_steps=facts.get("env_steps"),
        steps_per_second=snapshot.rate(name, "env_steps"),
        weights=_weights(facts.get("weights", {}), versions),
        broken_episodes=facts.get("broken_episodes"),
        last_error=None if restart is None else str(restart.details.get("reason") or "was away"),
        last_error_at=None if restart is None else restart.at,
        says=spoken(member),
    )


def _weights(loaded: Mapping[str, Any], versions: Mapping[str, int]) -> list[WeightsView]:
    return [
        WeightsView(
            policy=policy,
            version=int(one["version"]),
            lag_versions=(
                max(0, versions[policy] - int(one["version"])) if policy in versions else None
            ),
            age_seconds=one.get("weights_age_seconds"),
        )
        for policy, one in loaded.items()
    ]


def learners_of(settings: RunSettings, snapshot: Snapshot, history: MetricHistory) -> Learners:
    """One alone needs no name in those of its metrics."""
    alone = len(settings.learners) == 1
    places = {name: "learner/" if alone else f"learner/{name}/" for name in settings.learners}
    return Learners(
        learners=[
            _learner(name, algorithm, places[name], snapshot, history)
            for name, algorithm in settings.learners.items()
        ]
    )


def _learner(
    name: str, algorithm: str, place: str, snapshot: Snapshot, history: MetricHistory
) -> Learner:
    member = snapshot.members.get(f"learner-{name}")
    facts: Mapping[str, Any] = {} if member is None else member.facts
    waiting = history.newest(place + "waiting_share")
    speed = history.newest(place + "updates_per_second")
    if speed is None and place == "learner/":
        speed = history.newest("time/updates_per_second")
    updates = facts.get("updates")
    if updates is None and place == "learner/":
        updates = history.newest("learner/updates")
    return Learner(
        name=name,
        algorithm=algorithm,
        updates=None if updates is None else int(updates),
        version=facts.get("version", _whole(history.newest(place + "version"))),
        skipped=facts.get("skipped"),
        device=facts.get("device"),
        memory_bytes=facts.get("memory_bytes"),
        waiting_share=waiting,
        updates_per_second=speed,
        update_seconds=(1.0 - (waiting or 0.0)) / speed if speed else None,
        staleness_versions=history.newest(place + "staleness_versions"),
        heard_seconds=None if member is None else max(0.0, snapshot.at - member.at),
        metrics=[one for one in history.names if one.startswith(place)],
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
