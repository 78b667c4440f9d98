"""The account of a run's rows finds everything that it is there to find."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numbered_cartpole import CopyRecord, NumberedCartPole, read_numbers, records
from row_account import Account, Rows, ShardKill, settle

KILLED = 77  # a process id


def rows(numbers: Sequence[int], versions: Sequence[int] | None = None) -> Rows:
    number = np.array(numbers, np.int64)
    version = np.zeros(len(number)) if versions is None else np.array(versions)
    return Rows(number, number + 1, version)


def account(present: Rows, **changes: Any) -> Account:
    """Of two copies that made ten transitions each, 1 to 10 and 2**32 + 1 to 2**32 + 10."""
    copies = [CopyRecord(0, 5, 0.0, 11), CopyRecord(1, KILLED, 0.0, 11)]
    arguments: dict[str, Any] = {
        "killed_workers": (),
        "shard_kills": (),
        "rows_under_way": 0,
        "rows_with_worker": 3,
        "not_sent": 0,
        "reported_lost": 0,
    }
    return settle(copies, present, **{**arguments, **changes})


EVERYTHING = [*range(1, 11), *range(2**32 + 1, 2**32 + 11)]


def test_nothing_is_wrong_where_all_is_there_once() -> None:
    found = account(rows(EVERYTHING))
    assert found.troubles() == []
    assert (found.made, found.missing) == (20, 0)


def test_a_row_that_is_there_twice_is_found() -> None:
    assert account(rows([*EVERYTHING, 4])).troubles() == ["twice = 1"]


def test_a_row_of_two_halves_is_found() -> None:
    whole = rows(EVERYTHING)
    torn = Rows(whole.number, np.where(whole.number == 3, 9, whole.next_number), whole.number * 0)
    assert account(torn).troubles() == ["torn = 1"]


def test_a_row_that_nobody_made_is_found() -> None:
    assert account(rows([*EVERYTHING, 11])).troubles() == ["foreign = 1"]


def test_a_version_that_goes_back_within_a_copy_is_found() -> None:
    versions = [0] * 4 + [7] * 6 + [5] * 10  # another copy may well be behind
    assert account(rows(EVERYTHING, versions)).troubles() == []
    versions[8] = 6
    assert account(rows(EVERYTHING, versions)).troubles() == ["versions_went_back = 1"]


def test_a_killed_worker_takes_its_newest_rows_along_and_no_others() -> None:
    without_newest = rows(EVERYTHING[:-3])
    found = account(without_newest, killed_workers={KILLED})
    assert (found.lost_with_workers, found.troubles()) == (3, [])
    assert account(without_newest).troubles() == ["3 rows were lost with shards, at most 0 may be"]
    assert account(rows(EVERYTHING[1:]), killed_workers={KILLED}).troubles() == [
        "1 rows were lost with shards, at most 0 may be"
    ]


def test_a_killed_shard_loses_at_most_what_it_had_not_saved() -> None:
    kill = ShardKill(size=6, saved=frozenset({1, 2, 3, 4}))
    assert account(rows(EVERYTHING[:-2]), shard_kills=[kill]).troubles() == []
    assert account(rows(EVERYTHING[:-3]), shard_kills=[kill]).troubles() == [
        "3 rows were lost with shards, at most 2 may be"
    ]
    assert account(rows(EVERYTHING[1:]), shard_kills=[kill]).troubles() == ["saved_and_gone = 1"]


def test_what_a_full_table_overwrote_is_not_lost() -> None:
    present = rows(EVERYTHING[2:])
    full = Rows(present.number, present.next_number, present.policy_version, overwritten=2)
    assert account(full).troubles() == []


def test_what_was_not_sent_in_the_end_is_not_lost_either() -> None:
    assert account(rows(EVERYTHING[:-2]), not_sent=2).troubles() == []
    assert account(rows(EVERYTHING[:-2]), not_sent=1).troubles() == [
        "1 rows were lost with shards, at most 0 may be"
    ]


def test_more_reported_than_missing_is_found() -> None:
    found = account(rows(EVERYTHING), reported_lost=1)
    assert found.troubles() == ["1 rows were reported lost, 0 are"]


def test_each_transition_leads_from_a_number_to_the_next(tmp_path: Path) -> None:
    env = NumberedCartPole(str(tmp_path))
    starts, ends = [], []
    for episode in range(3):
        observation, _ = env.reset(seed=episode)
        over = False
        while not over:
            starts.append(observation)
            observation, _, terminated, truncated, _ = env.step(1)
            over = terminated or truncated
            ends.append(observation)
    numbers = read_numbers(np.stack(starts))
    np.testing.assert_array_equal(numbers, np.arange(1, len(starts) + 1))
    np.testing.assert_array_equal(read_numbers(np.stack(ends)), numbers + 1)
    (record,) = records(tmp_path)
    assert list(record.transitions) == numbers.tolist()


def test_the_number_changes_an_observation_by_less_than_a_thousandth(tmp_path: Path) -> None:
    import gymnasium as gym

    numbered, plain = NumberedCartPole(str(tmp_path)), gym.make("CartPole-v1")
    first, _ = numbered.reset(seed=4)
    expected, _ = plain.reset(seed=4)
    np.testing.assert_allclose(first, expected, rtol=1e-3)
    plain.close()


@pytest.mark.parametrize("copies", [3])
def test_no_two_copies_share_a_number(tmp_path: Path, copies: int) -> None:
    made = [NumberedCartPole(str(tmp_path)) for _ in range(copies)]
    first = read_numbers(np.stack([env.reset(seed=0)[0] for env in made]))
    assert len(set(first.tolist())) == copies
