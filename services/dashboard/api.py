"""What each address of the JSON interface does; `routes` says which is where."""

from __future__ import annotations

import logging
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import FileResponse

from services.dashboard.comparison import compare as compare_runs
from services.dashboard.endpoint import Call, Refused
from services.dashboard.schemas import (
    Axis,
    Comparison,
    DirectorView,
    Evaluations,
    Events,
    Learners,
    Log,
    MetricNames,
    Obeyed,
    Overview,
    Processes,
    ReplayView,
    RunList,
    SeriesSet,
    SystemView,
)

logger = logging.getLogger(__name__)

ORDER_SECONDS = 60.0  # a checkpoint may take its time
VIDEO_TYPES = {".gif": "image/gif", ".mp4": "video/mp4"}

Name = Annotated[str, Field(min_length=1, max_length=200)]


class Query(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SeriesQuery(Query):
    names: Annotated[list[Name], Field(min_length=1, max_length=100)]
    points: Annotated[int, Field(ge=10, le=20_000)] = 1500
    axis: Axis = "steps"


class AxisQuery(Query):
    axis: Axis = "steps"


class CompareQuery(Query):
    runs: Annotated[list[Name], Field(min_length=1, max_length=200)]
    metric: Name | None = None


class EventsQuery(Query):
    after: Annotated[int, Field(ge=0, le=2**53)] | None = None
    limit: Annotated[int, Field(ge=1, le=5000)] = 200


class LogQuery(Query):
    limit: Annotated[int, Field(ge=1, le=10_000)] = 500


class VideoQuery(Query):
    made: Annotated[float, Field(ge=0)] | None = None  # when: another one has another address


def runs(call: Call) -> RunList:
    return call.site.library.list()


def compare(call: Call) -> Comparison:
    views = []
    for id_ in dict.fromkeys(call.query.runs):
        view = call.site.library.view(id_)
        if view is None:
            raise Refused(404, "there is no such run here")
        views.append(view)
    return compare_runs(views, call.query.metric)


def overview(call: Call) -> Overview:
    return call.view.overview(read_only=call.site.library.read_only)


def metric_names(call: Call) -> MetricNames:
    return call.view.metric_names()


def series(call: Call) -> SeriesSet:
    query: SeriesQuery = call.query
    return call.view.series(query.names, query.points, query.axis)


def evaluations(call: Call) -> Evaluations:
    return call.view.evaluations(call.query.axis)


def learners(call: Call) -> Learners:
    return call.view.learners()


def director(call: Call) -> DirectorView:
    return call.view.director()


def replay(call: Call) -> ReplayView:
    return call.view.replay()


def processes(call: Call) -> Processes:
    return call.view.processes()


def system(call: Call) -> SystemView:
    return call.view.system()


def events(call: Call) -> Events:
    return call.view.events(call.query.after, call.query.limit)


def log(call: Call) -> Log:
    found = call.view.log(call.path["process"], call.query.limit)
    if found is None:
        raise Refused(404, "there is no log of such a process")
    return found


def video(call: Call) -> FileResponse:
    path = call.view.video(call.path["file"])
    if path is None or path.suffix not in VIDEO_TYPES:
        raise Refused(404, "there is no such video")
    return FileResponse(path, media_type=VIDEO_TYPES[path.suffix])


def command(call: Call) -> Obeyed:
    """The run itself records it as an event."""
    order = call.body.root
    if call.site.library.read_only:
        raise Refused(403, "this dashboard is read-only: start it without --read-only")
    arguments = order.model_dump(exclude={"name"}, exclude_none=True)
    logger.info("%s: %s %s", call.view.id, order.name, arguments)
    return Obeyed(name=order.name, result=call.view.obey(order.name, arguments, ORDER_SECONDS))
