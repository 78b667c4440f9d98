"""What a run leaves behind and shows: metrics, evaluations, the best policy, its status, its hooks.

The same for every kind of run: `LocalRun` and `DistributedRun` say what happened, this writes it
down. A file that cannot be written is loud, but does not end the run.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repertory.checkpoints import Checkpoint, write_atomically
from repertory.config import RunConfig
from repertory.errors import CheckpointError, RepertoryError
from repertory.policies.card import PolicyCard
from repertory.protocols import Callback, Policy
from repertory.types import EpisodeOutcome
from services.evaluation_history import EvaluationHistory
from services.metrics import EpisodeWindow, MetricLog
from services.progress import Reporter, Status
from services.run_directory import RunDirectory

logger = logging.getLogger(__name__)


class RunRecord:
    """Opened when made, at the step of the checkpoint where there is one."""

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        reporter: Reporter,
        callbacks: Sequence[Callback],
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._config = config
        self._directory = directory
        self._reporter = reporter
        self._callbacks = callbacks
        self.episodes = EpisodeWindow()
        self._episodes_of = {
            name: EpisodeWindow(f"{name}/") for name in config.learners if len(config.learners) > 1
        }
        self.evaluations = EvaluationHistory(list(config.learners))
        self.stop_reason: str | None = None
        self._elapsed_before = 0.0
        self._logged_at = -1
        self._shares: Mapping[str, float] = {}
        self._best: dict[str, float] = {}  # evaluated means of the best policies that are saved
        if checkpoint is not None:
            self._restore(checkpoint)
        self._log = MetricLog(
            directory.metrics,
            directory.tensorboard,
            config.log,
            resume_at=None if checkpoint is None else checkpoint.env_steps,
        )
        self._started = time.monotonic()
        self._rates: RateMeter | None = None

    def close(self) -> None:
        self._log.close()

    def add_episodes(self, outcomes: Sequence[EpisodeOutcome]) -> None:
        self.episodes.add(outcomes)
        for place, window in enumerate(self._episodes_of.values()):
            window.add([outcome for outcome in outcomes if outcome.policy_id == place])

    def metrics(
        self,
        env_steps: int,
        updates: int,
        read_learner: Callable[[], Mapping[str, float]],
        extra: Mapping[str, float],
    ) -> None:
        """One row, unless this step has one: then the learner's averages are left as they are."""
        if self._logged_at == env_steps:
            return
        self._logged_at = env_steps
        learner = read_learner()
        broken = {name: value for name, value in learner.items() if not math.isfinite(value)}
        if broken:
            name, value = next(iter(broken.items()))
            raise RepertoryError(
                f"learner/{name} is {value} at step {env_steps}: training has diverged; "
                "lower learner.lr or set learner.max_grad_norm"
            )
        self._meter(env_steps, updates).update(env_steps, updates)
        self._shares = {
            name: extra[f"director/{name}/share"]
            for name in self._config.learners
            if f"director/{name}/share" in extra
        }
        status = self.status(env_steps, updates)
        metrics = {
            **self._read_episodes(),
            **{f"learner/{name}": value for name, value in learner.items()},
            "learner/updates": float(updates),
            **extra,
            "time/fps": status.steps_per_second,
            "time/updates_per_second": status.updates_per_second,
            "time/time_elapsed": status.elapsed_seconds,
            "charts/SPS": status.steps_per_second,
        }
        self._log.write(env_steps, time.time(), metrics)
        self._reporter.update(status)
        self.notify("on_step", env_steps, metrics)

    def evaluation(
        self,
        learner: str,
        env_steps: int,
        updates: int,
        returns: Sequence[float],
        policy: Policy,
        card: Callable[[float], PolicyCard],
        video: bytes | None = None,
    ) -> None:
        """Noted, and where it is the best so far, of all or of its learner, the card is kept."""
        mean, deviation = float(np.mean(returns)), float(np.std(returns))
        self.evaluations.add(learner, env_steps, returns)
        self._directory.write_evaluations(self.evaluations.arrays())
        if video is not None:
            self._keep_video(learner, video)
        place = self.place_of(learner)
        metrics = {f"eval/{place}mean_reward": mean, f"eval/{place}std_reward": deviation}
        self._log.write(env_steps, time.time(), metrics)
        for name in ("best", f"best-{learner}"):
            if mean > self._best.get(name, -math.inf):
                path = self.save(env_steps, {"policy": card(mean).tree()}, name=name)
                self._best |= {name: mean} if path is not None else {}
        self._reporter.update(self.status(env_steps, updates))
        self.notify("on_evaluation", env_steps, returns, policy)

    def _keep_video(self, learner: str, video: bytes) -> None:
        """The newest in the place of the last."""
        path = self._directory.videos / f"{learner}.mp4"
        try:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, video)
        except OSError as error:
            logger.error("cannot write %s: %s", path, error)

    def _read_episodes(self) -> dict[str, float]:
        """Of all, and in a portfolio of each policy."""
        metrics = self.episodes.read()
        for window in self._episodes_of.values():
            metrics |= window.read()
        return metrics

    def place_of(self, learner: str) -> str:
        """Where its metrics are, below `learner/` and `eval/`: one alone needs no name."""
        return f"{learner}/" if len(self._config.learners) > 1 else ""

    def checkpoint(self, env_steps: int, sections: Mapping[str, Mapping[str, Any]]) -> None:
        """The sections given, with what is needed to go on with this record."""
        run = {
            "episodes": self.episodes.state(),
            "episodes_of": {name: window.state() for name, window in self._episodes_of.items()},
            "evaluations": self.evaluations.state(),
            "leader": self.evaluations.leader(),
            "elapsed_seconds": self.elapsed_seconds,
        }
        path = self.save(env_steps, {**sections, "run": run})
        if path is not None:
            self.notify("on_checkpoint", env_steps, path)

    def save(
        self, env_steps: int, sections: Mapping[str, Mapping[str, Any]], name: str | None = None
    ) -> Path | None:
        try:
            return self._directory.checkpoints.save(env_steps, sections, name=name)
        except CheckpointError as error:
            logger.error("%s", error)
            self._directory.record_event("checkpoint_failed", env_steps=env_steps)
            return None

    def notify(self, hook: str, *arguments: Any) -> None:
        for callback in self._callbacks:
            method = getattr(callback, hook, None)
            if method is not None and method(*arguments) and self.stop_reason is None:
                self.stop_reason = f"{type(callback).__name__}.{hook}"

    @property
    def elapsed_seconds(self) -> float:
        return self._elapsed_before + time.monotonic() - self._started

    def status(self, env_steps: int, updates: int) -> Status:
        rates = self._meter(env_steps, updates)
        return Status(
            env_steps=env_steps,
            total_steps=self._config.steps,
            updates=updates,
            steps_per_second=rates.steps_per_second,
            updates_per_second=rates.updates_per_second,
            episodes=self.episodes.count,
            mean_return=self.episodes.mean_return,
            evaluation=self.evaluations.last_mean(),
            best_evaluation=self.evaluations.best_mean(),
            elapsed_seconds=self.elapsed_seconds,
            shares=self._shares,
        )

    def _meter(self, env_steps: int, updates: int) -> RateMeter:
        if self._rates is None:
            self._rates = RateMeter(env_steps, updates)
        return self._rates

    def _restore(self, checkpoint: Checkpoint) -> None:
        run = checkpoint.load("run")
        self.episodes.load_state(run["episodes"])
        for name, window in self._episodes_of.items():
            window.load_state(run["episodes_of"][name])
        self.evaluations.load_state(run["evaluations"])
        self._elapsed_before = run["elapsed_seconds"]
        self._read_best()
        self._logged_at = checkpoint.env_steps
        self._directory.write_evaluations(self.evaluations.arrays())
        self._directory.record_event(
            "resumed", env_steps=checkpoint.env_steps, checkpoint=checkpoint.path.name
        )

    def _read_best(self) -> None:
        """One may be of an evaluation that came after the checkpoint, and is no worse for that."""
        for name in ("best", *(f"best-{learner}" for learner in self._config.learners)):
            try:
                saved = self._directory.checkpoints.named(name).load("policy")
            except CheckpointError as error:
                logger.warning("the best policy so far is not there: %s", error)
                continue
            mean = PolicyCard.from_tree(saved).mean_return
            if mean is not None:
                self._best[name] = mean


class RateMeter:
    """Speeds over the last seconds: what processes report comes in jumps."""

    WINDOW_SECONDS = 10.0

    def __init__(self, env_steps: int, updates: int) -> None:
        self._readings = deque([(time.monotonic(), env_steps, updates)])
        self.steps_per_second = 0.0
        self.updates_per_second = 0.0

    def update(self, env_steps: int, updates: int) -> None:
        now = time.monotonic()
        self._readings.append((now, env_steps, updates))
        while len(self._readings) > 2 and self._readings[1][0] < now - self.WINDOW_SECONDS:
            self._readings.popleft()
        then, steps_then, updates_then = self._readings[0]
        seconds = max(now - then, 1e-9)
        self.steps_per_second = (env_steps - steps_then) / seconds
        self.updates_per_second = (updates - updates_then) / seconds
