"""Acting: the columns that come of it, the warm-up, outcomes, and going on after a restart."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from plain_rollouts import only_batch, plain_rollout
from scripted_envs import Counter

from actors.assemblers import Assembler, NStep, Segments
from actors.rollout import Collected, Rollout
from repertory.config import EnvConfig
from repertory.envs import make_vector_env, probe
from repertory.parts import lookup
from repertory.specs import EnvSpec
from repertory.types import Acted, Array, ColumnSpec


class Scripted:
    """A policy that always does the same, and notes whether it was allowed to be random."""

    def __init__(self, action) -> None:
        self.extras: Mapping[str, ColumnSpec] = {"mark": ColumnSpec("<f4", ())}
        self._action = np.asarray(action)

    def act(self, observation: Array, rng: np.random.Generator | None) -> Acted:
        action = np.broadcast_to(self._action, (len(observation), *self._action.shape)).copy()
        return Acted(action, {"mark": observation.reshape(len(observation), -1)[:, 0] + 0.5})

    def weights(self) -> dict[str, Array]:
        return {}

    def load_weights(self, arrays: Mapping[str, Array]) -> None:
        pass


class Wavering(Scripted):
    """A policy that depends on what it sees, and is random where it may be."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(0)
        self._spec = spec

    def act(self, observation: Array, rng: np.random.Generator | None) -> Acted:
        total = observation.sum(1, keepdims=True)
        if self._spec.action_kind == "discrete":
            return Acted((np.abs(1000 * total[:, 0]).astype(np.int64)) % self._spec.num_actions)
        noise = 0 if rng is None else rng.standard_normal(total.shape, dtype=np.float32)
        wide = np.repeat(np.sin(total) * 0.5 + 0.1 * noise, self._spec.action_size, 1)
        return Acted(wide.astype(np.float32))


def make_rollout(
    config: EnvConfig,
    policy=None,
    *,
    copies: int = 1,
    exploration="none",
    assembler: Assembler | None = None,
    seed: int = 0,
    **options,
) -> Rollout:
    spec = probe(config)
    settings = {"name": exploration} if isinstance(exploration, str) else exploration
    part = lookup("exploration", settings["name"])
    return plain_rollout(
        make_vector_env(config, copies=copies, seed=seed, role="rollout"),
        spec,
        Wavering(spec) if policy is None else policy,
        part(part.Config(**settings), spec, copies),
        assembler or NStep(1, 0.9),
        seed=seed,
        **options,
    )


def counter(lengths, endings, **settings) -> EnvConfig:
    return EnvConfig(
        id="scripted_envs:Counter", kwargs={"lengths": lengths, "endings": endings}, **settings
    )


def collect(rollout: Rollout, env_steps: int) -> Collected:
    collected = rollout.collect(env_steps)
    rollout.close()
    return collected


# Columns


def test_columns_of_a_scripted_run():
    config = counter([2, 3], ["terminated", "truncated"])
    rollout = make_rollout(config, Scripted(1), policy_id=4)
    rollout.players[0].version = 7
    batch = only_batch(collect(rollout, 6))
    np.testing.assert_array_equal(
        batch.observation, [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [2, 0]]
    )
    np.testing.assert_array_equal(
        batch.next_observation, [[0, 1], [0, 2], [1, 1], [1, 2], [1, 3], [2, 1]]
    )
    np.testing.assert_array_equal(batch.reward, [1, 2, 11, 12, 13, 21])
    np.testing.assert_array_equal(batch.discount, np.float32([0.9, 0, 0.9, 0.9, 0.9, 0.9]))
    np.testing.assert_array_equal(batch.action, [1] * 6)
    np.testing.assert_array_equal(batch.policy_id, [4] * 6)
    np.testing.assert_array_equal(batch.policy_version, [7] * 6)


def test_columns_have_the_signature_that_the_environment_promises():
    policy = Scripted(1)
    rollout = make_rollout(counter([2], ["terminated"]), policy, copies=2)
    spec = probe(counter([2], ["terminated"]))
    assert only_batch(collect(rollout, 4)).signature() == spec.transition_signature(policy.extras)


def test_segments_have_the_signature_that_the_environment_promises():
    policy = Scripted(1)
    rollout = make_rollout(
        counter([2], ["terminated"]), policy, copies=2, assembler=Segments(3, 0.9)
    )
    extras = {**policy.extras, "boundary": ColumnSpec("|b1", ())}
    signature = probe(counter([2], ["terminated"])).transition_signature(extras, 3)
    assert only_batch(collect(rollout, 6)).signature() == signature


@pytest.mark.parametrize(
    ("ending", "discount"), [("terminated", 0.0), ("truncated", 0.9), ("both", 0.0)]
)
def test_end_of_an_episode_keeps_the_discount_only_where_it_was_cut(ending, discount):
    batch = only_batch(collect(make_rollout(counter([1], [ending]), Scripted(0)), 3))
    np.testing.assert_array_equal(batch.discount, np.float32([discount] * 3))


def test_step_limit_of_the_run_is_a_cut():
    config = counter([50], ["terminated"], max_episode_steps=2)
    batch = only_batch(collect(make_rollout(config, Scripted(0)), 4))
    np.testing.assert_array_equal(batch.discount, np.float32([0.9] * 4))
    np.testing.assert_array_equal(batch.next_observation[:, 1], [1, 2, 1, 2])


def test_reward_function_cannot_take_a_termination_away():
    config = counter([1], ["terminated"], reward_function="scripted_envs:shaped_reward")
    batch = only_batch(collect(make_rollout(config, Scripted(0)), 1))
    assert (batch.reward[0], batch.discount[0]) == (1001, 0)


def test_extras_of_the_policy_are_recorded_for_the_observation_acted_upon():
    batch = only_batch(collect(make_rollout(counter([2], ["terminated"]), Scripted(1)), 4))
    np.testing.assert_array_equal(batch.extras["mark"], batch.observation[:, 0] + 0.5)


def test_recorded_action_is_the_one_executed():
    config = EnvConfig(id="scripted_envs:ActionEcho")  # shows the action that it was given
    rollout = make_rollout(
        config, Scripted(np.float32([0.9, -0.9])), exploration="gaussian", copies=3
    )
    batch = only_batch(collect(rollout, 300))
    assert len(np.unique(batch.action)) > 100  # with noise
    np.testing.assert_array_equal(batch.next_observation, probe(config).to_env_action(batch.action))


def test_open_windows_bring_no_batch():
    collected = collect(make_rollout(counter([50], ["terminated"]), assembler=NStep(5, 0.9)), 4)
    assert only_batch(collected) is None
    assert collected.env_steps == 4


def test_steps_are_counted_over_all_copies():
    rollout = make_rollout(counter([5], ["terminated"]), copies=3)
    assert rollout.collect(7).env_steps == 9  # whole steps of all copies
    assert rollout.env_steps == 9
    rollout.close()


def test_reset_steps_are_neither_counted_nor_recorded():
    config = counter([2], ["terminated"])
    spec = probe(config)
    none = lookup("exploration", "none")
    env = SyncVectorEnv([lambda: Counter(lengths=[2])], autoreset_mode=AutoresetMode.NEXT_STEP)
    rollout = plain_rollout(env, spec, Scripted(0), none(none.Config(), spec, 1), NStep(1, 0.9))
    collected = collect(rollout, 6)
    assert len(only_batch(collected)) == collected.env_steps == 6
    np.testing.assert_array_equal(only_batch(collected).observation[:, 1], [0, 1] * 3)
    assert [outcome.length for outcome in collected.outcomes] == [2, 2, 2]


def test_version_recorded_is_that_of_the_weights_that_acted():
    rollout = make_rollout(counter([2], ["terminated"]))
    versions = []
    for version in (0, 3, 4):
        rollout.players[0].version = version
        versions += only_batch(rollout.collect(2)).policy_version.tolist()
    rollout.close()
    assert versions == [0, 0, 3, 3, 4, 4]


def test_exploration_is_told_the_steps_so_far():
    rollout = make_rollout(
        EnvConfig(id="scripted_envs:ActionEcho"),
        Scripted(np.float32([0, 0])),
        exploration={"name": "gaussian", "std": {"start": 0.5, "final": 0.0, "steps": 10}},
    )
    action = np.abs(only_batch(collect(rollout, 20)).action).max(1)
    assert (action[:10] > 0).all()
    assert (action[10:] == 0).all()


# Warm-up


def test_warm_up_covers_the_action_space_and_ends():
    rollout = make_rollout(
        EnvConfig(id="scripted_envs:ActionEcho"), Scripted(np.float32([0.25, 0])), random_steps=2000
    )
    batch = only_batch(collect(rollout, 2010))
    taken = batch.next_observation[:2000]  # of Box([0, -1], [1, 3])
    # The chance that 2000 uniform values miss an outer hundredth is .99^2000 = 2e-9.
    assert (taken.min(0) < [0.01, -0.96]).all()
    assert (taken.max(0) > [0.99, 2.96]).all()
    np.testing.assert_array_equal(batch.action[2000:], [[0.25, 0]] * 10)


def test_warm_up_covers_every_discrete_action():
    config = EnvConfig(id="scripted_envs:ActionEcho", kwargs={"space": "discrete_from_5"})
    batch = only_batch(collect(make_rollout(config, Scripted(1), random_steps=100), 110))
    assert set(batch.action[:100]) == {0, 1, 2}
    assert set(batch.action[100:]) == {1}
    assert set(batch.next_observation[:, 0]) == {5, 6, 7}


def test_warm_up_is_counted_over_all_copies():
    rollout = make_rollout(
        EnvConfig(id="scripted_envs:ActionEcho"),
        Scripted(np.float32([0, 0])),
        copies=4,
        random_steps=10,
    )
    batch = only_batch(collect(rollout, 20))
    random = (batch.action != 0).all(1)
    np.testing.assert_array_equal(random, [True] * 12 + [False] * 8)  # whole steps of all copies


# Outcomes


def test_outcomes_have_the_return_and_length_of_whole_episodes():
    rollout = make_rollout(counter([2, 3], ["terminated", "truncated"]), policy_id=2)
    rollout.players[0].version = 5
    outcomes = collect(rollout, 6).outcomes
    assert [(o.episode_return, o.length, o.terminated) for o in outcomes] == [
        (1 + 2, 2, True),
        (11 + 12 + 13, 3, False),
    ]
    assert [o.env_steps for o in outcomes] == [2, 5]
    assert {(o.policy_id, o.policy_version) for o in outcomes} == {(2, 5)}


def test_episode_over_several_collections_is_one_outcome():
    rollout = make_rollout(counter([5], ["terminated"]))
    assert [len(rollout.collect(2).outcomes) for _ in range(2)] == [0, 0]
    (outcome,) = collect(rollout, 2).outcomes
    assert (outcome.episode_return, outcome.length) == (1 + 2 + 3 + 4 + 5, 5)


def test_outcomes_of_copies_are_kept_apart():
    config = EnvConfig(id="scripted_envs:Seeded", kwargs={"longest": 6})  # pays 1 a step
    outcomes = collect(make_rollout(config, copies=3), 200).outcomes
    assert len({outcome.length for outcome in outcomes}) > 3
    assert all(outcome.episode_return == outcome.length for outcome in outcomes)


# Discounted returns


@pytest.mark.parametrize("copies", [1, 3])
def test_discounted_return_is_the_running_sum_of_each_episode(copies):
    config = counter([3, 1, 4], ["terminated", "truncated"])
    rollout = make_rollout(config, copies=copies, return_gamma=0.5)
    batch = only_batch(collect(rollout, 16 * copies))
    for offset in range(copies):
        reward = batch.reward[offset::copies].astype(np.float64)
        first = batch.observation[offset::copies, 1] == 0
        running, expected = 0.0, []
        for value, starts in zip(reward, first, strict=True):
            running = value if starts else 0.5 * running + value
            expected.append(running)
        # Small integers times powers of two: exact in float32.
        np.testing.assert_array_equal(batch.extras["discounted_return"][offset::copies], expected)


def test_discounted_return_is_left_out_where_nobody_asked():
    batch = only_batch(collect(make_rollout(counter([3], ["terminated"]), Scripted(0)), 3))
    assert "discounted_return" not in batch.extras


# Going on after a restart


def assert_same_collection(one: Collected, other: Collected) -> None:
    assert one.env_steps == other.env_steps
    assert list(one.outcomes) == list(other.outcomes)
    assert list(one.decisions) == list(other.decisions)
    assert one.batches.keys() == other.batches.keys()
    for table, batch in one.batches.items():
        np.testing.assert_equal(batch.columns(), other.batches[table].columns())


CARTPOLE = EnvConfig(id="CartPole-v1")
PENDULUM = EnvConfig(id="Pendulum-v1", max_episode_steps=25)
RESTARTS = {
    "epsilon_greedy": (CARTPOLE, "epsilon_greedy", lambda: NStep(3, 0.9)),
    "gaussian": (PENDULUM, "gaussian", lambda: NStep(3, 0.9)),
    "own noise": (PENDULUM, "none", lambda: NStep(1, 0.9)),
    "segments": (CARTPOLE, "none", lambda: Segments(7, 0.9)),
    # Without a pull to zero nothing is forgotten: one wrong bit stays wrong to the episode's end.
    "ornstein_uhlenbeck": (
        PENDULUM,
        {"name": "ornstein_uhlenbeck", "theta": 0.0, "std": {"start": 0.05}},
        lambda: NStep(3, 0.9),
    ),
}


def restart(name: str, **settings) -> tuple[Rollout, Rollout]:
    """A rollout in the middle of its episodes, and another that took over its state."""
    config, exploration, assembler = RESTARTS[name]
    config = config.model_copy(update=settings)
    original, restored = (
        make_rollout(
            config,
            copies=4,
            exploration=exploration,
            assembler=assembler(),
            seed=3,
            random_steps=20,
            return_gamma=0.9,
        )
        for _ in range(2)
    )
    original.collect(170)
    original.players[0].version = 12
    assert (original.state()["episodes"]["episode_length"] > 3).any()  # in the middle
    restored.load_state(copy.deepcopy(original.state()))
    return original, restored


def assert_goes_on_the_same(original: Rollout, restored: Rollout) -> None:
    for _ in range(4):
        assert_same_collection(restored.collect(40), original.collect(40))
    original.close()
    restored.close()


@pytest.mark.parametrize(
    "name",
    [
        "epsilon_greedy",
        "gaussian",
        "own noise",
        "segments",
        "ornstein_uhlenbeck",
    ],
)
def test_restored_rollout_goes_on_bit_by_bit(name):
    assert_goes_on_the_same(*restart(name))


def test_restored_rollout_goes_on_bit_by_bit_in_processes_of_its_own():
    assert_goes_on_the_same(*restart("epsilon_greedy", vector="async"))


def test_restored_rollout_keeps_its_counters():
    original, restored = restart("gaussian")
    assert (restored.env_steps, restored.players[0].version) == (original.env_steps, 12)
    original.close()
    restored.close()


def test_state_is_not_changed_by_what_comes_after():
    rollout = make_rollout(PENDULUM, copies=2)
    rollout.collect(10)
    state = rollout.state()
    before = copy.deepcopy(state)
    rollout.collect(10)
    rollout.close()
    np.testing.assert_equal(state, before)


def test_episodes_that_cannot_be_played_again_begin_anew(caplog):
    config = EnvConfig(id="scripted_envs:Unrepeatable", kwargs={"length": 50})
    original, restored = (make_rollout(config, assembler=NStep(3, 0.9)) for _ in range(2))
    original.collect(5)
    with caplog.at_level(logging.WARNING, logger="actors.rollout"):
        restored.load_state(original.state())
    assert "1 of 1 running episodes" in caplog.text
    # The two steps that were still open are of an episode that is lost.
    assert only_batch(restored.collect(2)) is None
    assert len(only_batch(restored.collect(1))) == 1
    original.close()
    restored.close()


def test_episode_begun_anew_is_reported_whole():
    config = EnvConfig(id="scripted_envs:Unrepeatable", kwargs={"length": 5})
    original, restored = (make_rollout(config) for _ in range(2))
    original.collect(3)
    restored.load_state(original.state())
    (outcome,) = restored.collect(5).outcomes
    original.close()
    restored.close()
    assert (outcome.length, outcome.episode_return) == (5, 5)
