"""A distributed run's numbers for Prometheus: `repertory_...`, units in the names.

They are read from the control server when somebody asks: what each process last said of itself.
While the control server is away only `repertory_control_up` is told. Shards have metrics of their
own (`repertory buffer-server --metrics`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from repertory.control import Control, ControlUnavailable, Member

PREFIX = "repertory_"

# What processes say in their heartbeats, and how it is called here.
FACTS = {
    "memory_bytes": "Resident memory.",
    "version": "Version of the weights it acts with, or has published.",
    "weights_age_seconds": "Since the weights it acts with were published.",
    "updates": "Gradient updates of a learner.",
    "size": "Items in a shard.",
    "size_bytes": "Bytes of the items in a shard.",
    "inserted": "Items that ever came into a shard.",
    "sampled": "Items that were ever sampled from a shard.",
}


class RunCollector(Collector):
    """Asks the control server each time it is asked."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def collect(self) -> Iterator[Metric]:
        try:
            counters, members = self._control.counters(), self._control.members()
        except ControlUnavailable:
            yield GaugeMetricFamily(PREFIX + "control_up", "Whether Redis answers.", value=0)
            return
        yield GaugeMetricFamily(PREFIX + "control_up", "Whether Redis answers.", value=1)
        for name, value in sorted(counters.items()):
            yield CounterMetricFamily(f"{PREFIX}run_{name}", "Of the whole run.", value=value)
        yield from _of_members(members)


def _of_members(members: Mapping[str, Member]) -> Iterator[Metric]:
    def gauge(name: str, help_: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"{PREFIX}process_{name}", help_, labels=["process", "role"])

    heard = gauge("heard_seconds", "Since its last heartbeat.")
    starts = gauge("starts", "How often it was started.")
    for name, member in members.items():
        heard.add_metric([name, member.role], time.time() - member.at)
        starts.add_metric([name, member.role], member.incarnation)
    yield heard
    yield starts
    for key, help_ in FACTS.items():
        family = gauge(key, help_)
        for name, member in members.items():
            if key in member.facts:
                family.add_metric([name, member.role], float(member.facts[key]))
        if family.samples:
            yield family
