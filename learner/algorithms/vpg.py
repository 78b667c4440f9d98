"""VPG, the vanilla policy gradient: REINFORCE (Williams 1992) with a learned baseline.

    policy: minimise -E[log pi(a|s) A]               one step, on everything that was collected
    value:  minimise (V(s) - (A + V_old(s)))^2       `value_steps` steps

with A by GAE(lambda) (arXiv 1506.02438), as in Spinning Up. Segments that older weights made are
corrected by V-trace (`learner/experience.py`).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field

from learner.experience import gather, learn_moments, standardized
from learner.policy_gradient import State, first_state, policy_step
from learner.value_regression import fit_value
from repertory.config import HiddenSizes, OnPolicyConfig
from repertory.policies.stochastic import StochasticPolicy
from repertory.specs import EnvSpec
from repertory.types import Sample, UpdateResult


class VPG:
    data = "on_policy"
    action_kinds = frozenset({"continuous", "discrete", "multi_discrete"})
    observation_kinds = frozenset({"vector", "pixels"})
    needs_bounds = False
    paper = "Williams 1992, arXiv 1506.02438"

    class Config(OnPolicyConfig):
        algorithm: str = "vpg"
        hidden_sizes: HiddenSizes = (64, 64)
        segment_length: int = Field(default=4000, ge=1)
        gae_lambda: float = Field(default=0.97, ge=0, le=1)
        normalize_advantage: bool = True
        value_steps: int = Field(default=80, ge=1)
        value_lr: float = Field(default=1e-3, ge=0, le=1)
        rho_clip: float = Field(default=1.0, gt=0)  # V-trace, for segments of older weights
        c_clip: float = Field(default=1.0, gt=0)
        initial_log_std: float = 0.0

    def __init__(self, config: Config, *, device: torch.device, seed: int) -> None:
        self.config = config
        self.device = device
        self.seed = seed

    def initial_state(self, spec: EnvSpec) -> State:
        config = self.config
        return first_state(
            config,
            spec,
            self.seed,
            self.device,
            initial_log_std=config.initial_log_std,
            value_lr=config.value_lr,
        )

    def policy(self, state: State) -> StochasticPolicy:
        return state.policy

    def update(self, state: State, sample: Sample) -> UpdateResult:
        """One iteration: everything in `sample` (segments [B, T]) is used, then forgotten."""
        config = self.config
        experience, metrics = gather(state.policy, state.value, sample, config, self.device)
        if config.normalize_advantage:
            experience = replace(experience, advantage=standardized(experience.advantage))
        metrics |= policy_step(state.policy, state.optimizer, experience, config.max_grad_norm)
        metrics |= fit_value(
            state.value, state.value_optimizer, experience, config.value_steps, config.max_grad_norm
        )
        learn_moments(state.policy, sample, self.device)
        state.updates += 1
        return UpdateResult(metrics)
