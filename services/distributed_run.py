"""A run over many processes: looks after them, and writes down what they do.

This is the head. It starts replay shards, learners, rollout workers and an evaluator, all of them
Ray actors (`services.blueprint` makes them), restarts those that die (`services.supervisor`
decides), asks for evaluations and checkpoints, obeys people's commands, and ends everything.
Experience and weights never pass through it. When it is killed everything it started ends with it;
`repertory resume` goes on from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, get_args

import ray

from repertory.checkpoints import Checkpoint
from repertory.config import RunConfig
from repertory.control import Command, Control, ControlUnavailable
from repertory.errors import RepertoryError
from repertory.protocols import Callback
from repertory.seeding import derive_seed
from repertory.specs import EnvSpec
from repertory.types import WeightSnapshot
from services.blueprint import EVALUATOR, Blueprint, process_name
from services.director_host import Steering
from services.director_metrics import metrics_of
from services.due import Due
from services.elastic import Elastic
from services.embedded_redis import EmbeddedRedis
from services.evaluations import Evaluations, Finished
from services.learner_time import LearnerTime
from services.local_run import RunResult
from services.placement import Placement
from services.plan import Plan
from services.progress import Reporter
from services.ray_processes import RayProcesses
from services.reports import Reports
from services.run_checkpoints import RunCheckpoints, Standing
from services.run_directory import RunDirectory
from services.run_record import RunRecord
from services.shard_link import ShardLink
from services.signals import stop_on_signals
from services.supervisor import End, GiveUp, Start, Supervisor
from services.weights import WeightHub

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
FINISH_SECONDS = 60.0
PENDING_SECONDS = 15.0  # a process that has not begun by then is spoken of


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
        placement: Placement,
        links: list[ShardLink],
        reporter: Reporter,
        callbacks: Sequence[Callback] = (),
        checkpoint: Checkpoint | None = None,
        user_paths: tuple[str, ...] = (),
    ) -> None:
        self._config = config
        self._directory = directory
        self._control = control
        self._redis = redis
        self._reporter = reporter
        self._placement = placement
        self._links = links
        self._gpus = max(plan.learner_gpus.values())
        hub: Any = (
            ray.remote(WeightHub)
            .options(num_cpus=0, max_restarts=-1, max_task_retries=-1, **placement.options("hub"))
            .remote()
        )
        standing = Standing.at(checkpoint, config.learners)
        # What a director of a former life knew that is not in the checkpoint never was.
        control.save_director_state(standing.director)
        self._blueprint = Blueprint(
            config, spec, plan, directory, control, hub, placement, links, user_paths
        )
        self._direction = self._blueprint.direction
        self._supervisor = Supervisor(config.topology.restarts, seed=config.seed)
        self._processes = RayProcesses(control, self._make)
        self._evaluations = Evaluations(hub)
        asked = control.desired().updates_per_step if checkpoint is not None else {}
        self._learner_time = LearnerTime(config, links, asked, self._blueprint.as_client)
        self._record = RunRecord(config, directory, reporter, callbacks, checkpoint)
        self._checkpoints = RunCheckpoints(config, spec, self._blueprint, self._record)
        self._reports = Reports(config, self._processes, self._record, standing.updates)
        asked_actors = _asked_actors(config, plan, control, resumed=checkpoint is not None)
        self._actors = plan.actors if asked_actors is None else asked_actors
        learner_processes = len(config.learners) * config.topology.replicas
        self._elastic = Elastic(
            control,
            placement,
            plan.learner_cores * learner_processes,
            asked_actors,
        )
        # What was said in a former life of this run was heard then.
        self._metrics_read = control.newest_id("metrics")
        self._commands_read = control.newest_id("commands")
        self._events_read = control.newest_id("events")
        control.dismiss(*control.members())
        self._pending: set[str] = set()  # spoken of
        self._finishing = False
        self._homeless = False  # no machine is there that takes learners
        self.env_steps = standing.env_steps
        self._begun = False  # workers have made steps, in this life of the run
        if checkpoint is not None:
            control.set_counters(env_steps=self.env_steps)
        self._wake = threading.Event()

    def run(self) -> RunResult:
        record = self._record
        with ExitStack() as stack:
            stack.callback(record.close)
            stack.callback(self._end_everything)
            stack.enter_context(stop_on_signals(self._stop_by_signal))
            title = f"{', '.join(self._config.learners)} on {self._config.env.id}"
            self._reporter.start(title, record.status(self.env_steps, self._reports.updates))
            stack.callback(self._reporter.stop)
            self._event("started", env_steps=self.env_steps)
            try:
                self._train()
                self._finish()
            except Exception:
                self._event("failed", env_steps=self.env_steps, traceback=traceback.format_exc())
                raise
            self._event("finished", env_steps=self.env_steps, stopped_by=record.stop_reason)
            record.notify("on_end", self.env_steps)
        return RunResult(
            run_dir=self._directory.path,
            env_steps=self.env_steps,
            updates=self._reports.updates,
            best_mean_return=record.evaluations.best_mean(),
            last_mean_return=record.evaluations.last_mean(),
            stopped_by=record.stop_reason,
        )

    def _train(self) -> None:
        config, record = self._config, self._record
        log, evaluation, checkpoint = (
            Due(every, self.env_steps)
            for every in (config.log.every, config.evaluation.every, config.checkpoint.every)
        )
        # Untrained policies are evaluated first, to compare with.
        untrained = {name for name in config.learners if not record.evaluations.count(name)}
        while self.env_steps < config.steps and record.stop_reason is None:
            self._look_after_everything()
            untrained -= self._ask_for_evaluations(untrained, 0)
            if log.now(self.env_steps):
                self._share_learner_time()
                self._write_metrics()
            if evaluation.now(self.env_steps):
                self._ask_for_evaluations(config.learners, self.env_steps)
            if checkpoint.now(self.env_steps):
                self._save_checkpoint()
            self._wake.wait(LOOK_SECONDS)

    def _finish(self) -> None:
        """Workers stop first, so that all they sent is counted; then the last evaluation."""
        self._finishing = True
        self._actors = 0
        self._look_until(lambda: not self._workers_left())
        if self._record.stop_reason is None:
            left = set(self._config.learners)

            def evaluated() -> bool:
                left.difference_update(self._ask_for_evaluations(left, self.env_steps))
                return not left and self._evaluations.idle

            self._look_until(evaluated)
        self._write_metrics()
        self._save_checkpoint()

    def _look_until(self, done: Any) -> None:
        deadline = time.monotonic() + FINISH_SECONDS
        while not done() and time.monotonic() < deadline:
            self._look_after_everything()
            self._wake.wait(LOOK_SECONDS)

    def _workers_left(self) -> bool:
        return any(name.startswith("worker-") for name in self._supervisor.status(time.time()))

    # Processes

    def _look_after_everything(self) -> None:
        if self._redis is not None and not self._redis.alive():
            self._directory.record_event("restarting", member="redis")
            self._redis.start()
        if not self._finishing:
            self._follow_machines()
        wanted = self._wanted()
        observed = self._processes.observe()
        for instruction in self._supervisor.step(time.time(), wanted, observed):
            if isinstance(instruction, Start):
                if instruction.after:
                    self._direction.forget(instruction.name)
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
        self._speak_of_pending()
        finished = self._evaluations.look(self._processes.handle(EVALUATOR))
        if finished is not None:
            self._take_evaluation(finished)
        try:
            self._control.dismiss(*(name for name in observed if name not in wanted))
            self._read_control()
        except ControlUnavailable as error:
            logger.warning("%s", error)

    def _wanted(self) -> list[str]:
        """The evaluator comes once workers make steps: until then everybody needs the cores."""
        if self._homeless:
            return []
        names = self._blueprint.names(self._actors)
        if self._actors and not self._begun:
            names.remove(EVALUATOR)
        return names

    def _follow_machines(self) -> None:
        """They come and go, in a cluster; and other runs take their share of them."""
        actors = self._elastic.look()
        if actors is None:
            return
        if actors != self._actors:
            self._event("actors", number=actors, before=self._actors)
            self._set_actors(actors)
        if self._placement.is_lost():
            self._move()

    def _set_actors(self, actors: int) -> None:
        self._actors = actors
        self._processes.tell_all("learner-", "set_actors", actors)
        self._processes.tell_all("replica-", "set_actors", actors)

    def _move(self) -> None:
        """The machine of the learners and shards is gone: all begin again around another one."""
        lost = self._placement.home
        self._processes.end_all()
        try:
            self._placement.settle(self._gpus)
            links = self._placement.links(self._control.run_id, len(self._links))
        except (RepertoryError, ray.exceptions.RayError) as error:
            self._placement.home = lost  # so that it is tried again
            if not self._homeless:
                self._homeless = True
                self._event("homeless", reason=str(error))
                self._reporter.message(f"waiting for a machine: {error}")
            return
        self._homeless = False
        self._links[:] = links
        self._event("moved", lost=lost and lost.address, shards=self._blueprint.shard_addresses())

    def _make(self, name: str, incarnation: int) -> Any:
        return self._blueprint.make(
            name, incarnation, actors=self._actors, env_steps=self.env_steps
        )

    def _speak_of_pending(self) -> None:
        for name, slot in self._supervisor.status(time.time()).items():
            if slot.phase != "starting":
                self._pending.discard(name)
            elif slot.seconds > PENDING_SECONDS and name not in self._pending:
                self._pending.add(name)
                reason = self._processes.why_pending(name, self._blueprint.needs(name))
                self._event("pending", member=name, reason=reason)
                self._reporter.message(f"{name} has not begun yet: {reason}")

    def _end_everything(self) -> None:
        deadline = time.monotonic() + FINISH_SECONDS
        while self._supervisor.status(time.time()) and time.monotonic() < deadline:
            ending = self._supervisor.step(time.time(), [], self._processes.observe())
            for instruction in ending:
                self._processes.end(instruction.name, gently=True)
            self._wake.wait(LOOK_SECONDS)
        self._processes.end_all()
        self._elastic.close()
        self._direction.close()
        with contextlib.suppress(ControlUnavailable):
            self._write_down_events()  # the last of them

    # What processes say, and people

    def _read_control(self) -> None:
        env_steps = self._control.counters().get("env_steps", 0)
        self._begun |= env_steps > self.env_steps
        self.env_steps = max(self.env_steps, env_steps)
        for entry in self._control.read("metrics", after=self._metrics_read):
            self._metrics_read = entry.id
            self._reports.take(entry.fields["source"], entry.fields["metrics"])
        for alarm in self._reports.watch_lag():
            self._event(alarm.kind, **alarm.details)
        self._write_down_events()
        self._commands_read, commands = self._control.commands(after=self._commands_read)
        for command in commands:
            self._obey(command)

    def _write_down_events(self) -> None:
        """What other processes said, in the run directory too."""
        for entry in self._control.read("events", after=self._events_read):
            self._events_read = entry.id
            if "said_by" in entry.fields:
                details = {k: v for k, v in entry.fields.items() if k not in ("event", "time")}
                self._directory.record_event(entry.fields["event"], **details)

    def _share_learner_time(self) -> None:
        if self._learner_time.settled:
            return
        factors = self._direction.update_factors() if self._learner_time.shared else None
        if factors is not None or not self._learner_time.shared:  # else the director is away
            self._learner_time.apply(factors)

    def _obey(self, command: Command) -> None:
        if command.name == "scale":
            asked = command.arguments["actors"]
            self._elastic.own_number = None if asked == "auto" else int(asked)
            self._control.desire(actors=self._elastic.own_number)
            if self._elastic.own_number is not None:
                self._set_actors(self._elastic.own_number)
            self._control.reply(command, actors=asked)
        elif command.name == "stop":
            self._record.stop_reason = "stop command"
            self._control.reply(command)
        elif command.name in ("pause", "resume"):
            for prefix in ("worker-", "learner-"):
                self._processes.tell_all(prefix, "pause", command.name == "pause")
            self._control.desire(state="paused" if command.name == "pause" else "running")
            self._control.reply(command)
        elif command.name in get_args(Steering):
            try:
                edition = self._direction.steer(command.name, command.arguments.get("policy"))
            except RepertoryError as error:
                self._control.reply(command, error=str(error))
                return
            self._processes.tell_all("worker-", "heed", edition)
            self._control.reply(command, edition=edition)
        elif command.name == "limiter":
            try:
                self._learner_time.ask(
                    command.arguments["policy"], float(command.arguments["updates_per_step"])
                )
            except RepertoryError as error:
                self._control.reply(command, error=str(error))
                return
            self._control.desire(updates_per_step=self._learner_time.asked)
            self._share_learner_time()
            self._control.reply(command, updates_per_step=self._learner_time.asked)
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
        report = self._direction.report()
        self._record.metrics(
            self.env_steps,
            self._reports.updates,
            lambda: {},
            {
                **self._reports.metrics(),
                **({} if report is None else metrics_of(report)),
            },
        )

    def _ask_for_evaluations(self, learners: Iterable[str], env_steps: int) -> set[str]:
        """Returns those that have something to evaluate."""
        return {
            learner
            for learner in learners
            if self._evaluations.ask(learner, env_steps, self._evaluation_seed(learner))
        }

    def _evaluation_seed(self, learner: str) -> int:
        """The same episodes for all learners, other ones each time."""
        number = self._record.evaluations.count(learner)
        return derive_seed(self._config.seed, "evaluation", number)

    def _take_evaluation(self, finished: Finished) -> None:
        policy = self._blueprint.policies[finished.learner]
        policy.load_weights(finished.arrays)
        snapshot = WeightSnapshot(finished.learner, finished.version, dict(finished.arrays))
        card = partial(self._checkpoints.card, snapshot, finished.env_steps)
        self._record.evaluation(
            finished.learner,
            finished.env_steps,
            self._reports.updates,
            finished.returns,
            policy,
            card,
            finished.video,
        )
        self._direction.evaluated(
            finished.learner, finished.env_steps, statistics.fmean(finished.returns)
        )

    def _save_checkpoint(self) -> None:
        handles = {
            name: self._processes.handle(process_name(name)) for name in self._config.learners
        }
        for learner, updates in self._checkpoints.save(self.env_steps, handles).items():
            self._reports.count_updates(learner, updates)  # what was reported is seconds old


def _asked_actors(config: RunConfig, plan: Plan, control: Control, *, resumed: bool) -> int | None:
    """By people, of a run that goes on, or by its settings; None: as many as there is room for."""
    desired = control.desired().actors if resumed else None
    if desired is not None:
        return desired
    # Replicas have equal parts of what all actors bring: their number is not to change.
    follows = config.topology.actors == "auto" and config.topology.replicas == 1
    return None if follows else plan.actors
