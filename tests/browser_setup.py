"""A Chromium for the tests of the dashboard: found, or installed where that is allowed.

    python tests/browser_setup.py      # exit code 0 also where there is none: those tests say so

A system's own package is preferred; Playwright's download is tried after it.
"""

from __future__ import annotations

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


def install() -> bool:
    attempts = []
    if shutil.which("apt-get") and os.geteuid() == 0:
        attempts.append("apt-get update && apt-get install -y --no-install-recommends chromium")
    for command in attempts:
        print(f"no Chromium here: {command}", flush=True)  # noqa: T201
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            subprocess.run(["sh", "-c", command], timeout=INSTALL_SECONDS, check=False, **quiet)
        except subprocess.TimeoutExpired:
            continue
        if chromium():
            return True
    return False


if __name__ == "__main__":
    if not chromium() and not install():
        sys.stderr.write(
            "\n*** There is no Chromium and none could be installed: the browser tests of the "
            "dashboard WILL BE SKIPPED. Install one, or name it in REPERTORY_CHROMIUM. ***\n\n"
        )
