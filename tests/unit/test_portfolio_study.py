"""The study of portfolios: equal budgets by construction, scales, regret, verdict, order."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.portfolio import Record, outcome_of, plan, reached, records_of, shorter
from benchmarks.portfolio_page import PLACE, verdict
from benchmarks.portfolio_run import read_record, record_path
from benchmarks.portfolio_summary import (
    Outcome,
    TaskSummary,
    on_grid,
    regret,
    scaled,
    summarise,
)
from benchmarks.portfolio_tasks import SINGLE, TASKS, VARIANTS, fingerprint
from repertory.checkpoints import write_atomically
from repertory.config import OffPolicyConfig, OnPolicyConfig, resolve


def outcome(arm: str, score: float, seed: int = 1, level: float = 0.0) -> Outcome:
    return Outcome(arm, seed, score, gradient_steps=10, env_steps=100, curve={0: level, 100: level})


def summary_of(*outcomes: Outcome, random: float = 0.0) -> TaskSummary:
    return summarise(outcomes, random, steps=100, points=2)


def test_the_scale_runs_from_random_to_the_best_single_by_its_mean_over_seeds() -> None:
    # single-b has the best seed, single-a the best mean.
    summary = summary_of(
        outcome("single-a", 60.0, 1),
        outcome("single-a", 60.0, 2),
        outcome("single-b", 100.0, 1),
        outcome("single-b", 0.0, 2),
        outcome("ucb", 40.0),
        random=10.0,
    )
    assert (summary.best_single, summary.worst_single) == ("single-a", "single-b")
    assert summary.mean_single == (60 + 50) / 2
    assert summary.arms["ucb"].scaled == pytest.approx((40 - 10) / (60 - 10))
    assert summary.mean_single_scaled == pytest.approx((55 - 10) / 50)
    assert summary.arms["single-b"].seeds == 2


def test_nine_tenths_of_the_way_is_near_and_the_mean_of_the_singles_is_not_worse() -> None:
    summary = summary_of(
        outcome("single-a", 100.0),
        outcome("single-b", 20.0),
        outcome("ucb", 90.0),
        outcome("thompson", 60.0),
        outcome("uniform", 59.0),
    )
    assert summary.near_best("ucb")
    assert not summary.near_best("thompson")
    assert summary.beats_mean("thompson")
    assert not summary.beats_mean("uniform")


def test_the_interval_holds_the_mean_and_stays_within_the_seeds() -> None:
    scores = [10.0, 20.0, 60.0]
    summary = summary_of(
        outcome("single-a", 100.0), *(outcome("ucb", score, i) for i, score in enumerate(scores))
    )
    low, high = summary.arms["ucb"].interval
    assert min(scores) <= low < np.mean(scores) < high <= max(scores)


def test_one_seed_has_no_width() -> None:
    assert summary_of(outcome("single-a", 7.0)).arms["single-a"].interval == (7.0, 7.0)


def test_regret_is_the_area_between_the_curves_in_steps_of_the_best() -> None:
    # By hand: the gap is 1, then falls to 0 over the second half: 50 + 25 of a span of 1.
    grid = np.array([0.0, 50.0, 100.0])
    best, curve = np.array([10.0, 10.0, 10.0]), np.array([8.0, 8.0, 10.0])
    assert regret(curve, best, grid, span=2.0) == pytest.approx([0.0, 50.0, 75.0])
    assert regret(best, best, grid, span=2.0) == pytest.approx([0.0, 0.0, 0.0])
    assert regret(best, curve, grid, span=2.0)[-1] == pytest.approx(-75.0)


def test_the_regret_of_the_best_single_against_itself_is_zero() -> None:
    summary = summary_of(
        outcome("single-a", 100.0, level=50.0),
        outcome("single-b", 0.0, level=0.0),
        outcome("ucb", 80.0, level=25.0),
    )
    assert summary.arms["single-a"].regret == (0.0, 0.0, 0.0)
    assert summary.arms["ucb"].regret == pytest.approx((0.0, 12.5, 25.0))
    assert summary.grid == (0, 50, 100)


def test_evaluations_that_came_a_little_late_are_brought_to_the_grid() -> None:
    curve = {110: 20.0, 0: 0.0, 60: 10.0}  # not in order
    assert on_grid(curve, np.array([0.0, 30.0, 85.0, 120.0])) == pytest.approx([0, 5, 15, 20])


def test_where_nobody_is_better_than_random_there_is_no_scale() -> None:
    assert math.isnan(scaled(5.0, random=10.0, best=10.0))


def test_a_task_without_singles_cannot_be_summarised() -> None:
    with pytest.raises(ValueError, match="no scale"):
        summary_of(outcome("ucb", 1.0))


@pytest.mark.parametrize(("near", "expected"), [(5, True), (4, True), (3, False)])
def test_four_tasks_of_five_are_enough(near: int, expected: bool) -> None:
    singles = (outcome("single-a", 100.0), outcome("single-b", 0.0))
    tasks = {
        str(place): summary_of(*singles, outcome("ucb", 95.0 if place < near else 60.0))
        for place in range(5)
    }
    assert reached("ucb", tasks) is expected


def test_one_task_below_the_mean_single_is_too_many() -> None:
    singles = (outcome("single-a", 100.0), outcome("single-b", 0.0))
    tasks = {
        str(place): summary_of(*singles, outcome("ucb", 95.0 if place < 4 else 49.0))
        for place in range(5)
    }
    assert not reached("ucb", tasks)


@pytest.mark.parametrize("name", TASKS)
def test_every_member_makes_as_many_gradient_steps_for_an_environment_step(
    name: str, tmp_path: Path
) -> None:
    task = TASKS[name]
    rates = set()
    for member in task.members:
        file = tmp_path / f"{member}.yaml"
        file.write_text(yaml.safe_dump(task.document(SINGLE + member, seed=1)))
        learner = resolve(None, [], file=file).learners[member]
        if isinstance(learner, OffPolicyConfig):
            rates.add(learner.updates_per_step)
            assert task.gradient_steps_per_update(member) == 1
        else:
            assert isinstance(learner, OnPolicyConfig)
            per_round = learner.segment_length * task.copies
            rates.add(task.gradient_steps_per_update(member) / per_round)
    assert len(rates) == 1


def test_the_arms_of_a_task_differ_in_nothing_that_costs() -> None:
    for task in TASKS.values():
        documents = [task.document(arm, seed=1) for arm in task.arms]
        for key in ("env", "steps", "replay"):
            assert all(document[key] == documents[0][key] for document in documents)
        episodes = {
            document["evaluation"]["episodes"] * len(document["learners"]) for document in documents
        }
        assert episodes == {task.episodes * len(task.members)}
        for document in documents:
            if "director" in document:
                assert document["director"]["updates"] == "shared"


def test_separate_replay_is_said_of_off_policy_members_alone() -> None:
    learners = TASKS["cartpole"].document("ucb-separate", 1)["learners"]
    assert learners["dqn"]["own_share"] == 1.0
    assert "own_share" not in learners["ppo"]


def test_another_setting_is_another_run_and_the_same_settings_are_the_same() -> None:
    task = TASKS["pendulum"]
    prints = {fingerprint(task.document(arm, seed)) for arm in task.arms for seed in (1, 2)}
    assert len(prints) == 2 * len(task.arms)
    assert fingerprint(task.document("ucb", 1)) == fingerprint(task.document("ucb", 1))


def test_what_matters_most_is_run_first_and_nothing_twice(tmp_path: Path) -> None:
    task = TASKS["pendulum"]
    jobs = plan([task, task], [], seeds=2, cache=tmp_path)
    assert len(jobs) == 2 * len(task.arms)
    order = [(job.arm, job.seed) for job in jobs]
    assert order.index(("ucb", 2)) < order.index(("thompson", 1))
    assert order.index(("single-sac", 1)) < order.index(("single-sac", 2))
    assert {arm for arm, _ in order} == set(task.arms)


def test_chosen_arms_come_with_the_members_alone(tmp_path: Path) -> None:
    jobs = plan([TASKS["pendulum"]], ["exp3"], seeds=1, cache=tmp_path)
    assert [job.arm for job in jobs] == ["single-td3", "single-sac", "exp3"]


def test_the_short_form_is_valid_and_has_a_cache_of_its_own(tmp_path: Path) -> None:
    for task in TASKS.values():
        quick = shorter(task)
        assert quick.steps < task.steps
        assert quick.evaluate_every >= 1
        assert record_path(tmp_path, quick, "ucb", 1) != record_path(tmp_path, task, "ucb", 1)


def test_a_record_comes_back_from_the_cache_for_the_task_that_asks(tmp_path: Path) -> None:
    task = TASKS["pendulum"]
    record = Record(
        task="another",
        arm="ucb",
        seed=1,
        env_steps=100,
        gradient_steps={"td3": 30, "sac": 60},
        episode_share={"td3": 0.4, "sac": 0.6},
        step_share={"td3": 0.4, "sac": 0.6},
        taken="sac",
        fresh_returns=[-100.0, -200.0],
        leading={"0": -1200.0, "100": -150.0},
        by_member={},
        share_curve={},
        seconds=1.0,
        commit="abc",
    )
    path = record_path(tmp_path, task, "ucb", 1)
    write_atomically(path, json.dumps(asdict(record)).encode())
    assert read_record(path, task.name) == replace(record, task="pendulum")
    (found,) = records_of(task, ["ucb"], 3, tmp_path)
    reduced = outcome_of(found)
    assert (reduced.score, reduced.gradient_steps) == (-150.0, 90)
    assert reduced.curve == {0: -1200.0, 100: -150.0}


def test_every_variant_is_a_change_of_something() -> None:
    task = TASKS["cartpole"]
    plain = task.document("ucb", 1)
    assert all(task.document(arm, 1) != plain for arm in VARIANTS)


def test_the_tables_of_the_page_are_replaced_and_the_rest_is_left() -> None:
    page = f"before\n{PLACE.begin}\nold\n{PLACE.END}\nafter\n"
    written = PLACE.filled(page, "new")
    assert written == f"before\n{PLACE.begin}\n\nnew\n\n{PLACE.END}\nafter\n"
    assert PLACE.filled(written, "new") == written
    with pytest.raises(ValueError, match="no place for results"):
        PLACE.filled("before after", "new")


def test_the_verdict_counts_near_and_not_below_over_the_tasks_an_arm_was_run_on() -> None:
    singles = (outcome("single-a", 100.0), outcome("single-b", 20.0))
    tasks = {
        "one": summary_of(*singles, outcome("ucb", 95.0), outcome("exp3", 40.0)),
        "two": summary_of(*singles, outcome("ucb", 70.0)),
    }
    rows = {line.split("|")[1].strip(): line for line in verdict(tasks).splitlines()}
    assert rows["`ucb`"] == "| `ucb` | 95 % (1) | 70 % (1) | 82 % | 1 of 2 | 2 of 2 |"
    assert rows["`exp3`"] == "| `exp3` | 40 % (1) | - | 40 % | 0 of 1 | 0 of 1 |"
    assert rows["mean single"] == "| mean single | 60 % | 60 % | 60 % |  |  |"
    assert rows["worst single"] == "| worst single | 20 % | 20 % | 20 % |  |  |"
