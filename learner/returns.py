"""Returns and advantages of segments [B, T]: pure functions, no parameters."""

from __future__ import annotations

import torch
from torch import Tensor


def generalized_advantage(
    reward: Tensor,
    discount: Tensor,
    boundary: Tensor,
    value: Tensor,
    next_value: Tensor,
    lambda_: float,
) -> Tensor:
    """GAE(lambda), arXiv 1506.02438:

        delta_t = r_t + discount_t V(s'_t) - V(s_t)
        A_t = delta_t + discount_t lambda A_{t+1}          (no A_{t+1} across an episode's end)

    `discount` is 0 where terminated. At a truncation, and where the segment is cut, V(s') of the
    true next observation stands in for what was not seen.
    """
    delta = reward + discount * next_value - value
    carry = discount * lambda_ * ~boundary
    advantage = torch.zeros_like(delta)
    running = torch.zeros_like(delta[:, 0])
    for t in range(delta.shape[1] - 1, -1, -1):
        running = delta[:, t] + carry[:, t] * running
        advantage[:, t] = running
    return advantage
