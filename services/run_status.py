"""What `repertory status` shows: a distributed run as its processes last described themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from repertory.control import Member
from repertory.errors import RepertoryError
from services.run_control import steering

STALE_SECONDS = 10.0
REPORTING_ROLES = ("worker", "learner", "replica", "shard", "director")
TROUBLES = {"skipped": "updates skipped", "dropped_segments": "segments too old"}


@dataclass(frozen=True, slots=True)
class RunStatus:
    run_dir: str
    env: str
    learners: Mapping[str, str]
    state: str
    env_steps: int
    total_steps: int
    counters: Mapping[str, int]
    members: Mapping[str, Member]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_status(run_dir: Path) -> RunStatus:
    with steering(run_dir) as control:
        card = control.card()
        if card is None:
            raise RepertoryError(f"{run_dir}: the control server knows no such run")
        counters = control.counters()
        return RunStatus(
            run_dir=card.run_dir,
            env=card.env,
            learners=card.learners,
            state=control.desired().state,
            env_steps=counters.get("env_steps", 0),
            total_steps=card.steps,
            counters=counters,
            members=control.members(),
        )


def print_status(status: RunStatus) -> None:
    console = Console()
    learners = ", ".join(status.learners)
    console.print(
        f"{learners} on {status.env}: {status.state}, "
        f"step {status.env_steps:,} of {status.total_steps:,}",
        highlight=False,
    )
    table = Table("process", "host", "pid", "starts", "heard", "memory", "what it says")
    for name, member in status.members.items():
        age = member.age_seconds
        table.add_row(
            name,
            member.host,
            str(member.process_id),
            str(member.incarnation),
            f"[red]{age:.0f} s ago" if age > STALE_SECONDS else f"{age:.1f} s ago",
            f"{member.facts.get('memory_bytes', 0) / 2**20:.0f} MB",
            escape(spoken(member)),
        )
    console.print(table)


def spoken(member: Member) -> str:
    """What a process says of itself, in a few words."""
    facts = member.facts
    if member.role in REPORTING_ROLES and facts.keys() <= {"progress_at", "memory_bytes"}:
        return "is starting"
    if member.role == "worker":
        words = [
            f"{facts['env_steps']:,} steps",
            *(
                f"{'weights' if len(facts['weights']) == 1 else name} {weights['version']}, "
                f"{weights['weights_age_seconds']:.1f} s old"
                for name, weights in facts["weights"].items()
                if "weights_age_seconds" in weights
            ),
        ]
        if facts["broken_episodes"]:
            words.append(f"{facts['broken_episodes']} broken episodes")
    elif member.role in ("learner", "replica"):
        words = [f"{facts['updates']:,} updates", f"version {facts['version']}"]
        words += [f"{facts[key]} {what}" for key, what in TROUBLES.items() if facts.get(key)]
    elif member.role == "shard":
        words = [
            f"{facts['size']:,} items, {facts['size_bytes'] / 1e6:.1f} MB",
            f"{facts['inserted']:,} in, {facts['sampled']:,} out",
        ]
        if facts["blocked"]:
            words.append("waiting: " + ", ".join(one.partition("@")[0] for one in facts["blocked"]))
    elif member.role == "director":
        words = _choices(facts["director"])
    else:
        words = ["ready"]
    return "; ".join(words)


def _choices(report: Mapping[str, Any]) -> list[str]:
    """Who acts how often of late, and what the director believes of each."""
    words = [f"{report['strategy']}, {report['decisions']:,} decisions"]
    for member, share in report["shares"].items():
        belief = report["estimates"][member]
        text = f"{member} {share['recent_choices']:.0%}"
        if belief["mean"] is not None:
            half = (belief["high"] - belief["low"]) / 2
            text += f" ({belief['mean']:.1f} +- {half:.1f})"
        if member == report["pinned"]:
            text += " pinned"
        if member in report["benched"]:
            text += " benched"
        words.append(text)
    return words
