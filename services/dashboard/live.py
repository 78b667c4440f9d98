"""What changes in a run, as server-sent events: about once a second, and only what is new.

A stream asks for the parts that its page shows. Each part is the same JSON that its own address
gives; `rows` and `events` are only those that came since. Browsers connect again by themselves and
say where they were, by the id of the last event: that of the last row.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Literal, get_args

import anyio
import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from services.dashboard.endpoint import problem
from services.dashboard.run_view import RunView
from services.dashboard.site import Site

EVERY_SECONDS = 1.0
BEAT_SECONDS = 10.0  # also where nothing changes: so that both sides know of each other
MOST_EVENTS = 500

Part = Literal["overview", "rows", "processes", "director", "replay", "learners", "events"]


class LiveQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    parts: Annotated[list[Part], Field(min_length=1, max_length=len(get_args(Part)))]


class Stream:
    """Of one browser: knows what it was told."""

    def __init__(self, run: RunView, parts: list[Part], *, read_only: bool, after_row: int) -> None:
        self._run = run
        self._parts = dict.fromkeys(parts)
        self._read_only = read_only
        self._row = after_row
        self._event = run.events(None, 1).last
        self._said: dict[str, str] = {}
        self._readers: dict[str, Callable[[], BaseModel]] = {
            "overview": lambda: run.overview(read_only=read_only),
            "processes": run.processes,
            "director": run.director,
            "replay": run.replay,
            "learners": run.learners,
        }

    def news(self) -> str:
        """What is to be sent now; empty: nothing has changed."""
        pieces = []
        for part in self._parts:
            if part == "rows":
                pieces.append(self._rows())
            elif part == "events":
                pieces.append(self._events())
            else:
                text = self._readers[part]().model_dump_json()
                if text != self._said.get(part):
                    self._said[part] = text
                    pieces.append(_message(part, text))
        return "".join(pieces)

    def _rows(self) -> str:
        rows = self._run.rows_after(self._row)
        if not rows:
            return ""
        self._row = rows[-1].number
        text = json.dumps([row.to_json() for row in rows], allow_nan=False)
        return _message("rows", text, id_=self._row)

    def _events(self) -> str:
        found = self._run.events(self._event, MOST_EVENTS)
        if not found.events:
            return ""
        self._event = found.last
        return _message("events", found.model_dump_json())


def _message(event: str, data: str, id_: int | None = None) -> str:
    """JSON has no line breaks, so it is one line of data."""
    head = f"event: {event}\n" if id_ is None else f"event: {event}\nid: {id_}\n"
    return f"{head}data: {data}\n\n"


async def live(request: Request) -> Response:
    site: Site = request.app.state.site
    try:
        query = LiveQuery.model_validate(
            {name: request.query_params.getlist(name) for name in request.query_params}
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return problem(422, f"parts: {first['msg']}")
    run = await anyio.to_thread.run_sync(site.library.view, request.path_params["run"])
    if run is None:
        return problem(404, "there is no such run here")
    last = request.headers.get("last-event-id", "")
    after = int(last) if last.isascii() and last.isdecimal() and len(last) < 15 else None
    stream = await anyio.to_thread.run_sync(_open, site, run, query.parts, after)
    headers = {"x-accel-buffering": "no"}
    return StreamingResponse(
        _sent(site, request, stream), headers=headers, media_type="text/event-stream"
    )


def _open(site: Site, run: RunView, parts: list[Part], after: int | None) -> Stream:
    row = run.row_count() if after is None else after
    return Stream(run, parts, read_only=site.library.read_only, after_row=row)


async def _sent(site: Site, request: Request, stream: Stream) -> AsyncIterator[str]:
    beat_at = 0.0
    while not site.closing.is_set() and not await request.is_disconnected():
        text = await anyio.to_thread.run_sync(stream.news)
        if text:
            yield text
            beat_at = time.monotonic()
        elif time.monotonic() - beat_at > BEAT_SECONDS:
            yield "event: beat\ndata: {}\n\n"
            beat_at = time.monotonic()
        await anyio.sleep(EVERY_SECONDS)
