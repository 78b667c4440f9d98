"""Which learners share a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from repertory.config import RunConfig, validate
from repertory.errors import UsageError
from repertory.table_layout import TableLayout, own_discount, shared_extras, table_of, tables_of
from repertory.types import ColumnSpec


def run(**learners: dict[str, Any]) -> RunConfig:
    return validate(
        {
            "env": {"id": "CartPole-v1"},
            "learners": {
                name.replace("_", "-"): {"algorithm": "dqn", **settings}
                for name, settings in learners.items()
            },
        }
    )


def readers(config: RunConfig) -> dict[str, tuple[str, ...]]:
    return {name: table.learners for name, table in tables_of(config).items()}


def test_one_off_policy_learner_has_the_replay():
    config = run(a={"n_step": 3, "gamma": 0.9})
    assert tables_of(config) == {"replay": TableLayout(("a",), 0.9, n_step=3)}


def test_an_on_policy_learner_has_a_queue_under_its_name():
    config = run(mine={"algorithm": "ppo", "segment_length": 7, "gamma": 0.8})
    assert tables_of(config) == {"mine": TableLayout(("mine",), 0.8, segment_length=7)}


def test_one_step_learners_share_whatever_their_gamma():
    config = run(a={"gamma": 0.9}, b={"gamma": 0.99}, c={"gamma": 0.0})
    assert readers(config) == {"replay": ("a", "b", "c")}
    assert tables_of(config)["replay"].gamma == 0.9  # the first one's


def test_longer_returns_are_shared_only_with_the_same_length_and_gamma():
    config = run(
        a={"n_step": 3, "gamma": 0.9},
        b={"n_step": 3, "gamma": 0.99},
        c={"n_step": 3, "gamma": 0.9},
        d={"n_step": 5, "gamma": 0.9},
        e={"gamma": 0.9},
    )
    assert readers(config) == {
        "replay": ("a", "c"),
        "replay-2": ("b",),
        "replay-3": ("d",),
        "replay-4": ("e",),
    }


def test_queues_are_not_counted_among_the_replays():
    config = run(a={}, p={"algorithm": "ppo"}, q={"algorithm": "ppo"}, b={"n_step": 2})
    assert readers(config) == {"replay": ("a",), "p": ("p",), "q": ("q",), "replay-2": ("b",)}


def test_table_of_gamma_zero_cannot_tell_where_an_episode_terminated():
    assert readers(run(a={"gamma": 0.0}, b={})) == {"replay": ("a",), "replay-2": ("b",)}


def test_who_normalises_rewards_shares_only_with_its_own_gamma():
    config = run(
        a={"gamma": 0.9},
        b={"gamma": 0.99, "normalize_reward": True},
        c={"gamma": 0.9, "normalize_reward": True},
    )
    assert readers(config) == {"replay": ("a", "c"), "replay-2": ("b",)}
    assert all(table.discounted_return for table in tables_of(config).values())


def test_discounted_returns_are_left_out_where_nobody_reads_them():
    assert not tables_of(run(a={}, b={}))["replay"].discounted_return


def test_table_of_a_learner():
    config = run(a={}, p={"algorithm": "ppo"}, b={"n_step": 2})
    assert [table_of(config, learner) for learner in "apb"] == ["replay", "p", "replay-2"]


@pytest.mark.parametrize("order", [("a", "replay"), ("replay", "a")])
def test_a_queue_with_the_name_of_the_replay_is_refused(order):
    settings: dict[str, dict[str, Any]] = {"a": {}, "replay": {"algorithm": "ppo"}}
    with pytest.raises(UsageError, match=r"'replay' is refused.*another name"):
        tables_of(run(**{name: settings[name] for name in order}))


def test_discounts_of_another_gamma():
    discount = np.float32([0.9, 0, 0.9])
    own = own_discount(discount, 0.99)
    np.testing.assert_array_equal(own, np.float32([0.99, 0, 0.99]))
    assert own.dtype == np.float32


def test_extras_are_those_of_all_readers():
    layout = TableLayout(("a", "b"), 0.9)
    number, vector = ColumnSpec("<f4", ()), ColumnSpec("<f4", (2,))
    extras = {"a": {"x": number}, "b": {"x": number, "y": vector}, "c": {"z": number}}
    assert shared_extras(layout, extras) == {"x": number, "y": vector}


def test_extras_of_one_name_and_two_shapes_are_refused():
    layout = TableLayout(("a", "b"), 0.9)
    extras = {"a": {"x": ColumnSpec("<f4", ())}, "b": {"x": ColumnSpec("<f4", (2,))}}
    with pytest.raises(UsageError, match=r"a, b share a table.*'x'"):
        shared_extras(layout, extras)
