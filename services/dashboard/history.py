"""The metrics of one run, by name: read from `metrics.jsonl` as far as it is written, then on.

A run may write for days: the file is read once, and after that only what has been added.
"""

from __future__ import annotations

import math
import os
from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from services.dashboard.json_lines import parsed
from services.dashboard.schemas import Axis
from services.dashboard.tail import Tail
from services.dashboard.thinning import thinned

GLANCE_BYTES = 64 << 10
ROWS_KEPT = 1000  # whole, for those who watch
ELAPSED = "time/time_elapsed"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the file."""

    number: int
    step: float
    seconds: float  # since the run began
    values: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        values = {name: _shown(value) for name, value in self.values.items()}
        return {"step": self.step, "seconds": self.seconds, "values": values}


@dataclass(frozen=True, slots=True)
class Column:
    """One metric, oldest first."""

    steps: array[float]
    seconds: array[float]
    values: array[float]

    def x(self, axis: Axis) -> np.ndarray:
        return np.array(self.steps if axis == "steps" else self.seconds)


@dataclass(frozen=True, slots=True)
class Points:
    x: list[float]
    y: list[float | None]
    total: int  # before thinning


class MetricHistory:
    """One thread at a time uses it."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path, take=self._take, forget=self._forget)
        self._forget()

    def _forget(self) -> None:
        self._columns: dict[str, Column] = {}
        self._recent: deque[Row] = deque(maxlen=ROWS_KEPT)
        self._elapsed = 0.0
        self.count = 0  # rows
        self.last_step = 0.0

    @property
    def names(self) -> list[str]:
        return sorted(self._columns)

    def newest(self, name: str) -> float | None:
        column = self._columns.get(name)
        return None if column is None else _shown(column.values[-1])

    def points(self, name: str, limit: int, axis: Axis) -> Points | None:
        """Thinned to so many. None: there is no such metric."""
        column = self._columns.get(name)
        if column is None:
            return None
        x, y = column.x(axis), np.array(column.values)
        kept = thinned(x, y, limit)
        values = [value if math.isfinite(value) else None for value in y[kept].tolist()]
        return Points(x[kept].tolist(), values, len(x))

    def seconds_at(self, steps: np.ndarray) -> np.ndarray:
        """When the run was there."""
        column = self._columns.get(ELAPSED)
        if column is None:
            return np.zeros(len(steps))
        return np.interp(steps, np.array(column.steps), np.array(column.values))

    def rows_after(self, number: int) -> list[Row]:
        """Of the newest; a number beyond the last is that of a file that is gone."""
        if number > self.count:
            return list(self._recent)
        return [row for row in self._recent if row.number > number]

    def read_on(self) -> None:
        self._tail.read_on()

    def _take(self, lines: list[bytes]) -> None:
        """Rows of the same metrics that follow each other go into the columns together."""
        block: list[Row] = []
        for line in lines:
            row = self._row(line)
            if row is None:
                continue
            if block and row.values.keys() != block[0].values.keys():
                self._add(block)
                block = []
            block.append(row)
        if block:
            self._add(block)

    def _row(self, line: bytes) -> Row | None:
        """None: torn by a crash; the next lines are whole again."""
        values = parsed(line)
        if values is None or not isinstance(step := values.pop("step", None), int | float):
            return None
        elapsed = values.get(ELAPSED)
        if isinstance(elapsed, int | float):
            self._elapsed = max(self._elapsed, elapsed)
        self.count += 1
        self.last_step = max(self.last_step, step)
        row = Row(self.count, step, self._elapsed, values)
        self._recent.append(row)
        return row

    def _add(self, rows: list[Row]) -> None:
        """All with the same names, but perhaps in another order."""
        steps = array("d", [row.step for row in rows])
        seconds = array("d", [row.seconds for row in rows])
        for name in rows[0].values:
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = Column(array("d"), array("d"), array("d"))
            column.steps.extend(steps)
            column.seconds.extend(seconds)
            values = [row.values[name] for row in rows]
            try:
                column.values.extend(values)
            except TypeError:  # what is no number is a gap
                del column.values[len(column.steps) - len(rows) :]
                column.values.extend(
                    value if isinstance(value, int | float) else math.nan for value in values
                )


def newest_values(path: Path) -> dict[str, Any]:
    """Of each metric in the last rows, and the highest step: a glance at the end of the file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - GLANCE_BYTES))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return {}
    found: dict[str, Any] = {"step": 0}
    for line in lines[:-1]:
        row = parsed(line)
        if row is not None and isinstance(step := row.pop("step", None), int | float):
            found |= {name: _shown(value) for name, value in row.items()}
            found["step"] = max(found["step"], step)
    return found


def _shown(value: Any) -> float | None:
    """JSON knows neither NaN nor infinity."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
