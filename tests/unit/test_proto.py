"""The generated code is what the committed `replay.proto` says."""

from __future__ import annotations

from pathlib import Path

import pytest

from buffer_server.proto.generate import GENERATED, generate

pytest.importorskip("grpc_tools", reason="grpcio-tools is a development dependency")


def test_the_generated_code_does_not_drift(tmp_path: Path) -> None:
    committed = Path(generate.__code__.co_filename).parent
    fresh = generate(tmp_path)
    assert [path.name for path in fresh] == list(GENERATED)
    for path in fresh:
        assert path.read_text() == (committed / path.name).read_text(), (
            f"{path.name} is not what replay.proto says: run `make proto`"
        )
