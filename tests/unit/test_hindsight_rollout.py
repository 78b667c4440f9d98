"""Hindsight in a whole rollout: which items of which steps come out, and which runs are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from actors.casting import Solo
from actors.rollout import Rollout, WorkerPlace, rollout_for
from buffer_server.table_config import table_config
from repertory.config import RunConfig, resolve
from repertory.envs import probe
from repertory.errors import EnvironmentFailure, UsageError
from repertory.parts import lookup
from repertory.table_layout import tables_of
from repertory.types import TransitionBatch
from services.launcher import check
from services.replay_access import shard_tables

BIT_FLIP = "repertory.environments.bit_flip:BitFlip"


def config_of(env: str = "goal_envs:Line", **overrides: Any) -> RunConfig:
    settings = {"learner.hidden_sizes": [8], "learner.relabel": "future", **overrides}
    return resolve(env, ["dqn"], overrides=settings)


def rollout_of(config: RunConfig, worker: WorkerPlace | None = None) -> Rollout:
    spec = probe(config.env)
    algorithm = lookup("algorithm", "dqn")(config.learners["dqn"], device="cpu", seed=0)
    policy = algorithm.policy(algorithm.initial_state(spec))
    return rollout_for(config, spec, {"dqn": policy}, Solo(), worker)


def collected(config: RunConfig, env_steps: int, worker: WorkerPlace | None = None) -> Any:
    rollout = rollout_of(config, worker)
    try:
        return rollout.collect(env_steps)
    finally:
        rollout.close()


def assert_right(batch: TransitionBatch) -> None:
    """Of the Line: flat observations are [achieved, desired, 10 * episode + step]."""
    for row in range(len(batch)):
        observation, following = batch.observation[row], batch.next_observation[row]
        assert observation[1] == following[1]  # one goal
        assert following[2] == observation[2] + 1  # one step of one episode
        assert following[0] == observation[0] + batch.action[row]
        assert batch.reward[row] == -abs(following[0] - following[1])
        reached = following[0] == following[1]
        assert batch.discount[row] == np.float32(0 if reached else 0.99)


@pytest.mark.parametrize("vector", ["sync", "async"])
def test_items_of_whole_episodes_come_out_each_once_and_four_times_relabelled(vector):
    config = config_of(**{"env.copies": 2, "env.vector": vector})
    result = collected(config, 200)
    (batch,) = result.batches.values()
    assert_right(batch)
    ended = sum(outcome.length for outcome in result.outcomes)
    assert len(batch) == 5 * ended
    given = batch.observation[:, 1] == 3  # or achieved in the end: each goal was reached by itself
    assert ended <= given.sum() < len(batch)


def test_both_ways_of_making_copies_give_the_same(tmp_path):
    batches = []
    for vector in ("sync", "async"):
        config = config_of(BIT_FLIP, **{"env.copies": 2, "env.vector": vector})
        (batch,) = collected(config, 100).batches.values()
        batches.append(batch.columns())
    for name, column in batches[0].items():
        np.testing.assert_array_equal(column, batches[1][name], err_msg=name)


def test_episode_that_broke_leaves_nothing():
    config = config_of("goal_envs:BreaksInTheMiddle", **{"env.max_faults": 100})
    result = collected(config, 100, WorkerPlace(0, 1))
    (batch,) = result.batches.values()
    assert_right(batch)
    ended = sum(outcome.length for outcome in result.outcomes)
    assert len(batch) == 5 * ended
    # The copy begins to count anew: its third episode has 20 and 21, and never comes to an end.
    assert batch.next_observation[:, 2].max() < 20


def test_restored_rollout_goes_on_bit_by_bit_in_the_middle_of_episodes():
    config = config_of(BIT_FLIP, **{"env.copies": 2, "env.kwargs.bits": 5})
    original, restored = rollout_of(config), rollout_of(config)
    try:
        original.collect(27)
        state = original.state()
        assert state["streams"]["replay"]["assembler"]["filled"].any()
        restored.load_state(state)
        (one,), (other,) = (
            rollout.collect(60).batches.values() for rollout in (original, restored)
        )
        for name, column in one.columns().items():
            np.testing.assert_array_equal(column, other.columns()[name], err_msg=name)
    finally:
        original.close()
        restored.close()


def test_workers_draw_goals_of_their_own():
    config = config_of(BIT_FLIP)
    first, again, second = (
        collected(config, 60, WorkerPlace(index, 1)).batches["replay"].observation
        for index in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert first.shape != second.shape or (first != second).any()


# Tables


def portfolio(tmp_path: Any, **overrides: Any) -> RunConfig:
    file = tmp_path / "portfolio.yaml"
    file.write_text(
        f"env: {BIT_FLIP}\nlearners: {{a: {{algorithm: dqn}}, b: {{algorithm: dqn}}}}\n"
    )
    settings = {"learner.relabel": "future", **overrides}
    return resolve(None, [], file=file, overrides=settings)


@pytest.mark.parametrize(
    ("changes", "tables"),
    [
        ({}, {"replay": ("a", "b")}),
        ({"learners.b.gamma": 0.9}, {"replay": ("a", "b")}),
        ({"learners.b.relabel": None}, {"replay": ("a",), "replay-2": ("b",)}),
        ({"learners.b.relabel.goals": 2}, {"replay": ("a",), "replay-2": ("b",)}),
        ({"learners.b.relabel": "final"}, {"replay": ("a",), "replay-2": ("b",)}),
    ],
)
def test_learners_share_a_table_where_they_ask_for_the_same_hindsight(tmp_path, changes, tables):
    made = tables_of(portfolio(tmp_path, **changes))
    assert {name: layout.learners for name, layout in made.items()} == tables


def limiter_of(**overrides: Any) -> Any:
    config = config_of(
        BIT_FLIP,
        **{
            "learner.batch_size": 40,
            "learner.updates_per_step": 0.5,
            "learner.learning_starts": 100,
            "topology.send_items": 16,
            **overrides,
        },
    )
    tables = shard_tables(config, probe(config.env), {"dqn": {}}, actors=1, shards=1, index=0)
    return tables["replay"].limiter.build()


def test_ratio_of_updates_to_steps_is_the_same_with_and_without_hindsight():
    """Samples that may be drawn for 1000 environment steps after the first 100."""
    allowed = []
    for relabel, items_per_step in ((None, 1), ("future", 5), ({"name": "final", "goals": 1}, 2)):
        limiter = limiter_of(**{"learner.relabel": relabel})
        limiter.inserted(1100 * items_per_step)
        allowed.append(limiter.surplus)
        waiting = limiter_of(**{"learner.relabel": relabel})
        waiting.inserted(100 * items_per_step - 1)
        assert not waiting.can_sample(1, consumer=0)
        waiting.inserted(1)
        assert waiting.can_sample(1, consumer=0)
    # 0.5 updates of 40 items for each of 1000 steps; 40 * .5 / 5 is exact.
    assert allowed == [1000 * 0.5 * 40] * 3


def test_table_has_room_for_all_items_of_a_short_run():
    config = config_of(BIT_FLIP, steps=70)
    spec = probe(config.env)
    assert table_config(config, config.learners["dqn"], spec, {}).capacity == 350
    few = config_of(BIT_FLIP, steps=70, **{"replay.capacity": 60})
    assert table_config(few, few.learners["dqn"], spec, {}).capacity == 60


# Refusals


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        ("CartPole-v1", UsageError, "learner.relabel is refused: the observations of CartPole-v1"),
        ("goal_envs:NoReward", UsageError, "goal_envs:NoReward has no compute_reward"),
        ("goal_envs:NeedsInfo", EnvironmentFailure, "compute_reward.* raised KeyError"),
    ],
)
def test_run_on_an_environment_that_cannot_judge_is_refused_before_it_starts(env, error, message):
    with pytest.raises(error, match=message):
        check(config_of(env))


def test_run_on_a_goal_environment_needs_no_judge_where_nobody_relabels():
    assert check(config_of("goal_envs:NoReward", **{"learner.relabel": None})).goals is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learner.n_step": 3}, r"learner.n_step = 3 is refused: .*set learner.n_step=1"),
        ({"learner.normalize_reward": True}, r"normalize_reward is refused: .*=false"),
        ({"learner.relabel": "futur"}, r"'futur' is not a known relabel: did you mean future\?"),
        (
            {"learner.relabel.goals": 0},
            r"learner.relabel.goals = 0 is refused: .* the default is 4",
        ),
        ({"learner.relabel.gaols": 3}, r"relabel.gaols is not a setting: did you mean .*goals\?"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_a_sentence(changes, message):
    with pytest.raises(UsageError, match=message):
        config_of(BIT_FLIP, **changes)


def test_on_policy_learner_has_no_hindsight():
    with pytest.raises(UsageError, match=r"learner.relabel is not a setting"):
        resolve(BIT_FLIP, ["ppo"], overrides={"learner.relabel": "future"})
