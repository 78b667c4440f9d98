"""DQN with a target network (Nature 518), plainly."""

from __future__ import annotations

import copy

import torch
from torch.nn import functional as F

from benchmarks.peers.plain_parts import UPDATES_AT_ONCE, ArrayReplay, mlp
from benchmarks.peers.updates import UpdateJob, transitions

TARGET_PERIOD, LR = 500, 2.5e-4


class PlainDQN:
    def __init__(self, job: UpdateJob) -> None:
        self._batch = job.batch
        self._replay = ArrayReplay(transitions(job))
        self.q = mlp([job.observation_size, *job.hidden, job.action_size])
        self.target_q = copy.deepcopy(self.q)
        self._optimizer = torch.optim.Adam(list(self.q.parameters()), lr=LR)
        self._updates = 0

    def run(self) -> int:
        for _ in range(UPDATES_AT_ONCE):
            self._update()
        return UPDATES_AT_ONCE

    def _update(self) -> None:
        batch = self._replay.sample(self._batch)
        with torch.no_grad():
            next_q = self.target_q(batch.next_observation).max(dim=1).values
            target = batch.reward + batch.discount * next_q
        q = self.q(batch.observation).gather(1, batch.action.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(q, target)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._updates += 1
        if self._updates % TARGET_PERIOD == 0:
            self.target_q.load_state_dict(self.q.state_dict())
