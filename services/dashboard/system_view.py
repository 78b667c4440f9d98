"""Where a run lives: machines, control server, checkpoints, logs, settings."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from services.dashboard.control_snapshot import Snapshot
from services.dashboard.json_lines import parsed
from services.dashboard.run_settings import RunSettings
from services.dashboard.schemas import (
    Checkpoint,
    ControlServer,
    Log,
    LogLine,
    Node,
    SystemView,
    Video,
)

LOG_TAIL_BYTES = 4 << 20
VIDEO_KINDS: Mapping[str, Literal["gif", "mp4"]] = {".gif": "gif", ".mp4": "mp4"}


def system_of(
    path: Path, settings: RunSettings, snapshot: Snapshot, control: ControlServer | None
) -> SystemView:
    return SystemView(
        nodes=_nodes(snapshot),
        control=control,
        checkpoints=_checkpoints(path / "checkpoints"),
        logs=log_names(path),
        config=settings.text,
        versions=_versions(path / "versions.json"),
    )


def _nodes(snapshot: Snapshot) -> list[Node]:
    hosts: dict[str, list[int]] = {}
    for member in snapshot.members.values():
        hosts.setdefault(member.host, []).append(int(member.facts.get("memory_bytes", 0)))
    return [
        Node(host=host, processes=len(memory), memory_bytes=sum(memory))
        for host, memory in sorted(hosts.items())
    ]


def _checkpoints(folder: Path) -> list[Checkpoint]:
    """The newest first; what is being written is not one yet."""
    found = []
    for path in folder.glob("*") if folder.is_dir() else ():
        manifest = path / "manifest.json"
        try:
            document = json.loads(manifest.read_text())
            size = sum(file.stat().st_size for file in path.iterdir())
            at = manifest.stat().st_mtime
        except (OSError, ValueError):
            continue  # taken away, or not whole
        env_steps = document.get("env_steps")
        found.append(Checkpoint(name=path.name, env_steps=env_steps, at=at, size_bytes=size))
    return sorted(found, key=lambda one: -one.at)


def _versions(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def videos_of(folder: Path) -> list[Video]:
    """The newest of each policy: a file's name begins with it."""
    newest: dict[str, Video] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        kind = VIDEO_KINDS.get(path.suffix)
        if kind is None:
            continue
        try:
            made_at = path.stat().st_mtime
        except OSError:
            continue
        policy = path.stem
        if policy not in newest or made_at > newest[policy].made_at:
            newest[policy] = Video(policy=policy, file=path.name, kind=kind, made_at=made_at)
    return sorted(newest.values(), key=lambda one: one.policy)


def log_names(path: Path) -> list[str]:
    return sorted(file.stem for file in (path / "logs").glob("*.jsonl"))


def read_log(path: Path, process: str, limit: int) -> Log:
    """The newest lines. `process` is one of `log_names`."""
    lines: deque[LogLine] = deque(maxlen=limit)
    with (path / "logs" / f"{process}.jsonl").open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LOG_TAIL_BYTES))
        if file.tell():
            file.readline()  # most likely cut
        for line in file:
            lines.append(_log_line(line))
    return Log(process=process, lines=list(lines))


def _log_line(line: bytes) -> LogLine:
    """What is not JSON was written by somebody else, and is shown as it is."""
    said = parsed(line)
    if said is None:
        text = line.decode(errors="replace").rstrip("\n")
        return LogLine(at=None, level="", logger="", message=text[:10_000])
    at = said.get("time")
    return LogLine(
        at=float(at) if isinstance(at, int | float) else None,
        level=str(said.get("level", "")),
        logger=str(said.get("logger", "")),
        message=str(said.get("message", ""))[:10_000],
    )
