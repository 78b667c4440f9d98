"""The front door for Python users: the same as the command line, in scripts and notebooks.

    from repertory.api import train, evaluate, load_policy

    result = train("CartPole-v1", "dqn", steps=50_000, seed=1)
    print(evaluate(result.run_dir).mean_return)
    action = load_policy(result.run_dir).act(observation)

Alone on the floor, this module imports what stands above it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from repertory.config import resolve
from repertory.policies.card import PolicyCard
from repertory.policy_memory import PolicyMemory
from repertory.protocols import Callback
from repertory.types import Array
from services import launcher
from services.ensemble import Ensemble, Mode
from services.export import is_export, load_export
from services.local_run import RunResult
from services.progress import Reporter, Silent, reporter_for
from services.run_policy import Evaluation, evaluate_run, load_playable
from services.topology import Place

__all__ = ["Evaluation", "LoadedPolicy", "RunResult", "evaluate", "load_policy", "resume", "train"]


def train(
    env: str | None = None,
    algo: str | Sequence[str] = (),
    *,
    steps: int | None = None,
    seed: int | None = None,
    run_dir: str | Path | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    distributed: bool = False,
    progress: bool = True,
    overwrite: bool = False,
) -> RunResult:
    """Trains in this process, or in many; `settings` are dotted keys, as `--set` takes them."""
    overrides = dict(settings or {})
    overrides |= {key: v for key, v in (("steps", steps), ("seed", seed)) if v is not None}
    algorithms = algo.split(",") if isinstance(algo, str) and algo else list(algo)
    resolved = resolve(
        env, algorithms, file=None if config is None else Path(config), overrides=overrides
    )
    return launcher.train(
        resolved,
        launcher.default_run_dir(resolved) if run_dir is None else Path(run_dir),
        _reporter(progress),
        place=Place() if distributed else None,
        callbacks=callbacks,
        overwrite=overwrite,
    )


def resume(
    run_dir: str | Path,
    *,
    steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> RunResult:
    """From the newest whole checkpoint; `settings` are changed by their dotted names."""
    return launcher.resume(
        Path(run_dir), _reporter(progress), steps=steps, settings=settings, callbacks=callbacks
    )


def evaluate(
    run_dir: str | Path,
    policy: str = "best",
    *,
    episodes: int = 10,
    seed: int | None = None,
    ensemble: Mode | None = None,
) -> Evaluation:
    """`policy` is best, last, a learner's name or ensemble; `ensemble` says how that one acts."""
    return evaluate_run(Path(run_dir), policy, episodes, seed, ensemble)


def load_policy(
    path: str | Path, policy: str = "best", *, ensemble: Mode | None = None, seed: int = 0
) -> LoadedPolicy:
    """A policy or the ensemble of a run, or what is in a folder written by `repertory export`.

    `seed` is of the draws by which an ensemble's strategy chooses who acts.
    """
    path = Path(path)
    if is_export(path):
        return LoadedPolicy(load_export(path, ensemble, seed))
    return LoadedPolicy(load_playable(path, policy, ensemble, seed))


class LoadedPolicy:
    """Acts on the environment's own observations, in the environment's own actions.

    Some policies remember (an option, a goal): one row for each observation of a batch. An ensemble
    by strategy chooses anew for each episode. Tell those with `begin_episode` when one has ended.
    """

    def __init__(self, card: PolicyCard | Ensemble) -> None:
        self.card = card
        self._memory = PolicyMemory(card.build())

    def act(self, observation: Any, rng: np.random.Generator | None = None) -> Array:
        """The action for one observation or a batch of them; with a generator, a sampled one.

        Observations are as `repertory.envs.make_env` gives them: for Box vectors, unchanged.
        """
        spec = self.card.spec
        batch = np.asarray(observation, spec.observation_dtype)
        single = batch.shape == spec.observation_shape
        batch = batch[None] if single else batch
        acted = self._memory.act(batch, rng, env_steps=self.card.env_steps)
        action = spec.to_env_action(acted.action)
        return action[0] if single else action

    def begin_episode(self, starting: Any = None) -> None:
        """What comes next is the first observation of an episode, in the marked rows or in all."""
        self._memory.begin(None if starting is None else np.asarray(starting, bool))


def _reporter(progress: bool) -> Reporter:
    return reporter_for(Console(stderr=True)) if progress else Silent()
