"""One run of the study of portfolios: trained in this process, judged, and put down as JSON.

The verdict on a run is that on the policy one would take home: the best by the run's own
evaluations, of whichever member, played in fresh episodes. Its course is that of whoever led, which
is the member whose evaluation was best the time before (`services/evaluation_history.py`).
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import yaml

from benchmarks.measure import machine_facts
from benchmarks.portfolio_tasks import Task, fingerprint
from repertory.api import train
from repertory.checkpoints import write_atomically
from repertory.seeding import derive_seed
from services.run_directory import RunDirectory
from services.run_policy import evaluate_run


@dataclass(frozen=True, slots=True)
class Record:
    """What is left of a run."""

    task: str
    arm: str
    seed: int
    env_steps: int
    gradient_steps: Mapping[str, int]  # by member
    episode_share: Mapping[str, float]  # of all episodes, by member
    step_share: Mapping[str, float]  # of all environment steps
    taken: str  # whose policy was taken
    fresh_returns: list[float]  # of that policy
    leading: Mapping[str, float]  # evaluated mean of who led, by environment steps
    by_member: Mapping[str, Mapping[str, float]]  # and of each
    share_curve: Mapping[str, list[float]]  # recent share of choices, at each row of metrics
    seconds: float
    commit: str

    @property
    def score(self) -> float:
        return float(np.mean(self.fresh_returns))


def record_path(cache: Path, task: Task, arm: str, seed: int) -> Path:
    print_ = fingerprint({**task.document(arm, seed), "fresh": task.fresh_episodes})
    return cache / f"{task.env_id}-{arm}-{seed}-{print_}.json"


def read_record(path: Path, task: str) -> Record:
    """Tasks may share a run: it counts for the one that asks."""
    document = json.loads(path.read_text())
    return Record(**{**document, "task": task})


def make_record(task: Task, arm: str, seed: int, path: Path) -> float:
    """Trains and judges; returns how many seconds that took."""
    document = task.document(arm, seed)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="portfolio-") as folder:
        config = Path(folder) / "run.yaml"
        config.write_text(yaml.safe_dump(document))
        run_dir = Path(folder) / "run"
        result = train(config=config, run_dir=run_dir, progress=False)
        if result.stopped_by is not None:  # half a run must not get into the cache
            raise KeyboardInterrupt(result.stopped_by)
        run = RunDirectory.open(run_dir)
        judged = evaluate_run(
            run_dir, "best", task.fresh_episodes, derive_seed(seed, "fresh episodes")
        )
        members = task.members_of(arm)
        rows = run.read_metrics()
        updates = _updates(rows, members, result.updates)
        episodes, steps = _played(run.events, members, result.env_steps)
        record = Record(
            task=task.name,
            arm=arm,
            seed=seed,
            env_steps=result.env_steps,
            gradient_steps={
                member: updates[member] * task.gradient_steps_per_update(member)
                for member in members
            },
            episode_share=_shares(episodes),
            step_share=_shares(steps),
            taken=_taken(run, members),
            fresh_returns=judged.returns,
            leading=_means(run.read_evaluations()),
            by_member={member: _means(run.read_evaluations(member)) for member in members},
            share_curve={
                member: [
                    row[f"director/{member}/share"]
                    for row in rows
                    if f"director/{member}/share" in row
                ]
                for member in members
            },
            seconds=round(time.monotonic() - begin, 1),
            commit=str(machine_facts()["commit"]),
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(asdict(record), indent=1).encode())
    return record.seconds


def random_mean(env_id: str, episodes: int) -> float:
    """The mean return of uniformly random actions: where every scale begins."""
    env = gymnasium.make(env_id)
    env.action_space.seed(0)
    returns = []
    for episode in range(episodes):
        env.reset(seed=episode)
        total, ended = 0.0, False
        while not ended:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total += float(reward)
            ended = terminated or truncated
        returns.append(total)
    env.close()
    return float(np.mean(returns))


def _updates(rows: list[dict[str, Any]], members: tuple[str, ...], total: int) -> dict[str, int]:
    if len(members) == 1:
        return {members[0]: total}
    newest = {key: value for row in rows for key, value in row.items()}
    return {member: int(newest[f"learner/{member}/updates"]) for member in members}


def _played(
    events: Path, members: tuple[str, ...], env_steps: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Episodes and environment steps by member; a member alone did everything."""
    if len(members) == 1:
        return {members[0]: 1}, {members[0]: env_steps}
    episodes, steps = dict.fromkeys(members, 0), dict.fromkeys(members, 0)
    for line in events.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "decisions_ended":
            for _, policy, _, _, length in event["outcomes"]:
                episodes[policy] += 1
                steps[policy] += length
    return episodes, steps


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = max(1, sum(counts.values()))
    return {name: round(count / total, 4) for name, count in counts.items()}


def _taken(run: RunDirectory, members: tuple[str, ...]) -> str:
    """Whose evaluation was the best of all: that policy is the run's `best`."""
    best = {member: max(_means(run.read_evaluations(member)).values()) for member in members}
    return max(members, key=lambda member: best[member])


def _means(history: Mapping[int, list[float]]) -> dict[str, float]:
    return {str(step): float(np.mean(returns)) for step, returns in history.items()}
