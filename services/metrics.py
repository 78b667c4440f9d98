"""Metrics of a run: JSON lines always, TensorBoard by default, Weights & Biases where asked.

The x axis is environment steps over all copies. Names follow Stable-Baselines3 where it has one
(`rollout/ep_rew_mean`), with CleanRL's as aliases (`charts/episodic_return`). Everything that
depends on the clock is under `time/`: two runs with one seed differ there and nowhere else.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from repertory.checkpoints import write_atomically
from repertory.config import LogConfig
from repertory.errors import UsageError
from repertory.types import EpisodeOutcome

EPISODE_WINDOW = 100


class EpisodeWindow:
    """The last episodes, and those since the last row; `place` stands in the names of metrics."""

    def __init__(self, place: str = "") -> None:
        self._place = place
        self._recent: deque[tuple[float, int]] = deque(maxlen=EPISODE_WINDOW)
        self._fresh: list[tuple[float, int]] = []
        self.count = 0

    def add(self, outcomes: Sequence[EpisodeOutcome]) -> None:
        episodes = [(outcome.episode_return, outcome.length) for outcome in outcomes]
        self._recent.extend(episodes)
        self._fresh.extend(episodes)
        self.count += len(episodes)

    @property
    def mean_return(self) -> float | None:
        return _mean([value for value, _ in self._recent])

    def read(self) -> dict[str, float]:
        """Metrics of the window; what was not seen is left out."""
        metrics: dict[str, float | None] = {
            f"rollout/{self._place}ep_rew_mean": self.mean_return,
            f"rollout/{self._place}ep_len_mean": _mean([length for _, length in self._recent]),
            f"charts/{self._place}episodic_return": _mean([value for value, _ in self._fresh]),
            f"charts/{self._place}episodic_length": _mean([length for _, length in self._fresh]),
        }
        self._fresh = []
        return {name: value for name, value in metrics.items() if value is not None}

    def state(self) -> dict[str, Any]:
        return {"recent": list(self._recent), "count": self.count}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._recent.clear()
        self._recent.extend((value, length) for value, length in state["recent"])
        self.count = state["count"]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


class MetricLog:
    """Writes rows. Opened on a run that is resumed, it first drops what came after `resume_at`."""

    def __init__(
        self, jsonl: Path, tensorboard: Path, config: LogConfig, *, resume_at: int | None = None
    ) -> None:
        if resume_at is not None and jsonl.exists():
            _drop_rows_after(jsonl, resume_at)
        self._file = jsonl.open("a")
        self._events = EventFileWriter(str(tensorboard)) if config.tensorboard else None
        if self._events is not None and resume_at is not None:
            # TensorBoard hides everything beyond this step that an earlier life has written.
            restart = SessionLog(status=SessionLog.START)
            self._events.add_event(Event(step=resume_at + 1, session_log=restart))
        self._wandb = _start_wandb(config.wandb_project, jsonl.parent)

    def write(self, env_steps: int, wall_time: float, metrics: Mapping[str, float]) -> None:
        self._file.write(json.dumps({"step": env_steps, **metrics}) + "\n")
        self._file.flush()
        if self._events is not None:
            values = [
                Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()
            ]
            self._events.add_event(
                Event(wall_time=wall_time, step=env_steps, summary=Summary(value=values))
            )
        if self._wandb is not None:
            self._wandb.log(dict(metrics), step=env_steps)

    def close(self) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()
        if self._wandb is not None:
            self._wandb.finish()


def _drop_rows_after(path: Path, env_steps: int) -> None:
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= env_steps:
                kept.append(line + "\n")
        except (json.JSONDecodeError, KeyError):
            break  # torn by a kill: nothing behind it counts
    write_atomically(path, "".join(kept).encode())


def _start_wandb(project: str | None, run_path: Path) -> Any:
    if project is None:
        return None
    try:
        import wandb
    except ImportError:
        raise UsageError(
            "log.wandb_project is set, but wandb is not installed: pip install 'repertory[wandb]'"
        ) from None
    return wandb.init(project=project, name=run_path.name, dir=run_path, resume="allow")
