"""How commands get to a machine: by ssh, or straight to this one."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.clusters.inventory import Ssh

ALIVE_SECONDS = 5  # a connection that is silent for three times as long is given up


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    output: str
    errors: str

    @property
    def said(self) -> str:
        """What was wrong: lines that say so, or the last one."""
        lines = [line for line in (self.errors.strip() or self.output.strip()).splitlines() if line]
        if errors := [line.strip() for line in lines if line.startswith("ERROR: ")]:
            return " ".join(errors)[:300]
        return lines[-1].strip()[:300] if lines else f"exit code {self.code}"


class Shell(Protocol):
    def command(self, words: Sequence[str]) -> list[str]:
        """What is run here so that these words are run there."""

    def run(self, words: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float) -> Done: ...


class LocalShell:
    def command(self, words: Sequence[str]) -> list[str]:
        return list(words)

    def run(self, words: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float) -> Done:
        return _run(self.command(words), stdin, timeout_seconds)


class SshShell:
    """By the ssh of the system: its config, agents and known hosts are the user's own."""

    def __init__(self, host: str, settings: Ssh) -> None:
        self._host = host
        self._settings = settings

    def command(self, words: Sequence[str]) -> list[str]:
        settings = self._settings
        return [
            "ssh",
            *(() if settings.config is None else ("-F", str(settings.config))),
            *("-o", "BatchMode=yes"),  # nobody is there to type a password
            *("-o", f"ConnectTimeout={max(1, round(settings.connect_seconds))}"),
            *("-o", f"ServerAliveInterval={ALIVE_SECONDS}", "-o", "ServerAliveCountMax=3"),
            *("-o", "LogLevel=ERROR"),
            self._host,
            "--",
            " ".join(_quoted(word) for word in words),
        ]

    def run(self, words: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float) -> Done:
        return _run(self.command(words), stdin, timeout_seconds)


def _quoted(word: str) -> str:
    """For the shell there, which shall still know what `~` is."""
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") else shlex.quote(word)


def _run(command: list[str], stdin: bytes, timeout_seconds: float) -> Done:
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, timeout=timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return Done(255, "", f"no answer in {timeout_seconds:g} s")
    except FileNotFoundError as error:
        return Done(127, "", f"{error.filename} is not installed here")
    return Done(
        done.returncode,
        done.stdout.decode(errors="replace"),
        done.stderr.decode(errors="replace"),
    )
