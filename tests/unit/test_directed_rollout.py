"""The rollout of a run with two learners, as a director in the same process leads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from actors.casting import Leased
from actors.rollout import Collected, Rollout, rollout_for
from repertory.config import RunConfig, resolve
from repertory.director_config import DirectorConfig
from repertory.envs import probe
from repertory.parts import lookup
from repertory.policies.policy import build_policy
from repertory.specs import EnvSpec
from services.decision import Decision
from services.director import Director


def collect(rollout: Rollout, env_steps: int) -> Collected:
    collected = rollout.collect(env_steps)
    rollout.close()
    return collected


def portfolio(**changes: Any) -> RunConfig:
    return resolve(
        "CartPole-v1",
        ["dqn", "ppo"],
        overrides={
            "env.copies": 2,
            "learner.hidden_sizes": [8],
            "learners.dqn.n_step": 3,
            "learners.dqn.random_steps": 0,
            "learners.ppo.segment_length": 8,
            **changes,
        },
    )


def policies_of(config: RunConfig, spec: EnvSpec) -> dict[str, Any]:
    made = {}
    for name, learner in config.learners.items():
        algorithm = lookup("algorithm", learner.algorithm)(learner, device="cpu", seed=0)
        policy = algorithm.policy(algorithm.initial_state(spec))
        made[name] = build_policy(policy.config, spec)
    return made


class LocalLease:
    """A director in the same process."""

    def __init__(self, director: Director) -> None:
        self.director = director
        self._asked = 0

    @property
    def edition(self) -> int:
        return self.director.edition

    def request(self, count: int) -> None:
        self._asked = count

    def take(self) -> Sequence[Decision] | None:
        asked, self._asked = self._asked, 0
        return self.director.lease("actor", asked) if asked else None

    def wait(self, timeout_seconds: float) -> None:
        pass

    def give_back(self, decisions: Sequence[int]) -> None:
        self.director.give_back(decisions)


def directed(config: RunConfig, director: Director) -> Rollout:
    spec = probe(config.env)
    casting = Leased(LocalLease(director), tuple(config.learners), room=8)
    return rollout_for(config, spec, policies_of(config, spec), casting)


def test_a_run_of_two_learners_feeds_the_replay_and_the_queue():
    config = portfolio()
    director = Director(DirectorConfig(strategy="round_robin"), list(config.learners))
    collected = collect(directed(config, director), 600)
    replay, queue = collected.batches["replay"], collected.batches["ppo"]
    assert set(replay.policy_id) == {0, 1}
    assert set(queue.policy_id.ravel()) == {1}
    assert replay.extras == {}
    assert set(queue.extras) == {"log_prob", "policy_action", "boundary"}
    # Of each of two copies up to two windows are open there, and up to seven steps here.
    assert -2 * 2 <= (replay.policy_id == 1).sum() - queue.reward.size <= 2 * 7


def test_every_decision_of_the_director_comes_back_with_its_policy():
    config = portfolio()
    script = {"name": "scripted", "script": [["dqn", 2], ["ppo", 1]]}
    settings = DirectorConfig(strategy=script, switch_every=5)
    director = Director(settings, list(config.learners))
    collected = collect(directed(config, director), 400)
    by_number = {d.decision: d.outcome for d in collected.decisions}
    assert len(by_number) == len(collected.decisions) > 30
    assert all(o.policy_id == (number % 3 == 2) for number, o in by_number.items())
    played = sum(outcome.length for outcome in collected.outcomes)
    assert sum(outcome.length for outcome in by_number.values()) == played
    for number, outcome in by_number.items():
        director.observe(outcome, number)
    own = sum(outcome.length for outcome in by_number.values() if outcome.policy_id == 1)
    assert director.shares()["ppo"].env_steps == pytest.approx(own / played)


def test_a_pinned_policy_acts_from_the_next_episode_on():
    config = portfolio()
    director = Director(DirectorConfig(strategy="round_robin"), list(config.learners))
    rollout = directed(config, director)
    rollout.collect(100)
    director.pin("dqn")
    rollout.collect(2 * 500)  # the longest episode of CartPole
    collected = collect(rollout, 200)
    assert set(collected.batches["replay"].policy_id) == {0}
