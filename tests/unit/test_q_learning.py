"""Tabular Q-learning against the plain reference: bins, targets, steps of many rows at once.

Both sides run in float64; the tolerance is explained in `reference.from_torch`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from reference.from_torch import assert_close, double_precision
from reference.q_learning import TabularReference
from reference.samples import discrete_spec, transitions

from learner.algorithms.q_learning import MAX_ENTRIES, QLearning, State, grid, move, q_target
from learner.checkpoint import load_state_tree, state_tree
from learner.tensors import to_tensors
from repertory.config import ReplayConfig, resolve
from repertory.errors import CheckpointError, UsageError
from repertory.policies.policy import build_policy, policy_config
from repertory.policies.tabular_q import TabularQPolicy
from repertory.specs import EnvSpec
from repertory.types import Sample
from services.fit import check_fit

SIZE, ACTIONS = 64, 4
CPU = torch.device("cpu")
RANGE: dict[str, Any] = {"low": (-1.0, -1.5, 0.0), "high": (1.0, 1.5, 2.0)}
BINS = (2, 3, 4)


@pytest.fixture(autouse=True)
def _float64():
    with double_precision():
        yield


def bounded_spec(low: float = -1.0, high: float = 1.0) -> EnvSpec:
    return dataclasses.replace(
        discrete_spec(ACTIONS), observation_low=(low,) * 3, observation_high=(high,) * 3
    )


def make(**settings: Any) -> tuple[QLearning, State, TabularReference]:
    config = QLearning.Config(**({"bins": BINS, "lr": 0.3} | RANGE | settings))
    algorithm = QLearning(config, device=CPU, seed=0)
    state = algorithm.initial_state(discrete_spec(ACTIONS))
    reference = TabularReference(
        bins=state.policy.config.bins,
        low=state.policy.config.low,
        high=state.policy.config.high,
        actions=ACTIONS,
        lr=config.lr,
        initial_value=config.initial_value,
    )
    return algorithm, state, reference


def sample_of(seed: int = 0, **options: int) -> Sample:
    return transitions(discrete_spec(ACTIONS), SIZE, seed, **options)


# Bins


@pytest.mark.parametrize(
    ("number", "bin_index"),
    [(-1.0, 0), (-0.51, 0), (-0.5, 1), (0.0, 2), (0.49, 2), (0.5, 3), (0.99, 3)],
)
def test_bins_are_even_and_begin_with_their_lower_edge(number: float, bin_index: int) -> None:
    policy = TabularQPolicy(
        TabularQPolicy.Config(bins=(4,), low=(-1.0,), high=(1.0,)), discrete_spec(ACTIONS)
    )
    assert policy.cell(torch.tensor([[number]])).tolist() == [bin_index]


@pytest.mark.parametrize(
    ("number", "bin_index"),
    [(1.0, 3), (7.0, 3), (1e30, 3), (np.inf, 3), (-1.1, 0), (-1e30, 0), (-np.inf, 0)],
)
def test_what_is_out_of_range_falls_into_the_end_bins(number: float, bin_index: int) -> None:
    policy = TabularQPolicy(
        TabularQPolicy.Config(bins=(4,), low=(-1.0,), high=(1.0,)), discrete_spec(ACTIONS)
    )
    assert policy.cell(torch.tensor([[number]])).tolist() == [bin_index]


def test_every_combination_of_bins_is_a_row_of_its_own() -> None:
    _, state, reference = make()
    rng = np.random.default_rng(0)
    observation = rng.uniform(-3, 3, size=(5000, 3))
    cells = state.policy.cell(torch.from_numpy(observation)).numpy()
    expected = [np.ravel_multi_index(reference.state_of(row), BINS) for row in observation]
    np.testing.assert_array_equal(cells, expected)
    assert set(cells) == set(range(24))


def test_float32_observations_fall_where_they_do_in_the_learner() -> None:
    """Actors and learners see float32; both use this very function."""
    _, state, _ = make()
    observation = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    with torch.no_grad():
        state.policy.table.copy_(torch.randn(24, ACTIONS))
        best = state.policy(torch.from_numpy(observation)).argmax(-1)
    action = state.policy.act(observation, None).action
    np.testing.assert_array_equal(action, best)
    assert (action.shape, action.dtype) == ((100,), np.int64)


# Updates


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize(
    "settings",
    [{}, {"lr": 1.0}, {"lr": 0.01}, {"initial_value": 5.0}, {"bins": (3,)}, {"bins": (1, 1, 2)}],
    ids=str,
)
def test_five_updates_equal_the_reference(settings: dict[str, Any], n_step: int) -> None:
    algorithm, state, reference = make(**settings)
    for step in range(5):
        sample = sample_of(step, n_step=n_step)
        batch = to_tensors(sample, state.policy.normalizer, CPU, learn_moments=False)
        target = q_target(state.policy, batch)
        result = algorithm.update(state, sample)
        expected_target, errors = reference.update(sample)

        assert_close(target, expected_target, "target")
        assert_close(result.priorities, np.abs(errors), "priorities")
        assert_close(result.metrics["loss"], np.mean(0.5 * sample.weights * errors**2), "loss")
        assert_close(state.policy.table, reference.table(), "table")
    assert state.updates == 5


def test_the_example_has_duplicates_of_different_targets() -> None:
    """Otherwise what a batch does with them would go unnoticed above."""
    _, _, reference = make()
    sample = sample_of()
    pairs = [
        (*reference.state_of(observation), int(action))
        for observation, action in zip(sample.batch.observation, sample.batch.action, strict=True)
    ]
    assert len(set(pairs)) < SIZE - 5


def test_one_row_is_moved_by_the_learning_rate() -> None:
    """Q = 2, y = 5, lr = 0.1: 2.3."""
    q = torch.tensor([7.0, 2.0])
    move(q, torch.tensor([1]), torch.tensor([5.0]), torch.ones(1), 0.1)
    assert q.tolist() == pytest.approx([7.0, 2.3])


def test_duplicates_come_to_as_many_steps_one_after_the_other() -> None:
    """Three times y = 4 from 0 with lr 1/2: 2, 3, 3.5. One step would be 2, a sum of errors 6."""
    q = torch.zeros(1)
    move(q, torch.zeros(3, dtype=torch.int64), torch.full((3,), 4.0), torch.ones(3), 0.5)
    assert float(q) == pytest.approx(3.5)


def test_many_duplicates_never_go_beyond_their_targets() -> None:
    q = torch.zeros(1)
    entries, weights = torch.zeros(1000, dtype=torch.int64), torch.ones(1000)
    for lr in (0.1, 0.9, 1.0):
        move(q, entries, torch.full((1000,), 4.0), weights, lr)
        assert 0 <= float(q) <= 4.0


def test_order_of_a_batch_does_not_matter() -> None:
    tables = []
    for order in (np.arange(SIZE), np.random.default_rng(1).permutation(SIZE)):
        algorithm, state, _ = make()
        sample = sample_of()
        algorithm.update(
            state, Sample(sample.batch.select(order), sample.keys, sample.weights[order])
        )
        tables.append(state.policy.table.numpy().copy())
    assert_close(tables[0], tables[1])


def test_row_of_weight_zero_leaves_no_trace() -> None:
    q = torch.tensor([1.0, 2.0])
    weights = torch.tensor([0.0, 1.0])
    move(q, torch.tensor([0, 1]), torch.tensor([9.0, 9.0]), weights, 1.0)
    assert q.tolist() == [1.0, 9.0]


def test_target_is_the_reward_where_the_episode_terminated() -> None:
    _, state, _ = make(initial_value=5.0)
    batch = to_tensors(sample_of(), state.policy.normalizer, CPU, learn_moments=False)
    terminated = batch.discount == 0
    assert 0 < terminated.sum() < SIZE
    assert torch.equal(q_target(state.policy, batch) == batch.reward, terminated)


def test_shapes_never_broadcast() -> None:
    with pytest.raises(AssertionError):
        move(torch.zeros(3), torch.zeros(2, dtype=torch.int64), torch.zeros(2, 1), torch.ones(2), 1)


# The table as weights


def test_the_table_is_the_one_weight_and_rebuilds_the_policy() -> None:
    algorithm, state, _ = make()
    algorithm.update(state, sample_of())
    weights = state.policy.weights()
    assert list(weights) == ["table"]
    config = policy_config(state.policy.config.model_dump(mode="json"))
    rebuilt = build_policy(config, state.policy.spec)
    rebuilt.load_weights(weights)
    observation = sample_of(3).batch.observation
    np.testing.assert_array_equal(
        rebuilt.act(observation, None).action, state.policy.act(observation, None).action
    )


def test_the_update_after_a_restore_is_equal_to_the_bit() -> None:
    algorithm, state, _ = make()
    algorithm.update(state, sample_of(0))
    _, restored, _ = make()
    load_state_tree(restored, state_tree(state))
    for one in (state, restored):
        algorithm.update(one, sample_of(1))
    assert torch.equal(state.policy.table, restored.policy.table)
    assert state.updates == restored.updates == 2


def test_table_of_other_bins_is_refused() -> None:
    _, state, _ = make()
    _, other, _ = make(bins=(5,))
    with pytest.raises(CheckpointError, match="does not fit"):
        load_state_tree(state, state_tree(other))


# Settings


def test_bounds_of_the_space_are_used_where_none_are_set() -> None:
    config = QLearning.Config(low=(None, -0.5, None), high=(), bins=3)
    found = grid(config, bounded_spec())
    assert found.bins == (3, 3, 3)
    assert found.low == (-1.0, -0.5, -1.0)
    assert found.high == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("bound", [np.inf, float(np.finfo(np.float32).max)])
@pytest.mark.parametrize("side", ["low", "high"])
def test_number_without_a_bound_is_refused_with_the_setting(bound: float, side: str) -> None:
    spec = bounded_spec(low=-bound) if side == "low" else bounded_spec(high=bound)
    with pytest.raises(UsageError, match=f"number 0 .* has no {side} bound: set learner.{side}"):
        grid(QLearning.Config(), spec)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bins": (2, 2)}, "learner.bins has 2 entries and an observation .* 3 numbers"),
        ({"low": (0.0,)}, "learner.low has 1 entries"),
        ({"high": (0.0,) * 4}, "learner.high has 4 entries"),
        ({"low": (2.0, None, None)}, "number 0 .* from 2 to 1: set learner.low below"),
        ({"bins": 200}, f"a table of 32000000 entries .* more than {MAX_ENTRIES}"),
    ],
)
def test_grid_that_cannot_be_is_refused_in_a_sentence(settings: dict, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        grid(QLearning.Config(**settings), bounded_spec())


def test_refusal_comes_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="has no low bound"):
        check_fit("q", QLearning.Config(), ReplayConfig(), discrete_spec(ACTIONS))


def test_normalised_observations_are_refused_in_a_sentence() -> None:
    with pytest.raises(UsageError, match="normalize_observation = true is refused: the bins of"):
        resolve("CartPole-v1", ["q_learning"], overrides={"learner.normalize_observation": True})


def test_bins_may_be_one_number_for_all() -> None:
    config = resolve("MountainCar-v0", ["q_learning"], overrides={"learner.bins": 20})
    assert config.learners["q_learning"].bins == (20,)


def test_bins_of_nothing_are_refused_with_the_limit() -> None:
    with pytest.raises(UsageError, match="greater than or equal to 1"):
        resolve("MountainCar-v0", ["q_learning"], overrides={"learner.bins": 0})
