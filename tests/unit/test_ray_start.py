"""Which of its own processes Ray starts for us."""

from __future__ import annotations

import pytest
from ray._private.node import Node

from services import cluster


@pytest.mark.parametrize("name", cluster.SPARED)
def test_nobody_is_started_who_has_nothing_to_do_here(name: str) -> None:
    starts = getattr(Node, name)  # another version of Ray may call it otherwise: then look again
    with cluster._few_servants():
        assert getattr(Node, name) is not starts
        assert getattr(Node, name)(None, include_dashboard=False) is None
    assert getattr(Node, name) is starts
