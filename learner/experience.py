"""What on-policy learners make of segments [B, T]: flat columns [N], advantages, value targets.

Advantages are by GAE(lambda). Segments that older weights made (`extras["age"]` above 0) are
corrected by V-trace (arXiv 1802.01561): the advantage then holds the ratio of the policy before
this update to the one that acted, and what follows starts from the policy before this update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from learner.critics import StateValue
from learner.data_parallel import highest, joined_rows
from learner.returns import generalized_advantage, v_trace_advantage
from learner.tensors import TensorBatch, learn_from, to_device, to_tensors
from repertory.policies.stochastic import StochasticPolicy
from repertory.types import Sample

Metrics = dict[str, Tensor | float]


class AdvantageConfig(Protocol):
    """The part of an algorithm's settings that is read here."""

    @property
    def gae_lambda(self) -> float: ...

    @property
    def rho_clip(self) -> float: ...

    @property
    def c_clip(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Experience:
    """Flat columns [N] of everything the update needs of the segments."""

    observation: Tensor
    action: Tensor
    log_prob: Tensor  # of the policy that acted; with V-trace, of the one before this update
    advantage: Tensor
    value_target: Tensor

    def select(self, index: Tensor) -> Experience:
        return Experience(*(getattr(self, name)[index] for name in self.__slots__))


@torch.no_grad()
def gather(
    policy: StochasticPolicy,
    value: StateValue,
    sample: Sample,
    config: AdvantageConfig,
    device: torch.device,
) -> tuple[Experience, Metrics]:
    """Everything in `sample`, with what to report about its age where there is any."""
    segments = to_tensors(sample, policy.normalizer, device, learn_moments=False)
    values, next_values = (
        value(observation.flatten(0, 1)).view_as(segments.reward)
        for observation in (segments.observation, segments.next_observation)
    )
    columns = (
        segments.reward,
        segments.discount,
        segments.extras["boundary"],
        values,
        next_values,
        config.gae_lambda,
    )
    log_prob = segments.extras["log_prob"]
    metrics: Metrics = {}
    if stale(sample):
        log_prob, ratio = since_acted(policy, segments)
        advantage = v_trace_advantage(*columns, ratio, config.rho_clip, config.c_clip)
        metrics = age_metrics(segments, ratio, config.rho_clip)
    else:
        advantage = generalized_advantage(*columns)
    return Experience(
        observation=segments.observation.flatten(0, 1),
        action=segments.extras["policy_action"].flatten(0, 1),
        log_prob=log_prob.flatten(),
        advantage=advantage.flatten(),
        value_target=(advantage + values).flatten(),
    ), metrics


def stale(sample: Sample) -> bool:
    """Whether any step was made by older weights, where somebody has looked at their age."""
    age = sample.batch.extras.get("age")
    if age is None:
        return False
    return bool(highest(torch.tensor(int(age.max()))) > 0)  # replicas take one way or the other


@torch.no_grad()
def since_acted(policy: StochasticPolicy, segments: TensorBatch) -> tuple[Tensor, Tensor]:
    """[B, T] each: the log density of the policy as it is now, and its ratio to who acted."""
    acted = segments.extras["log_prob"]
    now, _ = policy.log_prob_and_entropy(
        segments.observation.flatten(0, 1), segments.extras["policy_action"].flatten(0, 1)
    )
    now = now.view_as(acted)
    return now, (now - acted).exp()


def age_metrics(segments: TensorBatch, ratio: Tensor, rho_clip: float) -> Metrics:
    return {
        "age": segments.extras["age"].to(ratio.dtype).mean(),
        "rho": ratio.clamp(max=rho_clip).mean(),
    }


def standardized(advantage: Tensor) -> Tensor:
    """By mean and deviation of the joined batch [N]; a single one has no deviation and stays."""
    everyones = joined_rows(advantage)
    if len(everyones) == 1:
        return advantage
    return (advantage - everyones.mean()) / (everyones.std() + 1e-8)


def learn_moments(policy: StochasticPolicy, sample: Sample, device: torch.device) -> None:
    """Only after an update: its likelihood ratios hold for the statistics that were acted with."""
    extras = sample.batch.extras
    returns = extras.get("discounted_return")
    learn_from(
        policy.normalizer,
        to_device(sample.batch.observation, device).flatten(0, 1),
        None if returns is None else to_device(returns, device).flatten(),
    )
