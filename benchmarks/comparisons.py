"""What is compared: inserting, sampling, new priorities, all of it at once, and pixels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.fleet import AS_LEARNERS, NO_SETTINGS, ROOT, Fleet, Launch
from benchmarks.measure import Comparison, in_turns
from benchmarks.peers.commands import Settings, TableJob
from benchmarks.reverb_tuning import Trial, Tuned, tune, untuned

OURS = Launch("repertory", Path(sys.executable), "benchmarks.peers.repertory_peer")
REVERB = Launch(
    "reverb",
    ROOT / "benchmarks" / ".venv-reverb" / "bin" / "python",
    "benchmarks.peers.reverb_peer",
    environment={"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
)
VECTORS, PIXELS = 25_600, 2_048  # items in every table; inserts soon overwrite
TABLES = {
    table.name: table
    for table in (
        TableJob("vector-sink", "vector", "uniform", VECTORS),
        TableJob("uniform", "vector", "uniform", VECTORS),
        TableJob("prioritized", "vector", "prioritized", VECTORS),
        TableJob("pixels-sink", "pixels", "uniform", PIXELS),
        TableJob("pixels", "pixels", "uniform", PIXELS),
    )
}
TEN_TIMES, AS_FAST = 10.0, 1.0


class Comparisons:
    """Both fleets in turns; `done` has the results, in order."""

    def __init__(
        self, ours: Fleet, reverb: Fleet, rounds: int, seconds: float, say: Callable[[str], None]
    ) -> None:
        self._ours = ours
        self._reverb = reverb
        self._rounds = rounds
        self._seconds = seconds
        self._say = say
        self._tuned = {work: untuned(work) for work in ("vector", "pixels")}
        self._filled_with: dict[str, Settings] = {}  # by table
        self.trials: list[Trial] = []
        self.done: list[Comparison] = []

    @property
    def reverb_settings(self) -> dict[str, Tuned]:
        return self._tuned

    def tune(self, work: str) -> None:
        """From here on Reverb has the settings that prove fastest now."""
        self._say(f"what suits Reverb best, {work}, items/s:")
        table = TABLES[f"{work}-sink"]
        self._tuned[work] = tune(self._reverb, table, self._tried)

    def insert(self) -> None:
        tuned, table = self._tuned["vector"], "vector-sink"
        trajectory, fastest = tuned.trajectory_insert, tuned.insert
        self._one("insert, TrajectoryWriter", "insert", table, trajectory, TEN_TIMES)
        self._one("insert, fastest writer", "insert", table, fastest, TEN_TIMES)
        self._one(
            "insert, ours from single steps",
            "insert",
            table,
            fastest,
            our_settings={"single_steps": True},
        )

    def sample(self) -> None:
        settings = self._tuned["vector"].sample
        for name, table in (("uniform", "uniform"), ("prioritised", "prioritized")):
            self._fill(table, settings)
            self._one(f"sample, {name}", "sample", table, settings, TEN_TIMES)
        self._one(
            "sample, uniform, as learners do", "sample", "uniform", settings, None, AS_LEARNERS
        )

    def update(self) -> None:
        self._fill("prioritized", self._tuned["vector"].sample)
        self._one("priority updates", "update", "prioritized", NO_SETTINGS, AS_FAST)

    def mixed(self, writers: int) -> None:
        settings = self._tuned["vector"].both
        self._fill("uniform", settings)
        ours, peer = in_turns(
            lambda: self._ours.rates_together("uniform", self._seconds, NO_SETTINGS, writers),
            lambda: self._reverb.rates_together("uniform", self._seconds, settings, writers),
            self._rounds,
        )
        for place, way in enumerate(("in", "out")):
            self._note(
                f"{writers} writing, 1 reading: {way}",
                [rates[place] for rates in ours],
                [rates[place] for rates in peer],
            )

    def pixels(self) -> None:
        tuned = self._tuned["pixels"]
        self._one("pixels: insert", "insert", "pixels-sink", tuned.insert)
        self._fill("pixels", tuned.sample)
        self._one("pixels: sample, uniform", "sample", "pixels", tuned.sample)

    def _fill(self, table: str, settings: Settings) -> None:
        """Reverb's cost of reading depends on how an item was written."""
        if self._filled_with.get(table) != settings:
            self._filled_with[table] = settings
            self._ours.fill(table, TABLES[table].capacity, NO_SETTINGS)
            self._reverb.fill(table, TABLES[table].capacity, settings)

    def _one(
        self,
        name: str,
        what: str,
        table: str,
        reverb_settings: Settings,
        target: float | None = None,
        our_settings: Settings = NO_SETTINGS,
    ) -> None:
        ours, peer = in_turns(
            lambda: self._ours.rate(what, table, self._seconds, our_settings),
            lambda: self._reverb.rate(what, table, self._seconds, reverb_settings),
            self._rounds,
        )
        self._note(name, ours, peer, target)

    def _note(
        self,
        name: str,
        ours: Sequence[float],
        peer: Sequence[float],
        target: float | None = None,
    ) -> None:
        comparison = Comparison(name, ours, peer, target)
        self.done.append(comparison)
        self._say(f"{name}: {comparison.ratio:.1f} x")

    def _tried(self, trial: Trial) -> None:
        self.trials.append(trial)
        writer, reader = trial.writer, trial.reader
        kind = f"{writer['writer']}{' of frames' if writer.get('frames') else ''}"
        self._say(
            f"  insert {trial.insert:7,.0f}  sample {trial.sample:7,.0f}  {kind} chunk "
            f"{writer['chunk']}, {reader['dataset']} dataset, workers {reader['workers']}"
        )
