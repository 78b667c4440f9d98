"""n-step windows and segments against what can be computed per episode by hand."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.assemblers import Assembler, NStep, Segments
from repertory.types import TransitionBatch


@dataclass(frozen=True)
class Tick:
    """One step of every copy, as a rollout hands it on."""

    columns: dict[str, np.ndarray]
    terminated: np.ndarray
    boundary: np.ndarray
    valid: np.ndarray


def make_ticks(pattern: list[list[str]], rng: np.random.Generator) -> list[Tick]:
    """`pattern[t][copy]` is `-` (goes on), `T` (terminated), `C` (cut), `B` (both) or `.` (reset).

    Observations are [copy, t] and next observations [copy, t + .5]: no two are alike.
    """
    ticks = []
    for t, marks in enumerate(pattern):
        copies = len(marks)
        mark = np.array(marks)
        places = np.stack([np.arange(copies), np.full(copies, t)], 1).astype(np.float32)
        columns = {
            "observation": places,
            "action": rng.integers(100, size=copies),
            "reward": rng.standard_normal(copies).astype(np.float32),
            "discount": np.zeros(copies, np.float32),
            "next_observation": places + np.float32([0, 0.5]),
            "policy_id": np.zeros(copies, np.int32),
            "policy_version": np.full(copies, t, np.int64),
            "extras/log_prob": rng.standard_normal(copies).astype(np.float32),
        }
        terminated = np.isin(mark, ["T", "B"])
        boundary = terminated | (mark == "C")
        ticks.append(Tick(columns, terminated, boundary, mark != "."))
    return ticks


def feed(assembler: Assembler, ticks: list[Tick]) -> list[TransitionBatch]:
    batches = [
        assembler.add(tick.columns, tick.terminated, tick.boundary, tick.valid) for tick in ticks
    ]
    return [batch for batch in batches if batch is not None]


def items(batches: list[TransitionBatch]) -> dict[tuple, dict[str, np.ndarray]]:
    """Each item under (copy, t) of its first observation; an item twice is an error."""
    found = {}
    for batch in batches:
        for index in range(len(batch)):
            row = {name: column[index] for name, column in batch.columns().items()}
            key = tuple(int(value) for value in row["observation"])
            assert key not in found, f"{key} was emitted twice"
            found[key] = row
    return found


def episodes(ticks: list[Tick]) -> list[tuple[int, list[int], str]]:
    """(copy, times of its steps, how it ended: terminated, truncated, running), brute force."""
    found = []
    for copy in range(len(ticks[0].valid)):
        times: list[int] = []
        for t, tick in enumerate(ticks):
            if not tick.valid[copy]:
                continue
            times.append(t)
            if tick.boundary[copy]:
                found.append((copy, times, "terminated" if tick.terminated[copy] else "truncated"))
                times = []
        if times:
            found.append((copy, times, "running"))
    return found


def expected_items(ticks: list[Tick], n: int, gamma: float) -> dict[tuple, dict]:
    """R = sum_k gamma^k r_{t+k} over at most n steps of the episode, for every first step t."""
    expected = {}
    for copy, times, end in episodes(ticks):
        for start, t in enumerate(times):
            window = times[start : start + n]
            if len(window) < n and end == "running":
                continue  # still open
            reaches_the_end = window[-1] == times[-1]
            ends_here = reaches_the_end and end == "terminated"
            expected[copy, t] = {
                "reward": sum(
                    gamma**k * float(ticks[u].columns["reward"][copy]) for k, u in enumerate(window)
                ),
                "discount": 0.0 if ends_here else gamma ** len(window),
                "next_observation": (copy, window[-1] + 0.5),
                "action": ticks[t].columns["action"][copy],
                "extras/log_prob": ticks[t].columns["extras/log_prob"][copy],
                "policy_version": t,
            }
    return expected


@st.composite
def patterns(draw, *, gaps: bool) -> list[list[str]]:
    """Random ends for several copies; with gaps each is followed by a step that only resets."""
    copies, length = draw(st.integers(1, 3)), draw(st.integers(1, 16))
    columns = []
    for _ in range(copies):
        marks: list[str] = []
        while len(marks) < length:
            mark = draw(st.sampled_from("---TCB"))
            marks.append(mark)
            if gaps and mark != "-":
                marks.append(".")
        columns.append(marks[:length])
    return [list(row) for row in zip(*columns, strict=True)]


def assert_n_step(pattern: list[list[str]], n: int, gamma: float) -> None:
    ticks = make_ticks(pattern, np.random.default_rng(0))
    found, expected = items(feed(NStep(n, gamma), ticks)), expected_items(ticks, n, gamma)
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        for name, value in row.items():
            # Sums are made in float64 and rounded to float32 once: 2^-24 relative to their size,
            # which for at most 5 normal rewards stays below 2^4.
            np.testing.assert_allclose(
                found[key][name], value, rtol=2**-23, atol=2**-19, err_msg=f"{name} of {key}"
            )


@given(pattern=patterns(gaps=False), n=st.integers(1, 5), gamma=st.sampled_from([0.0, 0.9, 1.0]))
@settings(max_examples=80, deadline=None)
def test_n_step_is_the_sum_of_its_episode(pattern, n, gamma):
    assert_n_step(pattern, n, gamma)


@given(pattern=patterns(gaps=True), n=st.integers(1, 5), gamma=st.sampled_from([0.9, 1.0]))
@settings(max_examples=80, deadline=None)
def test_n_step_is_the_sum_of_its_episode_where_resets_take_a_step(pattern, n, gamma):
    assert_n_step(pattern, n, gamma)


def test_n_step_of_a_hand_computed_episode():
    ticks = make_ticks([["-"], ["-"], ["T"]], np.random.default_rng(0))
    for tick, reward in zip(ticks, (1, 10, 100), strict=True):
        tick.columns["reward"][:] = reward
    found = items(feed(NStep(2, 0.5), ticks))
    assert [found[0, t]["reward"] for t in range(3)] == [1 + 5, 10 + 50, 100]
    assert [found[0, t]["discount"] for t in range(3)] == [0.25, 0, 0]
    assert [found[0, t]["next_observation"][1] for t in range(3)] == [1.5, 2.5, 2.5]


def test_truncation_keeps_the_discount_of_its_window():
    found = items(feed(NStep(3, 0.5), make_ticks([["-"], ["C"]], np.random.default_rng(0))))
    assert [found[0, t]["discount"] for t in range(2)] == [0.25, 0.5]


@pytest.mark.parametrize("mark", ["T", "B"])
def test_termination_leaves_nothing_to_bootstrap_from(mark):
    found = items(feed(NStep(1, 0.5), make_ticks([[mark]], np.random.default_rng(0))))
    assert found[0, 0]["discount"] == 0


def test_no_window_crosses_a_boundary():
    ticks = make_ticks([["-"], ["C"], ["-"], ["-"], ["T"]], np.random.default_rng(0))
    for (_, t), row in items(feed(NStep(4, 0.9), ticks)).items():
        assert (t <= 1) == (row["next_observation"][1] == 1.5)


def test_nothing_leaves_before_n_steps_are_there():
    ticks = make_ticks([["-"]] * 3, np.random.default_rng(0))
    assert [len(feed(NStep(3, 0.9), ticks[:k])) for k in range(4)] == [0, 0, 0, 1]


def test_n_step_columns_keep_their_types():
    ticks = make_ticks([["-", "T"]] * 3, np.random.default_rng(0))
    for batch in feed(NStep(2, 0.9), ticks):
        for name, column in batch.columns().items():
            assert column.dtype == ticks[0].columns[name].dtype, name


def test_forgotten_copies_emit_nothing_of_before():
    ticks = make_ticks([["-", "-"]] * 4, np.random.default_rng(0))
    assembler = NStep(3, 0.9)
    feed(assembler, ticks[:2])
    assembler.forget(np.array([True, False]))
    found = items(feed(assembler, ticks[2:]))
    assert set(found) == {(1, 0), (1, 1)}


# Hand-overs


def feed_and_cut(
    assembler: Assembler, ticks: list[Tick], cuts: dict[int, list[bool]]
) -> list[TransitionBatch]:
    """`cuts[t]` marks the copies where another takes over after tick t."""
    batches = []
    for t, tick in enumerate(ticks):
        batches += feed(assembler, [tick])
        if t in cuts:
            cut = assembler.cut(np.array(cuts[t]))
            batches += [] if cut is None else [cut]
    return batches


@given(
    pattern=patterns(gaps=True),
    n=st.integers(1, 5),
    cut_at=st.integers(0, 15),
    marks=st.lists(st.booleans(), min_size=3, max_size=3),
)
@settings(max_examples=80, deadline=None)
def test_n_step_windows_end_at_a_hand_over_as_at_a_truncation(pattern, n, cut_at, marks):
    cut_at = min(cut_at, len(pattern) - 1)
    running = [mark == "-" for mark in pattern[cut_at]]
    copies = [mark and runs for mark, runs in zip(marks, running, strict=False)]
    truncated = [list(row) for row in pattern]
    for copy, cut in enumerate(copies):
        if cut:
            truncated[cut_at][copy] = "C"
    rng = np.random.default_rng
    found = items(feed_and_cut(NStep(n, 0.9), make_ticks(pattern, rng(0)), {cut_at: copies}))
    expected = items(feed(NStep(n, 0.9), make_ticks(truncated, rng(0))))
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        np.testing.assert_equal(found[key], row)


def test_n_step_cut_before_the_first_step_is_nothing():
    assert NStep(3, 0.9).cut(np.array([True])) is None


def test_segment_is_marked_at_the_last_step_before_a_hand_over():
    ticks = make_ticks([["-", "-"]] * 4, np.random.default_rng(0))
    (segments,) = feed_and_cut(Segments(4, 0.5), ticks, {1: [True, False]})
    np.testing.assert_array_equal(segments.extras["boundary"], [[0, 1, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(segments.discount, [[0.5] * 4] * 2)  # nothing terminated


def test_hand_over_right_after_a_segment_marks_nothing_of_the_next():
    ticks = make_ticks([["-"]] * 4, np.random.default_rng(0))
    first, second = feed_and_cut(Segments(2, 0.5), ticks, {1: [True]})
    np.testing.assert_array_equal(first.extras["boundary"], [[0, 0]])
    np.testing.assert_array_equal(second.extras["boundary"], [[0, 0]])


# Segments


def test_segment_holds_consecutive_steps_of_one_copy():
    ticks = make_ticks([["-", "-"]] * 4, np.random.default_rng(0))
    (first, second) = feed(Segments(2, 0.9), ticks)
    assert first.observation.shape == (2, 2, 2)
    np.testing.assert_array_equal(first.observation[:, :, 1], [[0, 1], [0, 1]])
    np.testing.assert_array_equal(second.observation[:, :, 1], [[2, 3], [2, 3]])
    np.testing.assert_array_equal(second.observation[:, 0, 0], [0, 1])


def test_segment_spans_episodes_and_marks_their_ends():
    ticks = make_ticks([["-"], ["T"], ["-"], ["C"], ["-"]], np.random.default_rng(0))
    (segment,) = feed(Segments(5, 0.5), ticks)
    np.testing.assert_array_equal(segment.extras["boundary"], [[0, 1, 0, 1, 0]])
    np.testing.assert_array_equal(segment.discount, [[0.5, 0, 0.5, 0.5, 0.5]])
    np.testing.assert_array_equal(
        segment.next_observation[0, :, 1], np.arange(5) + 0.5
    )  # of the step itself, also at an end


@given(
    pattern=patterns(gaps=True), length=st.integers(1, 5), gamma=st.sampled_from([0.0, 0.9, 1.0])
)
@settings(max_examples=60, deadline=None)
def test_segments_cut_the_valid_steps_of_each_copy_into_equal_runs(pattern, length, gamma):
    ticks = make_ticks(pattern, np.random.default_rng(0))
    found = defaultdict(list)
    for batch in feed(Segments(length, gamma), ticks):
        for row in range(len(batch)):
            copy = int(batch.observation[row, 0, 0])
            found[copy].append(batch.select(slice(row, row + 1)))
    for copy in range(len(pattern[0])):
        times = [t for t, tick in enumerate(ticks) if tick.valid[copy]]
        whole = len(times) // length * length
        assert len(found[copy]) * length == whole
        if not whole:
            continue
        columns = {
            name: np.concatenate([segment.columns()[name][0] for segment in found[copy]])
            for name in found[copy][0].columns()
        }
        for name in ("observation", "action", "reward", "next_observation", "extras/log_prob"):
            expected = [ticks[t].columns[name][copy] for t in times[:whole]]
            np.testing.assert_array_equal(columns[name], expected, err_msg=name)
        terminated = np.array([ticks[t].terminated[copy] for t in times[:whole]])
        np.testing.assert_array_equal(columns["discount"], np.float32(gamma) * ~terminated)
        boundary = [ticks[t].boundary[copy] for t in times[:whole]]
        np.testing.assert_array_equal(columns["extras/boundary"], boundary)


def test_segments_of_copies_that_reset_at_other_times_complete_at_other_times():
    ticks = make_ticks([["T", "-"], [".", "-"], ["-", "-"]], np.random.default_rng(0))
    batches = feed(Segments(2, 0.9), ticks)
    assert [batch.observation[:, :, 1].tolist() for batch in batches] == [[[0, 1]], [[0, 2]]]


def test_segment_already_returned_is_not_changed_by_later_steps():
    ticks = make_ticks([["-"]] * 6, np.random.default_rng(0))
    assembler = Segments(3, 0.9)
    (segment,) = feed(assembler, ticks[:3])
    before = segment.observation.copy()
    feed(assembler, ticks[3:])
    np.testing.assert_array_equal(segment.observation, before)


def test_forgotten_copies_begin_a_new_segment():
    ticks = make_ticks([["-", "-"]] * 4, np.random.default_rng(0))
    assembler = Segments(3, 0.9)
    feed(assembler, ticks[:2])
    assembler.forget(np.array([True, False]))
    (segment,) = feed(assembler, ticks[2:])
    np.testing.assert_array_equal(segment.observation[:, :, 1], [[0, 1, 2]])
    assert segment.observation[0, 0, 0] == 1


# State


def make_assembler(kind: str) -> Assembler:
    return NStep(3, 0.9) if kind == "n_step" else Segments(4, 0.9)


def assert_same_batches(one: list[TransitionBatch], other: list[TransitionBatch]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_equal(a.columns(), b.columns())


MIDDLE = [["-", "-"], ["T", "-"], ["-", "C"], ["-", "-"], ["-", "-"], ["C", "T"], ["-", "-"]] * 3


@pytest.mark.parametrize("kind", ["n_step", "segments"])
@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4, 6, 8])
def test_state_taken_in_the_middle_goes_on_as_if_nothing_had_happened(kind, cut):
    ticks = make_ticks(MIDDLE, np.random.default_rng(0))
    original, restored = make_assembler(kind), make_assembler(kind)
    feed(original, ticks[:cut])
    restored.load_state(original.state())
    assert_same_batches(feed(restored, ticks[cut:]), feed(original, ticks[cut:]))


@pytest.mark.parametrize(
    "kind",
    [
        "n_step",
        "segments",
    ],
)
def test_state_is_not_changed_by_what_comes_after(kind):
    ticks = make_ticks(MIDDLE, np.random.default_rng(0))
    original, restored = make_assembler(kind), make_assembler(kind)
    feed(original, ticks[:2])
    state = original.state()
    expected = feed(original, ticks[2:])  # and only then is the state used
    restored.load_state(state)
    assert_same_batches(feed(restored, ticks[2:]), expected)


@pytest.mark.parametrize("kind", ["n_step", "segments"])
def test_loaded_state_replaces_what_was_there(kind):
    ticks = make_ticks(MIDDLE, np.random.default_rng(0))
    used, fresh = make_assembler(kind), make_assembler(kind)
    feed(used, ticks[:2])
    used.load_state(make_assembler(kind).state())
    assert_same_batches(feed(used, ticks[2:]), feed(fresh, ticks[2:]))
