"""Starts a run, or goes on with one: everything that can be refused is refused before it starts."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from repertory.config import RunConfig
from repertory.envs import probe
from repertory.errors import RepertoryError, UsageError
from repertory.parts import load_attribute
from repertory.protocols import Callback
from repertory.specs import EnvSpec
from services.fit import check_fit, choose_device
from services.local_run import LocalRun, RunResult
from services.progress import Reporter
from services.run_directory import RunDirectory


def check(config: RunConfig) -> EnvSpec:
    """Tries the environment and every combination; returns what the environment looks like."""
    if len(config.learners) > 1:
        raise UsageError(
            f"{len(config.learners)} learners ({', '.join(config.learners)}) were asked for: "
            "this version trains one at a time"
        )
    choose_device(config.device)
    spec = probe(config.env)
    for learner in config.learners.values():
        check_fit(learner, config.replay, spec)
    return spec


def default_run_dir(config: RunConfig) -> Path:
    env = config.env.id.rpartition(":")[2].replace("/", "-")
    moment = time.strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{env}_{'+'.join(config.learners)}_seed{config.seed}_{moment}"


def train(
    config: RunConfig,
    run_dir: Path,
    reporter: Reporter,
    *,
    callbacks: Sequence[Callback] = (),
    overwrite: bool = False,
) -> RunResult:
    spec = check(config)
    hooks = [*callbacks, *_callbacks(config)]
    directory = RunDirectory.create(run_dir, config, overwrite=overwrite)
    try:
        try:
            run = LocalRun(config, spec, directory, reporter, hooks)
        except RepertoryError:  # refused by a part before the first step: leave nothing behind
            shutil.rmtree(run_dir)
            raise
        return run.run()
    finally:
        directory.close()


def resume(
    run_dir: Path,
    reporter: Reporter,
    *,
    steps: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Goes on from the newest checkpoint that is whole, perhaps for more steps than planned."""
    directory = RunDirectory.open(run_dir)
    config = directory.config
    if steps is not None:
        config = config.model_copy(update={"steps": steps})
    spec = check(config)
    hooks = [*callbacks, *_callbacks(config)]
    directory.lock()
    try:
        checkpoint = directory.checkpoints.newest_valid()
        reporter.message(f"resuming {run_dir} at step {checkpoint.env_steps} of {config.steps}")
        if checkpoint.env_steps >= config.steps:
            reporter.message("all of its steps are taken: --steps N asks for more")
        directory.update_config(config)
        return LocalRun(config, spec, directory, reporter, hooks, checkpoint).run()
    finally:
        directory.close()


def _callbacks(config: RunConfig) -> list[Callback]:
    return [load_attribute(path, "the callback")() for path in config.callbacks]
