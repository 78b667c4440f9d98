"""DDPG in NumPy, from algorithm 1 of arXiv 1509.02971; the gradients are derived by hand.

The clip of the target and the penalty on actions are those of section 4.4 and appendix A of HER,
arXiv 1707.01495.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from reference.numpy_mlp import Adam, Array, Mlp, clip_by_norm, global_norm, polyak

from repertory.types import Sample


@dataclass
class DdpgReport:
    target: Array  # [B]
    priorities: Array  # [B]
    critic_loss: float
    critic_norm: float  # before clipping
    critic_gradients: list[Array]  # after clipping
    policy_loss: float
    policy_gradients: list[Array]  # after clipping


@dataclass
class DdpgReference:
    policy: Mlp
    critic: Mlp
    target_policy: Mlp
    target_critic: Mlp
    policy_lr: float
    critic_lr: float
    tau: float
    target_range: tuple[float, float] | None = None
    action_penalty: float = 0.0
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        self.policy_adam = Adam(self.policy_lr)
        self.critic_adam = Adam(self.critic_lr)

    def target(self, sample: Sample) -> Array:
        batch = sample.batch
        next_action = self.target_policy(batch.next_observation)
        next_q = self.target_critic(np.hstack([batch.next_observation, next_action]))[:, 0]
        y = np.array(
            [r + d * q for r, d, q in zip(batch.reward, batch.discount, next_q, strict=True)]
        )
        if self.target_range is None:
            return y
        low, high = self.target_range
        return np.array([min(max(value, low), high) for value in y])

    def update(self, sample: Sample) -> DdpgReport:
        batch, size = sample.batch, len(sample.batch)
        y = self.target(sample)
        trace = self.critic.forward(np.hstack([batch.observation, batch.action]))
        error = trace[-1][:, 0] - y
        loss = float(np.sum(sample.weights * error**2)) / size
        slope = 2 * sample.weights * error / size
        gradients, _ = self.critic.backward(trace, slope[:, None])
        norm = global_norm(gradients)
        gradients = clip_by_norm(gradients, self.max_grad_norm)
        self.critic_adam.step(self.critic.parameters, gradients)

        policy_loss, policy_gradients = self._policy_gradient(batch.observation)
        policy_gradients = clip_by_norm(policy_gradients, self.max_grad_norm)
        self.policy_adam.step(self.policy.parameters, policy_gradients)

        polyak(self.target_policy.parameters, self.policy.parameters, self.tau)
        polyak(self.target_critic.parameters, self.critic.parameters, self.tau)
        return DdpgReport(
            target=y,
            priorities=np.abs(error),
            critic_loss=loss,
            critic_norm=norm,
            critic_gradients=gradients,
            policy_loss=policy_loss,
            policy_gradients=policy_gradients,
        )

    def _policy_gradient(self, observation: Array) -> tuple[float, list[Array]]:
        """Of -1/B sum_j Q(s_j, mu(s_j)) + penalty 1/(B A) sum_ji mu_i(s_j)^2, by the new critic."""
        policy_trace = self.policy.forward(observation)
        action = policy_trace[-1]
        trace = self.critic.forward(np.hstack([observation, action]))
        _, d_input = self.critic.backward(trace, np.full_like(trace[-1], -1 / len(observation)))
        d_action = (
            d_input[:, observation.shape[1] :] + self.action_penalty * 2 * action / action.size
        )
        loss = -float(trace[-1].mean()) + self.action_penalty * float(np.mean(action**2))
        return loss, self.policy.backward(policy_trace, d_action)[0]
