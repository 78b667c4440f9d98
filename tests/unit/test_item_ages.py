"""Ages of items by few marks: close to the truth, and few for ever."""

from __future__ import annotations

import pytest

from buffer_server.item_ages import MOST_MARKS, ItemAges


def test_without_items_there_is_no_age() -> None:
    ages = ItemAges()
    assert ages.newest(5.0) is None
    assert ages.oldest(0, 5.0) is None


def test_the_newest_is_as_old_as_the_last_insert() -> None:
    ages = ItemAges()
    ages.note(0, 1.0, live_from=0)
    ages.note(10, 3.0, live_from=0)
    assert ages.newest(7.0) == 4.0


@pytest.mark.parametrize(("first_key", "age"), [(0, 9.0), (9, 9.0), (10, 7.0), (25, 4.0)])
def test_an_item_came_with_the_last_mark_before_it(first_key: int, age: float) -> None:
    ages = ItemAges()
    for key, now in ((0, 1.0), (10, 3.0), (20, 6.0)):
        ages.note(key, now, live_from=0)
    assert ages.oldest(first_key, 10.0) == age


@pytest.mark.parametrize("asked_every", [1000, 150_000])
def test_after_many_inserts_the_oldest_is_still_about_right(asked_every: int) -> None:
    ages, live = ItemAges(), 50_000
    for key in range(0, 900_000, 3):
        first = max(0, key - live)
        ages.note(key, float(key), live_from=first)
        if key % asked_every == 0 and key > live:
            oldest = ages.oldest(first, float(key))
            assert oldest is not None
            # At worst half of the marks are left for the live items.
            assert live <= oldest <= live + 4 * live / MOST_MARKS
            assert len(ages._keys) <= MOST_MARKS


def test_cleared_ages_begin_anew() -> None:
    ages = ItemAges()
    ages.note(5, 1.0, live_from=0)
    ages.clear()
    assert ages.newest(2.0) is None
    ages.note(0, 3.0, live_from=0)
    assert ages.oldest(0, 4.0) == 1.0
