"""The policies of a finished or running run, one by one or as an ensemble: loaded, evaluated."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actors.evaluator import evaluate
from repertory.errors import UsageError
from repertory.policies.card import PolicyCard
from repertory.seeding import derive_seed
from services.ensemble import DEFAULT_MODE, Ensemble, Mode, require_mode
from services.ensemble_policies import Directed
from services.final_director import FinalDirector
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
    # Of an ensemble: how it acted, its members, and by strategy for which part of the steps each
    # acted. None, and not in the JSON, for a single policy.
    ensemble: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        if self.ensemble is None:
            del document["ensemble"]
        return document


def load_playable(
    run_dir: Path, which: str, mode: Mode | None = None, seed: int = 0
) -> PolicyCard | Ensemble:
    """What `load_card` knows, or `ensemble`; of one learner alone that is its best policy.

    `mode` says how an ensemble acts, by default by strategy; `seed` is of the strategy's draws.
    """
    if which == "ensemble":
        return load_ensemble(run_dir, mode or DEFAULT_MODE, seed)
    if mode is not None:
        raise UsageError(
            f"--ensemble {mode} says nothing of the policy {which!r}: add --policy ensemble"
        )
    return load_card(run_dir, which)


def load_ensemble(run_dir: Path, mode: Mode, seed: int) -> PolicyCard | Ensemble:
    run = RunDirectory.open(run_dir)
    members = {name: load_card(run_dir, name) for name in run.config.learners}
    if len(members) == 1:
        (card,) = members.values()
        require_mode(mode, card.spec)
        return card
    newest = run.checkpoints.newest_valid()
    director = None
    if newest.has("director"):  # it may have been away when the checkpoint was written
        director = FinalDirector(run.config.director, newest.load("director"))
    return Ensemble(members, mode, director, newest.env_steps, seed)


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
        names = ", ".join(["best", "last", "ensemble", *run.config.learners])
        raise UsageError(f"{run_dir} has no policy {which!r}: choose one of {names}")
    return PolicyCard.from_tree(checkpoint.load("policy"))


def evaluate_run(
    run_dir: Path, which: str, episodes: int, seed: int | None, mode: Mode | None = None
) -> Evaluation:
    """In environments of its own; without a seed, one derived from the run's."""
    if seed is None:
        seed = derive_seed(RunDirectory.open(run_dir).config.seed, "eval command")
    card = load_playable(run_dir, which, mode, seed)
    policy = card.build()
    returns = evaluate(policy, card.env_config, card.spec, episodes=episodes, seed=seed)
    ensemble = None
    if isinstance(card, Ensemble):
        acted = policy.acted() if isinstance(policy, Directed) else None
        ensemble = {**card.description(), "acted": acted}
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
        ensemble=ensemble,
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
