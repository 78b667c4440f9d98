"""A run over many processes: looks after them, and writes down what they do.

This is the head. It starts replay shards, learners, rollout workers and an evaluator, all of them
Ray actors, restarts those that die (`services.supervisor` decides), evaluates the newest weights,
takes checkpoints, obeys people's commands, and ends everything. Experience and weights never pass
through it. When it is killed everything it started ends with it; `repertory resume` goes on from
the last checkpoint.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray

from buffer_server.client import ClientConfig, ReplayClient
from buffer_server.process import ShardConfig
from buffer_server.server import ServerConfig
from buffer_server.table_config import TableConfig
from repertory.checkpoints import Checkpoint
from repertory.config import OnPolicyConfig, RunConfig
from repertory.control import Command, Control, ControlUnavailable
from repertory.errors import RepertoryError
from repertory.parts import lookup
from repertory.policies.card import PolicyCard
from repertory.policies.policy import TorchPolicy, build_policy
from repertory.protocols import Callback
from repertory.seeding import derive_seed
from repertory.specs import EnvSpec
from repertory.types import EpisodeOutcome, WeightSnapshot
from services.embedded_redis import EmbeddedRedis
from services.fit import choose_device
from services.hosts import EvaluatorHost, ProcessContext, ShardHost, WorkerHost
from services.learner_host import LearnerHost
from services.local_run import RunResult
from services.plan import Plan
from services.progress import Reporter
from services.ray_processes import RayProcesses
from services.replay_access import shard_tables, table_name
from services.run_directory import RunDirectory
from services.run_record import RunRecord
from services.signals import stop_on_signals
from services.supervisor import End, GiveUp, Start, Supervisor
from services.weights import Published, WeightHub

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
CHECKPOINT_SECONDS = 120.0
FINISH_SECONDS = 60.0


class DistributedRun:
    """Built complete, then `run` once."""

    def __init__(
        self,
        config: RunConfig,
        spec: EnvSpec,
        plan: Plan,
        directory: RunDirectory,
        control: Control,
        redis: EmbeddedRedis | None,
        sockets: Path,
        reporter: Reporter,
        callbacks: Sequence[Callback] = (),
        checkpoint: Checkpoint | None = None,
        user_paths: tuple[str, ...] = (),
    ) -> None:
        self._config = config
        self._spec = spec
        self._plan = plan
        self._directory = directory
        self._control = control
        self._redis = redis
        self._reporter = reporter
        self._user_paths = user_paths
        self._learner, self._learner_config = next(iter(config.learners.items()))
        self._policy = self._untrained_policy()
        self._shards = tuple(f"unix:{sockets / f'shard-{k}.sock'}" for k in range(plan.shards))
        self._actors = plan.actors
        self._hub: Any = (
            ray.remote(WeightHub).options(num_cpus=0, max_restarts=-1, max_task_retries=-1).remote()
        )
        self._supervisor = Supervisor(config.topology.restarts, seed=config.seed)
        self._processes = RayProcesses(control, self._make)
        self._record = RunRecord(config, directory, reporter, callbacks, checkpoint)
        # What was said in a former life of this run was heard then.
        self._metrics_read = control.newest_id("metrics")
        self._commands_read = control.newest_id("commands")
        control.dismiss(*control.members())
        self._learner_metrics: dict[str, float] = {}
        self._updates = 0
        self.env_steps = 0
        self._untrained: Published | None = None  # the first weights, for the first evaluation
        self._evaluating: tuple[Any, Published, int] | None = None
        if checkpoint is not None:
            self._restore(checkpoint)
        self._wake = threading.Event()

    def run(self) -> RunResult:
        record = self._record
        with ExitStack() as stack:
            stack.callback(record.close)
            stack.callback(self._end_everything)
            stack.enter_context(stop_on_signals(self._stop_by_signal))
            title = f"{self._learner} on {self._config.env.id}"
            self._reporter.start(title, record.status(self.env_steps, self._updates))
            stack.callback(self._reporter.stop)
            self._event("started", env_steps=self.env_steps)
            try:
                self._train()
            except Exception:
                self._event("failed", env_steps=self.env_steps, traceback=traceback.format_exc())
                raise
            self._event("finished", env_steps=self.env_steps, stopped_by=record.stop_reason)
            record.notify("on_end", self.env_steps)
        return RunResult(
            run_dir=self._directory.path,
            env_steps=self.env_steps,
            updates=self._updates,
            best_mean_return=record.best_mean,
            last_mean_return=record.last_mean,
            stopped_by=record.stop_reason,
        )

    def _train(self) -> None:
        config, record = self._config, self._record
        log_at, evaluate_at, checkpoint_at = (
            _next_multiple(self.env_steps, every)
            for every in (config.log.every, config.evaluation.every, config.checkpoint.every)
        )
        if not record.evaluations:
            evaluate_at = 0  # the untrained policy, to compare with
        while self.env_steps < config.steps and record.stop_reason is None:
            self._look_after_everything()
            if self.env_steps >= log_at:
                self._write_metrics()
                log_at = _next_multiple(self.env_steps, config.log.every)
            if self._untrained is None:
                self._untrained = self._newest_weights()
            if self.env_steps >= evaluate_at and self._begin_evaluation():
                evaluate_at = _next_multiple(self.env_steps, config.evaluation.every)
            self._finish_evaluation()
            if self.env_steps >= checkpoint_at:
                self._save_checkpoint()
                checkpoint_at = _next_multiple(self.env_steps, config.checkpoint.every)
            self._wake.wait(LOOK_SECONDS)
        self._finish()

    def _finish(self) -> None:
        """Workers stop first, so that all they sent is counted; then the last evaluation."""
        record = self._record
        self._actors = 0
        deadline = time.monotonic() + FINISH_SECONDS
        while self._workers_left() and time.monotonic() < deadline:
            self._look_after_everything()
            self._wake.wait(LOOK_SECONDS)
        if record.stop_reason is None:
            deadline = time.monotonic() + FINISH_SECONDS
            while self.env_steps not in record.evaluations and time.monotonic() < deadline:
                self._look_after_everything()
                self._finish_evaluation()
                if self._evaluating is None and self.env_steps not in record.evaluations:
                    self._begin_evaluation()
                self._wake.wait(LOOK_SECONDS)
        self._write_metrics()
        self._save_checkpoint()

    def _workers_left(self) -> bool:
        return any(name.startswith("worker-") for name in self._supervisor.status(time.time()))

    # Processes

    def _wanted(self) -> list[str]:
        return [
            *(f"shard-{index}" for index in range(self._plan.shards)),
            f"learner-{self._learner}",
            "evaluator",
            *(f"worker-{index}" for index in range(self._actors)),
        ]

    def _look_after_everything(self) -> None:
        if self._redis is not None and not self._redis.alive():
            self._directory.record_event("restarting", member="redis")
            self._redis.start()
        observed = self._processes.observe()
        for instruction in self._supervisor.step(time.time(), self._wanted(), observed):
            if isinstance(instruction, Start):
                if instruction.after:
                    self._event(
                        "restarting",
                        member=instruction.name,
                        incarnation=instruction.incarnation,
                        reason=instruction.after,
                    )
                self._processes.start(instruction.name, instruction.incarnation)
            elif isinstance(instruction, End):
                self._processes.end(instruction.name, gently="wanted" in instruction.reason)
            elif isinstance(instruction, GiveUp):
                raise RepertoryError(
                    f"{instruction.name} failed {instruction.failures} times in a row, the last "
                    f"time because {instruction.reason}; its log is in {self._directory.path}/logs"
                )
        try:
            self._control.dismiss(*(name for name in observed if name not in self._wanted()))
            self._read_control()
        except ControlUnavailable as error:
            logger.warning("%s", error)

    def _make(self, name: str, incarnation: int) -> Any:
        """A new Ray actor for this name."""
        role, _, rest = name.partition("-")
        context = self._context(name, incarnation)
        plan = self._plan
        if role == "shard":
            return _actor(ShardHost, cores=0).remote(context, self._shard_config(int(rest)))
        if role == "learner":
            epoch = self._control.next_epoch(rest)
            gpus = plan.learner_gpus[rest]
            actor = _actor(LearnerHost, cores=plan.learner_cores, gpus=gpus)
            return actor.remote(context, rest, epoch, plan.actors, self._learner_state())
        if role == "worker":
            index = int(rest)
            return _actor(WorkerHost, cores=plan.actor_cores).remote(context, self._learner, index)
        return _actor(EvaluatorHost, cores=0).remote(context)

    def _context(self, name: str, incarnation: int) -> ProcessContext:
        return ProcessContext(
            name=name,
            incarnation=incarnation,
            config=self._config.to_yaml(),
            spec=self._spec.to_json(),
            run_id=self._control.run_id,
            run_dir=self._directory.path.resolve(),
            control=self._control.address,
            shards=self._shards,
            window_bytes=self._window_bytes(),
            hub=self._hub,
            user_paths=self._user_paths,
            counters={"env_steps": self.env_steps},
            policies={self._learner: self._policy.config.model_dump(mode="json")},
        )

    def _tables(self, shard: int) -> dict[str, TableConfig]:
        return shard_tables(
            self._config,
            self._spec,
            {self._learner: self._policy.extras},
            actors=self._plan.actors,
            shards=self._plan.shards,
            index=shard,
        )

    def _window_bytes(self) -> int:
        """One message of an actor: whatever more is under way, the limiter does not see."""
        table = self._tables(0)[table_name(self._learner, self._learner_config)]
        item = sum(column.nbytes for column in table.signature.values())
        if isinstance(self._learner_config, OnPolicyConfig):
            return item * self._config.env.copies
        return item * (self._config.topology.send_items + self._config.env.copies)

    def _shard_config(self, index: int) -> ShardConfig:
        return ShardConfig(
            tables=self._tables(index),
            server=ServerConfig(address=self._shards[index]),
            checkpoint_dir=self._directory.path.resolve() / "replay" / f"shard-{index}",
            checkpoint_every_seconds=60.0,
        )

    def _learner_state(self) -> Mapping[str, Any] | None:
        """Of the newest checkpoint that is whole."""
        if not self._directory.checkpoints.paths():
            return None
        learner: Mapping[str, Any] = self._directory.checkpoints.newest_valid().load("learner")
        return learner

    def _end_everything(self) -> None:
        deadline = time.monotonic() + FINISH_SECONDS
        while (status := self._supervisor.status(time.time())) and time.monotonic() < deadline:
            ending = self._supervisor.step(time.time(), [], self._processes.observe())
            for instruction in ending:
                self._processes.end(instruction.name, gently=True)
            self._wake.wait(LOOK_SECONDS)
        for name in status:
            if self._processes.handle(name) is not None:
                self._processes.end(name, gently=False)

    # What processes say, and people

    def _read_control(self) -> None:
        counters = self._control.counters()
        self.env_steps = max(self.env_steps, counters.get("env_steps", 0))
        for entry in self._control.read("metrics", after=self._metrics_read):
            self._metrics_read = entry.id
            self._take_metrics(entry.fields)
        self._commands_read, commands = self._control.commands(after=self._commands_read)
        for command in commands:
            self._obey(command)

    def _take_metrics(self, fields: Mapping[str, Any]) -> None:
        metrics = fields["metrics"]
        if fields["source"].startswith("worker-"):
            self._record.episodes.add(
                [
                    EpisodeOutcome(0, metrics["policy_version"], value, length, False, 0)
                    for value, length in zip(metrics["returns"], metrics["lengths"], strict=True)
                ]
            )
        else:
            self._updates = max(self._updates, int(metrics.pop("updates")))
            self._learner_metrics = metrics

    def _obey(self, command: Command) -> None:
        if command.name == "scale":
            self._actors = int(command.arguments["actors"])
            self._control.desire(actors=self._actors)
            self._control.reply(command, actors=self._actors)
        elif command.name == "stop":
            self._record.stop_reason = "stop command"
            self._control.reply(command)
        elif command.name in ("pause", "resume"):
            self._processes.tell_all("worker-", "pause", command.name == "pause")
            self._processes.tell_all("learner-", "pause", command.name == "pause")
            self._control.desire(state="paused" if command.name == "pause" else "running")
            self._control.reply(command)
        elif command.name == "checkpoint":
            self._save_checkpoint()
            self._control.reply(command)
        else:
            self._control.reply(command, error=f"{command.name!r} is not a known command")
            return
        self._event("command", name=command.name, **command.arguments)

    def _event(self, kind: str, **details: Any) -> None:
        self._directory.record_event(kind, **details)
        try:
            self._control.record_event(kind, **details)
        except ControlUnavailable as error:
            logger.warning("%s", error)

    def _stop_by_signal(self, name: str) -> None:
        self._record.stop_reason = name
        self._reporter.message(f"{name}: writing a checkpoint, then stopping")
        self._wake.set()

    # Metrics, evaluations, checkpoints

    def _write_metrics(self) -> None:
        self._record.metrics(self.env_steps, self._updates, lambda: self._learner_metrics, {})

    def _begin_evaluation(self) -> bool:
        """Of the newest weights, in the background. False: not now."""
        evaluator = self._processes.handle("evaluator")
        if self._evaluating is not None or evaluator is None:
            return False
        first = not self._record.evaluations
        published = self._untrained if first else self._newest_weights()
        if published is None:
            return False
        seed = derive_seed(self._config.seed, "evaluation", len(self._record.evaluations))
        reference = evaluator.evaluate.remote(self._learner, published.arrays[0], seed)
        self._evaluating = (reference, published, 0 if first else self.env_steps)
        return True

    def _newest_weights(self) -> Published | None:
        try:
            newest = ray.get(self._hub.newer.remote({self._learner: -1}, 0.0), timeout=5.0)
        except ray.exceptions.RayError as error:
            logger.warning("the weight hub is away: %s", type(error).__name__)
            return None
        return newest[0] if newest else None

    def _finish_evaluation(self) -> None:
        if self._evaluating is None:
            return
        reference, published, env_steps = self._evaluating
        ready, _ = ray.wait([reference], timeout=0)
        if not ready:
            return
        self._evaluating = None
        try:
            returns = ray.get(reference)
            arrays = ray.get(published.arrays[0], timeout=30.0)
        except ray.exceptions.RayError as error:
            logger.warning("an evaluation was lost: %s", type(error).__name__)
            return
        self._policy.load_weights(arrays)
        snapshot = WeightSnapshot(self._learner, published.version, dict(arrays))
        self._record.evaluation(
            env_steps,
            self._updates,
            returns,
            self._policy,
            lambda mean: self._card(snapshot, env_steps, mean),
        )

    def _save_checkpoint(self) -> None:
        """Learner and replay, as close together as they can be asked."""
        learner = self._processes.handle(f"learner-{self._learner}")
        if learner is None:
            return
        asked = learner.checkpoint.remote(CHECKPOINT_SECONDS)
        self._checkpoint_shards()
        try:
            answer = ray.get(asked, timeout=CHECKPOINT_SECONDS)
        except ray.exceptions.RayError as error:
            logger.warning("no checkpoint: the learner did not answer (%s)", type(error).__name__)
            return
        self._record.checkpoint(
            self.env_steps,
            {
                "policy": self._card(
                    answer["policy"], self.env_steps, self._record.last_mean
                ).tree(),
                "learner": answer["state"],
                "counters": {"env_steps": self.env_steps, "updates": answer["updates"]},
            },
        )

    def _checkpoint_shards(self) -> None:
        if not self._config.checkpoint.replay:
            return
        table = table_name(self._learner, self._learner_config)
        for address in self._shards:
            try:
                with ReplayClient(
                    ClientConfig(address=address, table=table, timeout_seconds=5.0)
                ) as client:
                    client.checkpoint(timeout_seconds=CHECKPOINT_SECONDS)
            except RepertoryError as error:  # its own checkpoints go on by the clock
                logger.warning("%s", error)

    def _card(self, snapshot: WeightSnapshot, env_steps: int, mean: float | None) -> PolicyCard:
        return PolicyCard(
            algorithm=self._learner_config.algorithm,
            policy_config=self._policy.config,
            env_config=self._config.env,
            spec=self._spec,
            snapshot=snapshot,
            env_steps=env_steps,
            mean_return=mean,
        )

    def _untrained_policy(self) -> TorchPolicy:
        """Only its settings and what it records beside its actions are of interest."""
        algorithm = lookup("algorithm", self._learner_config.algorithm)(
            self._learner_config, device=choose_device("cpu"), seed=self._config.seed
        )
        policy = algorithm.policy(algorithm.initial_state(self._spec))
        return build_policy(policy.config, self._spec)

    def _restore(self, checkpoint: Checkpoint) -> None:
        counters = checkpoint.load("counters")
        self.env_steps = counters["env_steps"]
        self._updates = counters["updates"]
        self._control.set_counters(env_steps=self.env_steps)


def _actor(host: type[Any], *, cores: float, gpus: float = 0.0) -> Any:
    """Threads of its own for `run` and for what it is told meanwhile; we restart it, not Ray."""
    return ray.remote(host).options(
        num_cpus=cores, num_gpus=gpus, max_restarts=0, max_task_retries=0, max_concurrency=4
    )


def _next_multiple(env_steps: int, every: int) -> int:
    return (env_steps // every + 1) * every
