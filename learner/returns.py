"""Returns and advantages of segments [B, T]: pure functions, no parameters."""

from __future__ import annotations

import numpy as np
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
    return _discounted_sum(delta, discount * lambda_ * ~boundary)


def v_trace_advantage(
    reward: Tensor,
    discount: Tensor,
    boundary: Tensor,
    value: Tensor,
    next_value: Tensor,
    lambda_: float,
    ratio: Tensor,
    rho_clip: float,
    c_clip: float,
) -> Tensor:
    """V-trace, arXiv 1802.01561, for segments that another policy mu made:

        ratio_t = pi(a_t|s_t) / mu(a_t|s_t),  rho_t = min(rho_clip, ratio_t),  c_t likewise
        delta_t = rho_t (r_t + discount_t V(s'_t) - V(s_t))
        A_t = delta_t + discount_t lambda c_t A_{t+1}      (no A_{t+1} across an episode's end)

    A_t + V(s_t) is the paper's v_t, with its c_t times lambda. Where all ratios are 1 it is GAE.
    `rho_clip` decides which policy's value is found (pi's own where it never clips), `c_clip` only
    how fast.
    """
    delta = ratio.clamp(max=rho_clip) * (reward + discount * next_value - value)
    return _discounted_sum(delta, discount * lambda_ * ~boundary * ratio.clamp(max=c_clip))


def _discounted_sum(delta: Tensor, carry: Tensor) -> Tensor:
    """A_t = delta_t + carry_t A_{t+1}, along the second axis."""
    # In NumPy, which is quicker at thousands of small steps than torch, and far more than a GPU.
    deltas, carries = (np.ascontiguousarray(column.cpu().numpy().T) for column in (delta, carry))
    advantage = np.empty_like(deltas)  # [T, B]
    running = np.zeros_like(deltas[0])
    for t in range(len(deltas) - 1, -1, -1):
        running = np.add(deltas[t], carries[t] * running, out=advantage[t])
    return torch.from_numpy(np.ascontiguousarray(advantage.T)).to(delta.device)
