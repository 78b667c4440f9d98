"""Which algorithm fits which environment, said before anything starts."""

from __future__ import annotations

from typing import Any

import torch

from repertory.config import LearnerConfig, ReplayConfig, RunConfig
from repertory.errors import UsageError
from repertory.parts import SHORT_NAMES, lookup
from repertory.specs import EnvSpec
from repertory.table_layout import tables_of


def misfit(algorithm: Any, spec: EnvSpec) -> str | None:
    """Why this algorithm cannot learn this environment, or None where it can."""
    if spec.action_kind not in algorithm.action_kinds:
        wanted = " or ".join(sorted(algorithm.action_kinds))
        return f"it needs {wanted} actions, {spec.env_id} has {spec.action_kind} ones"
    if spec.observation_kind not in algorithm.observation_kinds:
        wanted = " or ".join(sorted(algorithm.observation_kinds))
        return f"it needs {wanted} observations, those of {spec.env_id} are {spec.observation_kind}"
    if algorithm.needs_bounds and not spec.bounded:
        return f"it needs bounded actions, those of {spec.env_id} have no finite bounds"
    return None


def fitting_algorithms(spec: EnvSpec) -> list[str]:
    return [
        name
        for name in sorted(SHORT_NAMES["algorithm"])
        if misfit(lookup("algorithm", name), spec) is None
    ]


def check_fit(name: str, config: LearnerConfig, replay: ReplayConfig, spec: EnvSpec) -> None:
    algorithm = lookup("algorithm", config.algorithm)
    reason = misfit(algorithm, spec)
    if reason is not None:
        fitting = ", ".join(fitting_algorithms(spec)) or "none of ours"
        who = name if name == config.algorithm else f"{name} ({config.algorithm})"
        raise UsageError(f"{who} does not fit: {reason}; what fits is {fitting}")
    if hasattr(algorithm, "check"):
        algorithm.check(config, spec)
    if replay.sampler.name == "fifo" and algorithm.data == "off_policy":
        raise UsageError(
            f"replay.sampler = fifo is refused: {config.algorithm} samples experience many times; "
            "use uniform or prioritized"
        )


def check_portfolio(config: RunConfig) -> None:
    """What several learners cannot have together."""
    tables_of(config)
    config.director.require_room_for(config.learners)
    lookup("strategy", config.director.strategy.name)(
        config.director.strategy, tuple(config.learners)
    )
    sampler = config.replay.sampler.name
    if len(config.learners) > 1 and sampler not in ("uniform", "mixture"):
        raise UsageError(
            f"replay.sampler = {sampler} is refused with {len(config.learners)} learners "
            f"({', '.join(config.learners)}): priorities are one learner's, and a shared replay "
            "mixes by provenance; use uniform"
        )


def default_algorithm(spec: EnvSpec) -> str:
    """What to use where nothing was asked for."""
    return "sac" if spec.action_kind == "continuous" and spec.bounded else "ppo"


def choose_device(name: str) -> torch.device:
    """`auto` is a GPU where there is one; a device that is asked for must be there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device = {name} is refused: torch finds no GPU here; use auto or cpu")
    if index and int(index) >= torch.cuda.device_count():
        raise UsageError(
            f"device = {name} is refused: torch finds {torch.cuda.device_count()} GPUs here"
        )
    return torch.device(name)
