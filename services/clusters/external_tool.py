"""Runs the tools of an engine that is not ours: sbatch, helm, kubectl, docker ...

Every call has a deadline. What they are given on standard input, as secrets, is in no message.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from repertory.errors import RepertoryError, UsageError

CALL_SECONDS = 60.0
LOOK_SECONDS = 2.0
SHOWN_CHARACTERS = 500  # of what a tool says when it fails


@dataclass(frozen=True, slots=True)
class Answer:
    exit_code: int
    output: str
    error: str


class ExternalTool:
    """One program, by its name on PATH; looked up when it is called."""

    def __init__(self, name: str, *first: str) -> None:
        self.name = name
        self._first = first  # words that all calls begin with

    def require(self) -> str:
        path = shutil.which(self.name)
        if path is None:
            raise UsageError(
                f"{self.name} is not on PATH: install it, or run this where it is; "
                "--render-only writes the files without it"
            )
        return path

    def ask(
        self, *words: str, stdin: str | None = None, timeout_seconds: float = CALL_SECONDS
    ) -> Answer:
        """Whatever its exit code."""
        command = [self.require(), *self._first, *words]
        try:
            done = subprocess.run(
                command,
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise RepertoryError(
                f"{self._spoken(words)} did not end within {timeout_seconds:.0f} s"
            ) from error
        return Answer(done.returncode, done.stdout, done.stderr)

    def run(
        self, *words: str, stdin: str | None = None, timeout_seconds: float = CALL_SECONDS
    ) -> str:
        """What it prints; an error where it fails."""
        answer = self.ask(*words, stdin=stdin, timeout_seconds=timeout_seconds)
        if answer.exit_code != 0:
            said = (answer.error or answer.output).strip()[-SHOWN_CHARACTERS:]
            raise RepertoryError(
                f"{self._spoken(words)} failed with exit code {answer.exit_code}: {said}"
            )
        return answer.output

    def show(self, *words: str, follow: bool) -> None:
        """Straight to standard output; what follows a log ends by Ctrl-C."""
        try:
            subprocess.run(
                [self.require(), *self._first, *words],
                stdin=subprocess.DEVNULL,
                timeout=None if follow else CALL_SECONDS,
                check=False,
            )
        except KeyboardInterrupt:
            if not follow:
                raise
        except subprocess.TimeoutExpired as error:
            raise RepertoryError(f"{self._spoken(words)} did not end") from error

    def _spoken(self, words: tuple[str, ...]) -> str:
        return " ".join([self.name, *self._first, *words][:6])


def wait_until(look: Callable[[], str], seconds: float) -> None:
    """Until `look` has nothing left to wait for: it says what that is."""
    deadline = time.monotonic() + seconds
    while missing := look():
        if time.monotonic() > deadline:
            raise RepertoryError(f"not healthy after {seconds / 60:.0f} minutes: {missing}")
        time.sleep(LOOK_SECONDS)
