"""The ledger of inserts: what was done is known, in any order, within its window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer_server.writer_ledger import WINDOW, Origin, SequenceTooOld, WriterLedger
from repertory.errors import UsageError

ONE, OTHER = b"1" * 16, b"2" * 16


@given(st.lists(st.tuples(st.sampled_from([ONE, OTHER]), st.integers(1, WINDOW)), max_size=60))
def test_within_the_window_it_is_a_set(named: list[tuple[bytes, int]]) -> None:
    ledger, reference = WriterLedger(), set()
    for writer, sequence in named:
        assert ledger.contains(Origin(writer, sequence)) == ((writer, sequence) in reference)
        ledger.note(Origin(writer, sequence))
        reference.add((writer, sequence))
    for writer in (ONE, OTHER):
        for sequence in range(1, WINDOW + 1):
            assert ledger.contains(Origin(writer, sequence)) == ((writer, sequence) in reference)


def test_what_is_older_than_the_window_is_neither_done_nor_new() -> None:
    ledger = WriterLedger()
    ledger.note(Origin(ONE, 5))
    ledger.note(Origin(ONE, WINDOW + 5))
    assert not ledger.contains(Origin(ONE, 6))
    with pytest.raises(SequenceTooOld, match="insert 5 of writer 31313131"):
        ledger.contains(Origin(ONE, 5))


@pytest.mark.parametrize("ahead", [1, WINDOW - 1, WINDOW, 2**62])
def test_a_jump_forgets_only_what_leaves_the_window(ahead: int) -> None:
    ledger = WriterLedger()
    ledger.note(Origin(ONE, 1))
    ledger.note(Origin(ONE, 1 + ahead))
    assert ledger.contains(Origin(ONE, 1 + ahead))
    if ahead < WINDOW:
        assert ledger.contains(Origin(ONE, 1))
        assert not any(ledger.contains(Origin(ONE, 1 + age)) for age in range(1, ahead))


def test_the_writer_silent_for_longest_is_forgotten_first() -> None:
    ledger = WriterLedger(max_writers=2)
    third = b"3" * 16
    for writer in (ONE, OTHER, ONE, third):
        ledger.note(Origin(writer, 1))
    assert len(ledger) == 2
    assert not ledger.contains(Origin(OTHER, 1))
    assert ledger.contains(Origin(ONE, 1))


def test_a_restored_ledger_knows_the_same() -> None:
    ledger, restored = WriterLedger(), WriterLedger()
    for sequence in (1, 3, 900):
        ledger.note(Origin(ONE, sequence))
    ledger.note(Origin(OTHER, 2**62))
    restored.load_arrays(ledger.arrays())
    assert restored.contains(Origin(OTHER, 2**62))
    known = [sequence for sequence in range(1, 1000) if restored.contains(Origin(ONE, sequence))]
    assert known == [1, 3, 900]


@pytest.mark.parametrize(("writer", "sequence"), [(b"", 1), (b"1" * 17, 1), (ONE, 0), (ONE, 2**63)])
def test_what_names_no_insert_is_refused(writer: bytes, sequence: int) -> None:
    with pytest.raises(UsageError):
        Origin(writer, sequence)
