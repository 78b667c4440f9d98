"""SAC with a learned temperature (arXiv 1812.05905), plainly."""

from __future__ import annotations

import copy
import itertools
import math

import torch
from torch import Tensor
from torch.distributions import Normal
from torch.nn import functional as F

from benchmarks.peers.plain_parts import UPDATES_AT_ONCE, ArrayReplay, QNetwork, mlp, move_target
from benchmarks.peers.updates import UpdateJob, transitions

TAU, LR = 0.005, 3e-4
LOWEST_LOG_STD, HIGHEST_LOG_STD = -20.0, 2.0


class PlainSAC:
    def __init__(self, job: UpdateJob) -> None:
        observation, action = job.observation_size, job.action_size
        self._batch = job.batch
        self._replay = ArrayReplay(transitions(job))
        self.actor = mlp([observation, *job.hidden, 2 * action])
        self.q1 = QNetwork(observation, action, job.hidden)
        self.q2 = QNetwork(observation, action, job.hidden)
        self.target_q1, self.target_q2 = copy.deepcopy(self.q1), copy.deepcopy(self.q2)
        self._log_alpha = torch.zeros(1, requires_grad=True)
        self._target_entropy = -float(action)
        critics = itertools.chain(self.q1.parameters(), self.q2.parameters())
        self._q_optimizer = torch.optim.Adam(list(critics), lr=LR)
        self._actor_optimizer = torch.optim.Adam(list(self.actor.parameters()), lr=LR)
        self._alpha_optimizer = torch.optim.Adam([self._log_alpha], lr=LR)

    def run(self) -> int:
        for _ in range(UPDATES_AT_ONCE):
            self._update()
        return UPDATES_AT_ONCE

    def _act(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """A drawn action [B, A], reparametrised, and its log probability [B]."""
        mean, log_std = self.actor(observation).chunk(2, dim=-1)
        normal = Normal(mean, log_std.clamp(LOWEST_LOG_STD, HIGHEST_LOG_STD).exp())
        before = normal.rsample()
        # log(1 - tanh(x)^2), in the form that does not overflow.
        squashing = 2 * (math.log(2) - before - F.softplus(-2 * before))
        return torch.tanh(before), (normal.log_prob(before) - squashing).sum(-1)  # type: ignore[no-untyped-call]

    def _update(self) -> None:
        batch = self._replay.sample(self._batch)
        alpha = self._log_alpha.exp().detach()
        with torch.no_grad():
            next_action, next_log_prob = self._act(batch.next_observation)
            next_q = torch.min(
                self.target_q1(batch.next_observation, next_action),
                self.target_q2(batch.next_observation, next_action),
            )
            target = batch.reward + batch.discount * (next_q - alpha * next_log_prob)
        loss = F.mse_loss(self.q1(batch.observation, batch.action), target) + F.mse_loss(
            self.q2(batch.observation, batch.action), target
        )
        self._q_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._q_optimizer.step()

        action, log_prob = self._act(batch.observation)
        q = torch.min(self.q1(batch.observation, action), self.q2(batch.observation, action))
        actor_loss = (alpha * log_prob - q).mean()
        self._actor_optimizer.zero_grad()
        actor_loss.backward()
        self._actor_optimizer.step()

        alpha_loss = -(self._log_alpha * (log_prob.detach() + self._target_entropy)).mean()
        self._alpha_optimizer.zero_grad()
        alpha_loss.backward()  # type: ignore[no-untyped-call]
        self._alpha_optimizer.step()

        move_target(self.target_q1, self.q1, TAU)
        move_target(self.target_q2, self.q2, TAU)
