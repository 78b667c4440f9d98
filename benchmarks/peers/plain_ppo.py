"""PPO with minibatches (arXiv 1707.06347), plainly."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from benchmarks.peers.plain_parts import GAMMA, mlp
from benchmarks.peers.updates import UpdateJob, transitions

LAMBDA, CLIP, VALUE_COEFFICIENT, MAX_GRAD_NORM, LR = 0.95, 0.2, 0.5, 0.5, 3e-4


class PlainPPO:
    def __init__(self, job: UpdateJob) -> None:
        self._job = job
        self._made = transitions(job)
        self.actor = mlp([job.observation_size, *job.hidden, job.action_size], nn.Tanh)
        self.log_std = nn.Parameter(torch.zeros(job.action_size))
        self.value = mlp([job.observation_size, *job.hidden, 1], nn.Tanh)
        self._parameters = list(
            itertools.chain(self.actor.parameters(), [self.log_std], self.value.parameters())
        )
        self._optimizer = torch.optim.Adam(self._parameters, lr=LR)
        self._rng = np.random.default_rng(0)

    def run(self) -> int:
        """One iteration: advantages of all steps, then epochs of shuffled minibatches."""
        job, made = self._job, self._made
        observation, action = torch.from_numpy(made.observation), torch.from_numpy(made.action)
        old_log_prob = torch.full((job.items,), -6.5)
        with torch.no_grad():
            value = self.value(observation).squeeze(-1)
            next_value = self.value(torch.from_numpy(made.next_observation)).squeeze(-1)
        advantage = self._advantage(value, next_value)
        returns = advantage + value
        steps = 0
        for _ in range(job.epochs):
            order = torch.from_numpy(self._rng.permutation(job.items))
            for index in order.split(job.batch):  # type: ignore[no-untyped-call]
                self._step(
                    observation[index],
                    action[index],
                    old_log_prob[index],
                    advantage[index],
                    returns[index],
                )
                steps += 1
        return steps

    def _advantage(self, value: Tensor, next_value: Tensor) -> Tensor:
        """GAE(lambda), from the last step to the first."""
        made = self._made
        going_on = 1.0 - made.terminated.astype(np.float32)
        delta = made.reward + GAMMA * going_on * next_value.numpy() - value.numpy()
        advantage = np.zeros_like(delta)
        following = 0.0
        for step in reversed(range(len(delta))):
            following = delta[step] + GAMMA * LAMBDA * going_on[step] * following
            advantage[step] = following
        return torch.from_numpy(advantage)

    def _step(
        self,
        observation: Tensor,
        action: Tensor,
        old_log_prob: Tensor,
        advantage: Tensor,
        returns: Tensor,
    ) -> None:
        normal = Normal(self.actor(observation), self.log_std.exp())
        log_prob = normal.log_prob(action).sum(-1)  # type: ignore[no-untyped-call]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (log_prob - old_log_prob).exp()
        surrogate = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        value_loss = (self.value(observation).squeeze(-1) - returns).square().mean()
        loss = -surrogate.mean() + VALUE_COEFFICIENT * value_loss
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, MAX_GRAD_NORM)
        self._optimizer.step()
