"""The dashboard of a run that goes on: a process of its own, which ends with the run.

It reads the run directory and the control server as anybody would: should it die, the run does not
notice, and `repertory dashboard RUN` starts another.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from repertory.closing import Closing
from services.child_process import end_process, tied_to_parent
from services.run_control import CONTROL_FOLDER

STOP_SECONDS = 2.0  # it has nothing to finish
NICENESS = 10  # it starts while everybody does, and nobody waits for it


class RunDashboard(Closing):
    """Begins to start when made; once it answers, `say` hears where."""

    def __init__(self, run_dir: Path, port: int | None, say: Callable[[str], None]) -> None:
        self._run_dir = run_dir.resolve()
        self._say = say
        private = self._run_dir / CONTROL_FOLDER
        command = [sys.executable, "-m", "services.cli", "dashboard", str(self._run_dir), "--json"]
        if port is not None:
            command += ["--port", str(port)]
        log = self._run_dir / "logs" / "dashboard.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                tied_to_parent(command, signal.SIGTERM),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=private,  # where nobody has a package that is called as one of ours
                start_new_session=True,
            )
        os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)
        self._listener = threading.Thread(target=self._listen, name="dashboard", daemon=True)
        self._listener.start()

    def end_soon(self) -> None:
        """Without waiting for it, which `close` does."""
        self._process.terminate()

    def close(self) -> None:
        end_process(self._process, STOP_SECONDS)
        self._listener.join(STOP_SECONDS)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            line = output.readline()
        if line:
            self._say(f"dashboard: {json.loads(line)['link']}")
        elif self._process.poll() not in (None, 0, -signal.SIGTERM):
            self._say(f"no dashboard: {self._run_dir}/logs/dashboard.log says why")
