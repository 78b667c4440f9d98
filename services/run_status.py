"""What `repertory status` shows: a distributed run as its processes last described themselves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from repertory.control import Member
from repertory.errors import RepertoryError
from services.topology import control_of

STALE_SECONDS = 10.0


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
    control = control_of(run_dir)
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
        age = time.time() - member.at
        facts = {
            key: value
            for key, value in member.facts.items()
            if key not in ("progress_at", "memory_bytes")
        }
        table.add_row(
            name,
            member.host,
            str(member.process_id),
            str(member.incarnation),
            f"[red]{age:.0f} s ago" if age > STALE_SECONDS else f"{age:.1f} s ago",
            f"{member.facts.get('memory_bytes', 0) / 2**20:.0f} MB",
            "  ".join(f"{key} {_short(value)}" for key, value in facts.items()),
        )
    console.print(table)


def _short(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
