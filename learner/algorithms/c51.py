"""C51: the distribution of returns on fixed atoms (Bellemare et al. 2017, arXiv 1707.06887).

    z_i = v_min + i dz,  dz = (v_max - v_min) / (N - 1),  i = 0 .. N - 1
    p(s, a) = softmax over the N outputs of action a,  Q(s, a) = sum_i z_i p_i(s, a)
    a* = argmax_a Q'(s', a), or with `double` argmax_a Q(s', a)
    m = projection of r + discount z, with probabilities p'(s', a*), onto the atoms
    minimise KL(m || p(s, a))

The projection shares each moved atom out between its two neighbours and clips what falls off at
either end. With `double`, `dueling`, `noisy`, `n_step=3` and `replay.sampler=prioritized` this is
Rainbow (arXiv 1710.02298): `--algo rainbow` is C51 with a preset that says so.
"""

from __future__ import annotations

from typing import Self, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor

from learner.dqn_family import (
    QConfig,
    QState,
    chosen,
    count_update,
    first_state,
    greedy_next,
    network_settings,
    noise_of,
    step_of,
    weighted,
)
from learner.optimization import Metrics, gradient_step, seeded_initialisation
from learner.tensors import TensorBatch, to_tensors
from repertory.policies.distributional_q import DistributionalQPolicy
from repertory.specs import EnvSpec
from repertory.types import Sample, UpdateResult

State: TypeAlias = QState[DistributionalQPolicy]


class C51:
    data = "off_policy"
    action_kinds = frozenset({"discrete"})
    observation_kinds = frozenset({"vector", "pixels"})
    needs_bounds = False
    paper = "arXiv 1707.06887; with all options Rainbow, 1710.02298"

    class Config(QConfig):
        algorithm: str = "c51"
        atoms: int = Field(default=51, ge=2)
        v_min: float = -10.0  # the range of discounted returns, of clipped rewards in Atari
        v_max: float = 10.0

        @model_validator(mode="after")
        def _a_range(self) -> Self:
            if self.v_min >= self.v_max:
                raise ValueError(
                    f"learner.v_min = {self.v_min:g} is refused: it must be below "
                    f"learner.v_max = {self.v_max:g}; give the range of discounted returns"
                )
            return self

    def __init__(self, config: Config, *, device: torch.device, seed: int) -> None:
        self.config = config
        self.device = device
        self.seed = seed
        self.step = step_of(step, config)

    def initial_state(self, spec: EnvSpec) -> State:
        config = self.config
        policy_config = DistributionalQPolicy.Config(
            **network_settings(config), atoms=config.atoms, v_min=config.v_min, v_max=config.v_max
        )
        with seeded_initialisation(self.seed):
            policy = DistributionalQPolicy(policy_config, spec)
        return first_state(policy.to(self.device), config, self.seed)

    def policy(self, state: State) -> DistributionalQPolicy:
        return state.policy

    def update(self, state: State, sample: Sample) -> UpdateResult:
        batch = to_tensors(sample, state.policy.normalizer, self.device, learn_moments=True)
        metrics, priorities = self.step(state, batch)
        count_update(state, self.config)
        return UpdateResult(metrics, priorities)


def step(state: State, batch: TensorBatch, config: C51.Config) -> tuple[Metrics, Tensor]:
    """With the priorities [B] that the batch gets."""
    target = target_distribution(state, batch, config)
    logits = state.policy(batch.observation, noise_of(state, config))  # [B, A, N]
    divergence = kl_divergence(target, chosen(logits, batch.action))
    loss = weighted(divergence, batch.weights)
    norm = gradient_step(state.optimizer, loss, config.max_grad_norm)
    q = chosen(state.policy.expected(logits.detach()), batch.action)
    metrics = {
        "loss": loss.detach(),
        "q": q.mean(),
        "grad_norm": norm,
        # What is heaped up at the ends says that v_min or v_max is too narrow.
        "at_v_min": target[:, 0].mean(),
        "at_v_max": target[:, -1].mean(),
    }
    return metrics, divergence.detach()


@torch.no_grad()
def target_distribution(state: State, batch: TensorBatch, config: C51.Config) -> Tensor:
    """m [B, N]."""
    next_logits = greedy_next(state, batch.next_observation, config, state.policy.expected)
    support = state.policy.support
    assert support is not None
    moved = batch.reward[:, None] + batch.discount[:, None] * support  # [B, N]
    return projected(next_logits.softmax(-1), moved, support)


def projected(probabilities: Tensor, places: Tensor, support: Tensor) -> Tensor:
    """Probabilities [B, N] of the places [B, N], shared out to the atoms `support` [N].

    Each atom takes in what is nearer to it than a spacing: max(0, 1 - |place - z| / dz).
    """
    assert probabilities.shape == places.shape
    spacing = (support[-1] - support[0]) / (len(support) - 1)
    inside = places.clamp(support[0], support[-1])
    share = (1 - (inside[:, None, :] - support[:, None]).abs() / spacing).clamp(min=0)  # [B, N, N]
    return (share @ probabilities[:, :, None]).squeeze(-1)


def kl_divergence(target: Tensor, logits: Tensor) -> Tensor:
    """KL(target || softmax(logits)) of each row [B]; only its cross-entropy has a gradient."""
    assert target.shape == logits.shape
    return (torch.xlogy(target, target) - target * logits.log_softmax(-1)).sum(-1)
