"""Between our stochastic policy and the NumPy distributions: the same one on both sides."""

from __future__ import annotations

import numpy as np
from reference.from_torch import linear_gradients, linear_parameters, mlp_of
from reference.numpy_mlp import Array
from reference.ppo import CategoricalsReference, Distribution, GaussianReference, Segments

from repertory.policies.stochastic import StochasticPolicy


def distribution_of(policy: StochasticPolicy) -> Distribution:
    network = mlp_of(policy, "tanh")
    if policy.log_std is None:
        return CategoricalsReference(network, policy.spec.action_sizes)
    return GaussianReference(network, policy.log_std.detach().numpy().copy())


def policy_parameters(policy: StochasticPolicy) -> list[Array]:
    """In the order of the reference: the layers, then the free deviations."""
    free = [] if policy.log_std is None else [policy.log_std.detach().numpy()]
    return [*linear_parameters(policy), *free]


def policy_gradients(policy: StochasticPolicy) -> list[Array]:
    free = [] if policy.log_std is None else [policy.log_std.grad.numpy()]
    return [*linear_gradients(policy), *free]


def played(policy: StochasticPolicy, rows: int, steps: int, seed: int) -> Segments:
    """Segments that the policy itself acted in, through `act`, as an actor records them: float32.

    Vectors far from 0, or images of noise.
    """
    rng = np.random.default_rng(seed)
    shape = (rows, steps, *policy.spec.observation_shape)

    def seen() -> Array:
        if policy.spec.observation_kind == "pixels":
            return rng.integers(0, 256, size=shape, dtype=np.uint8)
        return rng.normal(loc=3.0, scale=5.0, size=shape).astype(np.float32)

    observation = seen()
    acted = [policy.act(observation[:, t], rng) for t in range(steps)]
    return Segments(
        observation=observation,
        next_observation=seen(),
        action=np.stack([a.extras["policy_action"] for a in acted], axis=1),
        log_prob=np.stack([a.extras["log_prob"] for a in acted], axis=1),
        reward=rng.normal(size=(rows, steps)).astype(np.float32),
        discount=np.full((rows, steps), 0.9, np.float32),
        boundary=np.zeros((rows, steps), bool),
    )
