"""VPG and actor-critic in NumPy: REINFORCE's gradient by hand, with two ways to get advantages.

VPG as Spinning Up's pseudocode has it; actor-critic as the CS285 exercise describes it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np
from reference.natural_gradient import mean_kl
from reference.numpy_mlp import Adam, Array, Mlp, clip_by_norm
from reference.ppo import Distribution, PpoReference, Segments


@dataclass
class PolicyStep:
    """theta <- Adam(theta, -1/N sum A grad log pi(a|s)), and what it changed."""

    policy: Distribution
    lr: float
    normalize_advantage: bool = True
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        self.adam = Adam(self.lr)

    def __call__(self, observation: Array, action: Array, advantage: Array) -> None:
        if self.normalize_advantage:
            advantage = (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)
        size, old = len(advantage), copy.deepcopy(self.policy)
        self.loss = self._loss(observation, action, advantage)
        self.entropy = float(self.policy.entropy(observation).mean())
        gradients = self.policy.backward(observation, action, -advantage / size, np.zeros(size))
        self.gradients = clip_by_norm(gradients, self.max_grad_norm)
        self.adam.step(self.policy.parameters, self.gradients)
        self.loss_change = self._loss(observation, action, advantage) - self.loss
        self.kl = mean_kl(old, self.policy, observation)

    def _loss(self, observation: Array, action: Array, advantage: Array) -> float:
        return -float(np.mean(self.policy.log_prob(observation, action) * advantage))


@dataclass
class VpgReference:
    step: PolicyStep
    base: PpoReference  # its advantages and its regression of V

    def iterate(self, segments: Segments, value_steps: int) -> None:
        observation, action, _, advantage, value_target = self.base.flatten(segments)
        self.step(observation, action, advantage)
        self.base.value_losses.clear()
        for _ in range(value_steps):
            gradients = self.base.value_gradient(observation, value_target)
            self.base.value_adam.step(
                self.base.value.parameters, clip_by_norm(gradients, self.base.max_grad_norm)
            )


@dataclass
class ActorCriticReference:
    step: PolicyStep
    value: Mlp
    value_lr: float
    rho_clip: float | None = None  # where the segments are stale
    max_grad_norm: float | None = None
    value_losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.value_adam = Adam(self.value_lr)

    def iterate(self, segments: Segments, target_updates: int, gradient_steps: int) -> None:
        rows, steps = segments.reward.shape

        def flat(column: Array) -> Array:
            return column.reshape(rows * steps, *column.shape[2:])

        observation, action = flat(segments.observation), flat(segments.action)
        reward, discount = flat(segments.reward), flat(segments.discount)
        following = flat(segments.next_observation)
        rho = np.ones(rows * steps)
        if self.rho_clip is not None:
            now = np.exp(self.step.policy.log_prob(observation, action))
            rho = np.minimum(self.rho_clip, now / np.exp(flat(segments.log_prob)))

        def difference() -> tuple[Array, Array]:
            """V(s), and rho (r + discount V(s') - V(s))."""
            value = self.value(observation)[:, 0]
            return value, rho * (reward + discount * self.value(following)[:, 0] - value)

        self.value_losses.clear()
        for _ in range(target_updates):
            value, delta = difference()
            target = value + delta
            for _ in range(gradient_steps):
                trace = self.value.forward(observation)
                error = trace[-1][:, 0] - target
                self.value_losses.append(float(np.mean(error**2)))
                gradients, _ = self.value.backward(trace, (2 * error / len(error))[:, None])
                self.value_adam.step(
                    self.value.parameters, clip_by_norm(gradients, self.max_grad_norm)
                )
        self.advantage = difference()[1]
        self.step(observation, action, self.advantage)
