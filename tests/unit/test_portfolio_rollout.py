"""Several players in one rollout: who acted, what a hand-over cuts, what the director hears."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from scripted_envs import Counter, Seeded
from troupes import Listed, Steady, queue_stream, replay_stream, steady_players, troupe

from actors.rollout import Collected, Rollout
from repertory.guarded_env import GuardedEnv
from repertory.types import ColumnSpec, EpisodeOutcome


def counter(*lengths: int, ending: Any = "terminated") -> Callable[[], gym.Env[Any, Any]]:
    return lambda: Counter(lengths=lengths, endings=[ending])


def collect(rollout: Rollout, env_steps: int) -> Collected:
    collected = rollout.collect(env_steps)
    rollout.close()
    return collected


# Who acted


def test_provenance_is_that_of_who_acted():
    rollout = troupe([counter(2)], Listed((0, None), (1, None), (1, None)), [replay_stream(1)])
    batch = collect(rollout, 6).batches["replay"]
    np.testing.assert_array_equal(batch.policy_id, [10, 10, 11, 11, 11, 11])
    np.testing.assert_array_equal(batch.policy_version, [100, 100, 101, 101, 101, 101])
    np.testing.assert_array_equal(batch.action, [0, 0, 1, 1, 1, 1])


def test_version_is_that_of_the_weights_at_each_step():
    rollout = troupe([counter(4)], Listed((0, 2), (1, None)), [replay_stream(1)])
    versions = []
    for version in (5, 6, 7, 8):
        rollout.players[1].version = version
        versions += rollout.collect(1).batches["replay"].policy_version.tolist()
    rollout.close()
    assert versions == [100, 100, 7, 8]


def test_each_player_that_acts_makes_one_inference_of_its_own_copies():
    """Player 1 in copies 0 and 2, player 0 in copy 1; copy 0 begins anew after two steps."""
    casting = Listed((1, None), (0, None), (1, None), (1, None))
    rollout = troupe([counter(2), counter(9), counter(9)], casting, [replay_stream(3)])
    batch = collect(rollout, 9).batches["replay"]
    first, second = (player.policy for player in rollout.players)
    assert isinstance(first, Steady)
    assert isinstance(second, Steady)
    np.testing.assert_array_equal(first.seen, [[[0, 0]], [[0, 1]], [[0, 2]]])
    np.testing.assert_array_equal(
        second.seen, [[[0, 0], [0, 0]], [[0, 1], [0, 1]], [[1, 0], [0, 2]]]
    )
    np.testing.assert_array_equal(batch.action, [1, 0, 1] * 3)
    np.testing.assert_array_equal(batch.policy_id, [11, 10, 11] * 3)


def test_a_player_that_acts_nowhere_makes_no_inference():
    rollout = troupe([counter(3)], Listed((0, None)), [replay_stream(1)])
    collect(rollout, 6)
    idle = rollout.players[1].policy
    assert isinstance(idle, Steady)
    assert idle.seen == []


def test_warm_up_counts_the_steps_of_all_players():
    """Player 1 begins at step 4 of the run, and has two random steps left of its six."""
    players = steady_players(1)
    players[1].random_steps = 6
    rollout = troupe([counter(100)], Listed((0, 4), (1, None)), [replay_stream(1)], players=players)
    collect(rollout, 10)
    acting = players[1].policy
    assert isinstance(acting, Steady)
    assert [int(seen[0, 1]) for seen in acting.seen] == [6, 7, 8, 9]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_decision_lasts_for_its_steps_in_every_autoreset_mode(mode):
    """A step that only resets is nobody's, and does not count."""
    casting = Listed((0, 2), (1, None), (1, 1), (0, None), (1, None))
    rollout = troupe([counter(3)], casting, [replay_stream(1)], mode=mode)
    batch = collect(rollout, 9).batches["replay"]
    np.testing.assert_array_equal(batch.observation[:, 1], [0, 1, 2] * 3)
    np.testing.assert_array_equal(batch.policy_id, [10, 10, 11, 11, 10, 10, 11, 11, 11])


# Hand-overs and windows


def test_windows_are_cut_where_another_takes_over():
    """Rewards 1, 2 | 3, 4, 5 with n = 3, gamma = .5, and the episode terminates."""
    rollout = troupe([counter(5)], Listed((0, 2), (1, None)), [replay_stream(1, n=3)])
    batch = collect(rollout, 5).batches["replay"]
    order = np.argsort(batch.observation[:, 1])
    np.testing.assert_array_equal(batch.observation[order, 1], [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(batch.reward[order], [1 + 1, 2, 3 + 2 + 1.25, 4 + 2.5, 5])
    np.testing.assert_array_equal(batch.discount[order], [0.25, 0.5, 0, 0, 0])
    np.testing.assert_array_equal(batch.next_observation[order, 1], [2, 2, 5, 5, 5])
    np.testing.assert_array_equal(batch.policy_id[order], [10, 10, 11, 11, 11])


def test_a_cut_leaves_the_full_window_that_went_before_it_alone():
    """n = 2 and three steps: the windows of steps 0 and 1 are full, only that of 2 is cut."""
    rollout = troupe(
        [counter(6, ending="truncated")], Listed((0, 3), (1, None)), [replay_stream(1, n=2)]
    )
    batch = collect(rollout, 6).batches["replay"]
    order = np.argsort(batch.observation[:, 1])
    np.testing.assert_array_equal(batch.reward[order], [1 + 1, 2 + 1.5, 3, 4 + 2.5, 5 + 3, 6])
    np.testing.assert_array_equal(batch.discount[order], [0.25, 0.25, 0.5, 0.25, 0.25, 0.5])


def test_the_same_player_again_is_no_hand_over():
    every_step, whole = (
        collect(troupe([counter(5)], Listed((0, steps)), [replay_stream(1, n=3)]), 10)
        for steps in (1, None)
    )
    np.testing.assert_equal(
        every_step.batches["replay"].columns(), whole.batches["replay"].columns()
    )
    assert list(every_step.outcomes) == list(whole.outcomes)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_no_return_holds_rewards_of_two_players(n):
    """Each pays in a coin of its own: 1 or 1000 for each step."""

    class Coins(Seeded):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, (1.0, 1000.0)[int(action)], *rest

    rng = np.random.default_rng(5)
    roles = [(int(player), int(steps)) for player, steps in rng.integers([0, 1], [2, 5], (200, 2))]
    stream = replay_stream(3, n=n, gamma=1.0)
    rollout = troupe([lambda: Coins(longest=12)] * 3, Listed(*roles), [stream])
    batch = collect(rollout, 300).batches["replay"]
    coins = batch.reward / np.where(batch.policy_id == 10, 1, 1000)
    assert set(coins) <= set(range(1, n + 1))  # one to n coins, all of its own kind
    assert {(int(who), coin) for who, coin in zip(batch.policy_id, coins, strict=True)} == {
        (who, coin) for who in (10, 11) for coin in range(1, n + 1)
    }


def test_hand_over_between_two_collections_loses_nothing():
    rollout = troupe([counter(6)], Listed((0, 2), (1, 2), (0, None)), [replay_stream(1, n=4)])
    starts: list[float] = []
    for _ in range(6):
        batch = rollout.collect(1).batches.get("replay")
        starts += [] if batch is None else batch.observation[:, 1].tolist()
    rollout.close()
    assert sorted(starts) == [0, 1, 2, 3, 4, 5]


# Hand-overs and segments


def test_queue_takes_only_the_steps_of_its_own_player():
    rollout = troupe([counter(4)], Listed((0, 2), (1, None)), [queue_stream(1, 1, length=2)])
    (batch,) = (collect(rollout, 4).batches["p1"],)
    np.testing.assert_array_equal(batch.observation[:, :, 1], [[2, 3]])
    np.testing.assert_array_equal(batch.policy_id, [[11, 11]])


def test_segment_is_cut_at_a_hand_over_and_goes_on_when_its_player_acts_again():
    """Player 1 acts in steps 2 and 3 of the first episode, and in steps 0 and 2 of the second."""
    casting = Listed((0, 2), (1, None), (1, 1), (0, 1), (1, None))
    rollout = troupe([counter(4)], casting, [queue_stream(1, 1, length=4)])
    batch = collect(rollout, 8).batches["p1"]
    np.testing.assert_array_equal(batch.observation, [[[0, 2], [0, 3], [1, 0], [1, 2]]])
    np.testing.assert_array_equal(batch.next_observation, [[[0, 3], [0, 4], [1, 1], [1, 3]]])
    np.testing.assert_array_equal(batch.reward, [[3, 4, 11, 13]])
    np.testing.assert_array_equal(batch.extras["boundary"], [[False, True, True, False]])
    # The episode terminated after the second step; what was handed over still bootstraps.
    np.testing.assert_array_equal(batch.discount, [[0.5, 0, 0.5, 0.5]])


def test_extras_are_those_of_the_queues_own_policy():
    casting = Listed((0, 1), (1, 1), (0, 1), (1, 1))
    streams = [queue_stream(1, 0, length=2), queue_stream(1, 1, length=2)]
    batches = collect(troupe([counter(4)], casting, streams), 4).batches
    np.testing.assert_array_equal(batches["p0"].extras["mark"], [[0, 2]])  # 100 * 0 + step
    np.testing.assert_array_equal(batches["p1"].extras["mark"], [[101, 103]])


def test_shared_table_has_no_extras_but_those_of_its_readers():
    mark = {"mark": ColumnSpec("<f4", ())}
    streams = [replay_stream(2, readers=[1], extras=mark)]
    batch = collect(troupe([counter(3)] * 2, Listed((0, None), (1, None)), streams), 4).batches
    np.testing.assert_array_equal(batch["replay"].extras["mark"], [0, 100, 0, 101])
    without = troupe([counter(3)], Listed((0, None)), [replay_stream(1)])
    assert collect(without, 2).batches["replay"].extras == {}


def test_discounted_return_runs_through_the_episode_whoever_acts():
    stream = replay_stream(1, return_gamma=0.5)
    rollout = troupe([counter(3)], Listed((0, 1), (1, None), (0, None)), [stream])
    batch = collect(rollout, 4).batches["replay"]
    running = [1, 0.5 + 2, 1.25 + 3, 11]
    np.testing.assert_array_equal(batch.extras["discounted_return"], running)


# What the director hears


def told(collected: Collected) -> list[tuple[int, int, int, float, int]]:
    return [
        (d.decision, d.outcome.policy_id, d.outcome.policy_version, d.outcome.episode_return,
         d.outcome.length)
        for d in collected.decisions
    ]  # fmt: skip


def test_every_decision_of_an_episode_has_an_outcome_when_it_ends():
    casting = Listed((0, 2), (1, 2), (0, None), (1, None))
    rollout = troupe([counter(5)], casting, [replay_stream(1)])
    assert rollout.collect(4).decisions == []
    collected = rollout.collect(1)
    rollout.close()
    total = 1 + 2 + 3 + 4 + 5
    assert told(collected) == [
        (0, 10, 100, total, 2),
        (1, 11, 101, total, 2),
        (2, 10, 100, total, 1),
    ]
    assert collected.outcomes == [EpisodeOutcome(10, 100, total, 5, True, 5)]


def test_decision_that_ends_with_its_episode_has_one_outcome():
    rollout = troupe([counter(4)], Listed((0, 2), (1, 2), (0, None)), [replay_stream(1)])
    collected = collect(rollout, 4)
    assert [decision for decision, *_ in told(collected)] == [0, 1]


def test_copies_are_cast_one_by_one_as_they_need_somebody():
    casting = Listed((0, None), (1, None), (1, None), (0, None))
    rollout = troupe([counter(3), counter(2)], casting, [replay_stream(2)])
    collected = collect(rollout, 8)
    assert [(decision, who) for decision, who, *_ in told(collected)] == [(1, 11), (0, 10), (2, 11)]


# Breaks


class Fragile(Counter):
    def __init__(self, breaks_at: int | None, **settings: Any) -> None:
        super().__init__(**settings)
        self._left = breaks_at

    def step(self, action: Any) -> Any:
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                raise RuntimeError("on fire")
        return super().step(action)


def fragile(*breaks_at: int | None) -> Callable[[], gym.Env[Any, Any]]:
    """Episodes of five steps. Each life breaks at its step; the last entry holds for all others."""
    lives: Iterator[int] = iter(range(1000))

    def make() -> gym.Env[Any, Any]:
        return Fragile(breaks_at[min(next(lives), len(breaks_at) - 1)], lengths=[5])

    return lambda: GuardedEnv(make, max_faults=2)


def break_in_the_second_episode() -> tuple[Collected, Listed]:
    """Player 1 plays an episode, then a step; player 0 one more, and the next one breaks.

    Then player 1 plays seven steps of the next life.
    """
    casting = Listed((1, None), (1, 1), (0, None), (1, None), (1, None))
    streams = [replay_stream(1, n=4), queue_stream(1, 1, length=7)]
    rollout = troupe([fragile(8, None)], casting, streams)
    collected = collect(rollout, 5 + 2 + 7)
    assert rollout.broken_episodes == 1
    return collected, casting


def test_of_a_broken_episode_remains_what_a_hand_over_had_completed():
    collected, _ = break_in_the_second_episode()
    batch = collected.batches["replay"]
    # Five of the first episode, one of the second; five of the next life, and what is full there.
    np.testing.assert_array_equal(
        batch.observation.tolist(),
        [[0, 0], [0, 1], [0, 2], [0, 3], [0, 4], [1, 0]] + [[0, k] for k in range(5)],
    )
    assert (batch.reward[5], batch.discount[5]) == (11, 0.5)


def test_a_segment_does_not_go_on_after_a_break():
    """Of six steps that player 1 had in its open segment, none is left."""
    collected, _ = break_in_the_second_episode()
    batch = collected.batches["p1"]
    np.testing.assert_array_equal(
        batch.observation, [[[0, 0], [0, 1], [0, 2], [0, 3], [0, 4], [1, 0], [1, 1]]]
    )
    np.testing.assert_array_equal(batch.extras["boundary"], [[False] * 4 + [True] + [False] * 2])


def test_decisions_of_a_broken_episode_are_given_back_and_have_no_outcome():
    collected, casting = break_in_the_second_episode()
    assert casting.returned == [1, 2]
    assert [decision for decision, *_ in told(collected)] == [0, 3]


def test_a_copy_that_is_broken_for_good_keeps_one_decision():
    casting = Listed((0, None))
    rollout = troupe([fragile(1), counter(5)], casting, [replay_stream(2)])
    collect(rollout, 50)
    assert casting.returned == []
    assert casting.next == 1 + 10  # one, and the ten episodes of the other copy


# Nobody there


class Hesitant(Listed):
    """Does not know who is to act, each time it is asked for the first time."""

    knows = True

    def assign(self, copies: Sequence[int]) -> Any:
        self.knows = not self.knows
        return super().assign(copies) if self.knows else None


def test_where_nobody_is_there_to_act_it_returns_what_it_has_and_goes_on_later():
    def run(casting: Listed) -> tuple[list[int], list[float]]:
        rollout = troupe([counter(3)], casting, [replay_stream(1, n=2)])
        steps, rewards = [], []
        while rollout.env_steps < 9:
            collected = rollout.collect(9 - rollout.env_steps)
            steps.append(collected.env_steps)
            for batch in collected.batches.values():
                rewards += batch.reward.tolist()
        rollout.close()
        return steps, rewards

    roles = [(0, 2), (1, None), (1, None), (0, 1), (1, None)]
    hesitant, sure = run(Hesitant(*roles)), run(Listed(*roles))
    assert hesitant[0] == [0, 2, 1, 3, 1, 2]
    assert sure[0] == [9]
    assert hesitant[1] == sure[1]
