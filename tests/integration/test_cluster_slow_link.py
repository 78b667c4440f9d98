"""A run over a link of 100 Mbit/s and 20 ms, beside the same over one that is not limited.

Slow: it is to be seen what the link costs. `pytest -m slow -s` shows the figures, which stand in
docs/clusters.md.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_on_hosts import FOLDER, Cluster
from lan import Lan, why_not

REASON = why_not(shaped=True)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(REASON is not None, reason=f"NO HOSTS: no slow link is tested: {REASON}"),
]
STEPS = 30_000
RUN_SECONDS = 400.0
RATE, DELAY = 100e6, 0.020


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "lan"
    folder.mkdir()
    with Lan(folder, shaped=True) as lan:
        made = Cluster(tmp_path, lan)
        # The head takes no actors: all experience comes over the link.
        head = {
            **{"host": lan.hosts[0].name, "address": lan.hosts[0].address},
            **{"cores": 2, "object_store_mb": 100, "runs": ["learners"]},
        }
        made.write(head=head)
        yield made
        made.close()


def test_a_slow_link_slows_down_and_breaks_nothing(cluster: Cluster) -> None:
    lan = cluster.lan
    lan.shape(0, 0)
    cluster.call("up")
    figures = {"not limited": train(cluster, "fast")}
    lan.shape(RATE, DELAY)
    figures["100 Mbit/s, 20 ms"] = train(cluster, "slow")
    cluster.call("down")
    sys.stdout.write(f"\n{json.dumps(figures, indent=1)}\n")
    for measured in figures.values():
        assert measured["restarts"] == 0
    fast, slow = figures.values()
    assert slow["steps_per_second"] > 0.3 * fast["steps_per_second"]


def train(cluster: Cluster, run: str) -> dict[str, Any]:
    """What its own metrics say of the second half."""
    process = cluster.train(
        *(run, "HalfCheetah-v5", "--algo", "sac", "--steps", str(STEPS), "--actors", "4"),
        # Few updates: it is the link that shall hold them up, if anything does, not the learner.
        *("--set", "learner.updates_per_step=0.1", "--set", "learner.learning_starts=1000"),
        *("--set", "log.every=1000"),
        *("--set", "evaluation.every=100000", "--set", "evaluation.episodes=1"),
    )
    output, _ = process.communicate(timeout=RUN_SECONDS)
    assert process.returncode == 0, output
    text = cluster.lan.hosts[0].run("cat", f"{FOLDER}/runs/{run}/metrics.jsonl").stdout
    rows = [json.loads(line) for line in text.splitlines()]

    def median(key: str) -> float:
        values = [row[key] for row in rows if key in row]
        return round(statistics.median(values[len(values) // 2 :]), 4)

    return {
        "steps_per_second": median("time/fps"),
        "updates_per_second": median("time/updates_per_second"),
        "lag_seconds": median("actors/weights_lag_seconds"),
        "version_lag": median("actors/version_lag"),
        "restarts": sum(event["event"] == "restarting" for event in cluster.events(run)),
    }
