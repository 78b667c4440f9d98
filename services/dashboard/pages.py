"""What browsers load: the page, its files, and the way in."""

from __future__ import annotations

import gzip
import hashlib
import importlib.resources
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import parse_qs

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)

from services.dashboard.sessions import COOKIE_SECONDS
from services.dashboard.site import Site

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
REVALIDATE = {"cache-control": "no-cache"}  # asked for again each time, answered by "not modified"

NO_ERROR = "<!-- what was wrong -->"
ERROR = '<p id="wrong" class="wrong" role="alert" data-testid="login-error">{}</p>'
LOGIN_ERRORS = {
    "1": "That token is not the right one.",
    "2": "That link is no longer good: each works once. Give the token, or print another.",
}


async def index(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers=REVALIDATE)


async def login_page(request: Request) -> Response:
    """With what was wrong, for browsers without JavaScript too."""
    page = _static_files()["login.html"].content.decode()
    words = LOGIN_ERRORS.get(request.query_params.get("error", ""))
    if words is not None:
        page = page.replace(NO_ERROR, ERROR.format(words))
    return HTMLResponse(page, headers=REVALIDATE)


async def log_in(request: Request) -> Response:
    """By the token itself, from the form."""
    site: Site = request.app.state.site
    form = parse_qs((await request.body()).decode(errors="replace"), max_num_fields=10)
    if not site.sessions.knows(form.get("token", [""])[0].strip()):
        return RedirectResponse("/login?error=1", 303)
    return _entered(site)


async def enter(request: Request) -> Response:
    """By a link that is good once."""
    site: Site = request.app.state.site
    if not site.sessions.redeem(request.query_params.get("code", "")):
        return RedirectResponse("/login?error=2", 303)
    return _entered(site)


def _entered(site: Site) -> Response:
    response = RedirectResponse("/", 303)
    response.set_cookie(
        site.sessions.cookie_name,
        site.sessions.cookie(),
        max_age=COOKIE_SECONDS,
        httponly=True,
        samesite="strict",
        secure=site.secure,
    )
    return response


async def log_out(request: Request) -> Response:
    site: Site = request.app.state.site
    response = RedirectResponse("/login", 303)
    response.delete_cookie(site.sessions.cookie_name, httponly=True, samesite="strict")
    return response


async def static(request: Request) -> Response:
    file = _static_files().get(request.path_params["path"])
    if file is None:
        return PlainTextResponse("not found", 404)
    headers = {"etag": file.tag, **REVALIDATE}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


@dataclass(frozen=True, slots=True)
class StaticFile:
    content: bytes
    tag: str
    media_type: str


@cache
def _static_files() -> dict[str, StaticFile]:
    """By their path below the folder: nothing else can be asked for. Small, so kept in memory."""
    found = {}
    for path in STATIC.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            media_type = MEDIA_TYPES.get(path.suffix, "application/octet-stream")
            name = path.relative_to(STATIC).as_posix()
            found[name] = StaticFile(content, _tag(content), media_type)
    return found


def _tag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:16]}"'


async def plotly(request: Request) -> Response:
    """From its own package, and small enough for a slow tunnel."""
    content, tag = await anyio.to_thread.run_sync(plotly_script)
    headers = {"etag": tag, "vary": "accept-encoding", **REVALIDATE}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
    else:
        content = gzip.decompress(content)
    return Response(content, headers=headers, media_type=MEDIA_TYPES[".js"])


_compressing = threading.Lock()


def plotly_script() -> tuple[bytes, str]:
    """Compressed, and its tag; made once."""
    with _compressing:
        return _plotly()


@cache
def _plotly() -> tuple[bytes, str]:
    script = importlib.resources.files("plotly") / "package_data" / "plotly.min.js"
    content = gzip.compress(script.read_bytes(), compresslevel=5, mtime=0)
    return content, _tag(content)


async def healthy(request: Request) -> Response:
    return PlainTextResponse("ok")
