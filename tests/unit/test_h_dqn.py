"""One update of h-DQN against the NumPy reference, its two tables, and how its policy sets goals.

Both sides run in float64; the tolerance is explained in `reference.from_torch`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from plain_rollouts import plain_rollout
from reference.from_torch import (
    assert_all_close,
    assert_close,
    double_precision,
    linear_gradients,
    linear_parameters,
    mlp_of,
    scramble,
)
from reference.h_dqn import Level, beside_goal
from reference.samples import GAMMA, discrete_spec, transitions

from actors.assemblers import NStep
from actors.exploration.none import NoExploration
from actors.stream import Stream
from actors.stretches import Stretches
from learner.algorithms.h_dqn import HDQN, State, controller_target, td_loss, with_intrinsic_reward
from learner.paired_replay import PairedReplay
from learner.tensors import to_tensors
from repertory.config import EnvConfig, resolve, validate
from repertory.environments.chain import Chain
from repertory.envs import make_vector_env, probe
from repertory.errors import ReplayTimeout, UsageError
from repertory.goals import ObservedGoals, goals_for
from repertory.policies.goal_directed import GoalDirectedPolicy
from repertory.policy_memory import PolicyMemory
from repertory.schedule import Schedule
from repertory.specs import EnvSpec
from repertory.table_layout import table_of, tables_of
from repertory.types import Array, Sample, TransitionBatch

SEED, SIZE, ACTIONS, GOALS = 5, 18, 4, 3
CPU = torch.device("cpu")
# Three goals in a space of three numbers, which the samples below reach here and there.
SPEC = replace(
    discrete_spec(ACTIONS), named_goals=((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), (2.0, 0.0, 1.0))
)
SWITCHES = {
    "default": {},
    "clipped gradients": {"max_grad_norm": 0.02},
    "targets moved a little, every second update": {"tau": 0.1, "target_period": 2},
}


@pytest.fixture
def _float64():
    with double_precision():
        yield


def make(**switches: object) -> tuple[HDQN, State]:
    settings = {"lr": 1e-2, "target_period": 1, "tau": 0.3, "hidden_sizes": (8, 7)} | switches
    algorithm = HDQN(HDQN.Config(**settings), device=CPU, seed=SEED)
    state = algorithm.initial_state(SPEC)
    for seed, module in ((0, state.policy), (3, state.target)):
        scramble(module, seed)
    return algorithm, state


def levels_of(algorithm: HDQN, state: State) -> tuple[Level, Level]:
    config = algorithm.config
    return tuple(
        Level(mlp_of(online, "relu"), mlp_of(frozen, "relu"), config.lr, config.max_grad_norm)
        for online, frozen in (
            (state.policy.controller, state.target.controller),
            (state.policy.meta_controller, state.target.meta_controller),
        )
    )


def sample_of(seed: int = 0) -> Sample:
    """Steps of all goals, some reached, some without one; and stretches, of other numbers."""
    rng = np.random.default_rng(100 + seed)
    sample, stretches = transitions(SPEC, SIZE, seed), transitions(SPEC, SIZE, 50 + seed)
    goal = rng.integers(1, GOALS + 1, size=SIZE) * (np.arange(SIZE) % 6 != 4)
    arrived = rng.random(SIZE) < 0.4
    goals = np.array(SPEC.named_goals)
    next_observation = np.where(
        arrived[:, None], goals[np.maximum(goal - 1, 0)], sample.batch.next_observation
    )
    beginning = rng.random(SIZE) < 0.3
    return Sample(
        replace(
            sample.batch,
            next_observation=next_observation,
            extras={"goal": goal, "beginning": beginning},
        ),
        sample.keys,
        sample.weights,
        stretches=replace(
            stretches.batch,
            extras={
                "goal": rng.integers(1, GOALS + 1, size=SIZE),
                "beginning": np.ones(SIZE, bool),
            },
        ),
    )


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_three_updates_equal_the_reference(switches: dict[str, object]) -> None:
    algorithm, state = make(**switches)
    controller, meta = levels_of(algorithm, state)
    for step in range(3):
        sample = sample_of(step)
        batch, long = sample.batch, sample.stretches
        result = algorithm.update(state, sample)

        goal, goals = batch.extras["goal"], np.array(SPEC.named_goals)
        reached = np.array(
            [
                g > 0 and bool(np.all(np.abs(seen - goals[g - 1]) <= 1e-3))
                for g, seen in zip(goal, batch.next_observation, strict=True)
            ]
        )
        assert 0 < reached.sum() < SIZE
        low = controller.update(
            beside_goal(batch.observation, goal, GOALS),
            batch.action,
            reached.astype(float),
            np.where(reached, 0, batch.discount),
            beside_goal(batch.next_observation, goal, GOALS),
            sample.weights * (goal > 0),
        )
        high = meta.update(
            long.observation,
            long.extras["goal"] - 1,
            long.reward,
            long.discount,
            long.next_observation,
            np.ones(SIZE),
        )
        if (step + 1) % algorithm.config.target_period == 0:
            controller.move_target(algorithm.config.tau)
            meta.move_target(algorithm.config.tau)

        assert_close(result.priorities, np.abs(low.error), "priorities")
        for name, value in (
            ("controller_loss", low.loss),
            ("controller_grad_norm", low.norm),
            ("intrinsic_reward", reached.mean()),
            ("meta_loss", high.loss),
            ("meta_grad_norm", high.norm),
            ("stretch_return", long.reward.mean()),
        ):
            assert_close(result.metrics[name], value, name)
        for ours, target, level, report in (
            (state.policy.controller, state.target.controller, controller, low),
            (state.policy.meta_controller, state.target.meta_controller, meta, high),
        ):
            assert_all_close(linear_gradients(ours), report.gradients, "gradient")
            assert_all_close(linear_parameters(ours), level.online.parameters, "after Adam")
            assert_all_close(linear_parameters(target), level.frozen.parameters, "target")


@pytest.mark.usefixtures("_float64")
def test_without_stretches_the_meta_controller_stays() -> None:
    algorithm, state = make()
    before = linear_parameters(state.policy.meta_controller)
    result = algorithm.update(state, replace(sample_of(), stretches=None))
    assert "meta_loss" not in result.metrics
    for left, right in zip(before, linear_parameters(state.policy.meta_controller), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.usefixtures("_float64")
def test_the_controller_does_not_see_the_environments_reward() -> None:
    sample = sample_of()
    paid = replace(sample, batch=replace(sample.batch, reward=sample.batch.reward + 1000))
    results = []
    for given in (sample, paid):
        algorithm, state = make()
        algorithm.update(state, given)
        results.append(linear_parameters(state.policy.controller))
    for left, right in zip(*results, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.usefixtures("_float64")
def test_nothing_follows_a_goal_that_is_reached() -> None:
    _, state = make()
    sample = sample_of()
    own = with_intrinsic_reward(sample.batch, state.policy)
    batch = to_tensors(
        replace(sample, batch=own), state.policy.normalizer, CPU, learn_moments=False
    )
    target = controller_target(state, batch, (batch.extras["goal"] - 1).clamp(min=0))
    reached = own.reward == 1
    assert (target.numpy()[reached] == 1).all()
    bootstrapped = target.numpy() != own.reward
    np.testing.assert_array_equal(bootstrapped, ~reached & (sample.batch.discount > 0))


@pytest.mark.usefixtures("_float64")
def test_shapes_never_broadcast() -> None:
    with pytest.raises(AssertionError):
        td_loss(torch.ones(3), torch.ones(3, 1), torch.ones(3))


@pytest.mark.parametrize(
    ("setting", "value"), [("n_step", 3), ("own_share", 0.5), ("normalize_reward", True)]
)
def test_what_would_mix_goals_up_is_refused(setting: str, value: object) -> None:
    learner = {"algorithm": "h_dqn", setting: value}
    with pytest.raises(UsageError, match=setting):
        validate({"env": {"id": "CartPole-v1"}, "learners": {"h": learner}})


# Goals


def test_goals_of_the_environment_reach_the_specification() -> None:
    spec = probe(EnvConfig(id="repertory.environments.chain:Chain"))
    assert spec.named_goals == tuple(tuple(row) for row in np.eye(6).tolist())
    assert EnvSpec.from_json(spec.to_json()) == spec
    goals = goals_for("environment", spec)
    assert goals.count == 6
    np.testing.assert_array_equal(goals.reached(np.eye(6)[[4, 0]]), np.eye(6, dtype=bool)[[4, 0]])


def test_an_environment_without_goals_is_refused() -> None:
    with pytest.raises(UsageError, match="names no goals"):
        goals_for("environment", discrete_spec(2))


def near_or_far(spec: EnvSpec) -> ObservedGoals:
    """Named by dotted path below."""
    return ObservedGoals(np.array([[0.0, 0.0, 0.0], [9.0, 9.0, 9.0]]), tolerance=1.0)


def test_goals_by_dotted_path() -> None:
    goals = goals_for(f"{__name__}:near_or_far", discrete_spec(2))
    reached = goals.reached(np.array([[0.5, -1.0, 0.2], [8.5, 9.0, 9.9], [0.0, 0.0, 1.1]]))
    np.testing.assert_array_equal(reached, [[True, False], [False, True], [False, False]])


# The two tables after a scripted episode


class SureChain(Chain):
    """`right` always goes right."""

    def step(self, action):  # type: ignore[no-untyped-def]
        class Always:
            def random(self) -> float:
                return 0.0

        self._np_random = Always()
        return super().step(action)


def chain_policy(preferred: dict[int, int], **settings: object) -> GoalDirectedPolicy:
    """Linear networks set by hand: from each state its preferred goal, and the way to any goal."""
    spec = probe(EnvConfig(id="repertory.environments.chain:Chain"))
    policy = GoalDirectedPolicy(GoalDirectedPolicy.Config(hidden_sizes=(), **settings), spec)
    policy.requires_grad_(False)
    for parameter in policy.parameters():
        parameter.zero_()
    for state, goal in preferred.items():
        policy.meta_controller.head.weight[goal, state] = 1.0
    # Q(s, g, right) - Q(s, g, left) = g - s, with the goal's unit vector beside the state's.
    policy.controller.head.weight[1, :6] = -torch.arange(6.0)
    policy.controller.head.weight[1, 6:] = torch.arange(6.0)
    return policy


def test_both_tables_after_a_scripted_episode() -> None:
    """From 1 to 3, on to 5, back to 0: three goals; the environment pays 1 at the very end.

    The trap: rewards swapped. The replay has the environment's rewards, of which the controller
    sees none; the stretches have their sums, and none of the intrinsic ones.
    """
    policy = chain_policy({1: 3, 3: 5, 5: 0}, goal_epsilon=Schedule(start=0.0))
    env = make_vector_env(EnvConfig(id=f"{__name__}:SureChain"), copies=1, seed=0, role="rollout")
    spec = policy.spec
    rollout = plain_rollout(
        env, spec, policy, NoExploration(NoExploration.Config(), spec, 1), NStep(1, 0.9)
    )
    rollout._streams = (
        *rollout._streams,
        Stream("stretches", Stretches(0.9), 1, readers=[0], own_only=True, extras=policy.extras),
    )
    tables = rollout.collect(9).batches
    rollout.close()

    steps, stretches = tables["replay"], tables["stretches"]
    np.testing.assert_array_equal(steps.observation.argmax(1), [1, 2, 3, 4, 5, 4, 3, 2, 1])
    np.testing.assert_array_equal(steps.next_observation.argmax(1), [2, 3, 4, 5, 4, 3, 2, 1, 0])
    np.testing.assert_array_equal(steps.extras["goal"] - 1, [3, 3, 5, 5, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(steps.reward, [0] * 8 + [1])
    own = with_intrinsic_reward(steps, policy)
    np.testing.assert_array_equal(own.reward, [0, 1, 0, 1, 0, 0, 0, 0, 1])
    gamma = np.float32(0.9)
    np.testing.assert_array_equal(own.discount, [gamma, 0, gamma, 0, gamma, gamma, gamma, gamma, 0])

    np.testing.assert_array_equal(stretches.observation.argmax(1), [1, 3, 5])
    np.testing.assert_array_equal(stretches.extras["goal"] - 1, [3, 5, 0])
    np.testing.assert_array_equal(stretches.reward, [0, 0, 1])
    np.testing.assert_array_equal(stretches.discount, [gamma, gamma, 0])
    np.testing.assert_array_equal(stretches.next_observation.argmax(1), [3, 5, 0])


# The policy


def unit(*states: int) -> Array:
    return np.eye(6, dtype=np.float32)[list(states)]


def test_a_goal_holds_until_it_is_reached() -> None:
    memory = PolicyMemory(chain_policy({1: 3, 3: 5}))
    goals, beginnings = [], []
    for state in (1, 2, 2, 3, 2, 4, 5):
        acted = memory.act(unit(state), None)
        goals.append(int(acted.extras["goal"][0]) - 1)
        beginnings.append(bool(acted.extras["beginning"][0]))
    assert goals == [3, 3, 3, 5, 5, 5, 0]  # from 5 no goal is preferred: the first of equals
    assert beginnings == [True, False, False, True, False, False, True]


def test_a_goal_is_given_up_after_so_many_steps() -> None:
    memory = PolicyMemory(chain_policy({1: 3, 2: 4}, goal_steps=2))
    beginnings = [bool(memory.act(unit(2), None).extras["beginning"][0]) for _ in range(5)]
    assert beginnings == [True, False, True, False, True]


def test_the_goal_decides_what_is_done() -> None:
    policy = chain_policy({})
    before = {"goal": np.array([6, 1, 4, 2]), "steps": np.ones(4, np.int64)}
    acted, _ = policy.act_remembering(unit(2, 2, 1, 4), before, 0, None)
    np.testing.assert_array_equal(acted.action, [1, 0, 1, 0])
    np.testing.assert_array_equal(acted.extras["goal"], before["goal"])


def test_epsilon_over_goals_follows_its_schedule_and_only_where_a_goal_is_set() -> None:
    policy = chain_policy({1: 3}, goal_epsilon=Schedule(start=1.0, final=0.4, steps=100))
    count = 24_000
    seen, fresh = np.repeat(unit(1), count, 0), np.zeros(count, np.int64)
    for env_steps, epsilon in ((0, 1.0), (100, 0.4), (5000, 0.4)):
        rng = np.random.default_rng(env_steps)
        acted, after = policy.act_remembering(seen, {"goal": fresh, "steps": fresh}, env_steps, rng)
        shares = np.bincount(acted.extras["goal"] - 1, minlength=6) / count
        expected = np.full(6, epsilon / 6)
        expected[3] += 1 - epsilon
        np.testing.assert_allclose(shares, expected, atol=0.017)  # five deviations at one half
        elsewhere, _ = policy.act_remembering(np.repeat(unit(2), count, 0), after, 0, rng)
        kept = after["goal"] != 3  # that one is reached
        np.testing.assert_array_equal(elsewhere.extras["goal"][kept], after["goal"][kept])
    first, _ = policy.act_remembering(seen, {"goal": fresh, "steps": fresh}, 0, None)
    assert (first.extras["goal"] == 4).all()


# Layout, and two tables as one


def test_the_second_table_is_its_own_and_the_first_is_shared() -> None:
    config = resolve("CartPole-v1", ["dqn", "h_dqn"])
    layouts = tables_of(config)
    assert {name: layout.learners for name, layout in layouts.items()} == {
        "replay": ("dqn", "h_dqn"),
        "h_dqn-stretches": ("h_dqn",),
    }
    assert layouts["h_dqn-stretches"].stretches
    assert table_of(config, "h_dqn") == "replay"


class Given:
    """A replay that gives what it has."""

    def __init__(self, batch: TransitionBatch | None) -> None:
        self.batch = batch
        self.updated: list[Array] = []

    def insert(self, batch: TransitionBatch, priorities: Array | None = None) -> int:
        self.batch = batch
        return len(batch)

    def sample(self, size: int, *, timeout_seconds: float) -> Sample:
        if self.batch is None:
            raise ReplayTimeout("nothing yet")
        return Sample(self.batch.select(slice(size)), np.arange(size), np.ones(size))

    def update_priorities(self, keys: Array, priorities: Array) -> None:
        self.updated.append(keys)


def test_two_tables_are_one_replay() -> None:
    steps, stretches = Given(sample_of().batch), Given(None)
    pair = PairedReplay(steps, stretches)
    assert pair.sample(4, timeout_seconds=1.0).stretches is None
    stretches.insert(sample_of().stretches)
    sample = pair.sample(4, timeout_seconds=1.0)
    np.testing.assert_array_equal(sample.batch.reward, steps.batch.reward[:4])
    np.testing.assert_array_equal(sample.stretches.reward, stretches.batch.reward[:4])
    pair.update_priorities(np.arange(4), np.ones(4))
    assert len(steps.updated) == 1
    assert stretches.updated == []
    steps.batch = None
    with pytest.raises(ReplayTimeout):
        pair.sample(4, timeout_seconds=1.0)


def test_gamma_of_the_samples_is_not_one() -> None:
    """Otherwise a discount that is left out would go unnoticed above."""
    assert 0 < GAMMA < 1
