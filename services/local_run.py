"""A whole run in one process: rollouts, replay, updates, evaluations, checkpoints, in turn.

The same parts as in a distributed run with nothing between them, so it is reproducible to the bit
for a seed, and a run that was killed goes on from its last checkpoint as if it had not been.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actors.casting import Casting, Leased, Solo
from actors.evaluator import evaluate
from actors.rollout import rollout_for
from repertory.checkpoints import Checkpoint
from repertory.config import OnPolicyConfig, RunConfig
from repertory.errors import RepertoryError
from repertory.freed_memory import keep_freed_memory
from repertory.policies.card import PolicyCard
from repertory.protocols import Callback
from repertory.seeding import derive_seed
from repertory.specs import EnvSpec
from repertory.table_layout import stretches_of, table_of, tables_of
from services.decision import Decision, lease_record, outcomes_record
from services.director import Director
from services.director_metrics import metrics_of
from services.local_learner import LocalLearner
from services.local_lease import ACTOR, LocalLease
from services.local_shard import LocalShard
from services.progress import Reporter
from services.replay_access import run_table
from services.run_directory import RunDirectory
from services.run_record import RunRecord
from services.signals import stop_on_signals
from services.threads import local_threads
from services.video import filmed

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
        torch.set_num_threads(local_threads(config))
        keep_freed_memory()
        self._learners = [LocalLearner(config, name, spec) for name in config.learners]
        self._director: Director | None = None
        casting: Casting = Solo()
        if len(self._learners) > 1:
            self._director = Director(config.director, list(config.learners), config.seed)
            lease = LocalLease(self._director, self._note_lease)
            room = config.director.lease_size(config.env.copies)
            casting = Leased(lease, tuple(config.learners), room)
        policies = {learner.name: learner.policy for learner in self._learners}
        self._rollout = rollout_for(config, spec, policies, casting)

        layouts = tables_of(config)
        extras = {name: policy.extras for name, policy in policies.items()}
        self._tables = {
            name: run_table(config, spec, layout, extras).build(name)
            for name, layout in layouts.items()
        }
        self._shard = None
        ways: Mapping[str, Any] = self._tables
        if config.replay.transport == "grpc":
            self._shard = LocalShard(list(self._tables.values()))
            ways = self._shard.clients
        self._ways = ways
        for learner in self._learners:
            table = table_of(config, learner.name)
            second = stretches_of(config, learner.name)
            stretches = None if second is None else self._tables[second]
            learner.read(self._tables[table], ways[table], layouts[table], stretches)

        if checkpoint is not None:
            self._restore(checkpoint)
        self._record = RunRecord(config, directory, reporter, callbacks, checkpoint)

    @property
    def env_steps(self) -> int:
        return self._rollout.env_steps

    @property
    def _updates(self) -> int:
        """Of all learners."""
        return sum(learner.updates for learner in self._learners)

    def run(self) -> RunResult:
        config, record = self._config, self._record
        title = f"{', '.join(config.learners)} on {config.env.id}"
        with ExitStack() as stack:
            stack.callback(self._rollout.close)
            for learner in self._learners:
                stack.callback(learner.close)
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
            self._evaluate()  # the untrained policies, to compare with
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
            self._learners[0].name, self.env_steps
        ):
            self._evaluate()
        self._save_checkpoint()

    def _advance(self) -> None:
        """Acts for a while, then everybody learns as much as that allows."""
        env_steps = min(learner.steps_between_updates() for learner in self._learners)
        if not all(isinstance(one.config, OnPolicyConfig) for one in self._learners):
            env_steps = min(env_steps, self._config.steps - self.env_steps)
        self._collect(env_steps)
        factors = None if self._director is None else self._director.update_factors()
        for player, learner in zip(self._rollout.players, self._learners, strict=True):
            learner.learn(self.env_steps, 1.0 if factors is None else factors[learner.name])
            player.version = learner.updates

    def _collect(self, env_steps: int) -> None:
        collected = self._rollout.collect(env_steps)
        for table, batch in collected.batches.items():
            self._ways[table].insert(batch)
        self._record.add_episodes(collected.outcomes)
        if self._director is not None and collected.decisions:
            for one in collected.decisions:
                self._director.observe(one.outcome, one.decision)
            ended = outcomes_record(ACTOR, self._director.members, collected.decisions)
            self._directory.record_event("decisions_ended", **ended)

    def _note_lease(self, decisions: Sequence[Decision]) -> None:
        self._directory.record_event("decisions", **lease_record(ACTOR, decisions))

    def _write_metrics(self) -> None:
        def read() -> dict[str, float]:
            return {
                self._record.place_of(learner.name) + metric: value
                for learner in self._learners
                for metric, value in learner.loop.averages.read().items()
            }

        extra = {"replay/size": float(sum(table.size for table in self._tables.values()))}
        if self._director is not None:
            extra |= metrics_of(self._director.report())
            for learner in self._learners:
                extra[f"learner/{learner.name}/updates"] = float(learner.updates)
        self._record.metrics(self.env_steps, self._updates, read, extra)

    def _evaluate(self) -> None:
        for learner in self._learners:
            number = self._record.evaluations.count(learner.name)
            # The same episodes for all learners, other ones each time.
            seed = derive_seed(self._config.seed, "evaluation", number)
            returns = evaluate(
                learner.policy,
                self._config.env,
                self._spec,
                episodes=self._config.evaluation.episodes,
                seed=seed,
            )
            self._record.evaluation(
                learner.name,
                self.env_steps,
                self._updates,
                returns,
                learner.policy,
                partial(self._card, learner),
                filmed(learner.policy, self._config, self._spec, seed),
            )
            if self._director is not None:
                mean = float(np.mean(returns))
                self._director.observe_evaluation(learner.name, self.env_steps, mean)

    def _save_checkpoint(self) -> None:
        self._write_metrics()  # so that nothing of the averages is lost with a kill
        sections: dict[str, Mapping[str, Any]] = {"rollout": self._rollout.state()}
        mean = self._record.evaluations.last_mean()
        for learner in self._learners:
            sections[f"policy-{learner.name}"] = self._card(learner, mean).tree()
            sections[f"learner-{learner.name}"] = learner.state()
            sections[f"progress-{learner.name}"] = learner.progress()
        if self._director is not None:
            sections["director"] = self._director.state()
        if self._config.checkpoint.replay:
            sections |= {f"table-{name}": table.arrays() for name, table in self._tables.items()}
        self._record.checkpoint(self.env_steps, sections)

    def _card(self, learner: LocalLearner, mean_return: float | None) -> PolicyCard:
        return PolicyCard(
            algorithm=learner.config.algorithm,
            policy_config=learner.policy.config,
            env_config=self._config.env,
            spec=self._spec,
            snapshot=learner.snapshot(),
            env_steps=self.env_steps,
            mean_return=mean_return,
        )

    def _restore(self, checkpoint: Checkpoint) -> None:
        for name, table in self._tables.items():
            if checkpoint.has(f"table-{name}"):
                table.load_arrays(checkpoint.load(f"table-{name}"))
            else:
                logger.warning("%s holds no replay: %s starts empty", checkpoint.path, name)
        for learner in self._learners:
            learner.load(
                checkpoint.load(f"learner-{learner.name}"),
                checkpoint.load(f"progress-{learner.name}"),
            )
        self._rollout.load_state(checkpoint.load("rollout"))
        if self._director is not None:
            self._director.load_state(checkpoint.load("director"))

    def _stop_by_signal(self, name: str) -> None:
        self._record.stop_reason = name
        self._reporter.message(f"{name}: writing a checkpoint, then stopping")


def _next_multiple(env_steps: int, every: int) -> int:
    return (env_steps // every + 1) * every
