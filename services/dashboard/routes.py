"""The whole site, on one page.

Pages are one HTML file that shows what its address says; everything it shows comes from the JSON
below `/api`, which is for everybody with the token: `Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.dashboard import api, live, pages, prometheus
from services.dashboard import schemas as s
from services.dashboard.endpoint import Endpoint, problem
from services.dashboard.guard import Guard
from services.dashboard.openapi import describe
from services.dashboard.site import Site

RUN = "/api/runs/{run}"

ENDPOINTS = (
    Endpoint("GET", "/api/runs", api.runs, s.RunList, "All runs"),
    Endpoint("GET", "/api/compare", api.compare, s.Comparison, "Runs by groups of seeds",
             query=api.CompareQuery),
    Endpoint("GET", RUN, api.overview, s.Overview, "How a run fares"),
    Endpoint("GET", RUN + "/metrics", api.metric_names, s.MetricNames, "Names of its metrics"),
    Endpoint("GET", RUN + "/series", api.series, s.SeriesSet, "Metrics, thinned",
             query=api.SeriesQuery),
    Endpoint("GET", RUN + "/evaluations", api.evaluations, s.Evaluations, "Evaluated returns",
             query=api.AxisQuery),
    Endpoint("GET", RUN + "/learners", api.learners, s.Learners, "Its learners"),
    Endpoint("GET", RUN + "/director", api.director, s.DirectorView, "Who is chosen to act"),
    Endpoint("GET", RUN + "/replay", api.replay, s.ReplayView, "Its replay shards"),
    Endpoint("GET", RUN + "/processes", api.processes, s.Processes, "All of its processes"),
    Endpoint("GET", RUN + "/system", api.system, s.SystemView, "Machines, checkpoints, settings"),
    Endpoint("GET", RUN + "/events", api.events, s.Events, "What happened",
             query=api.EventsQuery),
    Endpoint("GET", RUN + "/logs/{process}", api.log, s.Log, "The log of a process",
             query=api.LogQuery),
    Endpoint("GET", RUN + "/videos/{file}", api.video, "video/mp4", "A video of a policy",
             query=api.VideoQuery),
    Endpoint("POST", RUN + "/commands", api.command, s.Obeyed, "Steer it", body=s.Order),
)  # fmt: skip


def make_app(site: Site, hosts: Collection[str]) -> Starlette:
    document = describe(ENDPOINTS)
    app = Starlette(
        routes=[
            Route("/", pages.index),
            Route("/compare", pages.index),
            Route("/runs/{run}", pages.index),
            Route("/runs/{run}/{page}", pages.index),
            Route("/login", pages.login_page, methods=["GET"]),
            Route("/login", pages.log_in, methods=["POST"]),
            Route("/enter", pages.enter),
            Route("/logout", pages.log_out, methods=["POST"]),
            Route("/static/plotly.min.js", pages.plotly),
            Route("/static/{path:path}", pages.static),
            Route("/healthz", pages.healthy),
            Route("/metrics", prometheus.metrics),
            Route("/api/openapi.json", lambda request: JSONResponse(document)),
            *(endpoint.route(site) for endpoint in ENDPOINTS),
            Route(RUN + "/live", live.live),
        ],
        exception_handlers={HTTPException: _as_json},
        middleware=[Middleware(Guard, sessions=site.sessions, hosts=hosts)],
    )
    app.state.site = site
    return app


async def _as_json(request: Request, error: Exception) -> Response:
    """No such address, or not by this method."""
    assert isinstance(error, HTTPException)
    response = problem(error.status_code, str(error.detail))
    response.headers.update(error.headers or {})
    return response
