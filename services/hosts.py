"""The processes of a run as Ray actors: each builds its part, runs it, and can be told to stop.

`services.distributed_run` makes them. What a process needs to know comes as one `ProcessContext`;
what it says goes through the control plane and its log file in the run directory. The learner's is
in `services.learner_host`: nobody else needs to import what it does.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from actors.evaluator import evaluate
from actors.rollout import WorkerPlace, rollout_for
from actors.worker import RolloutWorker
from buffer_server.process import ShardConfig, ShardProcess
from repertory.config import RunConfig
from repertory.control import Control, ControlAddress
from repertory.freed_memory import keep_freed_memory
from repertory.heartbeat import Heartbeat
from repertory.parts import lookup
from repertory.policies.policy import PolicyConfig, build_policy
from repertory.specs import EnvSpec
from services.process_log import log_to
from services.replay_access import replay_for
from services.weights import WeightSource

logger = logging.getLogger(__name__)

STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """What every process of a run is told when it is started."""

    name: str
    incarnation: int
    config: str  # YAML
    spec: Mapping[str, Any]  # JSON
    run_id: str
    run_dir: Path
    control: ControlAddress
    shards: tuple[str, ...]  # addresses, by index
    window_bytes: int  # of inserts under way from one actor to one shard
    hub: Any
    user_paths: tuple[str, ...]  # where user code is found, after everything else
    counters: Mapping[str, int]
    policies: Mapping[str, Mapping[str, Any]]  # settings of each learner's policy, as JSON

    def policy_config(self, learner: str) -> PolicyConfig:
        document = self.policies[learner]
        config: PolicyConfig = lookup("policy", document["name"]).Config.model_validate(document)
        return config

    def run_config(self) -> RunConfig:
        return RunConfig.from_yaml(self.config)

    def env_spec(self) -> EnvSpec:
        return EnvSpec.from_json(self.spec)


class Process:
    """What all hosts do first."""

    def __init__(self, context: ProcessContext) -> None:
        sys.path += [path for path in context.user_paths if path not in sys.path]
        log_to(context.run_dir / "logs" / f"{context.name}.jsonl")
        keep_freed_memory()
        self.context = context
        self.config = context.run_config()
        self.spec = context.env_spec()

    def beat(self, role: str, facts: Callable[[], Mapping[str, Any]] = dict) -> Heartbeat:
        control = Control(self.context.control, self.context.run_id)
        return Heartbeat(control, self.context.name, role, self.context.incarnation, facts)


class ShardHost(Process):
    """A replay shard."""

    def __init__(self, context: ProcessContext, config: ShardConfig) -> None:
        super().__init__(context)
        self._heartbeat = self.beat("shard")
        self._shard = ShardProcess(config, say=logger.info)

    def run(self) -> None:
        try:
            self._shard.run(on_ready=lambda ready: self._heartbeat.keep_progressing())
        finally:
            self._heartbeat.close()

    def stop(self) -> None:
        self._shard.stop()


class WorkerHost(Process):
    """A rollout process, for one learner's policy."""

    def __init__(self, context: ProcessContext, learner: str, index: int) -> None:
        super().__init__(context)
        torch.set_num_threads(1)
        learner_config = self.config.learners[learner]
        self._heartbeat = self.beat("worker", self._facts)
        self._rollout = rollout_for(
            self.config,
            learner_config,
            self.spec,
            build_policy(context.policy_config(learner), self.spec),
            worker=WorkerPlace(index, context.incarnation),
        )
        self._replay = replay_for(
            self.config,
            learner,
            context.shards,
            caller=context.name,
            window_bytes=context.window_bytes,
        )
        self._worker = RolloutWorker(
            self.config,
            learner_config,
            self._rollout,
            self._replay,
            WeightSource(context.hub, learner),
            self._heartbeat,
            total_env_steps=context.counters.get("env_steps", 0),
        )

    def run(self) -> None:
        try:
            self._worker.run()
            self._replay.flush(timeout_seconds=STOP_SECONDS)
        finally:
            self._heartbeat.close()
            self._replay.close()
            self._rollout.close()

    def stop(self) -> None:
        self._worker.stopping.set()

    def pause(self, paused: bool) -> None:
        (self._worker.paused.set if paused else self._worker.paused.clear)()

    def _facts(self) -> dict[str, Any]:
        worker = getattr(self, "_worker", None)  # the heart beats before all is made
        return {} if worker is None else worker.facts()


class EvaluatorHost(Process):
    """Plays whole episodes with weights it is given, until it is told to stop."""

    def __init__(self, context: ProcessContext) -> None:
        super().__init__(context)
        torch.set_num_threads(1)
        self._heartbeat = self.beat("evaluator")
        self._heartbeat.keep_progressing()
        self._stopping = threading.Event()

    def run(self) -> None:
        self._stopping.wait()
        self._heartbeat.close()

    def stop(self) -> None:
        self._stopping.set()

    def evaluate(self, learner: str, arrays: Mapping[str, Any], seed: int) -> list[float]:
        policy = build_policy(self.context.policy_config(learner), self.spec)
        policy.load_weights(arrays)
        return evaluate(
            policy, self.config.env, self.spec, episodes=self.config.evaluation.episodes, seed=seed
        )
