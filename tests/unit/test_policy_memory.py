"""Policies that remember: rows for each copy, beginning anew, and going on after a restart."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from plain_rollouts import only_batch, plain_rollout
from remembering import Counting
from scripted_envs import Counter
from troupes import SPEC, Listed, Steady, replay_stream, troupe

from actors.assemblers import NStep
from actors.evaluator import evaluate
from actors.exploration.none import NoExploration
from actors.player import Player
from actors.rollout import Rollout
from repertory.config import EnvConfig
from repertory.envs import make_vector_env, probe
from repertory.policy_memory import PolicyMemory
from repertory.protocols import MemoryPolicy
from repertory.types import Array, ColumnSpec

COUNT = {"count": ColumnSpec("<i8", ())}


def counts(memory: PolicyMemory, *copies: int) -> list[int]:
    """What it remembered in these copies when it acted in them once more."""
    acted = memory.act(np.zeros((len(copies), 2)), None, copies=np.array(copies))
    found: list[int] = acted.extras["count"].tolist()
    return found


def test_only_a_policy_that_says_so_remembers():
    assert isinstance(Counting(), MemoryPolicy)
    assert not isinstance(Steady(0), MemoryPolicy)
    memory = PolicyMemory(Steady(1))
    assert memory.act(np.zeros((2, 2)), None).action.tolist() == [1, 1]
    memory.begin(np.ones(2, bool))
    assert memory.state() == {}


def test_each_copy_has_a_row_of_its_own():
    memory = PolicyMemory(Counting())
    assert counts(memory, 0, 2) == [0, 0]
    assert counts(memory, 0, 1, 2) == [1, 0, 1]
    assert counts(memory, 1) == [1]
    assert counts(memory, 0, 1, 2) == [2, 2, 2]


def test_where_it_begins_nothing_is_remembered():
    memory = PolicyMemory(Counting())
    counts(memory, 0, 1, 2)
    memory.begin(np.array([False, True, False]))
    assert counts(memory, 0, 1, 2) == [1, 0, 1]
    memory.begin()
    assert counts(memory, 0, 1, 2) == [0, 0, 0]


def test_beginning_before_it_has_ever_acted_is_no_fault():
    memory = PolicyMemory(Counting())
    memory.begin(np.array([True, True]))
    assert counts(memory, 0, 1) == [0, 0]


def test_its_state_is_a_copy_and_goes_on_elsewhere():
    memory = PolicyMemory(Counting())
    counts(memory, 0, 1)
    saved = memory.state()
    counts(memory, 0, 1)
    other = PolicyMemory(Counting())
    other.load_state(saved)
    assert counts(other, 0, 1) == [1, 1]


def rollout_of(config: EnvConfig, copies: int = 1, random_steps: int = 0) -> Rollout:
    spec = probe(config)
    return plain_rollout(
        make_vector_env(config, copies=copies, seed=0, role="rollout"),
        spec,
        Counting(),
        NoExploration(NoExploration.Config(), spec, copies),
        NStep(1, 0.9),
        random_steps=random_steps,
    )


def counter_config(*lengths: int) -> EnvConfig:
    endings = ["terminated"] * len(lengths)
    return EnvConfig(
        id="scripted_envs:Counter", kwargs={"lengths": list(lengths), "endings": endings}
    )


def recorded(rollout: Rollout, env_steps: int, name: str = "count") -> list[int]:
    batch = only_batch(rollout.collect(env_steps))
    assert batch is not None
    found: list[int] = batch.extras[name].tolist()
    return found


def test_a_rollout_begins_anew_with_each_episode():
    rollout = rollout_of(counter_config(2, 3, 4))
    assert recorded(rollout, 9) == [0, 1, 0, 1, 2, 0, 1, 2, 3]
    rollout.close()


def test_the_steps_of_the_run_are_told():
    rollout = rollout_of(counter_config(5), copies=2)
    assert recorded(rollout, 6, "env_steps") == [0, 0, 2, 2, 4, 4]
    rollout.close()


def test_random_steps_are_not_remembered():
    rollout = rollout_of(counter_config(6), random_steps=3)
    assert recorded(rollout, 6) == [0, 0, 0, 0, 1, 2]
    rollout.close()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_it_means_the_same_in_every_autoreset_mode(mode: AutoresetMode):
    none = NoExploration(NoExploration.Config(), SPEC, 1)
    player = Player("p0", 0, Counting(), none, SPEC)
    lengths = {"lengths": [2, 3, 4], "endings": ["terminated"] * 3}
    rollout = troupe(
        [partial(Counter, **lengths)],
        Listed((0, None)),
        [replay_stream(1, extras=COUNT)],
        mode=mode,
        players=[player],
    )
    batch = rollout.collect(9).batches["replay"]
    np.testing.assert_array_equal(batch.extras["count"], [0, 1, 0, 1, 2, 0, 1, 2, 3])
    rollout.close()


def test_a_hand_over_begins_anew():
    """In one long episode: two steps, two of somebody else, two again."""
    none = NoExploration(NoExploration.Config(), SPEC, 1)
    players = [
        Player("p0", 0, Counting(), none, SPEC),
        Player("p1", 1, Steady(1), none, SPEC),
    ]
    rollout = troupe(
        [partial(Counter, lengths=[9], endings=["terminated"])],
        Listed((0, 2), (1, 2), (0, 3)),
        [replay_stream(1, extras=COUNT)],
        players=players,
    )
    batch = rollout.collect(7).batches["replay"]
    np.testing.assert_array_equal(batch.policy_id, [0, 0, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(batch.extras["count"], [0, 1, 0, 0, 0, 1, 2])
    rollout.close()


def test_two_decisions_for_the_same_policy_are_no_hand_over():
    none = NoExploration(NoExploration.Config(), SPEC, 1)
    rollout = troupe(
        [partial(Counter, lengths=[9], endings=["terminated"])],
        Listed((0, 2), (0, 2)),
        [replay_stream(1, extras=COUNT)],
        players=[Player("p0", 0, Counting(), none, SPEC)],
    )
    batch = rollout.collect(4).batches["replay"]
    np.testing.assert_array_equal(batch.extras["count"], [0, 1, 2, 3])
    rollout.close()


def test_a_restored_rollout_remembers():
    config = EnvConfig(id="CartPole-v1")  # its episodes can be replayed
    whole = rollout_of(config, copies=2)
    recorded(whole, 6)
    saved = whole.state()
    expected = recorded(whole, 8)
    restored = rollout_of(config, copies=2)
    restored.load_state(saved)
    assert recorded(restored, 8) == expected
    assert expected[0] == 3
    whole.close()
    restored.close()


class Watched(Counting):
    """Notes the count of the first copy at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[int] = []

    def act_remembering(self, observation: Array, memory, env_steps, rng):  # type: ignore[no-untyped-def]
        assert rng is None
        self.noted.append(int(memory["count"][0]))
        return super().act_remembering(observation, memory, env_steps, rng)


def test_an_evaluation_begins_anew_with_each_episode_and_twice_is_the_same():
    config, policy = counter_config(2, 3), Watched()
    spec = probe(config)
    first = evaluate(policy, config, spec, episodes=1, seed=0)
    assert policy.noted == [0, 1]
    policy.noted.clear()
    assert evaluate(policy, config, spec, episodes=1, seed=0) == first
    assert policy.noted == [0, 1]
    policy.noted.clear()
    evaluate(policy, config, spec, episodes=11, seed=0)  # the first of ten copies plays two
    assert policy.noted[:5] == [0, 1, 0, 1, 2]
