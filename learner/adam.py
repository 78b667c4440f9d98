"""Adam (Kingma and Ba 2014, arXiv 1412.6980), as little of it as every algorithm here needs.

    m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2
    p <- p - lr m^ / (sqrt(v^) + eps),  m^ = m / (1 - b1^t),  v^ = v / (1 - b2^t)

On networks of this size torch's own spends more time before its kernel than in it, so the kernel is
called directly. `fused = False` writes the formula out instead: for a compiler, which then joins it
with what makes the gradients (`learner.ahead_of_time`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Adam:
    """Moments of the gradients of `parameters`, all there from the start."""

    def __init__(self, lr: float, parameters: Iterable[nn.Parameter]) -> None:
        self.lr = lr
        self.fused = True
        self.join: Callable[[Tensor], Tensor] | None = None  # of a step's parts, where it has some
        self.parameters = list(parameters)
        self.means = [torch.zeros_like(parameter) for parameter in self.parameters]  # m
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]  # v
        device = self.parameters[0].device
        self._step = torch.zeros((), device=device)  # t
        # 1 - b1^t and 1 - b2^t are what m and v would be if every gradient were 1.
        self._debias = torch.zeros(2, device=device)
        self._rates = torch.tensor([1 - BETA1, 1 - BETA2], device=device)
        self._one = torch.ones((), device=device)

    def tensors(self) -> list[Tensor]:
        """All that a step reads or changes."""
        moments = [*self.means, *self.squares, self._step]
        return [*self.parameters, *moments, self._debias, self._rates, self._one]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        self._step.add_(1)
        self._debias.lerp_(self._one, self._rates)
        if not self.fused:
            self._written_out(gradients)
            return
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient  # where one looks for it
        torch._fused_adam_(
            [*self.parameters],
            list(gradients),
            self.means,
            self.squares,
            [],
            [self._step] * len(self.parameters),
            lr=self.lr,
            beta1=BETA1,
            beta2=BETA2,
            weight_decay=0.0,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )

    def _written_out(self, gradients: Sequence[Tensor]) -> None:
        step_size = self.lr / self._debias[0]
        scale = self._debias[1].rsqrt()
        for p, g, m, v in zip(self.parameters, gradients, self.means, self.squares, strict=True):
            m.lerp_(g, 1 - BETA1)
            v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
            p.sub_(step_size * m / (v.sqrt() * scale + EPSILON))

    def state(self) -> dict[str, dict[str, Tensor]]:
        """For a checkpoint: the moments of each parameter."""
        return {
            str(index): {"step": self._step, "exp_avg": m, "exp_avg_sq": v, "debias": self._debias}
            for index, (m, v) in enumerate(zip(self.means, self.squares, strict=True))
        }

    @torch.no_grad()
    def load_state(self, saved: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Raises KeyError or RuntimeError where it is that of other parameters."""
        if saved and len(saved) != len(self.parameters):
            raise KeyError(f"moments of {len(saved)} parameters, not of {len(self.parameters)}")
        if not saved:  # written before the first step
            for tensor in (*self.means, *self.squares, self._step, self._debias):
                tensor.zero_()
            return
        for index, slots in self.state().items():
            for name in ("step", "exp_avg", "exp_avg_sq"):
                slots[name].copy_(torch.from_numpy(np.asarray(saved[index][name])))
        first = saved["0"]
        if "debias" in first:
            self._debias.copy_(torch.from_numpy(first["debias"]))
        else:  # from before it was kept
            steps = float(first["step"])
            self._debias.copy_(torch.tensor([1 - BETA1**steps, 1 - BETA2**steps]))
