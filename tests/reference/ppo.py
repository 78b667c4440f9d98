"""PPO in NumPy, from arXiv 1707.06347, with GAE by its double sum (arXiv 1506.02438, equation 16).

Both ways to run over the data: shuffled minibatches (as SB3) and full-batch steps (as Spinning Up).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from reference.numpy_mlp import Adam, Array, Mlp, clip_by_norm, global_norm


def advantage_by_double_sum(
    reward: Array, discount: Array, boundary: Array, value: Array, next_value: Array, lambda_: float
) -> Array:
    """A_t = sum_l (prod_{k<l} discount_{t+k} lambda) delta_{t+l}, to the episode's or row's end."""
    rows, steps = reward.shape
    advantage = np.zeros((rows, steps))
    for row in range(rows):
        for t in range(steps):
            factor = 1.0
            for later in range(t, steps):
                delta = (
                    reward[row, later]
                    + discount[row, later] * next_value[row, later]
                    - value[row, later]
                )
                advantage[row, t] += factor * delta
                if boundary[row, later]:
                    break
                factor *= discount[row, later] * lambda_
    return advantage


def v_trace_by_products(
    reward: Array,
    discount: Array,
    boundary: Array,
    value: Array,
    next_value: Array,
    lambda_: float,
    ratio: Array,
    rho_clip: float,
    c_clip: float,
) -> Array:
    """arXiv 1802.01561, equation 1, with c_i times lambda, minus V(s_t):

    sum_l (prod_{t<=i<l} discount_i lambda c_i) rho_l delta_l, to the episode's or row's end.
    """
    rows, steps = reward.shape
    advantage = np.zeros((rows, steps))
    for row in range(rows):
        for t in range(steps):
            ends = np.flatnonzero(boundary[row, t:])
            stop = t + ends[0] + 1 if len(ends) else steps
            for later in range(t, stop):
                c = np.minimum(c_clip, ratio[row, t:later])
                trace = np.prod(discount[row, t:later] * lambda_ * c)
                target = reward[row, later] + discount[row, later] * next_value[row, later]
                rho = min(rho_clip, ratio[row, later])
                advantage[row, t] += trace * rho * (target - value[row, later])
    return advantage


class Distribution(Protocol):
    """pi(.|s): what PPO asks of it, and the gradients it can be asked to pull back."""

    @property
    def parameters(self) -> list[Array]: ...

    def log_prob(self, observation: Array, action: Array) -> Array: ...

    def entropy(self, observation: Array) -> Array: ...

    def backward(
        self, observation: Array, action: Array, d_log_prob: Array, d_entropy: Array
    ) -> list[Array]: ...


@dataclass
class GaussianReference:
    network: Mlp  # s -> mean
    log_std: Array  # [A], free of s

    @property
    def parameters(self) -> list[Array]:
        return [*self.network.parameters, self.log_std]

    def log_prob(self, observation: Array, action: Array) -> Array:
        std = np.exp(self.log_std)
        density = np.exp(-((action - self.network(observation)) ** 2) / (2 * std**2))
        return np.log(density / (std * np.sqrt(2 * np.pi))).sum(-1)

    def entropy(self, observation: Array) -> Array:
        """log(std sqrt(2 pi e)) for each dimension."""
        each = np.log(np.exp(self.log_std) * np.sqrt(2 * np.pi * np.e))
        return np.full(len(observation), each.sum())

    def backward(
        self, observation: Array, action: Array, d_log_prob: Array, d_entropy: Array
    ) -> list[Array]:
        """d log p/dm = (a - m)/std^2, d log p/dl = (a - m)^2/std^2 - 1, dH/dl = 1."""
        trace = self.network.forward(observation)
        distance = action - trace[-1]
        variance = np.exp(2 * self.log_std)
        d_mean = d_log_prob[:, None] * distance / variance
        d_log_std = (d_log_prob[:, None] * (distance**2 / variance - 1)).sum(0) + d_entropy.sum()
        return [*self.network.backward(trace, d_mean)[0], d_log_std]


@dataclass
class CategoricalsReference:
    """One or several independent categoricals, their logits side by side."""

    network: Mlp
    sizes: Sequence[int]

    @property
    def parameters(self) -> list[Array]:
        return self.network.parameters

    def _probabilities(self, logits: Array) -> list[Array]:
        parts = np.split(logits, np.cumsum(self.sizes)[:-1], axis=1)
        exponentials = [np.exp(part) for part in parts]
        return [e / e.sum(1, keepdims=True) for e in exponentials]

    def _columns(self, action: Array) -> list[Array]:
        return [action] if action.ndim == 1 else list(action.T)

    def log_prob(self, observation: Array, action: Array) -> Array:
        rows = np.arange(len(observation))
        probabilities = self._probabilities(self.network(observation))
        joint = np.ones(len(rows))
        for p, column in zip(probabilities, self._columns(action), strict=True):
            joint = joint * p[rows, column]
        return np.log(joint)

    def entropy(self, observation: Array) -> Array:
        probabilities = self._probabilities(self.network(observation))
        return -sum((p * np.log(p)).sum(1) for p in probabilities)

    def backward(
        self, observation: Array, action: Array, d_log_prob: Array, d_entropy: Array
    ) -> list[Array]:
        """d log p_a/dz_b = 1{a = b} - p_b and dH/dz_b = -p_b (log p_b + H)."""
        trace = self.network.forward(observation)
        rows, d_logits = np.arange(len(observation)), []
        for p, column in zip(self._probabilities(trace[-1]), self._columns(action), strict=True):
            chosen = np.zeros_like(p)
            chosen[rows, column] = 1
            entropy = -(p * np.log(p)).sum(1, keepdims=True)
            d_logits.append(
                d_log_prob[:, None] * (chosen - p) + d_entropy[:, None] * -p * (np.log(p) + entropy)
            )
        return self.network.backward(trace, np.hstack(d_logits))[0]


@dataclass
class Segments:
    """Columns [B, T, ...] of what one policy did."""

    observation: Array
    next_observation: Array
    action: Array
    log_prob: Array
    reward: Array
    discount: Array
    boundary: Array


@dataclass
class PpoReference:
    policy: Distribution
    value: Mlp
    clip: float
    gae_lambda: float
    lr: float
    entropy_coefficient: float = 0.0
    normalize_advantage: bool = True
    max_grad_norm: float | None = None
    value_coefficient: float = 0.5
    value_lr: float = 1e-3
    target_kl: float | None = None
    v_trace_clips: tuple[float, float] | None = None  # rho and c, where the segments are stale
    policy_losses: list[float] = field(default_factory=list)  # at every evaluation, in order
    value_losses: list[float] = field(default_factory=list)
    kls: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.adam = Adam(self.lr)
        self.value_adam = Adam(self.value_lr)

    def flatten(self, segments: Segments) -> tuple[Array, Array, Array, Array, Array]:
        """Observation, action, old log density, advantage, value target; one row a step."""
        rows, steps = segments.reward.shape

        def flat(column: Array) -> Array:
            return column.reshape(rows * steps, *column.shape[2:])

        value, next_value = (
            self.value(flat(column))[:, 0].reshape(rows, steps)
            for column in (segments.observation, segments.next_observation)
        )
        columns = (
            segments.reward,
            segments.discount,
            segments.boundary,
            value,
            next_value,
            self.gae_lambda,
        )
        old = flat(segments.log_prob)
        if self.v_trace_clips is None:
            advantage = advantage_by_double_sum(*columns)
        else:
            now = self.policy.log_prob(flat(segments.observation), flat(segments.action))
            ratio = (np.exp(now) / np.exp(old)).reshape(rows, steps)
            advantage = v_trace_by_products(*columns, ratio, *self.v_trace_clips)
            old = now
        return (
            flat(segments.observation),
            flat(segments.action),
            old,
            flat(advantage),
            flat(advantage + value),
        )

    def policy_gradient(
        self, observation: Array, action: Array, old: Array, advantage: Array
    ) -> list[Array]:
        """Of -E[min(r A, clip(r) A)] - c E[H]; loss and KL estimate are noted down.

        The minimum is constant in theta exactly where clipping made it smaller: r > 1 + c with
        A > 0, or r < 1 - c with A < 0. Elsewhere it is r A, and dr = r d log pi.
        """
        size = len(advantage)
        if self.normalize_advantage and size > 1:
            advantage = (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)
        ratio = np.exp(self.policy.log_prob(observation, action) - old)
        clipped = np.clip(ratio, 1 - self.clip, 1 + self.clip)
        self.policy_losses.append(-float(np.minimum(ratio * advantage, clipped * advantage).mean()))
        self.kls.append(float((ratio - 1 - np.log(ratio)).mean()))
        constant = ((ratio > 1 + self.clip) & (advantage > 0)) | (
            (ratio < 1 - self.clip) & (advantage < 0)
        )
        d_log_prob = np.where(constant, 0.0, -ratio * advantage / size)
        d_entropy = np.full(size, -self.entropy_coefficient / size)
        return self.policy.backward(observation, action, d_log_prob, d_entropy)

    def value_gradient(self, observation: Array, value_target: Array) -> list[Array]:
        trace = self.value.forward(observation)
        error = trace[-1][:, 0] - value_target
        self.value_losses.append(float(np.mean(error**2)))
        return self.value.backward(trace, (2 * error / len(error))[:, None])[0]

    def minibatches(self, segments: Segments, epochs: Sequence[Sequence[Array]]) -> int:
        """`epochs` holds the index arrays of every epoch. Returns the epoch it stopped at."""
        columns = self.flatten(segments)
        for epoch, indices in enumerate(epochs):
            for index in indices:
                observation, action, old, advantage, value_target = (c[index] for c in columns)
                gradients = self.policy_gradient(observation, action, old, advantage)
                if self.target_kl is not None and self.kls[-1] > 1.5 * self.target_kl:
                    return epoch
                gradients += [
                    self.value_coefficient * g
                    for g in self.value_gradient(observation, value_target)
                ]
                self.last_norm = global_norm(gradients)
                self.last_gradients = clip_by_norm(gradients, self.max_grad_norm)
                self.adam.step(self.policy.parameters + self.value.parameters, self.last_gradients)
        return len(epochs)

    def full_batch(self, segments: Segments, policy_steps: int, value_steps: int) -> int:
        """Returns the policy step it stopped at."""
        observation, action, old, advantage, value_target = self.flatten(segments)
        stopped = policy_steps
        for step in range(policy_steps):
            gradients = self.policy_gradient(observation, action, old, advantage)
            if self.kls[-1] > 1.5 * (0.01 if self.target_kl is None else self.target_kl):
                stopped = step
                break
            self.adam.step(self.policy.parameters, clip_by_norm(gradients, self.max_grad_norm))
        for _ in range(value_steps):
            gradients = self.value_gradient(observation, value_target)
            self.value_adam.step(self.value.parameters, clip_by_norm(gradients, self.max_grad_norm))
        return stopped
