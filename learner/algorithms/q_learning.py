"""Q-learning with a table (Watkins 1989; Watkins and Dayan 1992, Machine Learning 8).

    y = r + discount max_a Q(s', a)
    Q(s, a) <- Q(s, a) + lr (y - Q(s, a))

Observations are discretised into bins (`repertory.policies.tabular_q`). Transitions come from the
replay, as for every off-policy learner, many at once and some of them of the same entry (s, a). An
entry that a batch holds k times is moved k times towards the mean of its k targets:

    Q(s, a) <- Q(s, a) + (1 - (1 - lr)^k) (mean y - Q(s, a))

which is what k steps one after the other come to where the targets are equal, and for any lr up to
1 never goes beyond them; adding k errors up would, from k lr > 2 on further with every batch. The
targets are those of the table before the batch, so the order of its rows does not matter.
Importance weights w scale the steps: (1 - lr)^k is the product of 1 - lr w, and the mean is
weighted by w.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field, field_validator
from torch import Tensor

from learner.data_parallel import joined_rows
from learner.tensors import TensorBatch, to_tensors
from repertory.config import OffPolicyConfig
from repertory.errors import UsageError
from repertory.policies.policy import policy_settings
from repertory.policies.tabular_q import TabularQPolicy
from repertory.settings import ExplorationSettings, part_default
from repertory.specs import EnvSpec
from repertory.types import Sample, UpdateResult

MAX_ENTRIES = 2**24  # of the table, which is sent to every actor: 64 MiB
UNBOUNDED = 1e30  # a space's bound beyond this stands for none, as the largest float32 does


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, int | float) else value


Bins = Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(_listed)]


@dataclass
class State:
    policy: TabularQPolicy  # the table itself
    updates: int = 0


class QLearning:
    data = "off_policy"
    action_kinds = frozenset({"discrete"})
    observation_kinds = frozenset({"vector"})
    needs_bounds = False
    paper = "Watkins and Dayan 1992"

    class Config(OffPolicyConfig):
        algorithm: str = "q_learning"
        lr: float = Field(default=0.1, ge=0, le=1)
        batch_size: int = Field(default=32, ge=1)
        random_steps: int = Field(default=0, ge=0)  # epsilon starts at 1 anyway
        learning_starts: int = Field(default=100, ge=0)
        exploration: ExplorationSettings = part_default("epsilon_greedy")
        bins: Bins = (10,)  # of every number of an observation: one for all, or one for each
        # Where the first bin begins and the last one ends; null: at the space's own bound.
        low: tuple[float | None, ...] = ()
        high: tuple[float | None, ...] = ()
        initial_value: float = 0.0  # of every entry; a high one makes it try everything

        @field_validator("normalize_observation")
        @classmethod
        def _bins_stay_where_they_are(cls, normalize: bool) -> bool:
            if normalize:
                raise ValueError(
                    "learner.normalize_observation = true is refused: the bins of q_learning are "
                    "of observations as they come; set learner.low and learner.high instead"
                )
            return normalize

    def __init__(self, config: Config, *, device: torch.device, seed: int) -> None:
        self.config = config
        self.device = device
        self.seed = seed

    @staticmethod
    def check(config: Config, spec: EnvSpec) -> None:
        """Raises where no table can be laid over this environment."""
        grid(config, spec)

    def initial_state(self, spec: EnvSpec) -> State:
        policy = TabularQPolicy(grid(self.config, spec), spec).to(self.device)
        with torch.no_grad():
            policy.table.fill_(self.config.initial_value)
        return State(policy)

    def policy(self, state: State) -> TabularQPolicy:
        return state.policy

    @torch.no_grad()
    def update(self, state: State, sample: Sample) -> UpdateResult:
        policy = state.policy
        batch = to_tensors(sample, policy.normalizer, self.device, learn_moments=True)

        target = q_target(policy, batch)
        entry = policy.cell(batch.observation) * policy.spec.num_actions + batch.action
        q = policy.table.view(-1)[entry]
        error = target - q
        # Of all replicas: each then makes the same table of the same rows.
        entries, targets = joined_rows(entry), joined_rows(target)
        move(policy.table.view(-1), entries, targets, joined_rows(batch.weights), self.config.lr)

        state.updates += 1
        loss = 0.5 * (batch.weights * error.square()).mean()
        return UpdateResult({"loss": loss, "q": q.mean()}, priorities=error.abs())


def q_target(policy: TabularQPolicy, batch: TensorBatch) -> Tensor:
    """y [B]."""
    return batch.reward + batch.discount * policy(batch.next_observation).amax(-1)


def move(q: Tensor, entry: Tensor, target: Tensor, weights: Tensor, lr: float) -> None:
    """Moves the entries [B] of the table `q`, seen as one row, towards their targets [B]."""
    assert entry.shape == target.shape == weights.shape
    entries, place = entry.unique(return_inverse=True)

    def summed(column: Tensor) -> Tensor:
        """Over the rows of each entry: [B] -> [entries]."""
        return torch.zeros_like(entries, dtype=column.dtype).index_add_(0, place, column)

    mean_target = summed(weights * target) / summed(weights).clamp_min(1e-30)
    kept = torch.log1p(-(lr * weights).clamp(max=1))  # the logarithm of 1 - lr w
    step = -torch.expm1(summed(kept))  # 1 - product of (1 - lr w)
    q[entries] += step * (mean_target - q[entries])


def grid(config: QLearning.Config, spec: EnvSpec) -> TabularQPolicy.Config:
    """The bins of every number of an observation, finite on both sides."""
    size = math.prod(spec.observation_shape)
    bins = config.bins * size if len(config.bins) == 1 else config.bins
    if len(bins) != size:
        raise UsageError(_wrong_length("bins", len(bins), spec))
    low = _ends("low", config.low, spec.observation_low, spec)
    high = _ends("high", config.high, spec.observation_high, spec)
    for number, (first, last) in enumerate(zip(low, high, strict=True)):
        if first >= last:
            raise UsageError(
                f"the bins of number {number} of {spec.env_id} would go from {first:g} to {last:g}:"
                " set learner.low below learner.high"
            )
    entries = math.prod(bins) * spec.num_actions
    if entries > MAX_ENTRIES:
        raise UsageError(
            f"learner.bins make a table of {entries} entries for {spec.env_id}, more than "
            f"{MAX_ENTRIES}: use fewer bins, and 1 for what need not be told apart"
        )
    return TabularQPolicy.Config(**policy_settings(config), bins=bins, low=low, high=high)


def _ends(
    side: Literal["low", "high"],
    given: tuple[float | None, ...],
    of_space: tuple[float, ...],
    spec: EnvSpec,
) -> tuple[float, ...]:
    """Where the bins end on one side: what was set, else the space's own bound."""
    size = math.prod(spec.observation_shape)
    if given and len(given) != size:
        raise UsageError(_wrong_length(side, len(given), spec))
    ends = []
    for number, (own, bound) in enumerate(
        zip(given or (None,) * size, of_space or (math.inf,) * size, strict=True)
    ):
        end = bound if own is None else own
        if abs(end) >= UNBOUNDED:
            raise UsageError(
                f"q_learning needs a range for its bins, and number {number} of the observations "
                f"of {spec.env_id} has no {side} bound: set learner.{side}, a list of {size} with "
                "null where the environment's own bound is right"
            )
        ends.append(end)
    return tuple(ends)


def _wrong_length(name: str, length: int, spec: EnvSpec) -> str:
    size = math.prod(spec.observation_shape)
    return (
        f"learner.{name} has {length} entries and an observation of {spec.env_id} {size} numbers: "
        "give one entry for each"
    )
