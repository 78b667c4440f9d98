"""How many items a table holds, and how many frames for them: by number, by bytes, or by both.

The frames of stacked columns are kept once (`buffer_server.frame_pool`). An episode of L steps has
L + 1 frames, so the pool has room for one frame per item and one in sixteen more. Where episodes
are shorter than that, or where stacks share less than they could, the frames run out first and the
table holds fewer items than its capacity.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from buffer_server.frame_pool import pool_nbytes
from buffer_server.frames import frame_spec
from repertory.errors import UsageError
from repertory.types import Signature

LEAST_SPARE_FRAMES, MOST_SPARE_FRAMES = 1024, 8192  # for large batches, and for small tables
# So many other frames may come between two messages of the same environment.
MOST_REACH = 65_536
NUMBER_NBYTES = 8


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a storage allocates."""

    items: int
    frames: int  # 0 without stacks
    reach: int  # how far back a frame may lie to be shared
    item_nbytes: int  # without frames
    frame_nbytes: int
    nbytes: int  # of everything, when full

    @classmethod
    def of(cls, signature: Signature, items: int) -> Capacity:
        frame = frame_spec(signature)
        plain = sum(spec.nbytes for spec in signature.values() if spec.stack == 1)
        if frame is None:
            return cls(items, 0, 0, plain, 0, items * plain)
        stacked = sum(spec.stack for spec in signature.values() if spec.stack > 1)
        # The numbers of its frames, and the oldest that is still needed.
        item_nbytes = plain + NUMBER_NBYTES * (stacked + 1)
        spare = min(stacked * items, max(LEAST_SPARE_FRAMES, min(MOST_SPARE_FRAMES, items // 16)))
        frames = items + items // 16 + spare
        # An item goes with the oldest frame it shows: what it shares may not be all that old.
        reach = min(MOST_REACH, items // 32 + spare)
        nbytes = items * item_nbytes + pool_nbytes(frame, frames, reach)
        return cls(items, frames, reach, item_nbytes, frame.nbytes, nbytes)

    @classmethod
    def within(cls, signature: Signature, items: int, nbytes: int | None) -> Capacity:
        """At most `items`, and at most `nbytes`: whichever is less."""
        if items < 1:
            raise UsageError(f"a capacity of {items} holds nothing: give at least 1 item")
        if nbytes is None:
            return cls.of(signature, items)
        fitting = bisect_right(
            range(1, items + 1), nbytes, key=lambda count: cls.of(signature, count).nbytes
        )
        if fitting < 1:
            raise UsageError(
                f"a capacity of {nbytes} bytes holds nothing: one item takes "
                f"{cls.of(signature, 1).nbytes} bytes; give more"
            )
        return cls.of(signature, fitting)
