"""Evaluations of several learners, and who led."""

from __future__ import annotations

import numpy as np

from services.evaluation_history import EvaluationHistory


def history() -> EvaluationHistory:
    made = EvaluationHistory(["a", "b"])
    for step, a, b in ((0, 1.0, 2.0), (10, 5.0, 3.0), (20, 4.0, 9.0)):
        made.add("a", step, [a - 1, a + 1])
        made.add("b", step, [b - 1, b + 1])
    return made


def test_who_leads_is_known_by_the_evaluation_before() -> None:
    # Nobody is known at 0: the first. b was better at 0, a was better at 10.
    assert {step: np.mean(r) for step, r in history().leading().items()} == {0: 1, 10: 3, 20: 4}
    assert history().last_mean() == 4
    assert history().leader() == "b"  # from now on


def test_a_learner_that_was_not_evaluated_at_a_moment_cannot_lead_there() -> None:
    made = history()
    made.add("a", 30, [7.0, 7.0])
    assert made.leading()[30] == [7.0, 7.0]


def test_best_of_all_and_of_one() -> None:
    assert (history().best_mean(), history().best_mean("a")) == (9, 5)
    assert EvaluationHistory(["a"]).best_mean() is None
    assert EvaluationHistory(["a"]).last_mean() is None
    assert EvaluationHistory(["a", "b"]).leader() == "a"


def test_one_learner_always_leads() -> None:
    made = EvaluationHistory(["a"])
    for step in (0, 5, 9):
        made.add("a", step, [float(step)])
    assert made.leading() == {0: [0.0], 5: [5.0], 9: [9.0]}
    arrays = made.arrays()
    np.testing.assert_array_equal(arrays["timesteps"], arrays["timesteps/a"])
    np.testing.assert_array_equal(arrays["results"], [[0.0], [5.0], [9.0]])


def test_state_comes_back_also_for_a_learner_that_is_new() -> None:
    restored = EvaluationHistory(["a", "b", "c"])
    restored.load_state(history().state())
    assert restored.leading() == history().leading()
    assert restored.count("c") == 0
