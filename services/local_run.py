"""A whole run in one process: rollouts, replay, updates, evaluations, checkpoints, in turn.

The same parts as in a distributed run with nothing between them, so it is reproducible to the bit
for a seed, and a run that was killed goes on from its last checkpoint as if it had not been.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from actors.casting import Solo
from actors.evaluator import evaluate
from actors.rollout import rollout_for
from buffer_server.table_config import table_config
from learner.checkpoint import load_state_tree, state_tree
from learner.loop import LearnerLoop
from repertory.checkpoints import Checkpoint
from repertory.config import LearnerConfig, OffPolicyConfig, OnPolicyConfig, RunConfig
from repertory.errors import RepertoryError
from repertory.freed_memory import keep_freed_memory
from repertory.parts import lookup
from repertory.policies.card import PolicyCard
from repertory.protocols import Callback, Replay
from repertory.seeding import derive_seed
from repertory.specs import EnvSpec
from repertory.types import WeightSnapshot
from services.fit import choose_device
from services.local_shard import LocalShard
from services.progress import Reporter
from services.run_directory import RunDirectory
from services.run_record import RunRecord
from services.signals import stop_on_signals

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
        self._learner_name, self._learner_config = next(iter(config.learners.items()))

        torch.set_num_threads(config.threads)
        keep_freed_memory()
        learner_config = self._learner_config
        algorithm = lookup("algorithm", learner_config.algorithm)(
            learner_config,
            device=choose_device(config.device),
            seed=derive_seed(config.seed, "learner", self._learner_name),
        )
        state = algorithm.initial_state(spec)
        self._policy = algorithm.policy(state)
        self._rollout = rollout_for(config, spec, {self._learner_name: self._policy}, Solo())
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

        if checkpoint is not None:
            self._restore(checkpoint)
        self._record = RunRecord(config, directory, reporter, callbacks, checkpoint)

    @property
    def env_steps(self) -> int:
        return self._rollout.env_steps

    @property
    def _updates(self) -> int:
        return self._loop.updates

    def run(self) -> RunResult:
        config, record = self._config, self._record
        title = f"{self._learner_name} on {config.env.id}"
        with ExitStack() as stack:
            stack.callback(self._rollout.close)
            if self._shard is not None:
                stack.callback(self._shard.close)
            stack.callback(record.close)
            stack.enter_context(stop_on_signals(self._stop_by_signal))
            self._reporter.start(title, record.status(self.env_steps, self._updates))
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
                "finished", env_steps=self.env_steps, stopped_by=record.stop_reason
            )
            record.notify("on_end", self.env_steps)
        return RunResult(
            run_dir=self._directory.path,
            env_steps=self.env_steps,
            updates=self._updates,
            best_mean_return=record.evaluations.best_mean(),
            last_mean_return=record.evaluations.last_mean(),
            stopped_by=record.stop_reason,
        )

    def _add_way_on(self, error: Exception) -> None:
        """What a user can do now, where there is something to go on from."""
        if isinstance(error, RepertoryError) and self._directory.checkpoints.paths():
            path = self._directory.path
            error.args = (f"{error}; `repertory resume {path}` goes on from the last checkpoint",)

    def _train(self) -> None:
        config, record = self._config, self._record
        if self.env_steps == 0:
            self._evaluate()  # the untrained policy, to compare with
        log_at, evaluate_at, checkpoint_at = (
            _next_multiple(self.env_steps, every)
            for every in (config.log.every, config.evaluation.every, config.checkpoint.every)
        )
        while self.env_steps < config.steps and record.stop_reason is None:
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
        if record.stop_reason is None and not record.evaluations.has(
            self._learner_name, self.env_steps
        ):
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
                self._loop.run(allowed - self._updates)
        self._rollout.players[0].version = self._updates

    def _collect(self, env_steps: int) -> None:
        collected = self._rollout.collect(env_steps)
        for batch in collected.batches.values():
            self._replay.insert(batch)
        self._record.episodes.add(collected.outcomes)

    def _write_metrics(self) -> None:
        self._record.metrics(
            self.env_steps,
            self._updates,
            self._loop.averages.read,
            {"replay/size": float(self._table.size)},
        )

    def _evaluate(self) -> None:
        returns = evaluate(
            self._policy,
            self._config.env,
            self._spec,
            episodes=self._config.evaluation.episodes,
            seed=derive_seed(
                self._config.seed, "evaluation", self._record.evaluations.count(self._learner_name)
            ),
        )
        self._record.evaluation(
            self._learner_name, self.env_steps, self._updates, returns, self._policy, self._card
        )

    def _save_checkpoint(self) -> None:
        self._write_metrics()  # so that nothing of the averages is lost with a kill
        sections = {
            f"policy-{self._learner_name}": self._card(self._record.evaluations.last_mean()).tree(),
            f"learner-{self._learner_name}": state_tree(self._loop.state),
            "rollout": self._rollout.state(),
        }
        if self._config.checkpoint.replay:
            sections["replay"] = self._table.arrays()
        self._record.checkpoint(self.env_steps, sections)

    def _card(self, mean_return: float | None) -> PolicyCard:
        return PolicyCard(
            algorithm=self._learner_config.algorithm,
            policy_config=self._policy.config,
            env_config=self._config.env,
            spec=self._spec,
            snapshot=WeightSnapshot(self._learner_name, self._updates, self._policy.weights()),
            env_steps=self.env_steps,
            mean_return=mean_return,
        )

    def _restore(self, checkpoint: Checkpoint) -> None:
        load_state_tree(self._loop.state, checkpoint.load(f"learner-{self._learner_name}"))
        self._rollout.load_state(checkpoint.load("rollout"))
        if checkpoint.has("replay"):
            self._table.load_arrays(checkpoint.load("replay"))
        else:
            logger.warning("%s holds no replay: it starts empty", checkpoint.path)

    def _stop_by_signal(self, name: str) -> None:
        self._record.stop_reason = name
        self._reporter.message(f"{name}: writing a checkpoint, then stopping")


def _batch_size(config: RunConfig, learner_config: LearnerConfig) -> int:
    """Items per update; an on-policy item is a segment, and an update takes one of every copy."""
    if isinstance(learner_config, OffPolicyConfig):
        return learner_config.batch_size
    return config.env.copies


def _next_multiple(env_steps: int, every: int) -> int:
    return (env_steps // every + 1) * every
