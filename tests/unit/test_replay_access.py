"""The tables of a portfolio, as its shards hold them."""

from __future__ import annotations

from typing import Any

from buffer_server.table_config import LimiterConfig, TableConfig
from repertory.config import resolve
from repertory.envs import probe
from repertory.policies.goal_directed import GoalDirectedPolicy
from repertory.types import ColumnSpec
from services.replay_access import batches_at_once, shard_tables

EXTRAS = {"dqn": {}, "far": {}, "ppo": {"log_prob": ColumnSpec("<f4", ())}}
PORTFOLIO = {
    "learners.far.algorithm": "dqn",
    "learners.dqn.batch_size": 32,
    "learners.dqn.updates_per_step": 0.5,
    "learners.dqn.learning_starts": 100,
    "learners.far.batch_size": 64,
    "learners.far.updates_per_step": 0.25,
    "learners.far.learning_starts": 400,
    "learners.far.gamma": 0.999,
    "learners.ppo.segment_length": 8,
}


def tables(tmp_path: Any, **changes: Any) -> dict[str, TableConfig]:
    file = tmp_path / "portfolio.yaml"
    file.write_text("env: CartPole-v1\nlearners: {dqn: {}, far: {algorithm: dqn}, ppo: {}}\n")
    config = resolve(None, [], file=file, overrides={"env.copies": 2, **PORTFOLIO, **changes})
    return shard_tables(config, probe(config.env), EXTRAS, actors=3, shards=2, index=0)


def test_learners_that_can_share_a_table_have_one(tmp_path):
    assert list(tables(tmp_path)) == ["replay", "ppo"]
    assert list(tables(tmp_path, **{"learners.far.n_step": 3})) == ["replay", "replay-2", "ppo"]


def test_limiter_of_a_shared_table_holds_each_learner_to_its_own_ratio(tmp_path):
    limiter = tables(tmp_path)["replay"].limiter
    assert limiter.consumers == {0: 0.5 * 32, 1: 0.25 * 64}
    assert limiter.samples_per_insert is None
    assert limiter.consumer_buffer_items == 2 * (64 + 2)  # messages of an actor with two copies
    assert limiter.min_size == 400 // 2  # the later one's, on each of two shards


def test_only_its_own_queue_carries_what_a_policy_records(tmp_path):
    made = tables(tmp_path)
    assert "extras/log_prob" not in made["replay"].columns
    assert made["ppo"].columns["extras/log_prob"].shape == (8,)


def test_discounted_returns_are_there_where_one_of_the_learners_reads_them(tmp_path):
    changed = tables(
        tmp_path, **{"learners.far.normalize_reward": True, "learners.far.gamma": 0.99}
    )
    assert "extras/discounted_return" in changed["replay"].columns
    assert "extras/discounted_return" not in tables(tmp_path)["replay"].columns


def test_queue_has_room_for_two_rounds_of_all_actors_and_for_the_lag(tmp_path):
    assert tables(tmp_path, **{"topology.max_lag": 0})["ppo"].capacity == 2 * 2 * 3
    assert tables(tmp_path)["ppo"].capacity == (2 + 4) * 2 * 3


def test_learners_that_share_are_told_apart_by_provenance(tmp_path):
    assert tables(tmp_path)["replay"].sampler.name == "mixture"
    assert tables(tmp_path)["ppo"].sampler.name == "fifo"


def test_a_learner_of_two_levels_has_a_second_table_without_a_ratio():
    config = resolve("repertory.environments.chain:Chain", ["h_dqn"])
    spec = probe(config.env)
    policy = GoalDirectedPolicy(GoalDirectedPolicy.Config(), spec)
    extras = {"h_dqn": policy.extras}
    made = shard_tables(config, spec, extras, actors=1, shards=2, index=1)
    assert list(made) == ["replay", "h_dqn-stretches"]
    assert made["replay"].limiter.consumers
    assert made["h_dqn-stretches"].limiter == LimiterConfig()
    assert made["h_dqn-stretches"].columns == made["replay"].columns


def at_once(*algorithms: str, shards: int = 1, **changes: Any) -> int:
    config = resolve("CartPole-v1", list(algorithms), overrides=changes)
    return batches_at_once(config, algorithms[0], shards)


def test_a_learner_alone_draws_several_uniform_batches_with_one_message():
    assert at_once("dqn") == 8


def test_draws_that_depend_on_others_come_one_by_one():
    assert at_once("dqn", **{"replay.sampler": "prioritized"}) == 1
    assert at_once("dqn", "sac_discrete") == 1
    assert at_once("dqn", **{"topology.replicas": 2}) == 1
    assert at_once("ppo") == 1


def test_no_more_batches_at_once_than_half_of_what_the_limiter_lets_it_be_ahead():
    # Of 2 (64 + 1) items ahead: at a tenth of an update each, 13 updates; at a fiftieth 2.6.
    assert at_once("dqn", **{"learner.updates_per_step": 0.1}) == 6
    assert at_once("dqn", **{"learner.updates_per_step": 0.02}) == 1
