"""One update of every member of the DQN family against the NumPy reference.

Both sides run in float64; the tolerance is explained in `reference.from_torch`.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from reference.dqn import DqnReference, QNetwork, shifted_advantage
from reference.from_torch import (
    assert_all_close,
    assert_close,
    double_precision,
    linear_gradients,
    linear_parameters,
    mlp_of,
    scramble,
    snapshot,
)
from reference.samples import discrete_spec, pixel_spec, transitions

from learner.algorithms.dqn import DQN, State, chosen, q_target, td_loss
from learner.tensors import TensorBatch, to_tensors
from repertory.policies.greedy_q import GreedyQPolicy
from repertory.types import Sample

SEED, SIZE, ACTIONS = 3, 16, 4
CPU = torch.device("cpu")
TARGETS = {
    "2013": {"target_network": False},
    "2015": {},
    "double": {"double": True},
    "dueling 2013": {"target_network": False, "dueling": True},
    "dueling": {"dueling": True},
    "dueling double": {"double": True, "dueling": True},
}
SWITCHES = {
    "huber": {"loss": "huber"},
    "squared": {"loss": "squared"},
    "clipped gradients": {"max_grad_norm": 0.05},
    "target copied every second update": {"target_period": 2, "tau": 1.0},
    "target follows at every update": {"target_period": 1, "tau": 0.1},
    "target moves part of the way, every third": {"target_period": 3, "tau": 0.3},
}


@pytest.fixture(autouse=True)
def _float64():
    with double_precision():
        yield


def network_of(policy: GreedyQPolicy) -> QNetwork:
    return QNetwork(
        torso=mlp_of(policy.torso, "relu", "relu"),
        advantage=mlp_of(policy.advantage, "relu"),
        value=None if policy.value is None else mlp_of(policy.value, "relu"),
    )


def make(**switches: object) -> tuple[DQN, State, DqnReference]:
    """Our learner and the reference with the same weights; the target differs from the network."""
    config = DQN.Config(hidden_sizes=(8, 7), **({"lr": 1e-2} | switches))
    algorithm = DQN(config, device=CPU, seed=SEED)
    state = algorithm.initial_state(discrete_spec(ACTIONS))
    scramble(state.policy, seed=0, scale=0.8)
    scramble(state.target, seed=1, scale=0.8)
    reference = DqnReference(
        online=network_of(state.policy),
        frozen=network_of(state.target),
        lr=config.lr,
        tau=config.tau,
        target_period=config.target_period,
        target_network=config.target_network,
        double=config.double,
        huber=config.loss == "huber",
        max_grad_norm=config.max_grad_norm,
    )
    return algorithm, state, reference


def sample_of(seed: int = 0, **options: int) -> Sample:
    return transitions(discrete_spec(ACTIONS), SIZE, seed, **options)


def tensors_of(state: State, sample: Sample) -> TensorBatch:
    return to_tensors(sample, state.policy.normalizer, CPU, learn_moments=False)


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_four_updates_equal_the_reference(
    target: dict[str, object], switches: dict[str, object]
) -> None:
    algorithm, state, reference = make(**target, **switches)
    for step in range(4):
        sample = sample_of(step, n_step=1 + step % 3)
        y = q_target(state, tensors_of(state, sample), algorithm.config)
        result = algorithm.update(state, sample)
        expected = reference.update(sample)

        assert_close(y, expected.target, "target")
        assert_close(result.metrics["loss"], expected.loss, "loss")
        assert_close(result.metrics["grad_norm"], expected.norm, "norm")
        assert_close(result.priorities, expected.priorities, "priorities")
        assert_all_close(linear_gradients(state.policy), expected.gradients, "gradient")
        assert_all_close(
            linear_parameters(state.policy), reference.online.parameters, "network after Adam"
        )
        assert_all_close(
            linear_parameters(state.target), reference.frozen.parameters, "target network"
        )


def test_the_example_has_errors_on_both_sides_of_the_huber_knee() -> None:
    _, _, reference = make()
    errors = reference.update(sample_of()).priorities
    assert 0 < int((errors > 1).sum()) < SIZE


def test_four_targets_are_four_numbers_on_one_table() -> None:
    """r = 1, discount 0.5; Q(s') = (1, 5, 2), Q'(s') = (8, 3, 4); by hand:

    2013: 1 + 5/2. 2015: 1 + 8/2. Double: Q chooses action 1, 1 + 3/2. Dueling: the same Q' heads
    read as A with V = 1 give Q' = (4, -1, 0), so 1 + 4/2.
    """
    online = torch.tensor([[1.0, 5.0, 2.0]])
    head = torch.tensor([[8.0, 3.0, 4.0]])
    batch = SimpleNamespace(
        next_observation=torch.zeros(1, 3),
        reward=torch.tensor([1.0]),
        discount=torch.tensor([0.5]),
    )
    dueling = GreedyQPolicy(GreedyQPolicy.Config(hidden_sizes=(2,), dueling=True), discrete_spec(3))
    with torch.no_grad():
        for parameter in dueling.parameters():
            parameter.zero_()
        dueling.advantage.bias.copy_(head[0])
        dueling.value.bias.fill_(1.0)

    def target_of(judge: object, **switches: bool) -> float:
        state = SimpleNamespace(policy=lambda *_: online, target=judge)
        return float(q_target(state, batch, DQN.Config(**switches)))

    targets = {
        "2013": target_of(lambda *_: head, target_network=False),
        "2015": target_of(lambda *_: head),
        "double": target_of(lambda *_: head, double=True),
        "dueling": target_of(dueling),
    }
    assert targets == {"2013": 3.5, "2015": 5.0, "double": 2.5, "dueling": 3.0}


def test_dueling_is_unchanged_by_a_constant_added_to_every_advantage() -> None:
    _, state, _ = make(dueling=True)
    observation = torch.from_numpy(sample_of().batch.observation)
    expected = network_of(state.policy)(observation.numpy())
    with torch.no_grad():
        before = state.policy(observation)
        state.policy.advantage.bias += 7.5
        after = state.policy(observation)
    assert_close(before, expected)
    assert_close(after, shifted_advantage(network_of(state.policy), -7.5)(observation.numpy()))
    assert_close(after, before.numpy())


def test_dueling_values_average_to_the_state_value() -> None:
    _, state, _ = make(dueling=True)
    observation = torch.from_numpy(sample_of().batch.observation)
    with torch.no_grad():
        value = state.policy.value(state.policy.torso(observation))[:, 0]
        assert_close(state.policy(observation).mean(-1), value.numpy())


def test_plain_network_changes_by_a_constant_added_to_its_head() -> None:
    _, state, _ = make()
    observation = torch.from_numpy(sample_of().batch.observation)
    with torch.no_grad():
        before = state.policy(observation)
        state.policy.advantage.bias += 7.5
        assert_close(state.policy(observation), before.numpy() + 7.5)


def test_target_looks_at_the_next_observation_only() -> None:
    algorithm, state, _ = make(double=True)
    batch = tensors_of(state, sample_of())
    moved = TensorBatch(
        observation=batch.observation + 1,
        action=(batch.action + 1) % ACTIONS,
        reward=batch.reward,
        discount=batch.discount,
        next_observation=batch.next_observation,
        weights=batch.weights,
        extras={},
    )
    assert torch.equal(
        q_target(state, batch, algorithm.config), q_target(state, moved, algorithm.config)
    )


def test_target_is_the_reward_where_the_episode_terminated() -> None:
    algorithm, state, _ = make()
    batch = tensors_of(state, sample_of())
    terminated = batch.discount == 0
    assert 0 < terminated.sum() < SIZE
    assert torch.equal(q_target(state, batch, algorithm.config) == batch.reward, terminated)


def test_target_carries_no_gradient() -> None:
    """The 2013 target is made by the trained network itself; it is a constant all the same."""
    algorithm, state, _ = make(target_network=False)
    assert not q_target(state, tensors_of(state, sample_of()), algorithm.config).requires_grad


def test_shapes_never_broadcast() -> None:
    algorithm, state, _ = make()
    batch = tensors_of(state, sample_of())
    q = chosen(state.policy(batch.observation), batch.action)
    target = q_target(state, batch, algorithm.config)
    assert q.shape == target.shape == (SIZE,)
    assert algorithm.update(state, sample_of()).priorities.shape == (SIZE,)
    with pytest.raises(AssertionError):
        td_loss(q, target.unsqueeze(-1), batch.weights, algorithm.config)
    with pytest.raises(AssertionError):
        td_loss(q, target, batch.weights.unsqueeze(-1), algorithm.config)


def test_chosen_takes_the_action_of_its_own_row() -> None:
    q = torch.arange(6.0).reshape(2, 3)
    assert chosen(q, torch.tensor([2, 0])).tolist() == [2.0, 3.0]


@pytest.mark.parametrize(("kind", "expected"), [("huber", 0.53125), ("squared", 0.59375)])
def test_loss_by_hand(kind: str, expected: float) -> None:
    """Errors 1/2 and 3/2, weights 1/2 and 1.

    Huber: (1/2 * 1/8 + (3/2 - 1/2)) / 2 = 17/32. Squared: (1/2 * 1/8 + 9/8) / 2 = 19/32.
    """
    q, weights = torch.tensor([0.5, 1.5]), torch.tensor([0.5, 1.0])
    assert float(td_loss(q, torch.zeros(2), weights, DQN.Config(loss=kind))) == expected


@pytest.mark.parametrize("period", [1, 3, 10])
def test_target_moves_once_a_period(period: int) -> None:
    algorithm, state, _ = make(target_period=period)
    moves = 0
    for step in range(20):
        before = snapshot(state.target)
        algorithm.update(state, sample_of(step))
        after = snapshot(state.target)
        moves += any((a != b).any() for a, b in zip(after, before, strict=True))
        if (step + 1) % period == 0:
            for left, right in zip(after, snapshot(state.policy), strict=True):
                np.testing.assert_array_equal(left, right)  # tau is 1: a copy
    assert moves == 20 // period


def test_target_follows_a_resting_network_in_closed_form() -> None:
    """theta'_k = theta + (1 - tau)^k (theta'_0 - theta), with a learning rate of 0."""
    algorithm, state, _ = make(lr=0.0, tau=0.1, target_period=1)
    start, source = snapshot(state.target), snapshot(state.policy)
    for step in range(5):
        algorithm.update(state, sample_of(step))
    expected = [s + 0.9**5 * (t - s) for t, s in zip(start, source, strict=True)]
    assert_all_close(snapshot(state.target), expected)


def test_double_without_a_target_network_is_refused() -> None:
    with pytest.raises(ValidationError, match="two networks"):
        DQN.Config(double=True, target_network=False)


def test_row_of_weight_zero_leaves_no_trace() -> None:
    sample = sample_of()
    states = []
    for action_of_last in (0, 1):
        algorithm, state, _ = make()
        batch = sample.batch.select(slice(None))
        action = batch.action.copy()
        action[-1] = action_of_last
        weights = np.append(np.ones(SIZE - 1), 0.0)
        columns = batch.columns() | {"action": action}
        algorithm.update(state, Sample(type(batch).from_columns(columns), sample.keys, weights))
        states.append(state)
    first, second = (linear_gradients(state.policy) for state in states)
    for left, right in zip(first, second, strict=True):
        np.testing.assert_array_equal(left, right)


def test_update_takes_the_batch_into_the_statistics() -> None:
    """Float32, which normalised observations are; the statistics themselves are float64."""
    torch.set_default_dtype(torch.float32)
    algorithm, state, _ = make(normalize_observation=True)
    seen = []
    for step in range(2):
        sample = sample_of(step)
        columns = {
            name: column.astype(np.float32) if column.dtype == np.float64 else column
            for name, column in sample.batch.columns().items()
        }
        batch = type(sample.batch).from_columns(columns)
        algorithm.update(state, Sample(batch, sample.keys, sample.weights.astype(np.float32)))
        seen.append(batch.observation.astype(np.float64))
    moments, everything = state.policy.normalizer.observation_moments, np.concatenate(seen)
    assert_close(moments.mean, everything.mean(0))
    assert_close(moments.variance, everything.var(0))


@pytest.mark.parametrize("dueling", [False, True])
def test_update_on_pixels_moves_every_layer(dueling: bool) -> None:
    torch.set_default_dtype(torch.float32)
    spec, rng = pixel_spec(ACTIONS), np.random.default_rng(0)
    algorithm = DQN(DQN.Config(hidden_sizes=(8,), dueling=dueling), device=CPU, seed=SEED)
    state = algorithm.initial_state(spec)
    sample, before = sample_of(), snapshot(state.policy)
    columns = sample.batch.columns()
    for name in ("observation", "next_observation"):
        shape = (SIZE, *spec.observation_shape)
        columns[name] = rng.integers(0, 256, size=shape, dtype=np.uint8)
    for name in ("reward", "discount"):
        columns[name] = columns[name].astype(np.float32)
    batch = type(sample.batch).from_columns(columns)
    result = algorithm.update(state, Sample(batch, sample.keys, sample.weights.astype(np.float32)))
    assert np.isfinite(float(result.metrics["loss"]))
    assert all((a != b).any() for a, b in zip(snapshot(state.policy), before, strict=True))
