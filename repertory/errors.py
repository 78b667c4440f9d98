"""The errors a user may see: one sentence each, with the exit code the command line ends with."""

from __future__ import annotations

from pathlib import Path


class RepertoryError(Exception):
    """Something failed while running. The message names the value, the limit and the remedy."""

    exit_code = 1


class UsageError(RepertoryError):
    """What was asked for cannot be done: a wrong name, value or combination."""

    exit_code = 2


class CheckpointError(RepertoryError):
    """A checkpoint is missing, incomplete or corrupt."""


class RunDirectoryError(RepertoryError):
    """A run directory cannot be used."""

    @classmethod
    def cannot_write(cls, path: Path, error: OSError) -> RunDirectoryError:
        reason = error.strerror or str(error)
        return cls(f"cannot write to {path}: {reason}; choose another place with --run-dir")


class ReplayTimeout(RepertoryError):
    """A replay call did not get what it waited for before its deadline. The message says why."""


class EnvironmentFailure(RepertoryError):
    """The environment could not be made, or broke its own description."""
