"""One seed for a run, and from it a generator of its own for every part that needs one."""

from __future__ import annotations

import zlib

import numpy as np

from repertory.types import Array


def derive_seed(run_seed: int, *path: str | int) -> int:
    """A seed for one purpose of a run: `derive_seed(7, "learner", "td3")`."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    return int(np.random.SeedSequence((run_seed, *words)).generate_state(1)[0])


def pack_generator(bits: np.random.PCG64) -> Array:
    """[6] uint64: the state and the increment in two words each, and the spare half draw."""
    state = bits.state
    words = [
        word
        for number in (state["state"]["state"], state["state"]["inc"])
        for word in divmod(number, 1 << 64)
    ]
    return np.array([*words, state["has_uint32"], state["uinteger"]], dtype=np.uint64)


def unpack_generator(bits: np.random.PCG64, packed: Array) -> None:
    state_high, state_low, inc_high, inc_low, has_uint32, uinteger = (int(word) for word in packed)
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": state_high << 64 | state_low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
