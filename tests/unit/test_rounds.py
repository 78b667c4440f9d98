"""How far an on-policy player has run ahead of its learner."""

from __future__ import annotations

import numpy as np

from actors.rounds import Rounds
from repertory.types import TransitionBatch


def segments(*begun: int, until: int | None = None) -> TransitionBatch:
    """Of two steps each, by the versions with which they were begun and ended."""
    ends = begun if until is None else [until] * len(begun)
    versions = np.stack([begun, ends], axis=1).astype(np.int64)
    column = np.zeros(versions.shape, np.float32)
    return TransitionBatch(*[column] * 5, versions.astype(np.int32), versions)


def play(rounds: Rounds, batch: TransitionBatch) -> bool:
    rounds.begin()
    rounds.add(batch)
    return rounds.ahead


def test_a_round_is_one_segment_of_each_copy():
    rounds = Rounds(copies=3, max_lag=0)
    assert not play(rounds, segments(0, 0))
    assert play(rounds, segments(0))


def test_newer_weights_answer_a_round():
    rounds = Rounds(copies=1, max_lag=0)
    assert play(rounds, segments(0))
    rounds.answer(1)
    assert not rounds.ahead
    assert play(rounds, segments(1))


def test_the_lag_allows_for_rounds_without_an_answer():
    rounds = Rounds(copies=1, max_lag=2)
    assert [play(rounds, segments(0)) for _ in range(3)] == [False, False, True]


def test_segments_begun_before_the_answer_do_not_fill_the_next_round():
    rounds = Rounds(copies=2, max_lag=0)
    play(rounds, segments(0, 0))
    rounds.answer(1)
    assert not play(rounds, segments(0, 1, until=1))
    assert play(rounds, segments(1))


def test_within_the_lag_they_do():
    rounds = Rounds(copies=2, max_lag=1)
    play(rounds, segments(0, 0))
    rounds.answer(1)
    play(rounds, segments(0, 1, until=1))
    assert play(rounds, segments(1, 1))  # the third round, with one answer


def test_weights_that_come_during_a_round_do_not_make_old_what_was_begun_with_others():
    """A learner that is starved of segments publishes again and again."""
    rounds = Rounds(copies=1, max_lag=0)
    rounds.begin()
    for version in (1, 2, 3):
        rounds.answer(version)
        rounds.begin()
    rounds.add(segments(0, until=3))
    assert rounds.ahead


def test_answers_before_a_round_is_made_are_not_saved_up():
    rounds = Rounds(copies=1, max_lag=0)
    rounds.answer(7)
    assert play(rounds, segments(7))
