"""A real control server, for the tests that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from repertory.control import Control
from services.embedded_redis import EmbeddedRedis


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    redis = EmbeddedRedis(tmp_path / "control")
    redis.start()
    yield redis
    redis.stop()


@pytest.fixture
def control(server: EmbeddedRedis) -> Iterator[Control]:
    control = Control(server.address, "run-1")
    yield control
    control.close()
