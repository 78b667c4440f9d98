"""Steps recorded in place: what comes out is what went in, and assemblers make the same of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from actors import recording as recording_module
from actors.assemblers import Assembler, NStep, Segments, step_by_step
from actors.recording import Recording
from actors.stretches import Stretches
from repertory.types import TransitionBatch

COPIES = 3


def step(number: int) -> dict[str, np.ndarray]:
    return {"a": np.arange(COPIES) + 10 * number, "b": np.full((COPIES, 2), number, np.float32)}


def test_steps_come_out_in_order_with_their_types() -> None:
    recording = Recording()
    for number in range(5):  # more than there is room for at first
        recording.add(step(number))
    taken = recording.take()
    np.testing.assert_array_equal(taken["a"], [step(number)["a"] for number in range(5)])
    np.testing.assert_array_equal(taken["b"], [step(number)["b"] for number in range(5)])
    assert taken["b"].dtype == np.float32


def test_nothing_is_taken_twice() -> None:
    recording = Recording()
    recording.add(step(0))
    recording.take()
    assert recording.take() == {}


def test_what_was_taken_is_not_written_over() -> None:
    recording = Recording()
    recording.add(step(1))
    taken = recording.take()
    recording.add(step(2))
    np.testing.assert_array_equal(taken["a"][0], step(1)["a"])


def test_large_steps_are_handed_on_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_of_a_step = sum(column.nbytes for column in step(0).values())
    monkeypatch.setattr(recording_module, "MOST_BYTES", 3 * bytes_of_a_step)
    recording = Recording()
    for number in range(3):
        assert not recording.full
        recording.add(step(number))
    assert recording.full
    assert len(recording.take()["a"]) == 3
    assert not recording.full


# --- assemblers make of a stretch what they make of its steps -----------------------------------


def stretch(
    steps: int, gaps: bool, seed: int
) -> tuple[dict[str, np.ndarray], *tuple[np.ndarray, ...]]:
    rng = np.random.default_rng(seed)
    shape = (steps, COPIES)
    columns = {
        "observation": rng.normal(size=(*shape, 2)).astype(np.float32),
        "action": rng.integers(3, size=shape),
        "reward": rng.normal(size=shape).astype(np.float32),
        "next_observation": rng.normal(size=(*shape, 2)).astype(np.float32),
        "policy_id": np.zeros(shape, np.int32),
        "policy_version": rng.integers(9, size=shape),
        "extras/beginning": rng.random(shape) < 0.3,
        "extras/log_prob": rng.normal(size=shape).astype(np.float32),
    }
    terminated = rng.random(shape) < 0.1
    boundary = terminated | (rng.random(shape) < 0.1)
    valid = rng.random(shape) < 0.8 if gaps else np.ones(shape, bool)
    return columns, terminated, boundary, valid


def joined(batches: list[TransitionBatch]) -> dict[str, np.ndarray]:
    return TransitionBatch.concatenate(batches).columns() if batches else {}


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: NStep(1, 0.9),
        lambda: NStep(3, 0.9),
        lambda: Segments(4, 0.9),
        lambda: Segments(40, 0.9),
        lambda: Stretches(0.9),
    ],
    ids=["one step", "three steps", "segments", "long segments", "stretches"],
)
def test_a_stretch_gives_the_items_of_its_steps(make: Callable[[], Assembler], gaps: bool) -> None:
    whole, single = make(), make()
    ours: list[TransitionBatch] = []
    theirs: list[TransitionBatch] = []
    for number, steps in enumerate((1, 7, 2, 30, 13)):
        # A gap leaves the copies at different places, where the next stretch goes on.
        given = stretch(steps, gaps and number in (1, 3), seed=number)
        ours += whole.add_stretch(*given)
        theirs += step_by_step(single, *given)
    mine, expected = joined(ours), joined(theirs)
    assert mine.keys() == expected.keys()
    assert len(mine["reward"]) > 0
    for name, column in expected.items():
        np.testing.assert_array_equal(mine[name], column)
        assert mine[name].dtype == column.dtype
    state, other = whole.state(), single.state()
    assert state.keys() == other.keys()
    if "filled" in state:
        np.testing.assert_array_equal(state["filled"], other["filled"])
