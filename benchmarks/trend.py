"""Does a figure grow over time? A straight line through it, and how sure one can be of its slope.

Samples that follow each other are alike, so that a line through all of them would look far too
sure of itself. They are averaged over a dozen stretches of time first, which are nearly independent
of each other; the interval is Student's for a line through those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

STRETCHES = 12
STUDENT = 2.228  # of 95 %, with the 10 degrees of freedom that a line through 12 points leaves


@dataclass(frozen=True, slots=True)
class Trend:
    """Per hour, in the unit of the figure."""

    slope: float
    low: float  # of the 95 % interval
    high: float
    first: float  # the mean of the first stretch
    last: float

    def grows_more_than(self, bound: float) -> bool:
        """Surely: more than so much in an hour, and not by chance."""
        return self.slope > bound and self.low > 0.0


def trend(hours: Sequence[float], values: Sequence[float]) -> Trend | None:
    """None: there are too few samples to tell."""
    if len(hours) < 2 * STRETCHES:
        return None
    x = np.array([part.mean() for part in np.array_split(np.asarray(hours, float), STRETCHES)])
    y = np.array([part.mean() for part in np.array_split(np.asarray(values, float), STRETCHES)])
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    rest = y - y.mean() - slope * (x - x.mean())
    error = math.sqrt(float((rest**2).sum()) / (STRETCHES - 2) / spread)
    margin = STUDENT * error
    return Trend(slope, slope - margin, slope + margin, float(y[0]), float(y[-1]))
