"""A portfolio of one is the plain run, and several players go on to the bit after a restart."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from troupes import Listed

from actors.assemblers import NStep, Segments
from actors.casting import Solo
from actors.exploration.gaussian import Gaussian
from actors.exploration.ornstein_uhlenbeck import OrnsteinUhlenbeck
from actors.player import Player
from actors.rollout import Collected, Rollout
from actors.stream import Stream
from repertory.config import EnvConfig
from repertory.envs import make_vector_env, probe
from repertory.types import Acted, Array, ColumnSpec


def collect(rollout: Rollout, env_steps: int) -> Collected:
    collected = rollout.collect(env_steps)
    rollout.close()
    return collected


# What a player sees and draws


class Dancer:
    """Depends on what it sees, and is random where it may be."""

    def __init__(self, size: int) -> None:
        self.extras: dict[str, ColumnSpec] = {}
        self._size = size

    def act(self, observation: Array, rng: np.random.Generator | None) -> Acted:
        mean = 0.5 * np.sin(observation.sum(1, keepdims=True))
        noise = 0 if rng is None else 0.1 * rng.standard_normal(mean.shape, dtype=np.float32)
        return Acted(np.repeat(mean + noise, self._size, 1).astype(np.float32))

    def weights(self) -> dict[str, Array]:
        return {}

    def load_weights(self, arrays: Any) -> None:
        pass


PENDULUM = EnvConfig(id="Pendulum-v1", max_episode_steps=15)


def dancers(count: int, casting: Any, *, copies: int = 3, part: Any = Gaussian) -> Rollout:
    spec = probe(PENDULUM)
    players = [
        Player(f"p{k}", k, Dancer(1), part(part.Config(), spec, copies), spec, random_steps=20)
        for k in range(count)
    ]
    return Rollout(
        make_vector_env(PENDULUM, copies=copies, seed=4, role="rollout"),
        spec,
        players,
        casting,
        [
            Stream("replay", NStep(3, 0.9), copies, readers=[0], return_gamma=0.9),
            *(queue_of(copies, player) for player in range(count)),
        ],
        rng=np.random.default_rng(6),
    )


def queue_of(copies: int, player: int) -> Stream:
    return Stream(f"p{player}", Segments(7, 0.9), copies, readers=[player], own_only=True)


def test_one_player_draws_and_does_what_a_loop_by_hand_does():
    spec, rng = probe(PENDULUM), np.random.default_rng(6)
    env = make_vector_env(PENDULUM, copies=3, seed=4, role="rollout")
    dancer = Dancer(1)
    observation, _ = env.reset()
    expected = []
    for step in range(40):
        if 3 * step < 20:
            action = rng.uniform(-1, 1, (3, 1)).astype(np.float32)
        else:
            action = dancer.act(observation, rng).action
            noise = 0.1 * rng.standard_normal((3, 1), dtype=np.float32)
            action = np.clip(action + noise, -1, 1)
        seen = observation
        observation, reward, *_ = env.step(spec.to_env_action(action))
        expected.append((seen, action, reward.astype(np.float32)))
    env.close()
    segments = collect(dancers(1, Solo()), 120).batches["p0"]  # 35 steps of each copy are whole
    for index in range(3):
        rows = segments.observation[index::3], segments.action[index::3], segments.reward[index::3]
        for column, place in zip(rows, range(3), strict=True):
            by_hand = np.stack([step[place][index] for step in expected[:35]])
            np.testing.assert_array_equal(column.reshape(by_hand.shape), by_hand)


@pytest.mark.parametrize("part", [Gaussian, OrnsteinUhlenbeck])
def test_a_player_that_is_never_cast_changes_nothing(part):
    alone = collect(dancers(1, Solo(), part=part), 150)
    accompanied = collect(dancers(2, Listed((0, None)), part=part), 150)
    assert list(alone.outcomes) == list(accompanied.outcomes)
    assert accompanied.batches.keys() == {"replay", "p0"}
    for table, batch in alone.batches.items():
        np.testing.assert_equal(batch.columns(), accompanied.batches[table].columns())


def test_noise_begins_anew_for_who_takes_over():
    """Without a pull to zero the noise of player 0 would still be there when it comes back."""
    spec, copies = probe(PENDULUM), 1

    class Still(Dancer):
        def act(self, observation: Array, rng: np.random.Generator | None) -> Acted:
            return Acted(np.zeros((len(observation), 1), np.float32))

    noisy = OrnsteinUhlenbeck.Config(theta=0.0, std={"start": 0.2, "final": 0.0, "steps": 3})
    players = [
        Player(f"p{k}", k, Still(1), OrnsteinUhlenbeck(noisy, spec, copies), spec) for k in (0, 1)
    ]
    rollout = Rollout(
        make_vector_env(PENDULUM, copies=copies, seed=4, role="rollout"),
        spec,
        players,
        Listed((0, 5), (1, 1), (0, None)),
        [Stream("replay", NStep(1, 0.9), copies, readers=[0])],
        rng=np.random.default_rng(6),
    )
    action = collect(rollout, 8).batches["replay"].action[:, 0]
    assert (action[:5] != 0).all()
    np.testing.assert_array_equal(action[5:], 0)  # no kicks come any more


# Going on after a restart


def roles(seed: int) -> list[tuple[int, int | None]]:
    rng = np.random.default_rng(seed)
    return [(int(p), int(s) or None) for p, s in rng.integers([0, 0], [2, 8], (500, 2))]


@pytest.mark.parametrize("part", [Gaussian, OrnsteinUhlenbeck])
def test_two_players_go_on_bit_by_bit_from_the_middle_of_their_episodes(part):
    original, restored = (dancers(2, Listed(*roles(2)), part=part) for _ in range(2))
    original.collect(131)
    original.players[1].version = 12
    state = original.state()
    assert len(state["episodes"]["past"]) > 0  # hand-overs within the running episodes
    assert set(state["episodes"]["player"]) == {0, 1}
    restored.load_state(copy.deepcopy(state))
    for _ in range(5):
        one, other = original.collect(40), restored.collect(40)
        assert one.env_steps == other.env_steps
        assert list(one.outcomes) == list(other.outcomes)
        assert list(one.decisions) == list(other.decisions)
        assert one.batches.keys() == other.batches.keys()
        for table, batch in one.batches.items():
            np.testing.assert_equal(batch.columns(), other.batches[table].columns())
    original.close()
    restored.close()
