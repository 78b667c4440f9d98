"""DQN with noisy layers, C51 and QR-DQN in NumPy: arXiv 1706.10295, 1707.06887, 1710.10044.

Written from the papers: C51's projection is the loop of its algorithm 1, the quantile Huber loss a
loop over pairs, and a noisy layer has the weights of each row written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from reference.numpy_mlp import Adam, Array, clip_by_norm, global_norm, polyak

from repertory.types import Sample

Draw = Callable[[Sequence[int]], Array]


class Layer:
    """x W + b, and with [W, b, S, s] the same with noise on every weight and bias."""

    def __init__(self, parameters: Sequence[Array]) -> None:
        self.parameters = [np.array(p, dtype=np.float64) for p in parameters]

    def forward(self, x: Array, draw: Draw | None) -> Array:
        weight, bias = self.parameters[:2]
        rows, (inputs, outputs) = len(x), weight.shape
        self.x = x
        self.weights = np.repeat(weight[np.newaxis], rows, axis=0)  # [B, inputs, outputs]
        biases = np.repeat(bias[np.newaxis], rows, axis=0)
        self.products = np.zeros_like(self.weights)
        self.outward = np.zeros_like(biases)
        if draw is not None and len(self.parameters) == 4:
            inward, self.outward = squashed(draw((rows, inputs))), squashed(draw((rows, outputs)))
            self.products = inward[:, :, np.newaxis] * self.outward[:, np.newaxis, :]
            self.weights = self.weights + self.parameters[2] * self.products
            biases = biases + self.parameters[3] * self.outward
        return np.stack([row @ w + b for row, w, b in zip(x, self.weights, biases, strict=True)])

    def backward(self, d_output: Array) -> tuple[list[Array], Array]:
        d_weights = self.x[:, :, np.newaxis] * d_output[:, np.newaxis, :]  # of each row
        gradients = [d_weights.sum(0), d_output.sum(0)]
        if len(self.parameters) == 4:
            gradients += [(d_weights * self.products).sum(0), (d_output * self.outward).sum(0)]
        d_input = np.stack([w @ g for w, g in zip(self.weights, d_output, strict=True)])
        return gradients, d_input


def squashed(noise: Array) -> Array:
    return np.sign(noise) * np.sqrt(np.abs(noise))


@dataclass
class Network:
    """[B, O] -> [B, actions, atoms]; relu between layers, dueling where there is a value head."""

    torso: list[Layer]
    advantage: Layer
    value: Layer | None
    actions: int
    features: list[Array] = field(default_factory=list)

    @property
    def parameters(self) -> list[Array]:
        heads = [self.advantage] if self.value is None else [self.advantage, self.value]
        return [p for layer in (*self.torso, *heads) for p in layer.parameters]

    def forward(self, observation: Array, draw: Draw | None) -> Array:
        x, self.features = observation, []
        for layer in self.torso:
            x = np.maximum(layer.forward(x, draw), 0)
            self.features.append(x)
        advantage = self.advantage.forward(x, draw).reshape(len(x), self.actions, -1)
        if self.value is None:
            return advantage
        value = self.value.forward(x, draw)[:, np.newaxis, :]
        return value + advantage - advantage.mean(1, keepdims=True)

    def backward(self, d_output: Array) -> list[Array]:
        """Of the last forward pass."""
        if self.value is None:
            gradients, flowing = self.advantage.backward(d_output.reshape(len(d_output), -1))
        else:
            d_advantage = d_output - d_output.mean(1, keepdims=True)
            gradients, flowing = self.advantage.backward(d_advantage.reshape(len(d_output), -1))
            of_value, more = self.value.backward(d_output.sum(1))
            gradients, flowing = gradients + of_value, flowing + more
        for layer, output in zip(reversed(self.torso), reversed(self.features), strict=True):
            of_layer, flowing = layer.backward(flowing * (output > 0))
            gradients = of_layer + gradients
        return gradients


def softmax(logits: Array) -> Array:
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def c51_projection(
    probabilities: Array, reward: Array, discount: Array, v_min: float, v_max: float
) -> Array:
    """Algorithm 1 of the paper, atom by atom; where b is whole, l = u and all goes there."""
    atoms = probabilities.shape[1]
    spacing = (v_max - v_min) / (atoms - 1)
    m = np.zeros_like(probabilities)
    for row in range(len(probabilities)):
        for j in range(atoms):
            place = reward[row] + discount[row] * (v_min + j * spacing)
            b = (min(max(place, v_min), v_max) - v_min) / spacing
            low, high = math.floor(b), math.ceil(b)
            if low == high:
                m[row, low] += probabilities[row, j]
            else:
                m[row, low] += probabilities[row, j] * (high - b)
                m[row, high] += probabilities[row, j] * (b - low)
    return m


def quantile_huber(theta: Array, target: Array, kappa: float) -> tuple[float, Array]:
    """The loss of one row and its derivative by theta [N], pair by pair."""
    count, loss, slope = len(theta), 0.0, np.zeros_like(theta)
    for i in range(count):
        tau = (i + 0.5) / count
        for y in target:
            u = y - theta[i]
            weight = (1 - tau) if u < 0 else tau
            inside = abs(u) <= kappa
            huber = u * u / 2 if inside else kappa * (abs(u) - kappa / 2)
            loss += weight * huber / kappa / len(target)
            slope[i] -= weight * (u if inside else kappa * np.sign(u)) / kappa / len(target)
    return loss, slope


@dataclass
class Report:
    target: Array  # [B, N]
    priorities: Array  # [B]
    loss: float
    norm: float  # before clipping
    gradients: list[Array]  # after clipping


@dataclass
class DistributionalReference:
    kind: Literal["dqn", "c51", "qr_dqn"]
    online: Network
    frozen: Network
    lr: float
    tau: float
    target_period: int
    target_network: bool
    double: bool
    v_min: float = 0.0  # c51
    v_max: float = 0.0
    kappa: float = 1.0  # qr_dqn
    max_grad_norm: float | None = None
    updates: int = 0

    def __post_init__(self) -> None:
        self.adam = Adam(self.lr)

    def expected(self, outputs: Array) -> Array:
        if self.kind != "c51":
            return outputs.mean(-1)
        atoms = outputs.shape[-1]
        support = [self.v_min + i * (self.v_max - self.v_min) / (atoms - 1) for i in range(atoms)]
        return softmax(outputs) @ np.array(support)

    def target(self, sample: Sample, draw: Draw | None) -> Array:
        batch, rows = sample.batch, np.arange(len(sample.batch))
        judge = self.frozen if self.target_network else self.online
        judged = judge.forward(batch.next_observation, draw)
        choosing = self.online.forward(batch.next_observation, draw) if self.double else judged
        best = judged[rows, self.expected(choosing).argmax(1)]  # [B, N]
        if self.kind == "c51":
            return c51_projection(
                softmax(best), batch.reward, batch.discount, self.v_min, self.v_max
            )
        return batch.reward[:, np.newaxis] + batch.discount[:, np.newaxis] * best

    def update(self, sample: Sample, draw: Draw | None = None) -> Report:
        batch, rows = sample.batch, np.arange(len(sample.batch))
        y = self.target(sample, draw)
        outputs = self.online.forward(batch.observation, draw)
        predicted = outputs[rows, batch.action]  # [B, N]
        losses, slopes = np.zeros(len(rows)), np.zeros_like(predicted)
        if self.kind == "c51":
            p = softmax(predicted)
            for row in rows:
                held = y[row] > 0
                losses[row] = (y[row][held] * np.log(y[row][held] / p[row][held])).sum()
            slopes, priorities = p - y, losses
        else:
            for row in rows:
                if self.kind == "qr_dqn":
                    losses[row], slopes[row] = quantile_huber(predicted[row], y[row], self.kappa)
                else:
                    error = predicted[row, 0] - y[row, 0]
                    far = abs(error) > 1
                    losses[row] = abs(error) - 0.5 if far else error**2 / 2
                    slopes[row] = np.sign(error) if far else error
            priorities = np.abs(predicted.mean(1) - y.mean(1))
        d_outputs = np.zeros_like(outputs)
        d_outputs[rows, batch.action] = sample.weights[:, np.newaxis] * slopes / len(rows)
        gradients = self.online.backward(d_outputs)
        norm = global_norm(gradients)
        gradients = clip_by_norm(gradients, self.max_grad_norm)
        self.adam.step(self.online.parameters, gradients)
        self.updates += 1
        if self.updates % self.target_period == 0:
            polyak(self.frozen.parameters, self.online.parameters, self.tau)
        loss = float(np.mean(sample.weights * losses))
        return Report(y, priorities, loss, norm, gradients)
