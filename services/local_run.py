"""A whole run in one process: rollouts, replay, updates, evaluations, checkpoints, in turn.

The same parts as in a distributed run with nothing between them, so it is reproducible to the bit
for a seed, and a run that was killed goes on from its last checkpoint as if it had not been.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actors.evaluator import evaluate
from actors.rollout import rollout_for
from buffer_server.table_config import table_config
from learner.checkpoint import load_state_tree, state_tree
from learner.loop import LearnerLoop
from repertory.checkpoints import Checkpoint
from repertory.config import LearnerConfig, OffPolicyConfig, OnPolicyConfig, RunConfig
from repertory.errors import CheckpointError, RepertoryError
from repertory.parts import lookup
from repertory.policies.card import PolicyCard
from repertory.protocols import Callback, Replay
from repertory.seeding import derive_seed
from repertory.specs import EnvSpec
from repertory.types import WeightSnapshot
from services.fit import choose_device
from services.local_shard import LocalShard
from services.metrics import EpisodeWindow, MetricLog
from services.progress import Reporter, Status
from services.run_directory import RunDirectory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended."""

    run_dir: Path
    env_steps: int
    updates: int
    best_mean_return: float | None
    last_mean_return: float | None
    stopped_by: str | None  # None: all steps were taken


class LocalRun:
    """Built complete, restored where there is a checkpoint, then `run` once."""

    def __init__(
        self,
        config: RunConfig,
        spec: EnvSpec,
        directory: RunDirectory,
        reporter: Reporter,
        callbacks: Sequence[Callback] = (),
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._config = config
        self._spec = spec
        self._directory = directory
        self._reporter = reporter
        self._callbacks = callbacks
        self._learner_name, self._learner_config = next(iter(config.learners.items()))

        torch.set_num_threads(config.threads)
        learner_config = self._learner_config
        algorithm = lookup("algorithm", learner_config.algorithm)(
            learner_config,
            device=choose_device(config.device),
            seed=derive_seed(config.seed, "learner", self._learner_name),
        )
        state = algorithm.initial_state(spec)
        self._policy = algorithm.policy(state)
        self._rollout = rollout_for(config, learner_config, spec, self._policy)
        self._table = table_config(config, learner_config, spec, self._policy.extras).build(
            self._learner_name
        )
        self._shard = LocalShard(self._table) if config.replay.transport == "grpc" else None
        self._replay: Replay = self._table if self._shard is None else self._shard.client
        self._loop = LearnerLoop(
            algorithm,
            state,
            self._replay,
            batch_size=_batch_size(config, learner_config),
            send_priorities=config.replay.sampler.name != "uniform",
        )

        self._episodes = EpisodeWindow()
        self._evaluations: dict[int, list[float]] = {}
        self._best_mean: float | None = None
        self._elapsed_before = 0.0
        self._logged_at = -1
        self._stop_reason: str | None = None
        if checkpoint is not None:
            self._restore(checkpoint)
        self._log = MetricLog(
            directory.metrics,
            directory.tensorboard,
            config.log,
            resume_at=None if checkpoint is None else checkpoint.env_steps,
        )
        self._started = time.monotonic()
        self._rates = RateMeter(self.env_steps, self._loop.updates)

    @property
    def env_steps(self) -> int:
        return self._rollout.env_steps

    def run(self) -> RunResult:
        config = self._config
        title = f"{self._learner_name} on {config.env.id}"
        with ExitStack() as stack:
            stack.callback(self._rollout.close)
            if self._shard is not None:
                stack.callback(self._shard.close)
            stack.callback(self._log.close)
            stack.enter_context(self._signals_stop_the_run())
            self._reporter.start(title, self._status())
            stack.callback(self._reporter.stop)
            self._directory.record_event("started", env_steps=self.env_steps)
            try:
                self._train()
            except Exception as error:
                self._directory.record_event(
                    "failed", env_steps=self.env_steps, traceback=traceback.format_exc()
                )
                self._add_way_on(error)
                raise
            self._directory.record_event(
                "finished", env_steps=self.env_steps, stopped_by=self._stop_reason
            )
            self._notify("on_end", self.env_steps)
        return RunResult(
            run_dir=self._directory.path,
            env_steps=self.env_steps,
            updates=self._loop.updates,
            best_mean_return=self._best_mean,
            last_mean_return=self._last_evaluation(),
            stopped_by=self._stop_reason,
        )

    def _add_way_on(self, error: Exception) -> None:
        """What a user can do now, where there is something to go on from."""
        if isinstance(error, RepertoryError) and self._directory.checkpoints.paths():
            path = self._directory.path
            error.args = (f"{error}; `repertory resume {path}` goes on from the last checkpoint",)

    def _train(self) -> None:
        config = self._config
        if self.env_steps == 0:
            self._evaluate()  # the untrained policy, to compare with
        log_at, evaluate_at, checkpoint_at = (
            _next_multiple(self.env_steps, every)
            for every in (config.log.every, config.evaluation.every, config.checkpoint.every)
        )
        while self.env_steps < config.steps and self._stop_reason is None:
            self._advance()
            if self.env_steps >= log_at:
                self._write_metrics()
                log_at = _next_multiple(self.env_steps, config.log.every)
            if self.env_steps >= evaluate_at:
                self._evaluate()
                evaluate_at = _next_multiple(self.env_steps, config.evaluation.every)
            if checkpoint_at <= self.env_steps < config.steps:
                self._save_checkpoint()
                checkpoint_at = _next_multiple(self.env_steps, config.checkpoint.every)
        if self._stop_reason is None and self.env_steps not in self._evaluations:
            self._evaluate()
        self._save_checkpoint()

    def _advance(self) -> None:
        """Acts for a while, then learns as much as that allows."""
        config = self._learner_config
        if isinstance(config, OnPolicyConfig):
            self._collect(config.segment_length * self._config.env.copies)
            self._loop.run(1)
        else:
            assert isinstance(config, OffPolicyConfig)
            self._collect(min(config.train_every, self._config.steps - self.env_steps))
            allowed = int((self.env_steps - config.learning_starts) * config.updates_per_step)
            if self._table.size > 0:
                self._loop.run(allowed - self._loop.updates)
        self._rollout.policy_version = self._loop.updates

    def _collect(self, env_steps: int) -> None:
        collected = self._rollout.collect(env_steps)
        if collected.batch is not None:
            self._replay.insert(collected.batch)
        self._episodes.add(collected.outcomes)

    def _write_metrics(self) -> None:
        if self._logged_at == self.env_steps:
            return
        self._logged_at = self.env_steps
        learner = self._loop.averages.read()
        self._refuse_divergence(learner)
        self._rates.update(self.env_steps, self._loop.updates)
        status = self._status()
        metrics = {
            **self._episodes.read(),
            **{f"learner/{name}": value for name, value in learner.items()},
            "learner/updates": float(self._loop.updates),
            "replay/size": float(self._table.size),
            "time/fps": status.steps_per_second,
            "time/updates_per_second": status.updates_per_second,
            "time/time_elapsed": status.elapsed_seconds,
            "charts/SPS": status.steps_per_second,
        }
        self._log.write(self.env_steps, time.time(), metrics)
        self._reporter.update(status)
        self._notify("on_step", self.env_steps, metrics)

    def _refuse_divergence(self, learner: Mapping[str, float]) -> None:
        broken = {name: value for name, value in learner.items() if not math.isfinite(value)}
        if broken:
            name, value = next(iter(broken.items()))
            raise RepertoryError(
                f"learner/{name} is {value} at step {self.env_steps}: training has diverged; "
                "lower learner.lr or set learner.max_grad_norm"
            )

    def _evaluate(self) -> None:
        returns = evaluate(
            self._policy,
            self._config.env,
            self._spec,
            episodes=self._config.evaluation.episodes,
            seed=derive_seed(self._config.seed, "evaluation", len(self._evaluations)),
        )
        self._evaluations[self.env_steps] = returns
        self._directory.write_evaluations(self._evaluations)
        mean, deviation = float(np.mean(returns)), float(np.std(returns))
        metrics = {"eval/mean_reward": mean, "eval/std_reward": deviation}
        self._log.write(self.env_steps, time.time(), metrics)
        if self._best_mean is None or mean > self._best_mean:
            self._best_mean = mean
            self._try_save(lambda: self._save_best(mean))
        self._reporter.update(self._status())
        self._notify("on_evaluation", self.env_steps, returns, self._policy)

    def _save_best(self, mean: float) -> Path:
        sections = {"policy": self._card(mean).tree()}
        return self._directory.checkpoints.save(self.env_steps, sections, name="best")

    def _save_checkpoint(self) -> None:
        self._write_metrics()  # so that nothing of the averages is lost with a kill
        sections = {
            "policy": self._card(self._last_evaluation()).tree(),
            "learner": state_tree(self._loop.state),
            "rollout": self._rollout.state(),
            "run": {
                "episodes": self._episodes.state(),
                "evaluations": {str(step): r for step, r in self._evaluations.items()},
                "best_mean": self._best_mean,
                "elapsed_seconds": self._elapsed(),
            },
        }
        if self._config.checkpoint.replay:
            sections["replay"] = self._table.arrays()
        path = self._try_save(lambda: self._directory.checkpoints.save(self.env_steps, sections))
        if path is not None:
            self._notify("on_checkpoint", self.env_steps, path)

    def _try_save(self, save: Any) -> Path | None:
        """A checkpoint that cannot be written is loud, but does not end the run."""
        try:
            path: Path = save()
            return path
        except CheckpointError as error:
            logger.error("%s", error)
            self._directory.record_event("checkpoint_failed", env_steps=self.env_steps)
            return None

    def _card(self, mean_return: float | None) -> PolicyCard:
        return PolicyCard(
            algorithm=self._learner_config.algorithm,
            policy_config=self._policy.config,
            env_config=self._config.env,
            spec=self._spec,
            snapshot=WeightSnapshot(self._learner_name, self._loop.updates, self._policy.weights()),
            env_steps=self.env_steps,
            mean_return=mean_return,
        )

    def _restore(self, checkpoint: Checkpoint) -> None:
        load_state_tree(self._loop.state, checkpoint.load("learner"))
        self._rollout.load_state(checkpoint.load("rollout"))
        if checkpoint.has("replay"):
            self._table.load_arrays(checkpoint.load("replay"))
        else:
            logger.warning("%s holds no replay: it starts empty", checkpoint.path)
        run = checkpoint.load("run")
        self._episodes.load_state(run["episodes"])
        self._evaluations = {int(step): returns for step, returns in run["evaluations"].items()}
        self._best_mean = run["best_mean"]
        self._elapsed_before = run["elapsed_seconds"]
        self._logged_at = checkpoint.env_steps
        self._directory.write_evaluations(self._evaluations)
        self._directory.record_event(
            "resumed", env_steps=checkpoint.env_steps, checkpoint=checkpoint.path.name
        )

    def _notify(self, hook: str, *arguments: Any) -> None:
        for callback in self._callbacks:
            method = getattr(callback, hook, None)
            if method is not None and method(*arguments) and self._stop_reason is None:
                self._stop_reason = f"{type(callback).__name__}.{hook}"

    @contextmanager
    def _signals_stop_the_run(self) -> Any:
        """The first SIGINT or SIGTERM drains and checkpoints; a second SIGINT ends it at once."""

        def stop(number: int, _frame: Any) -> None:
            self._stop_reason = signal.Signals(number).name
            self._reporter.message(f"{self._stop_reason}: writing a checkpoint, then stopping")
            signal.signal(signal.SIGINT, signal.default_int_handler)

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _elapsed(self) -> float:
        return self._elapsed_before + time.monotonic() - self._started

    def _last_evaluation(self) -> float | None:
        if not self._evaluations:
            return None
        return float(np.mean(self._evaluations[max(self._evaluations)]))

    def _status(self) -> Status:
        return Status(
            env_steps=self.env_steps,
            total_steps=self._config.steps,
            updates=self._loop.updates,
            steps_per_second=self._rates.steps_per_second,
            updates_per_second=self._rates.updates_per_second,
            episodes=self._episodes.count,
            mean_return=self._episodes.mean_return,
            evaluation=self._last_evaluation(),
            best_evaluation=self._best_mean,
            elapsed_seconds=self._elapsed(),
        )


class RateMeter:
    """Speeds since the reading before."""

    def __init__(self, env_steps: int, updates: int) -> None:
        self._before = (time.monotonic(), env_steps, updates)
        self.steps_per_second = 0.0
        self.updates_per_second = 0.0

    def update(self, env_steps: int, updates: int) -> None:
        then, steps_then, updates_then = self._before
        now = time.monotonic()
        seconds = max(now - then, 1e-9)
        self.steps_per_second = (env_steps - steps_then) / seconds
        self.updates_per_second = (updates - updates_then) / seconds
        self._before = (now, env_steps, updates)


def _batch_size(config: RunConfig, learner_config: LearnerConfig) -> int:
    """Items per update; an on-policy item is a segment, and an update takes one of every copy."""
    if isinstance(learner_config, OffPolicyConfig):
        return learner_config.batch_size
    return config.env.copies


def _next_multiple(env_steps: int, every: int) -> int:
    return (env_steps // every + 1) * every
