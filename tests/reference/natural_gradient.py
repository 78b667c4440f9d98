"""TRPO and NPG in NumPy, from arXiv 1502.05477, section 6 and appendix C.

Nothing here differentiates a KL divergence: its Hessian at the old parameters is the Fisher matrix,
written out as J' M J with the Jacobian J of the distribution's own parameters and their Fisher
matrix M. What k steps of conjugate gradients give is taken from its definition, the best point of
the Krylov space, and not from the recursion.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from reference.numpy_mlp import Array, Mlp, clip_by_norm
from reference.ppo import (
    CategoricalsReference,
    Distribution,
    GaussianReference,
    PpoReference,
    Segments,
)


def joined(arrays: Sequence[Array]) -> Array:
    return np.concatenate([array.ravel() for array in arrays])


def mean_kl(old: Distribution, new: Distribution, observation: Array) -> float:
    """E_s[KL(old || new)]."""
    if isinstance(old, GaussianReference):
        assert isinstance(new, GaussianReference)
        variance, new_variance = np.exp(2 * old.log_std), np.exp(2 * new.log_std)
        distance = old.network(observation) - new.network(observation)
        each = 0.5 * (np.log(new_variance / variance) + (variance + distance**2) / new_variance - 1)
        return float(each.sum(1).mean())
    assert isinstance(old, CategoricalsReference)
    assert isinstance(new, CategoricalsReference)
    pairs = zip(
        old._probabilities(old.network(observation)),
        new._probabilities(new.network(observation)),
        strict=True,
    )
    return float(sum((p * np.log(p / q)).sum(1) for p, q in pairs).mean())


def fisher(policy: Distribution, observation: Array) -> Array:
    """E_s[J' M J] [P, P], parameters in the order of `policy.parameters`."""
    network = policy.network  # type: ignore[attr-defined]
    jacobian, outputs = _jacobian(network, observation), network(observation)
    if isinstance(policy, GaussianReference):
        precision = np.exp(-2 * policy.log_std)
        of_means = np.einsum("nop,o,noq->pq", jacobian, precision, jacobian) / len(observation)
        # E[(d log p / d log std)^2] = 2, and it is not correlated with the mean's.
        size, free = len(of_means), len(policy.log_std)
        matrix = np.zeros((size + free, size + free))
        matrix[:size, :size] = of_means
        matrix[size:, size:] = 2 * np.eye(free)
        return matrix
    assert isinstance(policy, CategoricalsReference)
    matrix, start = np.zeros((jacobian.shape[2],) * 2), 0
    for p in policy._probabilities(outputs):
        part = jacobian[:, start : start + p.shape[1]]
        start += p.shape[1]
        for row, probabilities in zip(part, p, strict=True):
            of_logits = np.diag(probabilities) - np.outer(probabilities, probabilities)
            matrix += row.T @ of_logits @ row / len(observation)
    return matrix


def _jacobian(network: Mlp, observation: Array) -> Array:
    """d output_o / d theta_p of every row: [N, O, P]."""
    outputs = network(observation).shape[1]
    rows = []
    for n in range(len(observation)):
        trace = network.forward(observation[n : n + 1])
        rows.append([joined(network.backward(trace, one[None])[0]) for one in np.eye(outputs)])
    return np.array(rows)


def krylov_solution(matrix: Array, b: Array, steps: int) -> Array:
    """The x of span{b, Ab, ..., A^(k-1) b} with b - Ax orthogonal to it: k steps of CG."""
    basis = [b / np.linalg.norm(b)]
    for _ in range(steps - 1):
        following = matrix @ basis[-1]
        for _ in range(2):  # twice is enough to be orthogonal to the last digit
            for known in basis:
                following = following - (known @ following) * known
        norm = np.linalg.norm(following)
        if norm < 1e-12:
            break
        basis.append(following / norm)
    columns = np.stack(basis, axis=1)
    return columns @ np.linalg.solve(columns.T @ matrix @ columns, columns.T @ b)


@dataclass
class NaturalGradientReference:
    policy: Distribution
    base: PpoReference  # its advantages and its regression of V
    max_kl: float
    damping: float
    cg_steps: int
    backtrack: float
    tries: int
    searching: bool
    normalize_advantage: bool = True

    def iterate(self, segments: Segments, value_steps: int) -> None:
        observation, action, old, advantage, value_target = self.base.flatten(segments)
        self._policy_step(observation, action, old, advantage)
        self.base.value_losses.clear()
        for _ in range(value_steps):
            gradients = self.base.value_gradient(observation, value_target)
            self.base.value_adam.step(
                self.base.value.parameters, clip_by_norm(gradients, self.base.max_grad_norm)
            )

    def _policy_step(self, observation: Array, action: Array, old: Array, advantage: Array) -> None:
        if self.normalize_advantage:
            advantage = (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)

        def surrogate(policy: Distribution) -> float:
            return float(np.mean(np.exp(policy.log_prob(observation, action) - old) * advantage))

        ratio = np.exp(self.policy.log_prob(observation, action) - old)
        size = len(advantage)
        self.gradient = joined(
            self.policy.backward(observation, action, ratio * advantage / size, np.zeros(size))
        )
        fisher_matrix = fisher(self.policy, observation)
        matrix = fisher_matrix + self.damping * np.eye(len(fisher_matrix))
        x = krylov_solution(matrix, self.gradient, self.cg_steps)
        self.residual = float(
            np.linalg.norm(self.gradient - matrix @ x) / np.linalg.norm(self.gradient)
        )
        self.full_step = np.sqrt(2 * self.max_kl / (x @ matrix @ x)) * x
        self.before = surrogate(self.policy)
        self.fraction, self.kl, self.improvement, self.tried = 0.0, 0.0, 0.0, 0
        for j in range(self.tries if self.searching else 1):
            self.tried += 1
            candidate = copy.deepcopy(self.policy)
            _move(candidate.parameters, self.backtrack**j * self.full_step)
            kl = mean_kl(self.policy, candidate, observation)
            improvement = surrogate(candidate) - self.before
            if not self.searching or (kl <= self.max_kl and improvement > 0):
                self.fraction, self.kl, self.improvement = self.backtrack**j, kl, improvement
                break
        _move(self.policy.parameters, self.fraction * self.full_step)


def _move(parameters: Sequence[Array], step: Array) -> None:
    """Adds a flat step, in place."""
    start = 0
    for parameter in parameters:
        parameter += step[start : start + parameter.size].reshape(parameter.shape)
        start += parameter.size
