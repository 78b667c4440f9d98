"""When a learner that waits asks for another round: late enough for slow ones, soon otherwise."""

from __future__ import annotations

from learner.patience import LONGEST_SECONDS, Patience


def test_it_asks_after_the_shortest_time_and_then_half_as_often() -> None:
    patience = Patience(10.0, now=0.0)
    asked = [second for second in range(100) if patience.exhausted(float(second))]
    assert asked == [10, 30, 70]


def test_it_has_three_times_what_the_last_round_took() -> None:
    patience = Patience(10.0, now=0.0)
    patience.fed(8.0)
    patience.begin(100.0)
    assert not patience.exhausted(123.0)
    assert patience.exhausted(124.0)


def test_quick_rounds_do_not_make_it_hasty() -> None:
    patience = Patience(10.0, now=0.0)
    patience.fed(0.1)
    patience.begin(1.0)
    assert not patience.exhausted(10.9)
    assert patience.exhausted(11.0)


def test_a_wait_in_which_it_asked_says_nothing_about_rounds() -> None:
    patience = Patience(10.0, now=0.0)
    assert patience.exhausted(10.0)
    patience.fed(11.0)
    patience.begin(11.0)
    assert not patience.exhausted(30.9)  # still the 20 seconds that asking led to
    patience.fed(31.0)
    patience.begin(31.0)
    assert patience.exhausted(31.0 + 60.0)


def test_slow_rounds_are_soon_left_alone() -> None:
    """Rounds of 60 seconds: it asks in vain in the first two or so, and then no more."""
    patience, now, asked = Patience(10.0, now=0.0), 0.0, []
    for _ in range(6):
        times = [patience.exhausted(now + second) for second in range(60)]
        asked.append(sum(times))
        now += 60.0
        patience.fed(now)
        patience.begin(now)
    assert asked[:2] != [0, 0]
    assert asked[2:] == [0, 0, 0, 0]


def test_doubling_ends_somewhere() -> None:
    patience, now = Patience(10.0, now=0.0), 0.0
    for _ in range(50):
        now += LONGEST_SECONDS
        assert patience.exhausted(now)
