"""The command line: `repertory train | eval | play | resume | plot | export | ...`.

All commands on one page; what they do is in `services.commands`. Heavy imports wait inside the
commands, so that `--help` answers at once. Errors are one sentence on standard error; exit code 2
means the call was wrong, 1 that something failed.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable

import tyro

from repertory.errors import RepertoryError
from services.commands import (
    buffer_server,
    cluster,
    dashboard,
    knowledge,
    policies,
    steering,
    training,
)
from services.user_code import make_importable

# In the order of --help.
COMMANDS: dict[str, Callable[..., None]] = {
    "train": training.train,
    "resume": training.resume_run,
    "status": steering.status,
    "scale": steering.scale,
    "stop": steering.stop,
    "pause": steering.pause,
    "pin": steering.pin,
    "bench": steering.bench,
    "release": steering.release,
    "dashboard": dashboard.dashboard,
    "cluster": cluster.overview,
    "eval": policies.evaluate,
    "play": policies.play,
    "plot": policies.plot,
    "export": policies.export,
    "buffer-server": buffer_server.serve,
    "algorithms": knowledge.algorithms,
    "strategies": knowledge.strategies,
    "describe": knowledge.describe,
    "doctor": knowledge.doctor,
}


DESCRIPTION = "Distributed reinforcement learning: many algorithms, one environment."
CLUSTER = "Launch machines, look after them, let them go: up, status, scale, logs, down."


class CurrentStderr(logging.StreamHandler):
    """Writes to what standard error is at the moment: a live display puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def main() -> None:
    # NumPy's products get one thread, in every process of a run: acting is too small for more, and
    # its threads would take the learner's cores. Torch is told by itself (`services.threads`).
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    make_importable(os.getcwd())
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s: %(message)s", handlers=[CurrentStderr()]
    )
    try:
        if sys.argv[1:2] == ["cluster"]:
            _run(cluster.VERBS, "repertory cluster", CLUSTER, sys.argv[2:])
        else:
            _run(COMMANDS, "repertory", DESCRIPTION, sys.argv[1:])
    except RepertoryError as error:
        print(f"repertory: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("repertory: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # who read it, as `| head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _run(
    commands: dict[str, Callable[..., None]], prog: str, description: str, words: list[str]
) -> None:
    app = tyro.extras.SubcommandApp()
    for name, command in commands.items():
        app.command(name=name)(command)
    app.cli(prog=prog, description=description, args=words, config=(tyro.conf.FlagCreatePairsOff,))


if __name__ == "__main__":
    main()
