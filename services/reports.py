"""What the processes of a distributed run last said of themselves, for the next row of metrics.

Learners and workers send metrics; facts come with the heartbeats. The head passes on the former,
asks for alarms, and writes the row.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from repertory.config import RunConfig
from repertory.types import EpisodeOutcome
from services.blueprint import process_name
from services.lag_watch import Lag, LagWatch
from services.ray_processes import RayProcesses
from services.run_record import RunRecord


@dataclass(frozen=True, slots=True)
class LagAlarm:
    """A worker has begun to lag behind a learner's weights, or has caught up."""

    kind: Literal["weights_lag", "weights_caught_up"]
    details: Mapping[str, Any]


class Reports:
    """Of one run, which begins with so many updates of each learner."""

    def __init__(
        self,
        config: RunConfig,
        processes: RayProcesses,
        record: RunRecord,
        updates: Mapping[str, int],
    ) -> None:
        self._processes = processes
        self._record = record
        self._updates = dict(updates)
        self._lag_watches = {
            name: LagWatch(config.topology.lag_alarm_seconds) for name in config.learners
        }
        self._metrics: dict[str, float] = {}

    @property
    def updates(self) -> int:
        """Of all learners."""
        return sum(self._updates.values())

    def take(self, source: str, metrics: Mapping[str, Any]) -> None:
        """What a worker sends is about its episodes, what a learner sends about its updates."""
        if source.startswith("worker-"):
            episodes = zip(
                metrics["policy_ids"], metrics["returns"], metrics["lengths"], strict=True
            )
            self._record.add_episodes(
                [
                    EpisodeOutcome(policy, metrics["policy_version"], value, length, False, 0)
                    for policy, value, length in episodes
                ]
            )
        else:
            learner = source.removeprefix("learner-")
            self.count_updates(learner, int(metrics["updates"]))
            place = f"learner/{self._record.place_of(learner)}"
            self._metrics |= {
                place + name: value for name, value in metrics.items() if name != "updates"
            }

    def count_updates(self, learner: str, updates: int) -> None:
        """Heard in any order: the most is the newest."""
        self._updates[learner] = max(self._updates[learner], updates)

    def watch_lag(self) -> list[LagAlarm]:
        """How far workers are behind the newest weights, for the metrics and, if long, an alarm."""
        published = self._processes.fact("version")
        loaded = self._processes.fact("weights")  # of each worker, by learner
        lags: list[Lag] = []
        alarms: list[LagAlarm] = []
        for learner, watch in self._lag_watches.items():
            newest = published.get(process_name(learner))
            if newest is None or not loaded:
                return alarms
            workers = {name: int(weights[learner]["version"]) for name, weights in loaded.items()}
            found = watch.look(time.time(), int(newest), workers)
            begun, over = watch.alarms(found)
            alarms += [
                LagAlarm("weights_lag", {"member": name, "learner": learner, **asdict(found[name])})
                for name in begun
            ]
            alarms += [
                LagAlarm("weights_caught_up", {"member": name, "learner": learner}) for name in over
            ]
            lags += found.values()
        self._metrics |= {
            "actors/count": float(len(loaded)),
            "actors/version_lag": max(float(lag.versions) for lag in lags),
            "actors/weights_lag_seconds": max(lag.seconds for lag in lags),
        }
        return alarms

    def metrics(self) -> dict[str, float]:
        """Those of the replay are summed over the shards."""
        replay = {
            f"replay/{name}": sum(float(value) for value in self._processes.fact(name).values())
            for name in ("size", "size_bytes")
            if self._processes.fact(name)
        }
        return {**self._metrics, **replay}
