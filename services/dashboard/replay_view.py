"""The shards of a run's replay, as the dashboard shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from repertory.control import Member
from services.dashboard.control_snapshot import Snapshot
from services.dashboard.schemas import (
    PolicyCount,
    Reader,
    ReplayView,
    RequestTimes,
    Shard,
    TableView,
    Waiting,
)


def replay_of(snapshot: Snapshot, policies: Sequence[str]) -> ReplayView:
    """`policies` in the order of the portfolio: shards know them by their place there."""
    shards = [
        _shard(name, member, snapshot, policies)
        for name, member in snapshot.of_role("shard").items()
    ]
    items: Counter[str] = Counter()
    for shard in shards:
        for table in shard.tables:
            items.update({one.policy: one.items for one in table.policies})
    return ReplayView(shards=shards, provenance=_shares(items))


def held_inserts(replay: ReplayView) -> dict[str, str]:
    """Callers that a limiter does not let insert now, and why."""
    return {
        one.caller.partition("@")[0]: one.reason
        for shard in replay.shards
        for table in shard.tables
        for one in table.blocked
        if one.operation == "insert"
    }


def _shard(name: str, member: Member, snapshot: Snapshot, policies: Sequence[str]) -> Shard:
    facts = member.facts
    return Shard(
        name=name,
        host=member.host,
        heard_seconds=max(0.0, snapshot.at - member.at),
        memory_bytes=facts.get("memory_bytes"),
        insert_rate=snapshot.rate(name, "inserted"),
        sample_rate=snapshot.rate(name, "sampled"),
        requests=[
            RequestTimes(operation=operation, **times)
            for operation, times in facts.get("requests", {}).items()
        ],
        tables=[
            _table(table, statistics, policies)
            for table, statistics in facts.get("tables", {}).items()
        ],
    )


def _table(name: str, facts: Mapping[str, Any], policies: Sequence[str]) -> TableView:
    counts = {_name_of(one["policy_id"], policies): int(one["items"]) for one in facts["policies"]}
    return TableView(
        name=name,
        size=facts["size"],
        capacity=facts["capacity"],
        size_bytes=facts["size_nbytes"],
        inserted=facts["inserted"],
        sampled=facts["sampled"],
        evicted=facts["evicted"],
        oldest_seconds=facts["oldest_age_seconds"],
        newest_seconds=facts["newest_age_seconds"],
        min_size=facts["min_size"],
        samples_per_insert=facts["samples_per_insert"],
        error_buffer=facts["error_buffer"],
        surplus=facts["surplus"],
        insert_wait_seconds=facts["insert_wait_seconds"],
        sample_wait_seconds=facts["sample_wait_seconds"],
        readers=[
            Reader(
                policy=_name_of(one["consumer"], policies),
                samples_per_insert=one["samples_per_insert"],
                sampled=one["sampled"],
                surplus=one["surplus"],
                waiting_samples=one["waiting_samples"],
                held_inserts=one["held_inserts"],
            )
            for one in facts["consumers"]
        ],
        policies=_shares(counts),
        blocked=[
            Waiting(
                caller=one["caller"],
                operation=one["operation"],
                reason=one["reason"],
                seconds=one["seconds"],
            )
            for one in facts["blocked"]
        ],
    )


def _name_of(policy_id: int, policies: Sequence[str]) -> str:
    return policies[policy_id] if 0 <= policy_id < len(policies) else f"policy {policy_id}"


def _shares(items: Mapping[str, int]) -> list[PolicyCount]:
    total = sum(items.values())
    return [
        PolicyCount(policy=policy, items=count, share=count / total if total else 0.0)
        for policy, count in items.items()
    ]
