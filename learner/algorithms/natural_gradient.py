"""TRPO (Schulman et al. 2015, arXiv 1502.05477) and NPG, the natural gradient (Kakade 2001).

    L(theta) = E[pi_theta(a|s) / pi_old(a|s) A]
    g = grad L,   H = Hessian of E[KL(pi_old || pi_theta)] + damping,   both at theta_old
    x = H^-1 g                                    by conjugate gradients, H only in products
    theta = theta_old + c^j sqrt(2 delta / x'Hx) x
    value: minimise (V(s) - (A + V_old(s)))^2

with A by GAE(lambda). Mode `trpo` takes the smallest j of `line_search_tries` at which KL <= delta
and L has improved, and where there is none the policy stays as it was, to the bit. Mode `npg` takes
the whole step without looking. Segments that older weights made are corrected by V-trace
(`learner/experience.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from learner.adam import Adam
from learner.critics import StateValue
from learner.data_parallel import averaged, joined_mean
from learner.experience import Experience, Metrics, gather, learn_moments, standardized
from learner.optimization import adam, seeded_initialisation
from learner.value_regression import fit_value
from repertory.config import HiddenSizes, OnPolicyConfig
from repertory.policies.policy import policy_settings
from repertory.policies.stochastic import StochasticPolicy
from repertory.specs import EnvSpec
from repertory.types import Sample, UpdateResult


@dataclass
class State:
    policy: StochasticPolicy
    value: StateValue
    value_optimizer: Adam
    updates: int = 0


class TRPO:
    data = "on_policy"
    action_kinds = frozenset({"continuous", "discrete", "multi_discrete"})
    observation_kinds = frozenset({"vector", "pixels"})
    needs_bounds = False
    paper = "arXiv 1502.05477"

    class Config(OnPolicyConfig):
        algorithm: str = "trpo"
        mode: Literal["trpo", "npg"] = "trpo"
        lr: float = Field(default=1e-3, ge=0, le=1)  # of the value function
        hidden_sizes: HiddenSizes = (64, 64)
        segment_length: int = Field(default=4000, ge=1)
        gae_lambda: float = Field(default=0.97, ge=0, le=1)
        normalize_advantage: bool = True
        max_kl: float = Field(default=0.01, gt=0)  # delta
        cg_steps: int = Field(default=10, ge=1)
        cg_damping: float = Field(default=0.1, ge=0)
        # mode trpo
        backtrack: float = Field(default=0.8, gt=0, lt=1)  # c
        line_search_tries: int = Field(default=10, ge=1)
        value_steps: int = Field(default=80, ge=1)
        rho_clip: float = Field(default=1.0, gt=0)  # V-trace, for segments of older weights
        c_clip: float = Field(default=1.0, gt=0)
        initial_log_std: float = 0.0

    def __init__(self, config: Config, *, device: torch.device, seed: int) -> None:
        self.config = config
        self.device = device
        self.seed = seed

    def initial_state(self, spec: EnvSpec) -> State:
        config = self.config
        policy_config = StochasticPolicy.Config(
            **policy_settings(config), initial_log_std=config.initial_log_std
        )
        with seeded_initialisation(self.seed):
            policy = StochasticPolicy(policy_config, spec).to(self.device)
            value = StateValue(spec, config.hidden_sizes).to(self.device)
        return State(policy=policy, value=value, value_optimizer=adam(config.lr, value))

    def policy(self, state: State) -> StochasticPolicy:
        return state.policy

    def update(self, state: State, sample: Sample) -> UpdateResult:
        """One iteration: everything in `sample` (segments [B, T]) is used, then forgotten."""
        config = self.config
        experience, metrics = gather(state.policy, state.value, sample, config, self.device)
        if config.normalize_advantage:
            experience = replace(experience, advantage=standardized(experience.advantage))
        metrics |= self._policy_step(state.policy, experience)
        metrics |= fit_value(
            state.value, state.value_optimizer, experience, config.value_steps, config.max_grad_norm
        )
        learn_moments(state.policy, sample, self.device)
        state.updates += 1
        return UpdateResult(metrics)

    def _policy_step(self, policy: StochasticPolicy, experience: Experience) -> Metrics:
        config = self.config
        parameters = list(policy.parameters())
        surrogate, entropy = surrogate_and_entropy(policy, experience)
        gradient = flat(averaged(torch.autograd.grad(surrogate, parameters)))  # [P]
        curvature = Curvature(policy, experience.observation, config.cg_damping)
        direction = conjugate_gradient(curvature, gradient, config.cg_steps)  # x
        product = curvature(direction)  # Hx
        step = full_step(direction, product, config.max_kl)
        residual = (gradient - product).norm() / gradient.norm().clamp(min=1e-30)
        return {
            "policy_loss": -surrogate.detach(),
            "entropy": entropy.detach(),
            "cg_residual": residual,
            **self._search(policy, experience, step, expected=gradient @ step),
        }

    @torch.no_grad()
    def _search(
        self, policy: StochasticPolicy, experience: Experience, step: Tensor, expected: Tensor
    ) -> Metrics:
        """Moves the policy along `step`; `expected` is what the whole of it gains to first order.

        Every update begins with the whole step: nothing is kept of the search before.
        """
        config, parameters = self.config, list(policy.parameters())
        searching = config.mode == "trpo"
        old_parameters = flat(parameters)
        old = policy.distribution(experience.observation)
        before, _ = surrogate_and_entropy(policy, experience)
        for tried in range(config.line_search_tries if searching else 1):
            fraction = config.backtrack**tried
            assign(parameters, old_parameters + fraction * step)
            new = policy.distribution(experience.observation)
            after, _ = surrogate_and_entropy(policy, experience)
            kl = joined_mean(policy.divergence(old, new).mean())
            improvement = joined_mean(after - before)
            if not searching or (kl <= config.max_kl and improvement > 0):
                break
        else:
            assign(parameters, old_parameters)
            fraction, kl, improvement = 0.0, torch.zeros_like(kl), torch.zeros_like(improvement)
        metrics: Metrics = {
            "kl": kl,
            "surrogate_improvement": improvement,
            "expected_improvement": fraction * expected,
        }
        if searching:
            metrics |= {"line_search_steps": tried + 1, "step_fraction": fraction}
        return metrics


class NPG(TRPO):
    paper = "Kakade 2001"

    class Config(TRPO.Config):
        algorithm: str = "npg"
        mode: Literal["trpo", "npg"] = "npg"


def surrogate_and_entropy(
    policy: StochasticPolicy, experience: Experience
) -> tuple[Tensor, Tensor]:
    """L(theta) = E[ratio A], and the mean entropy."""
    log_prob, entropy = policy.log_prob_and_entropy(experience.observation, experience.action)
    assert log_prob.shape == experience.log_prob.shape == experience.advantage.shape
    ratio = (log_prob - experience.log_prob).exp()
    return (ratio * experience.advantage).mean(), entropy.mean()


class Curvature:
    """v -> H v [P], H the Hessian of the mean KL at the policy's parameters, plus damping.

    Pearlmutter's way: H v = grad(grad(KL) . v), so H itself is never there. Of the parameters as
    they were when this was made.
    """

    def __init__(self, policy: StochasticPolicy, observation: Tensor, damping: float) -> None:
        self._parameters = list(policy.parameters())
        self._damping = damping
        new = policy.distribution(observation)
        kl = policy.divergence(new.detach(), new).mean()
        self._gradient = flat(torch.autograd.grad(kl, self._parameters, create_graph=True))

    def __call__(self, vector: Tensor) -> Tensor:
        product = torch.autograd.grad(self._gradient @ vector, self._parameters, retain_graph=True)
        return flat(averaged(product)) + self._damping * vector


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], b: Tensor, steps: int, tolerance: float = 1e-10
) -> Tensor:
    """x with A x = b, for a symmetric positive A that is known by its products A v.

    Stops early where |b - A x|^2 <= tolerance |b|^2, at once where b is 0.
    """
    x, residual, direction = torch.zeros_like(b), b.clone(), b.clone()
    squared = residual @ residual
    enough = tolerance * squared
    for _ in range(steps):
        if squared <= enough:
            break
        along = product(direction)
        alpha = squared / (direction @ along)
        x += alpha * direction
        residual -= alpha * along
        squared, before = residual @ residual, squared
        direction = residual + squared / before * direction
    return x


def full_step(direction: Tensor, product: Tensor, max_kl: float) -> Tensor:
    """sqrt(2 delta / x'Hx) x: as far as the quadratic of the KL is delta; nothing where x is 0."""
    curvature = direction @ product
    if curvature > 0:
        return (2 * max_kl / curvature).sqrt() * direction
    return torch.zeros_like(direction)


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """One vector [P], a copy."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


@torch.no_grad()
def assign(parameters: Sequence[nn.Parameter], vector: Tensor) -> None:
    """Writes a vector [P] back into the parameters, in place: views of them stay true."""
    parts = vector.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.copy_(part.view_as(parameter))
