"""TD3 in NumPy, from algorithm 1 of arXiv 1802.09477; the gradients are derived by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from reference.numpy_mlp import Adam, Array, Mlp, clip_by_norm, global_norm, polyak

from repertory.types import Sample


@dataclass
class Td3Report:
    target: Array  # [B]
    priorities: Array  # [B]
    critic_loss: float
    critic_norm: float  # before clipping
    critic_gradients: tuple[list[Array], list[Array]]  # after clipping, one list a critic
    policy_loss: float | None = None
    policy_gradients: list[Array] | None = None  # after clipping


@dataclass
class Td3Reference:
    policy: Mlp
    critics: tuple[Mlp, Mlp]
    target_policy: Mlp
    target_critics: tuple[Mlp, Mlp]
    lr: float
    tau: float
    target_noise: float
    target_noise_clip: float
    policy_period: int
    max_grad_norm: float | None = None
    updates: int = 0

    def __post_init__(self) -> None:
        self.policy_adam = Adam(self.lr)
        self.critic_adam = Adam(self.lr)

    def smoothed_action(self, next_observation: Array, noise: Array) -> Array:
        """a~ = clip(mu'(s') + epsilon, -1, 1), epsilon ~ clip(N(0, sigma), -c, c)."""
        epsilon = np.clip(
            self.target_noise * noise, -self.target_noise_clip, self.target_noise_clip
        )
        return np.clip(self.target_policy(next_observation) + epsilon, -1, 1)

    def target(self, sample: Sample, noise: Array) -> Array:
        batch = sample.batch
        action = self.smoothed_action(batch.next_observation, noise)
        first, second = (
            q(np.hstack([batch.next_observation, action]))[:, 0] for q in self.target_critics
        )
        return batch.reward + batch.discount * np.minimum(first, second)

    def update(self, sample: Sample, noise: Array) -> Td3Report:
        batch, size = sample.batch, len(sample.batch)
        y = self.target(sample, noise)
        loss, errors, gradients = 0.0, [], []
        for critic in self.critics:  # L = 1/B sum_j w_j (Q(s_j, a_j) - y_j)^2
            trace = critic.forward(np.hstack([batch.observation, batch.action]))
            error = trace[-1][:, 0] - y
            loss += float(np.sum(sample.weights * error**2)) / size
            errors.append(error)
            slope = 2 * sample.weights * error / size
            gradients += critic.backward(trace, slope[:, None])[0]
        norm = global_norm(gradients)  # both critics have one optimiser, so one norm
        gradients = clip_by_norm(gradients, self.max_grad_norm)
        first, second = self.critics
        self.critic_adam.step(first.parameters + second.parameters, gradients)
        half = len(first.parameters)
        report = Td3Report(
            target=y,
            priorities=(np.abs(errors[0]) + np.abs(errors[1])) / 2,
            critic_loss=loss,
            critic_norm=norm,
            critic_gradients=(gradients[:half], gradients[half:]),
        )
        self.updates += 1
        if self.updates % self.policy_period == 0:
            self._policy_update(batch.observation, report)
        return report

    def _policy_update(self, observation: Array, report: Td3Report) -> None:
        """Ascends 1/B sum Q_1(s, mu(s)) by the chain rule dQ/da dmu/dtheta."""
        policy_trace = self.policy.forward(observation)
        critic = self.critics[0]
        trace = critic.forward(np.hstack([observation, policy_trace[-1]]))
        report.policy_loss = -float(trace[-1].mean())
        _, d_input = critic.backward(trace, np.full_like(trace[-1], -1 / len(observation)))
        d_action = d_input[:, observation.shape[1] :]
        gradients, _ = self.policy.backward(policy_trace, d_action)
        report.policy_gradients = clip_by_norm(gradients, self.max_grad_norm)
        self.policy_adam.step(self.policy.parameters, report.policy_gradients)
        polyak(self.target_policy.parameters, self.policy.parameters, self.tau)
        for target, source in zip(self.target_critics, self.critics, strict=True):
            polyak(target.parameters, source.parameters, self.tau)
