"""Makes `replay_pb2.py`, its stub and `replay_pb2_grpc.py` from `replay.proto`.

    python -m buffer_server.proto.generate [DIRECTORY]

Without a directory the committed files are replaced. A test generates into another place and
compares. Needs grpcio-tools, a development dependency, which brings its own protoc.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROTO = "buffer_server/proto/replay.proto"  # from there, so that generated imports are ours
GENERATED = ("replay_pb2.py", "replay_pb2.pyi", "replay_pb2_grpc.py")


def generate(directory: Path) -> list[Path]:
    """The generated files, under `directory`/buffer_server/proto."""
    kinds = [f"--{kind}_out={directory}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{REPOSITORY}", *kinds, PROTO]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=60)
    return [directory / Path(PROTO).parent / name for name in GENERATED]


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY)
