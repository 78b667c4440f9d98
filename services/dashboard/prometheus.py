"""The numbers of all runs here for Prometheus, with the run as a label.

A run that goes on can also be asked directly (`log.prometheus`); this is for those who watch many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import anyio.to_thread
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from services.dashboard.run_view import RunView
from services.dashboard.schemas import Overview
from services.dashboard.site import Site

Reading = Callable[[Overview], float | None]

GAUGES: dict[str, tuple[str, Reading]] = {
    "env_steps": ("Environment steps over all actors.", lambda o: o.run.env_steps),
    "updates": ("Gradient updates of all learners.", lambda o: o.updates),
    "steps_per_second": ("Environment steps a second.", lambda o: o.steps_per_second),
    "updates_per_second": ("Gradient updates a second.", lambda o: o.updates_per_second),
    "mean_return": ("Of the last episodes, exploring.", lambda o: o.run.mean_return),
    "evaluation": ("Newest evaluated mean return.", lambda o: o.run.evaluation),
    "best_evaluation": ("Best evaluated mean return.", lambda o: o.run.best_evaluation),
    "version_lag": ("Versions that the slowest actor is behind.", lambda o: o.version_lag),
    "lag_seconds": ("Seconds that the slowest actor is behind.", lambda o: o.lag_seconds),
    "actors": ("Actors that are heard of.", lambda o: o.actors),
    "faults": ("Restarts, skipped updates, broken episodes.", lambda o: o.faults),
    "running": ("1 while it runs.", lambda o: float(o.run.state == "running")),
}


class SiteCollector(Collector):
    """Runs that go on; those that have ended say nothing new."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def collect(self) -> Iterator[Metric]:
        views = self._site.library.views()
        overviews = [(view, view.overview(read_only=True)) for view in views]
        live = [(view, one) for view, one in overviews if one.run.state in ("running", "paused")]
        for name, (help_, read) in GAUGES.items():
            yield _family(f"repertory_{name}", help_, live, read)
        yield _memory([view for view, _ in live])


def _family(name: str, help_: str, live: list[tuple[RunView, Overview]], read: Reading) -> Metric:
    family = GaugeMetricFamily(name, help_, labels=["run", "env"])
    for view, overview in live:
        value = read(overview)
        if value is not None:
            family.add_metric([view.id, overview.run.env], float(value))
    return family


def _memory(views: list[RunView]) -> Metric:
    family = GaugeMetricFamily(
        "repertory_process_memory_bytes", "Resident memory.", labels=["run", "process", "host"]
    )
    for view in views:
        for one in view.processes().processes:
            if one.memory_bytes is not None:
                family.add_metric([view.id, one.name, one.host], one.memory_bytes)
    return family


async def metrics(request: Request) -> Response:
    registry = CollectorRegistry()
    registry.register(SiteCollector(request.app.state.site))
    text = await anyio.to_thread.run_sync(generate_latest, registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
