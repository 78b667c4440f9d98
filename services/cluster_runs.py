"""All runs that go on in a cluster, side by side: `repertory status` without a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from repertory.control import CLAIM_SECONDS, Control
from repertory.errors import UsageError
from services.clusters.node import Node, home


@dataclass(frozen=True, slots=True)
class RunLine:
    run: str
    run_dir: str
    env: str
    learners: str
    state: str
    env_steps: int
    total_steps: int
    actors: int  # that act at this moment
    asked: int | None  # None: its share of the machines
    machines: tuple[str, ...]


def cluster_here(address: str | None) -> Node:
    """The one that is meant: by its address, or the only one that this machine belongs to."""
    found = Node.here() if address is None else Node.at(address)
    if found is None and address is None:
        nodes = [Node.read(card.parent) for card in sorted((home() / "nodes").glob("*/node.json"))]
        heads = [node for node in nodes if node.is_head] or nodes
        found = heads[0] if len(heads) == 1 else None
        if len(heads) > 1:
            names = ", ".join(node.cluster for node in heads)
            raise UsageError(f"this machine belongs to several clusters: give --address of {names}")
    if found is None:
        what = "no cluster" if address is None else f"no cluster {address}"
        raise UsageError(f"this machine belongs to {what}: name a RUN, or see `repertory cluster`")
    return found.check_up()


def runs_of(node: Node) -> list[RunLine]:
    lines = []
    with Control(node.control, "") as control:
        claims = control.claims()
    for run, claim in sorted(claims.items(), key=lambda item: item[1].since):
        with Control(node.control, run) as control:
            card, members = control.card(), control.members()
            if card is None:
                continue
            counters, desired = control.counters(), control.desired()
        fresh = [one for one in members.values() if one.age_seconds < CLAIM_SECONDS]
        lines.append(
            RunLine(
                run=run,
                run_dir=card.run_dir,
                env=card.env,
                learners=", ".join(card.learners),
                state=desired.state,
                env_steps=counters.get("env_steps", 0),
                total_steps=card.steps,
                actors=sum(one.role == "worker" for one in fresh),
                asked=claim.actors,
                machines=tuple(sorted({one.host for one in fresh})),
            )
        )
    return lines


def print_runs(lines: Sequence[RunLine]) -> None:
    table = Table("run", "what", "state", "steps", "actors", "machines")
    for one in lines:
        table.add_row(
            one.run,
            f"{one.learners} on {one.env}",
            one.state,
            f"{one.env_steps:,} of {one.total_steps:,}",
            f"{one.actors} ({'its share' if one.asked is None else f'of {one.asked}'})",
            ", ".join(one.machines),
        )
    Console().print(table if lines else "no run is going on")
