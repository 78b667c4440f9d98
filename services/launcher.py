"""Starts a run, or goes on with one: everything that can be refused is refused before it starts.

A run is local, all in one process, or distributed (`services.topology`); which of the two a run
directory holds is known by its control folder, so that `resume` goes on the same way.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repertory.checkpoints import Checkpoint
from repertory.config import RunConfig, changed
from repertory.envs import probe
from repertory.errors import CheckpointError, RepertoryError
from repertory.goal_judge import check_goals
from repertory.parts import load_attribute
from repertory.protocols import Callback
from repertory.specs import EnvSpec
from repertory.table_layout import tables_of
from services import topology
from services.fit import check_fit, check_portfolio, choose_device
from services.local_run import LocalRun, RunResult
from services.progress import Reporter
from services.run_control import CONTROL_FOLDER
from services.run_directory import RunDirectory
from services.topology import Place, place_of


def check(config: RunConfig) -> EnvSpec:
    """Tries the environment and every combination; returns what the environment looks like."""
    choose_device(config.device)
    spec = probe(config.env)
    for name, learner in config.learners.items():
        check_fit(name, learner, config.replay, spec)
    check_portfolio(config)
    if any(layout.relabel is not None for layout in tables_of(config).values()):
        check_goals(config.env, spec)
    return spec


def default_run_dir(config: RunConfig, place: Place | None = None) -> Path:
    """In a cluster, where its dashboard looks."""
    env = config.env.id.rpartition(":")[2].replace("/", "-")
    moment = time.strftime("%Y%m%d-%H%M%S")
    runs = Path("runs") if place is None or place.node is None else place.node.runs
    return runs / f"{env}_{'+'.join(config.learners)}_seed{config.seed}_{moment}"


def train(
    config: RunConfig,
    run_dir: Path,
    reporter: Reporter,
    *,
    place: Place | None = None,
    callbacks: Sequence[Callback] = (),
    overwrite: bool = False,
) -> RunResult:
    """Without a place everything happens in this process."""
    spec = check(config)
    hooks = [*callbacks, *_callbacks(config)]
    directory = RunDirectory.create(run_dir, config, overwrite=overwrite)
    try:
        if place is not None:
            return _launch(directory, spec, reporter, place, hooks, None)
        return LocalRun(config, spec, directory, reporter, hooks).run()
    except RepertoryError:
        if not directory.events.exists():  # refused before the first step: leave nothing behind
            shutil.rmtree(run_dir)
        raise
    finally:
        directory.close()


def resume(
    run_dir: Path,
    reporter: Reporter,
    *,
    steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
    place: Place | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Goes on from the newest checkpoint that is whole.

    Perhaps for more steps than planned, and with other `settings`, by dotted names.
    """
    directory = RunDirectory.open(run_dir)
    before = directory.config
    asked = dict(settings or {}) | ({} if steps is None else {"steps": steps})
    config = changed(before, asked) if asked else before
    spec = check(config)
    hooks = [*callbacks, *_callbacks(config)]
    directory.lock()
    try:
        checkpoint = directory.checkpoints.newest_valid()
        reporter.message(f"resuming {run_dir} at step {checkpoint.env_steps} of {config.steps}")
        if checkpoint.env_steps >= config.steps:
            reporter.message("all of its steps are taken: --steps N asks for more")
        directory.update_config(config)
        if (run_dir / CONTROL_FOLDER).is_dir():
            return _launch(directory, spec, reporter, place or place_of(run_dir), hooks, checkpoint)
        return LocalRun(config, spec, directory, reporter, hooks, checkpoint).run()
    except CheckpointError:
        directory.update_config(before)  # what was asked for does not fit what was learned
        raise
    finally:
        directory.close()


def _launch(
    directory: RunDirectory,
    spec: EnvSpec,
    reporter: Reporter,
    place: Place,
    callbacks: Sequence[Callback],
    checkpoint: Checkpoint | None,
) -> RunResult:
    return topology.launch(
        directory,
        spec,
        reporter,
        place,
        callbacks=callbacks,
        checkpoint=checkpoint,
        user_paths=(os.getcwd(),),
    )


def _callbacks(config: RunConfig) -> list[Callback]:
    return [load_attribute(path, "the callback")() for path in config.callbacks]
