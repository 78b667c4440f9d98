"""How many threads torch gets in a learner's process, where `threads = auto`.

A learner that makes an update for every step keeps its actors waiting, and the cores they leave are
its own: on two cores an update of 2 x 256 networks on batches of 256 takes a bit more than half the
time with two threads. Small products gain nothing, and where actors work all the time the second
thread only takes their core. A local run has one, to be equal to the bit on any machine.
"""

from __future__ import annotations

import itertools
import os

from repertory.config import OffPolicyConfig, RunConfig

LARGE_PRODUCT = 8_000_000  # multiplications in a layer; below, threads cost more than they bring
LEARNING_MOST = 0.5  # updates per step, above which acting takes the smaller part of the time
MOST_THREADS = 4


def threads_of(config: RunConfig, learner: str, cores: int | None = None) -> int:
    """In a distributed run; `cores` of this machine where it is not said."""
    if config.threads != "auto":
        return config.threads
    own = config.learners[learner]
    if not isinstance(own, OffPolicyConfig) or own.updates_per_step < LEARNING_MOST:
        return 1
    widths = itertools.pairwise(own.hidden_sizes)
    largest = own.batch_size * max((before * after for before, after in widths), default=0)
    if largest < LARGE_PRODUCT:
        return 1
    cores = cores or len(os.sched_getaffinity(0))
    return max(1, min(MOST_THREADS, cores // len(config.learners)))


def local_threads(config: RunConfig) -> int:
    return 1 if config.threads == "auto" else config.threads
