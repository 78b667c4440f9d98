"""Fewer points for a chart, with nothing lost that an eye would see.

The x axis is cut into equal pieces, of each the first, the lowest, the highest and the last point
stay (M4, Jugel et al. 2014): drawn as lines, one piece for each column of pixels, the picture is
that of all points. A spike of one point in a million stays.
"""

from __future__ import annotations

import numpy as np

KEPT_OF_A_PIECE = 4


def thinned(x: np.ndarray, y: np.ndarray, points: int) -> np.ndarray:
    """Indices into both, in order; `points` at most. `x` does not fall; `y` may have NaN."""
    if len(x) <= points:
        return np.arange(len(x))
    pieces = max(1, points // KEPT_OF_A_PIECE)
    span = float(x[-1] - x[0])
    if span > 0:
        piece = np.minimum(((x - x[0]) * (pieces / span)).astype(np.int64), pieces - 1)
    else:
        piece = np.arange(len(x)) * pieces // len(x)
    starts = np.flatnonzero(np.diff(piece, prepend=-1))
    ends = np.append(starts[1:], len(x)) - 1
    # Within each piece the order by value; NaN at its end, so that it is neither of the extremes
    # where there is something else.
    order = np.lexsort((y, piece))
    known = np.add.reduceat(~np.isnan(y), starts)
    highest = order[starts + np.maximum(known, 1) - 1]
    return np.unique(np.concatenate([starts, order[starts], highest, ends]))
