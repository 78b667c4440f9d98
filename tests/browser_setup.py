"""A Chromium for the tests of the dashboard: found, or installed where that is allowed.

    python tests/browser_setup.py      # exit code 0 also where there is none: those tests say so

Debian's package is installed where there is apt-get and whoever runs this is root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
INSTALL_SECONDS = 600


def chromium() -> str | None:
    """`REPERTORY_CHROMIUM`, or what is on the path."""
    named = os.environ.get("REPERTORY_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


def install() -> None:
    """Where that is allowed; whether it went well is seen by looking again."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        return
    sys.stdout.write("no Chromium here: installing Debian's\n")
    sys.stdout.flush()
    command = "apt-get update && apt-get install -y --no-install-recommends chromium"
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            ["sh", "-c", command], timeout=INSTALL_SECONDS, check=False, capture_output=True
        )


if __name__ == "__main__":
    if not chromium():
        install()
    if not chromium():
        sys.stderr.write(
            "\n*** There is no Chromium and none could be installed: the browser tests of the "
            "dashboard WILL BE SKIPPED. Install one, or name it in REPERTORY_CHROMIUM. ***\n\n"
        )
