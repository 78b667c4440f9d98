"""Option-Critic in NumPy, from arXiv 1609.05140, with truncated importance ratios for the policies.

The gradient of the sum of its three losses, by hand, through one shared torso.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from reference.numpy_mlp import Adam, Array, Mlp, clip_by_norm, global_norm, polyak

from repertory.types import Sample


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


@dataclass
class Network:
    torso: Mlp
    q: Mlp
    termination: Mlp
    intra_option: Mlp  # [B, W * P]
    log_std: Array | None  # [W, A] of Gaussian options

    @property
    def parameters(self) -> list[Array]:
        """Torso and heads in turn, each [W0, b0, ...]; then the deviations."""
        parts = (self.torso, self.q, self.termination, self.intra_option)
        free = [] if self.log_std is None else [self.log_std]
        return [p for part in parts for p in part.parameters] + free


@dataclass
class Report:
    target: Array
    priorities: Array
    critic_loss: float
    policy_loss: float
    termination_loss: float
    norm: float
    gradients: list[Array]  # after clipping, in the order of `Network.parameters`


@dataclass
class OptionCriticReference:
    online: Network
    frozen: Network
    options: int
    lr: float
    tau: float
    target_period: int
    margin: float
    entropy_coefficient: float
    rho_clip: float | None
    max_grad_norm: float | None
    updates: int = 0

    def __post_init__(self) -> None:
        self.adam = Adam(self.lr)

    def target(self, sample: Sample) -> Array:
        batch, net = sample.batch, self.frozen
        features = net.torso(batch.next_observation)
        q, ending = net.q(features), sigmoid(net.termination(features))
        y = []
        for row, option in enumerate(batch.extras["option"]):
            w = max(option - 1, 0)
            b = ending[row, w]
            arrival = (1 - b) * q[row, w] + b * max(q[row])
            y.append(batch.reward[row] + batch.discount[row] * arrival)
        return np.array(y)

    def update(self, sample: Sample) -> Report:
        batch, net = sample.batch, self.online
        size, rows = len(batch), np.arange(len(batch))
        option = batch.extras["option"]
        w, weight = np.maximum(option - 1, 0), sample.weights * (option > 0) / size
        y = self.target(sample)

        trace = net.torso.forward(batch.observation)
        features = trace[-1]
        q_trace, pi_trace = net.q.forward(features), net.intra_option.forward(features)
        q = q_trace[-1][rows, w]
        advantage = y - q
        log_prob, entropy, d_log_prob, d_entropy, std_gradient = self._policy(
            pi_trace[-1].reshape(size, self.options, -1)[rows, w], batch.extras["policy_action"], w
        )
        rho = np.ones(size)
        if self.rho_clip is not None:
            rho = np.minimum(self.rho_clip, np.exp(log_prob - batch.extras["log_prob"]))

        critic_loss = float(np.sum(weight * 0.5 * advantage**2))
        policy_loss = -float(
            np.sum(weight * (rho * log_prob * advantage + self.entropy_coefficient * entropy))
        )
        d_q = np.zeros_like(q_trace[-1])
        d_q[rows, w] = -weight * advantage
        d_pi = np.zeros((size, self.options, d_log_prob.shape[1]))
        d_pi[rows, w] = -(
            (weight * rho * advantage)[:, None] * d_log_prob
            + (weight * self.entropy_coefficient)[:, None] * d_entropy
        )
        q_gradients, d_features = net.q.backward(q_trace, d_q)
        pi_gradients, more = net.intra_option.backward(pi_trace, d_pi.reshape(size, -1))
        torso_gradients, _ = net.torso.backward(trace, d_features + more)

        next_trace = net.torso.forward(batch.next_observation)
        b_trace = net.termination.forward(next_trace[-1])
        b = sigmoid(b_trace[-1])[rows, w]
        next_q = net.q(next_trace[-1])
        cost = (next_q[rows, w] - next_q.max(1) + self.margin) * (batch.discount > 0)
        termination_loss = float(np.sum(weight * b * cost))
        d_b = np.zeros_like(b_trace[-1])
        d_b[rows, w] = weight * cost * b * (1 - b)
        b_gradients, d_next = net.termination.backward(b_trace, d_b)
        next_gradients, _ = net.torso.backward(next_trace, d_next)

        gradients = [one + two for one, two in zip(torso_gradients, next_gradients, strict=True)]
        gradients += q_gradients + b_gradients + pi_gradients
        if net.log_std is not None:
            gradients.append(
                std_gradient(weight * rho * advantage, weight * self.entropy_coefficient)
            )
        norm = global_norm(gradients)
        gradients = clip_by_norm(gradients, self.max_grad_norm)
        self.adam.step(net.parameters, gradients)
        self.updates += 1
        if self.updates % self.target_period == 0:
            polyak(self.frozen.parameters, net.parameters, self.tau)
        return Report(
            y, np.abs(advantage), critic_loss, policy_loss, termination_loss, norm, gradients
        )

    def _policy(self, parameters: Array, action: Array, w: Array):
        """log pi, its entropy, their slopes in `parameters` [B, P]; and, for Gaussians, a function
        from the weights [B] of both to the gradient of the log deviations.
        """
        rows = np.arange(len(parameters))
        if self.online.log_std is None:
            exp = np.exp(parameters - parameters.max(1, keepdims=True))
            p = exp / exp.sum(1, keepdims=True)
            entropy = -(p * np.log(p)).sum(1)
            d_log_prob = -p.copy()
            d_log_prob[rows, action] += 1
            d_entropy = -p * (np.log(p) + entropy[:, None])
            return np.log(p[rows, action]), entropy, d_log_prob, d_entropy, None
        log_std = self.online.log_std[w]
        std = np.exp(log_std)
        z = (action - parameters) / std
        log_prob = (-0.5 * z**2 - np.log(std * np.sqrt(2 * np.pi))).sum(1)
        entropy = (np.log(std) + 0.5 * np.log(2 * np.pi * np.e)).sum(1)

        def std_gradient(policy_weight: Array, entropy_weight: Array) -> Array:
            gradient = np.zeros_like(self.online.log_std)
            for row in rows:  # d log pi / d log std = z^2 - 1, d H / d log std = 1
                gradient[w[row]] -= policy_weight[row] * (z[row] ** 2 - 1) + entropy_weight[row]
            return gradient

        return log_prob, entropy, z / std, np.zeros_like(z), std_gradient
