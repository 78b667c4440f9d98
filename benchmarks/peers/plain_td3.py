"""TD3 (arXiv 1802.09477), plainly."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.peers.plain_parts import UPDATES_AT_ONCE, ArrayReplay, QNetwork, mlp, move_target
from benchmarks.peers.updates import UpdateJob, transitions

TAU, TARGET_NOISE, NOISE_CLIP, POLICY_PERIOD, LR = 0.005, 0.2, 0.5, 2, 1e-3


class PlainTD3:
    def __init__(self, job: UpdateJob) -> None:
        observation, action = job.observation_size, job.action_size
        self._batch = job.batch
        self._replay = ArrayReplay(transitions(job))
        self.actor = nn.Sequential(mlp([observation, *job.hidden, action]), nn.Tanh())
        self.q1 = QNetwork(observation, action, job.hidden)
        self.q2 = QNetwork(observation, action, job.hidden)
        self.target_actor = copy.deepcopy(self.actor)
        self.target_q1, self.target_q2 = copy.deepcopy(self.q1), copy.deepcopy(self.q2)
        critics = itertools.chain(self.q1.parameters(), self.q2.parameters())
        self._q_optimizer = torch.optim.Adam(list(critics), lr=LR)
        self._actor_optimizer = torch.optim.Adam(list(self.actor.parameters()), lr=LR)
        self._updates = 0

    def run(self) -> int:
        for _ in range(UPDATES_AT_ONCE):
            self._update()
        return UPDATES_AT_ONCE

    def _update(self) -> None:
        batch = self._replay.sample(self._batch)
        with torch.no_grad():
            noise = (torch.randn_like(batch.action) * TARGET_NOISE).clamp(-NOISE_CLIP, NOISE_CLIP)
            next_action = (self.target_actor(batch.next_observation) + noise).clamp(-1, 1)
            next_q: Tensor = torch.min(
                self.target_q1(batch.next_observation, next_action),
                self.target_q2(batch.next_observation, next_action),
            )
            target = batch.reward + batch.discount * next_q
        loss = F.mse_loss(self.q1(batch.observation, batch.action), target) + F.mse_loss(
            self.q2(batch.observation, batch.action), target
        )
        self._q_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._q_optimizer.step()

        self._updates += 1
        if self._updates % POLICY_PERIOD == 0:
            actor_loss = -self.q1(batch.observation, self.actor(batch.observation)).mean()
            self._actor_optimizer.zero_grad()
            actor_loss.backward()
            self._actor_optimizer.step()
            move_target(self.target_actor, self.actor, TAU)
            move_target(self.target_q1, self.q1, TAU)
            move_target(self.target_q2, self.q2, TAU)
