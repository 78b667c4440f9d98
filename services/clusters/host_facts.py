"""What a machine is like: sent to it as text and run by whatever Python 3 is there.

Imports nothing but the standard library, and does nothing but look. Prints one JSON object.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from typing import Any

PACKAGES = """
import importlib.metadata, json, sys
print(json.dumps({
    "python": list(sys.version_info[:3]),
    "packages": {
        (one.metadata["Name"] or "").lower().replace("_", "-").replace(".", "-"): one.version
        for one in importlib.metadata.distributions()
    },
}))
"""


def facts(question: dict[str, Any]) -> dict[str, Any]:
    folder = os.path.expanduser(question["folder"])
    there = _existing(folder)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    disk = shutil.disk_usage(there)
    return {
        "hostname": socket.gethostname(),
        "home": os.path.expanduser("~"),
        "time": time.time(),
        "python": list(sys.version_info[:3]),
        "interpreter": _interpreter(question["interpreter"]),
        "environment": _environment(os.path.expanduser(question["environment"])),
        "folder": folder,
        "writable": os.access(there, os.W_OK),
        "disk_bytes": disk.free,
        "shared_memory_bytes": shutil.disk_usage("/dev/shm").free,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "cores": len(os.sched_getaffinity(0)),
        "open_files": hard if hard != resource.RLIM_INFINITY else 2**31,
        "gpus": _gpus(),
        "kept": _is_kept(folder),
        "card": _card(folder),
        "taken_ports": [port for port in question["ports"] if _is_taken(question["address"], port)],
        "taken_here": [port for port in question["own_ports"] if _is_taken("127.0.0.1", port)],
        "has_address": _has_address(question["address"]),
    }


def _existing(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "/"
    return path


def _interpreter(command: str) -> list[int] | None:
    """The version of the Python that would make an environment."""
    path = shutil.which(os.path.expanduser(command))
    if path is None:
        return None
    try:
        answer = subprocess.run(
            [path, "-c", "import sys; print(*sys.version_info[:3])"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=20,
        )
        return [int(word) for word in answer.stdout.split()] or None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def _environment(path: str) -> Any:
    """What is installed in one that is there."""
    python = os.path.join(path, "bin", "python")
    if not os.path.exists(python):
        return None
    try:
        answer = subprocess.run(
            [python, "-I", "-c", PACKAGES],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
        return json.loads(answer.stdout.decode())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def _gpus() -> int:
    if shutil.which("nvidia-smi") is None:
        return 0
    try:
        answer = subprocess.run(
            ["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20
        )
        return len(answer.stdout.decode().strip().splitlines())
    except (OSError, subprocess.TimeoutExpired):
        return 0


def _is_kept(folder: str) -> bool:
    try:
        with open(os.path.join(folder, "lock"), "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    except OSError:
        pass
    return False


def _card(folder: str) -> Any:
    try:
        with open(os.path.join(folder, "node.json")) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def _is_taken(host: str, port: int) -> bool:
    return not _can_bind(host, port) if _has_address(host) else False


def _has_address(host: str) -> bool:
    return _can_bind(host, 0)


def _can_bind(host: str, port: int) -> bool:
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
            with socket.socket(family, kind) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.stdout.write(json.dumps(facts(json.loads(sys.argv[1]))))
