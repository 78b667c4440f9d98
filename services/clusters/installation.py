"""Brings the same version of the project, and of all it needs, to every machine.

The project travels as a wheel: of this checkout, where there is one, else the released one. What it
needs comes from the package index that pip on that machine is set up for, or from a folder of
wheels that travels along, held to the versions of the lock.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from repertory.errors import RepertoryError
from services.clusters.inventory import Python
from services.clusters.lock import as_constraints
from services.clusters.machine import Machine

BUILD_SECONDS = 300.0
INSTALL_SECONDS = 1800.0
STAMP = "repertory-installed"

# What runs there: its words are the environment, the interpreter, the stamp, then what to install.
_SCRIPT = """
set -eu
environment=$1 interpreter=$2 stamp=$3 extras=$4 offline=$5
if [ "$(cat "$environment/{stamp}" 2>/dev/null)" = "$stamp" ]; then
    cat >/dev/null
    exit 0
fi
box=$(mktemp -d)
trap 'rm -rf "$box"' EXIT
tar -x -C "$box"
rm -f "$environment/{stamp}" # from here on it is neither the old one nor the new
[ -x "$environment/bin/python" ] || "$interpreter" -m venv "$environment"
options="--no-input --disable-pip-version-check --quiet --constraint $box/lock.txt"
if [ "$offline" = yes ]; then options="$options --no-index"; fi
wheel=$(ls "$box"/project/*.whl)
# shellcheck disable=SC2086
"$environment/bin/python" -m pip install $options --find-links "$box" "$wheel$extras"
if [ -f "$box/setup.sh" ]; then PATH="$environment/bin:$PATH" sh -eu "$box/setup.sh"; fi
printf %s "$stamp" > "$environment/{stamp}"
"""


class Installation:
    """Built once, then `on` each machine."""

    def __init__(self, python: Python, lock: Mapping[str, str]) -> None:
        self._python = python
        with tempfile.TemporaryDirectory() as folder:
            wheel = _project_wheel(Path(folder))
            self._box, digest = _pack(wheel, python, lock)
        self._stamp = digest

    def on(self, machine: Machine) -> None:
        """At once where it is there already."""
        extras = f"[{','.join(self._python.extras)}]" if self._python.extras else ""
        done = machine.shell.run(
            [
                *("sh", "-c", _SCRIPT.format(stamp=STAMP), "install", machine.environment),
                *(self._python.interpreter, self._stamp, extras),
                "no" if self._python.wheels is None else "yes",
            ],
            stdin=self._box,
            timeout_seconds=INSTALL_SECONDS,
        )
        if done.code:
            raise RepertoryError(f"{machine.name}: the installation failed: {done.said}")


def checkout() -> Path | None:
    """The source tree that this runs from, if it does."""
    root = Path(__file__).parents[2]
    return root if (root / "pyproject.toml").is_file() else None


def _project_wheel(folder: Path) -> Path:
    root = checkout()
    version = importlib.metadata.version("repertory")
    source = f"repertory=={version}" if root is None else str(root)
    command = [*(sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet"), "-w", str(folder)]
    done = subprocess.run(
        [*command, source], capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise RepertoryError(f"no wheel of {source} could be made: {done.stderr.strip()[-300:]}")
    return wheels[0]


def _pack(wheel: Path, python: Python, lock: Mapping[str, str]) -> tuple[bytes, str]:
    """A tar of everything, and a name for its contents."""
    files = {f"project/{wheel.name}": wheel.read_bytes(), "lock.txt": as_constraints(lock).encode()}
    if python.setup:
        files["setup.sh"] = "".join(f"{line}\n" for line in python.setup).encode()
    digest = hashlib.sha256(json.dumps(python.extras).encode())
    digest.update(files["lock.txt"] + files.get("setup.sh", b""))
    with zipfile.ZipFile(wheel) as archive:  # its own bytes differ each time it is built
        for entry in archive.infolist():
            digest.update(f"{entry.filename} {entry.CRC}\n".encode())
    for path in sorted(python.wheels.glob("*.whl")) if python.wheels is not None else ():
        files[path.name] = path.read_bytes()
    return tar_of(files), digest.hexdigest()


def tar_of(files: Mapping[str, bytes], secrets: tuple[str, ...] = ()) -> bytes:
    """Secrets are for their owner alone."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o600 if name in secrets else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
