"""Plain torch loops in our own environment: `python -m benchmarks.peers.plain_learner`.

It also measures what the machine can do at most: matrix products of a case's size.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

import torch

from benchmarks.peers.plain_dqn import PlainDQN
from benchmarks.peers.plain_ppo import PlainPPO
from benchmarks.peers.plain_sac import PlainSAC
from benchmarks.peers.plain_td3 import PlainTD3
from benchmarks.peers.updates import UpdateJob, Updates, answer_updates

LEARNERS: dict[str, Callable[[UpdateJob], Updates]] = {
    "td3": PlainTD3,
    "sac": PlainSAC,
    "dqn": PlainDQN,
    "ppo": PlainPPO,
}
PRODUCTS_AT_ONCE = 50


class MatrixProducts:
    """[batch, width] x [width, width], where an update is one product."""

    def __init__(self, job: UpdateJob) -> None:
        width = job.hidden[-1]
        self._left = torch.randn(job.batch, width)
        self._right = torch.randn(width, width)
        self._out = torch.empty(job.batch, width)

    def run(self) -> int:
        for _ in range(PRODUCTS_AT_ONCE):
            torch.mm(self._left, self._right, out=self._out)
        return PRODUCTS_AT_ONCE


def build(job: UpdateJob) -> Updates:
    torch.set_num_threads(job.threads)
    torch.manual_seed(0)
    if job.algorithm == "matrix product":
        return MatrixProducts(job)
    return LEARNERS[job.algorithm](job)


def versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("torch", "numpy")}


if __name__ == "__main__":
    answer_updates(build, versions)
