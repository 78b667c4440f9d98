"""The DQN family in NumPy: arXiv 1312.5602, Nature 518, arXiv 1509.06461, arXiv 1511.06581."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
from reference.numpy_mlp import Adam, Array, Mlp, clip_by_norm, global_norm, polyak

from repertory.types import Sample


@dataclass
class QNetwork:
    """Q(s, .) of a torso and an advantage head, which is Q itself where there is no value head."""

    torso: Mlp
    advantage: Mlp
    value: Mlp | None

    @property
    def parameters(self) -> list[Array]:
        heads = [self.advantage] if self.value is None else [self.advantage, self.value]
        return [p for part in (self.torso, *heads) for p in part.parameters]

    def __call__(self, observation: Array) -> Array:
        features = self.torso(observation)
        advantage = self.advantage(features)
        if self.value is None:
            return advantage
        return self.value(features) + (advantage - advantage.mean(1, keepdims=True))

    def backward(self, observation: Array, d_q: Array) -> list[Array]:
        """dQ_a/dV = 1 and dQ_a/dA_b = 1{a = b} - 1/n in the dueling case."""
        torso = self.torso.forward(observation)
        head = self.advantage.forward(torso[-1])
        if self.value is None:
            gradients, d_features = self.advantage.backward(head, d_q)
        else:
            d_advantage = d_q - d_q.sum(1, keepdims=True) / d_q.shape[1]
            gradients, d_features = self.advantage.backward(head, d_advantage)
            value_gradients, d_more = self.value.backward(
                self.value.forward(torso[-1]), d_q.sum(1, keepdims=True)
            )
            gradients, d_features = gradients + value_gradients, d_features + d_more
        return self.torso.backward(torso, d_features)[0] + gradients


def dqn_2013_target(reward: Array, discount: Array, online_next: Array) -> Array:
    return np.array(
        [r + d * max(row) for r, d, row in zip(reward, discount, online_next, strict=True)]
    )


def dqn_2015_target(reward: Array, discount: Array, target_next: Array) -> Array:
    return np.array(
        [r + d * max(row) for r, d, row in zip(reward, discount, target_next, strict=True)]
    )


def double_target(reward: Array, discount: Array, online_next: Array, target_next: Array) -> Array:
    """The online network chooses, the target network judges."""
    return np.array(
        [
            r + d * judged[int(np.argmax(chosen_by))]
            for r, d, chosen_by, judged in zip(
                reward, discount, online_next, target_next, strict=True
            )
        ]
    )


@dataclass
class DqnReport:
    target: Array  # [B]
    priorities: Array  # [B]
    loss: float
    norm: float  # before clipping
    gradients: list[Array]  # after clipping


@dataclass
class DqnReference:
    online: QNetwork
    frozen: QNetwork  # the target network
    lr: float
    tau: float
    target_period: int
    target_network: bool
    double: bool
    huber: bool
    max_grad_norm: float | None = None
    updates: int = 0

    def __post_init__(self) -> None:
        self.adam = Adam(self.lr)

    def target(self, sample: Sample) -> Array:
        batch = sample.batch
        online, frozen = self.online(batch.next_observation), self.frozen(batch.next_observation)
        if self.double:
            return double_target(batch.reward, batch.discount, online, frozen)
        if self.target_network:
            return dqn_2015_target(batch.reward, batch.discount, frozen)
        return dqn_2013_target(batch.reward, batch.discount, online)

    def update(self, sample: Sample) -> DqnReport:
        batch, rows = sample.batch, np.arange(len(sample.batch))
        y = self.target(sample)
        error = self.online(batch.observation)[rows, batch.action] - y
        small = np.abs(error) <= 1
        if self.huber:  # e^2/2 near zero, |e| - 1/2 beyond one: the derivative is clipped to +-1
            losses = np.where(small, error**2 / 2, np.abs(error) - 0.5)
            slopes = np.clip(error, -1, 1)
        else:
            losses, slopes = error**2 / 2, error
        d_q = np.zeros_like(self.online(batch.observation))
        d_q[rows, batch.action] = sample.weights * slopes / len(rows)
        gradients = self.online.backward(batch.observation, d_q)
        norm = global_norm(gradients)
        gradients = clip_by_norm(gradients, self.max_grad_norm)
        self.adam.step(self.online.parameters, gradients)
        self.updates += 1
        if self.updates % self.target_period == 0:
            polyak(self.frozen.parameters, self.online.parameters, self.tau)
        return DqnReport(
            target=y,
            priorities=np.abs(error),
            loss=float(np.mean(sample.weights * losses)),
            norm=norm,
            gradients=gradients,
        )


def shifted_advantage(network: QNetwork, constant: float) -> QNetwork:
    """The same network with A + c for every action."""
    shifted = copy.deepcopy(network)
    shifted.advantage.parameters[-1] += constant
    return shifted
