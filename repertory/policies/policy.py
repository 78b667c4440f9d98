"""The base of our policies: NumPy in, NumPy out, torch inside; and how one is built by name.

A policy is known by its `Config` and its weights alone, so an actor, an evaluator or an exported
card can rebuild it without the algorithm that trained it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from repertory.config import LearnerConfig
from repertory.errors import CheckpointError
from repertory.parts import lookup
from repertory.policies.lean import MOST_ROWS, LeanView
from repertory.policies.normalizer import Normalizer
from repertory.settings import PartSettings
from repertory.specs import EnvSpec
from repertory.types import Acted, Array, ColumnSpec


class PolicyConfig(PartSettings):
    hidden_sizes: tuple[int, ...] = Field(default=(256, 256))
    normalize_observation: bool = False
    normalize_reward: bool = False


def policy_settings(learner: LearnerConfig) -> dict[str, Any]:
    """What every policy takes over from its learner's settings."""
    return {
        "hidden_sizes": learner.hidden_sizes,
        "normalize_observation": learner.normalize_observation,
        "normalize_reward": learner.normalize_reward,
    }


class TorchPolicy(nn.Module):
    """Subclasses build their network in `__init__` and say in `_act` what to do.

    Where the network is a plain chain of layers, a subclass names them in `layers` and says in
    `decide` what follows from their outputs: then a few rows at a time go without torch
    (`repertory.policies.lean`). Both ways draw the same random numbers.
    """

    extras: Mapping[str, ColumnSpec]

    Config: ClassVar[type[PolicyConfig]] = PolicyConfig

    def __init__(self, config: PolicyConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.config = config
        self.spec = spec
        self.extras = {}
        self.normalizer = Normalizer(
            spec.observation_shape,
            # Pixels have a range of their own: Torso divides them by 255.
            observations=config.normalize_observation and spec.observation_kind == "vector",
            rewards=config.normalize_reward,
        )
        self._lean = LeanView()

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def act(self, observation: Array, rng: np.random.Generator | None) -> Acted:
        if len(observation) <= MOST_ROWS:
            network = self._lean.of(self.layers, self.normalizer.observation_moments)
            if network is not None:
                return self.decide(network(observation), rng)
        with torch.inference_mode():
            return self._act(self.observe(observation), rng)

    def observe(self, observation: Array) -> Tensor:
        """Observations as the network takes them."""
        tensor = torch.as_tensor(observation).to(self.device, non_blocking=True)
        return self.normalizer.observation(tensor)

    def _act(self, observation: Tensor, rng: np.random.Generator | None) -> Acted:
        outputs = observation
        for layer in self.layers():
            outputs = layer(outputs)
        return self.decide(outputs.cpu().numpy(), rng)

    def layers(self) -> Sequence[nn.Module]:
        """From normalised observations to what `decide` takes; none: torch does it all."""
        return ()

    def decide(self, outputs: Array, rng: np.random.Generator | None) -> Acted:
        """The actions for these outputs of the last layer [B, ...]."""
        raise NotImplementedError

    def _apply(self, fn: Any, recurse: bool = True) -> TorchPolicy:
        """Parameters move to another device or type."""
        self._lean = LeanView()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def weights(self) -> dict[str, Array]:
        """A copy of every parameter and buffer."""
        return {name: value.cpu().numpy().copy() for name, value in self.state_dict().items()}

    def load_weights(self, arrays: Mapping[str, Array]) -> None:
        try:
            # Copies: weights that many processes share are read-only, which torch does not know.
            self.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
        except RuntimeError as error:
            raise CheckpointError(
                f"these weights do not fit the policy {self.config.name}: "
                f"{' '.join(str(error).split())}"
            ) from None


def policy_config(document: Mapping[str, Any]) -> PolicyConfig:
    """From JSON, by the name of the part it is for."""
    config: PolicyConfig = lookup("policy", document["name"]).Config.model_validate(document)
    return config


def build_policy(config: PolicyConfig, spec: EnvSpec) -> TorchPolicy:
    """A policy with untrained weights."""
    policy: TorchPolicy = lookup("policy", config.name)(config, spec)
    return policy.requires_grad_(False)


def gaussian_noise(shape: Sequence[int], rng: np.random.Generator, like: Tensor) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)).to(like.device)
