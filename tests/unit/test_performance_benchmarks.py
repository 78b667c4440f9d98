"""The arithmetic of the learner, weights and scaling benchmarks, and the tables of their page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import flops
from benchmarks.bench_summary import targets_in
from benchmarks.learner import CASES, SB3, TWICE, CaseResult, Variant
from benchmarks.measure import all_in_turns
from benchmarks.peers.updates import UpdateCount, UpdateJob, measure, transitions
from benchmarks.performance_page import TABLES, filled, place_of
from benchmarks.scaling import rows_of
from benchmarks.weights import Loaded, staleness

ROOT = Path(__file__).resolve().parents[2]


def test_all_systems_are_measured_in_every_round_forth_and_back() -> None:
    order: list[str] = []

    def note(name: str) -> int:
        order.append(name)
        return len(order)

    results = all_in_turns({name: lambda name=name: note(name) for name in "abc"}, rounds=2)
    assert "".join(order) == "abccba"
    assert results == {"a": [1, 6], "b": [2, 5], "c": [3, 4]}


def test_flops_of_a_layer_by_hand() -> None:
    """4 rows through 3 -> 5 -> 2: 2 * 4 * (15 + 10) forward."""
    assert flops.forward(4, [3, 5, 2]) == 200
    # Inputs' gradients through 5 -> 2 alone, and down to one input of the first layer.
    assert flops.inputs_backward(4, [3, 5, 2]) == 80
    assert flops.inputs_backward(4, [3, 5, 2], wanted_inputs=1) == 80 + 40
    assert flops.training(4, [3, 5, 2]) == 2 * 200 + 80


def test_flops_of_updates_by_hand() -> None:
    dqn = UpdateJob("dqn", "", 3, 2, True, (5,), 4, 10)
    assert flops.of_update(dqn) == 200 + 480
    # Critic 4 -> 5 -> 1: 200 forward, 40 inputs' gradient; policy 3 -> 5 -> 1: 160 and 40.
    td3 = UpdateJob("td3", "", 3, 1, False, (5,), 4, 10)
    targets, critics = 160 + 2 * 200, 2 * (2 * 200 + 40)
    policy = (2 * 160 + 40) + (200 + 40 + 40)
    assert flops.of_update(td3) == targets + critics + policy / 2


def test_plain_learners_learn_in_as_many_updates_as_they_say() -> None:
    from benchmarks.peers.plain_learner import build

    for name, case in CASES.items():
        job = UpdateJob(
            name, case.env_id, case.observation_size, case.action_size, case.discrete, (8, 8), 16,
            items=64, epochs=2,
        )  # fmt: skip
        learner = build(job)
        made: Any = learner
        network = made.q if name == "dqn" else made.actor
        before = [parameter.detach().clone() for parameter in network.parameters()]
        assert learner.run() == (8 if name == "ppo" else 5)
        changed = zip(before, network.parameters(), strict=True)
        assert any(not np.array_equal(old, new.detach()) for old, new in changed)


def test_our_learner_is_built_and_learns() -> None:
    from benchmarks.peers.our_learner import build

    for job in (
        UpdateJob("dqn", "CartPole-v1", 4, 2, True, (8, 8), 16, 64, settings={"compile": False}),
        UpdateJob(
            "ppo", "Pendulum-v1", 3, 1, False, (8, 8), 16, 64, epochs=2, settings={"compile": False}
        ),
    ):
        learner = build(job)
        assert learner.run() == (8 if job.on_policy else 5)
        assert learner.run() > 0


def test_made_up_transitions_follow_each_other() -> None:
    made = transitions(CASES["td3"])
    np.testing.assert_array_equal(made.observation[1:], made.next_observation[:-1])
    assert made.action.shape == (CASES["td3"].items, 6)


def test_updates_of_the_warm_up_are_not_counted() -> None:
    class Learner:
        calls = 0

        def run(self) -> int:
            self.calls += 1
            return 3

    learner = Learner()
    count = measure(learner, 0.01, 0.01)
    assert 0 < count.updates < 3 * learner.calls
    assert count.updates % 3 == 0


def test_the_better_variant_has_the_target() -> None:
    counts = {
        name: [UpdateCount(updates, 1.0, 1.0)]
        for name, updates in {"slow": 100, "fast": 190, SB3: 100}.items()
    }
    best = CaseResult("td3", CASES["td3"], counts).best([Variant("slow"), Variant("fast")])
    assert (best.work, best.target, best.ok) == ("td3, fast / sb3", TWICE, False)


def test_staleness_is_the_mean_over_time_by_hand() -> None:
    """Published at 0, 1 and 2 s. Loaded half a second later each: half the time one behind."""
    published = [(1, 0.0), (2, 1.0), (3, 2.0)]
    late = [Loaded(version, moment, moment + 0.5) for version, moment in published]
    assert staleness(published, late) == pytest.approx(0.5)
    # The first only, at once: 0 behind for a second, then 1.
    assert staleness(published, [Loaded(1, 0.0, 0.0)]) == pytest.approx(0.5)
    assert staleness(published, []) == pytest.approx(1.5)


SCALING: dict[str, Any] = {
    "machine": {
        "commit": "abc", "date": "2026-01-02T", "cpu": "one", "cores": 2, "load": 0.1,
    },
    "actors": [{"actors": 2, "steps_per_second": 85.0, "possible": 100.0, "share": 0.85}],
    "nodes": [],
    "shards": [{"shards": 1, "insert": [3.0], "sample": [2.0], "as_learners": [4.0]}],
    "items": [
        {"sampler": "uniform", "medians": {"10": 5.0, "100": 6.0}, "ratio": 1.2, "target": 2.0,
         "ok": True}
    ],
    "skipped": {"nodes": "no root"},
}  # fmt: skip


def test_rows_of_scaling_say_what_is_missed() -> None:
    rows = rows_of(SCALING)
    assert rows[0] == ("2 actors", "85 steps/s", "85 % of linear", ">= 90 %", "no")
    assert rows[-1][2:] == ("slowest / fastest 1.20", "<= 2", "yes")


def test_the_page_has_a_place_for_every_table_and_prose_stays() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    for name in TABLES:
        assert place_of(name).begin in page
    text = f"before\n{place_of('scaling').begin}\nold\n<!-- end of results -->\nafter\n"
    written = filled(text, {"scaling": SCALING})
    assert "| 2 actors | 85 steps/s | 85 % of linear | >= 90 % | no |" in written
    assert "Not measured: nodes, no root." in written
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "old" not in written
    assert filled("nothing here", {"scaling": SCALING}) == "nothing here"


def test_the_summary_lists_what_is_met_missed_and_refused(tmp_path: Path) -> None:
    (tmp_path / "scaling.json").write_text(json.dumps(SCALING))
    comparisons = [
        {"work": "a", "ratio": 2.5, "target": 2.0, "ok": True},
        {"work": "b", "ratio": 2.5, "target": None, "ok": True},
        {"case": "td3", "peer": "sb3", "refusal": "not compared"},
    ]
    times = [
        {"case": "td3", "system": "repertory", "ratio": 0.6, "target": 0.667, "ok": True},
        {"case": "sac", "system": "repertory", "ratio": None, "target": 0.667, "ok": False},
    ]
    returns = [
        {"case": "dqn", "system": "repertory", "difference": -9.0, "error": 2.0, "ok": False}
    ]
    document = {"comparisons": comparisons, "times": times, "returns": returns}
    (tmp_path / "end_to_end.json").write_text(json.dumps(document))
    (tmp_path / "learner-quick.json").write_text("{}")
    found = {(one.benchmark, one.work): one.ok for one in targets_in(tmp_path)}
    assert found == {
        ("end_to_end", "a"): True,
        ("end_to_end", "td3 / sb3"): False,
        ("end_to_end", "td3, time to threshold, repertory / sb3"): True,
        ("end_to_end", "sac, time to threshold, repertory / sb3"): False,
        ("end_to_end", "dqn, return at equal steps, repertory - sb3"): False,
        ("scaling", "items, uniform"): True,
        ("scaling", "2 actors"): False,
    }
