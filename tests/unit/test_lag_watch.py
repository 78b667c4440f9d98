"""Who acts with old weights although newer ones have long been published."""

from __future__ import annotations

from services.lag_watch import Lag, LagWatch


def test_lag_counts_from_the_moment_there_was_something_newer() -> None:
    watch = LagWatch(alarm_seconds=10)
    assert watch.look(100, newest=5, workers={"a": 5}) == {"a": Lag(0, 0.0)}
    # However old its weights are: nobody has published since.
    assert watch.look(500, newest=5, workers={"a": 5}) == {"a": Lag(0, 0.0)}
    assert watch.look(501, newest=7, workers={"a": 5}) == {"a": Lag(2, 0.0)}
    assert watch.look(504, newest=9, workers={"a": 5}) == {"a": Lag(4, 3.0)}


def test_a_worker_that_moves_on_is_not_late_however_fast_the_learner_is() -> None:
    watch = LagWatch(alarm_seconds=2)
    for second in range(100):
        lags = watch.look(second, newest=10 * second + 5, workers={"a": 10 * second})
        assert lags["a"] == Lag(5, 0.0)
        assert watch.alarms(lags) == ([], [])


def test_an_alarm_is_raised_once_and_taken_back_once() -> None:
    watch = LagWatch(alarm_seconds=10)
    said = []
    for second, version in ((0, 1), (5, 1), (11, 1), (12, 1), (13, 2), (14, 2)):
        said.append(watch.alarms(watch.look(second, newest=2, workers={"a": version, "b": 2})))
    assert said == [([], []), ([], []), (["a"], []), ([], []), ([], ["a"]), ([], [])]


def test_one_that_is_gone_is_forgotten() -> None:
    watch = LagWatch(alarm_seconds=10)
    watch.alarms(watch.look(0, newest=2, workers={"a": 1}))
    assert watch.alarms(watch.look(20, newest=2, workers={"a": 1})) == (["a"], [])
    assert watch.alarms(watch.look(21, newest=2, workers={})) == ([], ["a"])
    assert watch.look(40, newest=2, workers={"a": 1}) == {"a": Lag(1, 0.0)}
