"""Whole short runs of TRPO, every update of which is looked at from outside."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference.from_torch import snapshot
from reference.natural_gradient import mean_kl
from reference.stochastic import distribution_of
from small_runs import SHARED

from learner.algorithms.natural_gradient import TRPO, State
from repertory.api import train
from repertory.types import Sample, UpdateResult

MAX_KL = 0.1


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_every_accepted_step_stays_inside_the_trust_region(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By NumPy, from the weights before and after; and what was not accepted changed nothing.

    A region so wide, with so little damping, that the search has to come back now and then.
    """
    update, seen = TRPO.update, []

    def watched(self: TRPO, state: State, sample: Sample) -> UpdateResult:
        before, old = snapshot(state.policy), copy.deepcopy(distribution_of(state.policy))
        result = update(self, state, sample)
        observation = sample.batch.observation.reshape(-1, sample.batch.observation.shape[-1])
        kl = mean_kl(old, distribution_of(state.policy), observation.astype(np.float64))
        pairs = zip(snapshot(state.policy), before, strict=True)
        moved = any((now != then).any() for now, then in pairs)
        seen.append((kl, moved, result.metrics))
        return result

    monkeypatch.setattr(TRPO, "update", watched)
    settings: dict[str, Any] = {
        **SHARED,
        "steps": 5120,
        "env.copies": 2,
        "learner.segment_length": 128,
        "learner.max_kl": MAX_KL,
        "learner.cg_damping": 1e-3,
        "learner.value_steps": 10,
        "evaluation.every": 100_000,
        "checkpoint.every": 100_000,
    }
    train(env, "trpo", seed=1, run_dir=tmp_path / "run", settings=settings, progress=False)
    assert len(seen) == 20
    for kl, moved, metrics in seen:
        # Weights and KL of the learner are float32: 1e-7 of numbers of about one.
        assert kl <= MAX_KL + 1e-5
        assert float(metrics["kl"]) == pytest.approx(kl, abs=1e-5)
        assert moved == (metrics["step_fraction"] > 0)
        assert not moved or float(metrics["surrogate_improvement"]) > 0
    assert sum(moved for _, moved, _ in seen) >= 15
    assert any(metrics["line_search_steps"] > 1 for _, _, metrics in seen)
