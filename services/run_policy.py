"""The policies of a finished or running run: loaded, evaluated."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actors.evaluator import evaluate
from repertory.errors import UsageError
from repertory.policies.card import PolicyCard
from repertory.seeding import derive_seed
from services.run_directory import RunDirectory


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Returns of whole episodes without exploration."""

    policy: str
    env: str
    env_steps: int  # how long the policy had been trained
    episodes: int
    mean_return: float
    std_return: float
    iqm_return: float  # mean of the middle half
    interval: tuple[float, float]  # 95 %, of the mean, by bootstrap
    returns: list[float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def load_card(run_dir: Path, which: str) -> PolicyCard:
    """`best` by evaluated mean, `last` (of who leads now), or a learner's name (its best)."""
    run = RunDirectory.open(run_dir)
    if which == "last":
        checkpoint = run.checkpoints.newest_valid()
        leader = checkpoint.load("run")["leader"]
        return PolicyCard.from_tree(checkpoint.load(f"policy-{leader}"))
    if which == "best":
        checkpoint = run.checkpoints.named("best")
    elif which in run.config.learners:
        checkpoint = run.checkpoints.named(f"best-{which}")
    else:
        names = ", ".join(["best", "last", *run.config.learners])
        raise UsageError(f"{run_dir} has no policy {which!r}: choose one of {names}")
    return PolicyCard.from_tree(checkpoint.load("policy"))


def evaluate_run(run_dir: Path, which: str, episodes: int, seed: int | None) -> Evaluation:
    """In environments of its own; without a seed, one derived from the run's."""
    card = load_card(run_dir, which)
    if seed is None:
        seed = derive_seed(RunDirectory.open(run_dir).config.seed, "eval command")
    returns = evaluate(card.build(), card.env_config, card.spec, episodes=episodes, seed=seed)
    return Evaluation(
        policy=which,
        env=card.env_config.id,
        env_steps=card.env_steps,
        episodes=episodes,
        mean_return=float(np.mean(returns)),
        std_return=float(np.std(returns)),
        iqm_return=interquartile_mean(returns),
        interval=bootstrap_interval(np.asarray(returns)),
        returns=returns,
    )


def interquartile_mean(values: Any) -> float:
    """The mean of the middle half, with fractional weights at the quartiles (arXiv 2108.13264)."""
    ordered = np.sort(np.asarray(values, np.float64))
    size = len(ordered)
    edges = np.arange(size + 1) / size
    overlap = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0, None)
    return float((overlap * ordered).sum() / overlap.sum())


def bootstrap_interval(
    values: np.ndarray, level: float = 0.95, draws: int = 2000
) -> tuple[float, float]:
    """A percentile interval of the mean over the first axis; the draws are seeded."""
    rng = np.random.default_rng(0)
    means = values[rng.integers(len(values), size=(draws, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
