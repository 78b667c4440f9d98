"""SAC-discrete in NumPy, from equations 10 to 12 of arXiv 1910.07207; gradients by hand.

As the author's code, and ours: the temperature's gradient is taken of -log_alpha (log pi + H), and
all three losses of one update use the temperature the update began with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from reference.numpy_mlp import Adam, Array, Mlp, clip_by_norm, global_norm, polyak

from repertory.types import Sample


@dataclass
class SacDiscreteReport:
    target: Array  # [B]
    priorities: Array  # [B]
    critic_loss: float
    critic_norm: float  # before clipping
    critic_gradients: tuple[list[Array], list[Array]]  # after clipping, one list a critic
    policy_loss: float
    policy_gradients: list[Array]  # after clipping
    entropy: float
    alpha: float  # of this update
    alpha_loss: float | None


def probabilities(logits: Array) -> Array:
    """Softmax of each row, one by one."""
    rows = []
    for row in logits:
        weights = np.exp(row - row.max())
        rows.append(weights / weights.sum())
    return np.array(rows)


@dataclass
class SacDiscreteReference:
    policy: Mlp  # to logits
    critics: tuple[Mlp, Mlp]
    target_critics: tuple[Mlp, Mlp]
    alpha: float
    learn_alpha: bool
    target_entropy: float
    lr: float
    tau: float
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        self.policy_adam = Adam(self.lr)
        self.critic_adam = Adam(self.lr)
        self.alpha_adam = Adam(self.lr)
        self.log_alpha = np.array(np.log(self.alpha))

    def target(self, sample: Sample) -> Array:
        """y = r + discount sum_a pi(a|s') (min_i Q'_i(s', a) - alpha log pi(a|s'))."""
        batch, alpha = sample.batch, float(np.exp(self.log_alpha))
        pi = probabilities(self.policy(batch.next_observation))
        first, second = (q(batch.next_observation) for q in self.target_critics)
        y = []
        for row in range(len(batch)):
            value = 0.0
            for action, probability in enumerate(pi[row]):
                q = min(first[row, action], second[row, action])
                value += probability * (q - alpha * np.log(probability))
            y.append(batch.reward[row] + batch.discount[row] * value)
        return np.array(y)

    def update(self, sample: Sample) -> SacDiscreteReport:
        batch, size, alpha = sample.batch, len(sample.batch), float(np.exp(self.log_alpha))
        rows = np.arange(size)
        y = self.target(sample)

        q_loss, errors, gradients = 0.0, [], []
        for critic in self.critics:  # J = 1/B sum_j w_j 1/2 (Q(s_j, a_j) - y_j)^2
            trace = critic.forward(batch.observation)
            error = trace[-1][rows, batch.action] - y
            q_loss += 0.5 * float(np.sum(sample.weights * error**2)) / size
            errors.append(error)
            d_q = np.zeros_like(trace[-1])
            d_q[rows, batch.action] = sample.weights * error / size
            gradients += critic.backward(trace, d_q)[0]
        norm = global_norm(gradients)
        gradients = clip_by_norm(gradients, self.max_grad_norm)
        first, second = self.critics
        self.critic_adam.step(first.parameters + second.parameters, gradients)
        half = len(first.parameters)

        pi = probabilities(self.policy(batch.observation))
        entropy = -float((pi * np.log(pi)).sum(1).mean())
        pi_loss, policy_gradients = self._policy_gradient(batch.observation, alpha)
        policy_gradients = clip_by_norm(policy_gradients, self.max_grad_norm)
        self.policy_adam.step(self.policy.parameters, policy_gradients)

        alpha_loss = None
        if self.learn_alpha:  # sum_a pi (log pi + H) is H minus the entropy
            excess = self.target_entropy - entropy
            alpha_loss = float(-self.log_alpha * excess)
            self.alpha_adam.step([self.log_alpha], [np.array(-excess)])
        for target, source in zip(self.target_critics, self.critics, strict=True):
            polyak(target.parameters, source.parameters, self.tau)
        return SacDiscreteReport(
            target=y,
            priorities=(np.abs(errors[0]) + np.abs(errors[1])) / 2,
            critic_loss=q_loss,
            critic_norm=norm,
            critic_gradients=(gradients[:half], gradients[half:]),
            policy_loss=pi_loss,
            policy_gradients=policy_gradients,
            entropy=entropy,
            alpha=alpha,
            alpha_loss=alpha_loss,
        )

    def _policy_gradient(self, observation: Array, alpha: float) -> tuple[float, list[Array]]:
        """J = 1/B sum_j f_j, f = sum_a pi_a c_a with c_a = alpha log pi_a - min_i Q_i(s, a).

        With dpi_a/dz_b = pi_a (1{a = b} - pi_b) for logits z, df/dz_b = pi_b (c_b - f): the part of
        alpha log pi sums to alpha (pi_b - pi_b) = 0.
        """
        trace = self.policy.forward(observation)
        pi = probabilities(trace[-1])
        q = np.minimum(self.critics[0](observation), self.critics[1](observation))
        cost = alpha * np.log(pi) - q
        value = (pi * cost).sum(1, keepdims=True)
        d_logits = pi * (cost - value) / len(observation)
        return float(value.mean()), self.policy.backward(trace, d_logits)[0]
