"""Rollouts of one player, put together by hand, and what they bring."""

from __future__ import annotations

from typing import Any

import numpy as np

from actors.assemblers import Assembler
from actors.casting import Solo
from actors.player import Player
from actors.rollout import Collected, Rollout
from actors.stream import Stream
from repertory.types import TransitionBatch

TABLE = "replay"


def plain_rollout(
    env: Any,
    spec: Any,
    policy: Any,
    exploration: Any,
    assembler: Assembler,
    *,
    seed: int = 0,
    policy_id: int = 0,
    random_steps: int = 0,
    return_gamma: float | None = None,
    clip_reward: bool = False,
) -> Rollout:
    player = Player("only", policy_id, policy, exploration, spec, random_steps)
    stream = Stream(
        TABLE,
        assembler,
        env.num_envs,
        readers=[0],
        extras=policy.extras,
        return_gamma=return_gamma,
    )
    rng = np.random.default_rng(seed)
    return Rollout(env, spec, [player], Solo(), [stream], rng=rng, clip_reward=clip_reward)


def only_batch(collected: Collected) -> TransitionBatch | None:
    return collected.batches.get(TABLE)
