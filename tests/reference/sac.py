"""SAC in NumPy, from arXiv 1801.01290 (fixed temperature) and 1812.05905 (learned temperature).

As the authors' code, and ours: the temperature's gradient is taken of -log_alpha (log pi + H), and
all three losses of one update use the temperature the update began with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from reference.numpy_mlp import Adam, Array, Mlp, clip_by_norm, global_norm, polyak

from repertory.types import Sample

LOG_STD_BOUNDS = (-20.0, 2.0)


@dataclass
class SacReport:
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


def gaussian_parameters(policy: Mlp, observation: Array) -> tuple[Array, Array]:
    mean, raw_log_std = np.split(policy(observation), 2, axis=1)
    return mean, np.clip(raw_log_std, *LOG_STD_BOUNDS)


def squashed_log_density(u: Array, mean: Array, std: Array) -> Array:
    """log pi(tanh(u)) [B] by change of variables: p(a) = N(u) du/da, and du/da = cosh(u)^2."""
    log_normal = -0.5 * ((u - mean) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi))
    return (log_normal + 2 * np.log(np.cosh(u))).sum(-1)


@dataclass
class SacReference:
    policy: Mlp
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

    def act(self, observation: Array, noise: Array) -> tuple[Array, Array]:
        mean, log_std = gaussian_parameters(self.policy, observation)
        u = mean + np.exp(log_std) * noise
        return np.tanh(u), squashed_log_density(u, mean, np.exp(log_std))

    def target(self, sample: Sample, next_noise: Array) -> Array:
        """y = r + discount (min_i Q'_i(s', a') - alpha log pi(a'|s'))."""
        batch = sample.batch
        action, log_density = self.act(batch.next_observation, next_noise)
        first, second = (
            q(np.hstack([batch.next_observation, action]))[:, 0] for q in self.target_critics
        )
        soft_value = np.minimum(first, second) - np.exp(self.log_alpha) * log_density
        return batch.reward + batch.discount * soft_value

    def update(self, sample: Sample, noise: Array, next_noise: Array) -> SacReport:
        batch, size, alpha = sample.batch, len(sample.batch), float(np.exp(self.log_alpha))
        y = self.target(sample, next_noise)

        q_loss, errors, gradients = 0.0, [], []
        for critic in self.critics:  # J = 1/B sum_j w_j 1/2 (Q(s_j, a_j) - y_j)^2
            trace = critic.forward(np.hstack([batch.observation, batch.action]))
            error = trace[-1][:, 0] - y
            q_loss += 0.5 * float(np.sum(sample.weights * error**2)) / size
            errors.append(error)
            gradients += critic.backward(trace, (sample.weights * error / size)[:, None])[0]
        norm = global_norm(gradients)
        gradients = clip_by_norm(gradients, self.max_grad_norm)
        first, second = self.critics
        self.critic_adam.step(first.parameters + second.parameters, gradients)
        half = len(first.parameters)

        _, log_density = self.act(batch.observation, noise)
        pi_loss, policy_gradients = self.policy_gradient(batch.observation, noise, alpha)
        policy_gradients = clip_by_norm(policy_gradients, self.max_grad_norm)
        self.policy_adam.step(self.policy.parameters, policy_gradients)

        alpha_loss = None
        if self.learn_alpha:
            excess = log_density.mean() + self.target_entropy
            alpha_loss = float(-self.log_alpha * excess)
            self.alpha_adam.step([self.log_alpha], [np.array(-excess)])
        for target, source in zip(self.target_critics, self.critics, strict=True):
            polyak(target.parameters, source.parameters, self.tau)
        return SacReport(
            target=y,
            priorities=(np.abs(errors[0]) + np.abs(errors[1])) / 2,
            critic_loss=q_loss,
            critic_norm=norm,
            critic_gradients=(gradients[:half], gradients[half:]),
            policy_loss=pi_loss,
            policy_gradients=policy_gradients,
            entropy=-float(log_density.mean()),
            alpha=alpha,
            alpha_loss=alpha_loss,
        )

    def policy_gradient(
        self, observation: Array, noise: Array, alpha: float
    ) -> tuple[float, list[Array]]:
        """J = 1/B sum_j alpha log pi(a_j|s_j) - min_i Q_i(s_j, a_j), a = tanh(m + exp(l) noise).

        Per action dimension log pi = -noise^2/2 - l - log(2 pi)/2 - log(1 - tanh(u)^2), so with the
        noise held fixed: d log pi/du = 2 tanh(u), d log pi/dl = -1 + 2 tanh(u) du/dl, du/dm = 1,
        du/dl = exp(l) noise, da/du = 1 - a^2. Outside its bounds l is a constant.
        """
        size, width = observation.shape
        trace = self.policy.forward(observation)
        mean, raw_log_std = np.split(trace[-1], 2, axis=1)
        inside = (raw_log_std >= LOG_STD_BOUNDS[0]) & (raw_log_std <= LOG_STD_BOUNDS[1])
        log_std = np.clip(raw_log_std, *LOG_STD_BOUNDS)
        u = mean + np.exp(log_std) * noise
        action = np.tanh(u)
        log_density = squashed_log_density(u, mean, np.exp(log_std))

        traces = [q.forward(np.hstack([observation, action])) for q in self.critics]
        q1, q2 = (t[-1][:, 0] for t in traces)
        loss = float((alpha * log_density - np.minimum(q1, q2)).mean())
        d_action = np.zeros_like(action)
        for critic, critic_trace, smaller in zip(
            self.critics, traces, (q1 < q2, q2 <= q1), strict=True
        ):
            _, d_input = critic.backward(critic_trace, np.where(smaller, -1 / size, 0.0)[:, None])
            d_action += d_input[:, width:]
        d_u = alpha * 2 * action / size + d_action * (1 - action**2)
        d_log_std = -alpha / size + d_u * np.exp(log_std) * noise
        gradients, _ = self.policy.backward(trace, np.hstack([d_u, d_log_std * inside]))
        return loss, gradients
