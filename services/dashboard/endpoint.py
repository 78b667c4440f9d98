"""One address of the JSON interface: what it takes, what it answers, who does it.

The same description makes the route, checks what comes in, and stands in the OpenAPI document. What
is done may read files or ask a control server, so it is done in a thread.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import anyio.to_thread
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from repertory.errors import RepertoryError
from services.dashboard.run_view import RunView
from services.dashboard.schemas import Problem
from services.dashboard.site import Site


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class NoQuery(BaseModel):
    model_config = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler gets: everything that was asked, looked up and checked."""

    site: Site
    run: RunView | None  # where the path names one
    path: dict[str, str]
    query: Any  # of the endpoint's model
    body: Any

    @property
    def view(self) -> RunView:
        assert self.run is not None, "the path of this address names no run"
        return self.run


@dataclass(frozen=True, slots=True)
class Endpoint:
    method: Literal["GET", "POST"]
    path: str
    handler: Callable[[Call], BaseModel | FileResponse]
    answer: type[BaseModel] | str  # a model, or a media type
    summary: str
    query: type[BaseModel] = NoQuery
    body: type[BaseModel] | None = None

    def route(self, site: Site) -> Route:
        async def serve(request: Request) -> Response:
            try:
                answer = await self._answer(site, request)
            except Refused as refused:
                return problem(refused.status, str(refused))
            except ValidationError as error:
                return problem(422, _in_words(error))
            except RepertoryError as error:  # the run said no, or did not answer
                return problem(409, str(error))
            if isinstance(answer, Response):
                return answer
            return Response(answer.model_dump_json(), media_type="application/json")

        return Route(self.path, serve, methods=[self.method])

    async def _answer(self, site: Site, request: Request) -> BaseModel | FileResponse:
        query = self.query.model_validate(_query_of(request, self.query))
        body = None
        if self.body is not None:
            if request.headers.get("content-type", "").partition(";")[0] != "application/json":
                raise Refused(415, "the body is not application/json")
            body = self.body.model_validate_json(await request.body(), strict=True)
        path = {name: str(value) for name, value in request.path_params.items()}
        return await anyio.to_thread.run_sync(self._do, site, path, query, body)

    def _do(self, site: Site, path: dict[str, str], query: Any, body: Any) -> Any:
        run: RunView | None = None
        if "run" in path:
            run = site.library.view(path["run"])
            if run is None:
                raise Refused(404, "there is no such run here")
        return self.handler(Call(site, run, path, query, body))


def problem(status: int, why: str) -> Response:
    return Response(Problem(error=why).model_dump_json(), status, media_type="application/json")


def _query_of(request: Request, model: type[BaseModel]) -> dict[str, Any]:
    """Fields that are lists take a name several times; others once."""
    found: dict[str, Any] = {}
    for name in request.query_params:
        values = request.query_params.getlist(name)
        field = model.model_fields.get(name)
        many = field is not None and typing.get_origin(field.annotation) is list
        found[name] = values if many or len(values) > 1 else values[0]
    return found


def _in_words(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}"[:500] if place else str(first["msg"])[:500]
