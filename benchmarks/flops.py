"""How many multiplications and additions one update takes: only matrix products, each counted once
and as such (see `learner/compiler/gates.py`), nothing recomputed and no gradient that nobody reads.

Passing a batch of B rows through a layer of n inputs and m outputs is 2 B n m. The gradient of its
weights is as much again, and so is that of its inputs, which the first layer of a network does not
need unless something before it learns.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from benchmarks.peers.updates import UpdateJob

POLICY_PERIOD = 2  # TD3's: critic updates per policy update


def forward(batch: int, sizes: Sequence[int]) -> float:
    return 2.0 * batch * sum(n * m for n, m in itertools.pairwise(sizes))


def inputs_backward(batch: int, sizes: Sequence[int], *, wanted_inputs: int = 0) -> float:
    """Through all layers, down to so many inputs of the first."""
    return forward(batch, sizes[1:]) + 2.0 * batch * wanted_inputs * sizes[1]


def training(batch: int, sizes: Sequence[int]) -> float:
    """Forward, and the gradients of all weights."""
    return 2 * forward(batch, sizes) + inputs_backward(batch, sizes)


def of_update(job: UpdateJob) -> float:
    batch, observation, action = job.batch, job.observation_size, job.action_size
    critic = [observation + action, *job.hidden, 1]
    if job.algorithm == "td3":
        policy = [observation, *job.hidden, action]
        targets = forward(batch, policy) + 2 * forward(batch, critic)
        through_critic = forward(batch, critic) + inputs_backward(
            batch, critic, wanted_inputs=action
        )
        policy_update = training(batch, policy) + through_critic
        return targets + 2 * training(batch, critic) + policy_update / POLICY_PERIOD
    if job.algorithm == "sac":
        policy = [observation, *job.hidden, 2 * action]
        targets = forward(batch, policy) + 2 * forward(batch, critic)
        through_critics = 2 * (
            forward(batch, critic) + inputs_backward(batch, critic, wanted_inputs=action)
        )
        return targets + 2 * training(batch, critic) + training(batch, policy) + through_critics
    if job.algorithm == "dqn":
        q = [observation, *job.hidden, action]
        return forward(batch, q) + training(batch, q)
    if job.algorithm == "ppo":
        policy, value = [observation, *job.hidden, action], [observation, *job.hidden, 1]
        return training(batch, policy) + training(batch, value)
    raise ValueError(f"no count for {job.algorithm}: write one in {__name__}")
