"""Callbacks that tests name by dotted path."""

from __future__ import annotations

import os
import signal
from typing import ClassVar


class KillAt700:
    """Ends the process as a power cut would, between two checkpoints."""

    def on_step(self, env_steps: int, metrics: object) -> None:
        if env_steps >= 700:
            os.kill(os.getpid(), signal.SIGKILL)


class Recorder:
    """Keeps the names of the hooks that were called."""

    calls: ClassVar[list[str]] = []

    def on_step(self, env_steps: int, metrics: object) -> None:
        self.calls.append("step")

    def on_evaluation(self, env_steps: int, returns: object, policy: object) -> None:
        self.calls.append("evaluation")

    def on_checkpoint(self, env_steps: int, path: object) -> None:
        self.calls.append("checkpoint")

    def on_end(self, env_steps: int) -> None:
        self.calls.append("end")
