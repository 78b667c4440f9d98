"""One update of SAC-discrete against the NumPy reference, its temperature, and a known bandit.

Both sides run in float64; the tolerance is explained in `reference.from_torch`.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reference.from_torch import (
    assert_all_close,
    assert_close,
    double_precision,
    linear_gradients,
    linear_parameters,
    member_gradients,
    member_parameters,
    mlp_of,
    scramble,
    snapshot,
)
from reference.numpy_mlp import Mlp
from reference.sac_discrete import SacDiscreteReference, probabilities
from reference.samples import discrete_spec, pixel_spec, transitions
from torch import nn

from learner.algorithms.sac_discrete import (
    SACDiscrete,
    State,
    chosen,
    critic_loss,
    critic_target,
    expectation,
    policy_loss,
    temperature_loss,
)
from learner.critics import TwinDiscreteQ
from learner.optimization import adam, gradient_step
from learner.tensors import TensorBatch, to_tensors
from repertory.policies.categorical import CategoricalPolicy
from repertory.types import Sample

SEED, SIZE, ACTIONS = 5, 16, 4
CPU = torch.device("cpu")
SWITCHES = {
    "learned temperature": {},
    "learned temperature from 0.2": {"alpha": 0.2},
    "fixed temperature": {"alpha": 0.2, "learn_alpha": False},
    "lower target entropy": {"target_entropy_share": 0.3},
    "clipped gradients": {"max_grad_norm": 0.05},
    "targets copied": {"tau": 1.0},
}


@pytest.fixture(autouse=True)
def _float64():
    with double_precision():
        yield


def critics_of(twin: TwinDiscreteQ) -> tuple[Mlp, Mlp]:
    return Mlp(member_parameters(twin, 0), "relu"), Mlp(member_parameters(twin, 1), "relu")


def make(
    actions: int = ACTIONS, **switches: object
) -> tuple[SACDiscrete, State, SacDiscreteReference]:
    """Our learner and the reference with the same weights; the targets differ from the critics."""
    config = SACDiscrete.Config(hidden_sizes=(8, 7), **({"lr": 1e-2, "tau": 0.1} | switches))
    algorithm = SACDiscrete(config, device=CPU, seed=SEED)
    state = algorithm.initial_state(discrete_spec(actions))
    for seed, module in ((0, state.policy), (3, state.critic), (6, state.target_critic)):
        scramble(module, seed)
    reference = SacDiscreteReference(
        policy=mlp_of(state.policy, "relu"),
        critics=critics_of(state.critic),
        target_critics=critics_of(state.target_critic),
        alpha=config.alpha,
        learn_alpha=config.learn_alpha,
        target_entropy=config.target_entropy_share * np.log(actions),
        lr=config.lr,
        tau=config.tau,
        max_grad_norm=config.max_grad_norm,
    )
    return algorithm, state, reference


def sample_of(seed: int = 0, actions: int = ACTIONS, **options: int) -> Sample:
    return transitions(discrete_spec(actions), SIZE, seed, **options)


def tensors_of(state: State, sample: Sample) -> TensorBatch:
    return to_tensors(sample, state.policy.normalizer, CPU, learn_moments=False)


@torch.no_grad()
def fix_policy(state: State, probabilities: list[float]) -> None:
    """The same distribution in every state."""
    state.policy.head.weight.zero_()
    state.policy.head.bias.copy_(torch.tensor(probabilities).log())


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_three_updates_equal_the_reference(switches: dict[str, object], n_step: int) -> None:
    algorithm, state, reference = make(**switches)
    for step in range(3):
        sample = sample_of(step, n_step=n_step)
        target = critic_target(state, tensors_of(state, sample), state.log_alpha.detach().exp())
        result = algorithm.update(state, sample)
        expected = reference.update(sample)

        assert_close(target, expected.target, "target")
        assert_close(result.priorities, expected.priorities, "priorities")
        for name, value in (
            ("critic_loss", expected.critic_loss),
            ("critic_grad_norm", expected.critic_norm),
            ("policy_loss", expected.policy_loss),
            ("entropy", expected.entropy),
            ("alpha", expected.alpha),
        ):
            assert_close(result.metrics[name], value, name)
        assert ("alpha_loss" in result.metrics) == algorithm.config.learn_alpha
        if expected.alpha_loss is not None:
            assert_close(result.metrics["alpha_loss"], expected.alpha_loss, "alpha loss")
        for member in (0, 1):
            assert_all_close(
                member_gradients(state.critic, member),
                expected.critic_gradients[member],
                f"gradient of critic {member}",
            )
            assert_all_close(
                member_parameters(state.critic, member),
                reference.critics[member].parameters,
                f"critic {member} after Adam",
            )
            assert_all_close(
                member_parameters(state.target_critic, member),
                reference.target_critics[member].parameters,
                f"target critic {member}",
            )
        assert_all_close(
            linear_gradients(state.policy), expected.policy_gradients, "policy gradient"
        )
        assert_all_close(
            linear_parameters(state.policy), reference.policy.parameters, "policy after Adam"
        )
        assert_close(state.log_alpha, reference.log_alpha, "log alpha after Adam")


def test_the_example_uses_either_critic_in_target_and_policy() -> None:
    """Otherwise taking the first critic for the smaller would go unnoticed above."""
    _, state, _ = make()
    batch = tensors_of(state, sample_of())
    for critic, observation in (
        (state.critic, batch.observation),
        (state.target_critic, batch.next_observation),
    ):
        first, second = critic(observation)
        assert 0 < int((first < second).sum()) < first.numel()


def test_soft_value_by_hand() -> None:
    """pi = (3/4, 1/4), min Q' = (2, -1), alpha = 1/2, r = 1, discount = 1/2:

    V = 3/4 (2 - log(3/4)/2) + 1/4 (-1 - log(1/4)/2), y = 1 + V/2.
    """
    log_pi = torch.tensor([[0.75, 0.25]]).log()
    state = SimpleNamespace(
        policy=lambda _: log_pi,
        target_critic=lambda _: torch.tensor([[[2.0, 5.0]], [[4.0, -1.0]]]),
    )
    batch = SimpleNamespace(
        next_observation=None, reward=torch.tensor([1.0]), discount=torch.tensor([0.5])
    )
    value = 0.75 * (2 - math.log(0.75) / 2) + 0.25 * (-1 - math.log(0.25) / 2)
    target = critic_target(state, batch, torch.tensor(0.5))
    assert float(target) == pytest.approx(1 + value / 2, rel=1e-12)


def test_target_looks_at_the_next_observation_only() -> None:
    _, state, _ = make()
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
    alpha = torch.tensor(0.5)
    assert torch.equal(critic_target(state, batch, alpha), critic_target(state, moved, alpha))


def test_target_is_the_reward_where_the_episode_terminated() -> None:
    """No entropy bonus of the next state either."""
    _, state, _ = make()
    batch = tensors_of(state, sample_of())
    terminated = batch.discount == 0
    assert 0 < terminated.sum() < SIZE
    target = critic_target(state, batch, torch.tensor(0.5))
    assert torch.equal(target == batch.reward, terminated)


def test_shapes_never_broadcast() -> None:
    algorithm, state, _ = make()
    batch = tensors_of(state, sample_of())
    q = chosen(state.critic(batch.observation), batch.action)
    target = critic_target(state, batch, torch.tensor(0.5))
    assert q.shape == (2, SIZE)
    assert target.shape == (SIZE,)
    assert algorithm.update(state, sample_of()).priorities.shape == (SIZE,)
    with pytest.raises(AssertionError):
        critic_loss(q, target.unsqueeze(-1), batch.weights)
    with pytest.raises(AssertionError):
        expectation(state.policy(batch.observation), q)


def test_chosen_takes_the_action_of_its_own_row_of_both_critics() -> None:
    q = torch.arange(12.0).reshape(2, 2, 3)
    assert chosen(q, torch.tensor([2, 0])).tolist() == [[2.0, 3.0], [8.0, 9.0]]


# The temperature


def test_temperature_loss_is_weighted_by_the_policy() -> None:
    """pi = (.9, .1), target .6: sum pi (log pi + .6) = .6 - H with H = .325, times -log_alpha."""
    entropy = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    log_pi = torch.tensor([[0.9, 0.1]]).log()
    loss = temperature_loss(torch.tensor(-2.0), log_pi, target_entropy=0.6)
    assert float(loss) == pytest.approx(2 * (0.6 - entropy), rel=1e-12)


def test_temperature_rises_for_a_lopsided_policy_with_a_high_target() -> None:
    """Its entropy .325 is below .98 log 2. Without the weights .9 and .1 alpha would fall: the
    unlikely action's log pi of -2.3 would count as much as the likely one's."""
    algorithm, state, _ = make(actions=2)
    fix_policy(state, [0.9, 0.1])
    before = float(state.log_alpha.detach())
    algorithm.update(state, sample_of(actions=2))
    assert float(state.log_alpha.detach()) > before


def test_temperature_falls_for_an_even_policy_with_a_low_target() -> None:
    algorithm, state, _ = make(actions=2, target_entropy_share=0.5)
    fix_policy(state, [0.5, 0.5])
    before = float(state.log_alpha.detach())
    algorithm.update(state, sample_of(actions=2))
    assert float(state.log_alpha.detach()) < before


@pytest.mark.parametrize("start", [0.02, 50.0])
def test_temperature_finds_its_target_from_both_sides(start: float) -> None:
    """With the best policy pi = softmax(Q/alpha) of Q = (1, 0) at every temperature.

    Its entropy is log(1 + e^(-x)) + x / (1 + e^x) with x = 1/alpha; half of log 2 is reached at the
    alpha that bisection finds. Adam with a constant step of 0.02 settles to a few percent of it.
    """
    share, q = 0.5, torch.tensor([[1.0, 0.0]])

    def entropy(alpha: float) -> float:
        p = 1 / (1 + math.exp(min(1 / alpha, 700)))
        return -sum(x * math.log(x) for x in (p, 1 - p) if x > 0)

    low, high = 1e-3, 1e3
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if entropy(middle) < share * math.log(2) else (low, middle)

    log_alpha = nn.Parameter(torch.tensor(math.log(start)))
    optimizer = adam(0.02, log_alpha)
    path = []
    for _ in range(1000):
        log_pi = (q / log_alpha.detach().exp()).log_softmax(-1)
        gradient_step(optimizer, temperature_loss(log_alpha, log_pi, share * math.log(2)))
        path.append(float(log_alpha.detach().exp()))
    assert (path[20] > start) == (start < low)  # towards it from the first steps on
    assert path[-1] == pytest.approx(low, rel=0.05)


@pytest.mark.parametrize("alpha", [1.0, 0.2, 0.01])
@pytest.mark.parametrize("learn_alpha", [True, False])
def test_temperature_is_positive_and_as_configured_from_the_first_update(
    alpha: float, learn_alpha: bool
) -> None:
    algorithm, state, _ = make(alpha=alpha, learn_alpha=learn_alpha)
    first = algorithm.update(state, sample_of()).metrics["alpha"]
    assert float(first) == pytest.approx(alpha, rel=1e-12)


def test_fixed_temperature_stays() -> None:
    algorithm, state, _ = make(alpha=0.2, learn_alpha=False)
    for step in range(5):
        algorithm.update(state, sample_of(step))
    assert float(state.log_alpha.detach().exp()) == pytest.approx(0.2, rel=1e-12)


@pytest.mark.parametrize(("share", "expected"), [(0.98, 0.98 * math.log(4)), (0.0, 0.0)])
def test_target_entropy_is_a_share_of_the_largest(share: float, expected: float) -> None:
    _, state, _ = make(target_entropy_share=share)
    assert state.target_entropy == pytest.approx(expected)


# The policy


def test_policy_step_leaves_the_critic_and_the_temperature_alone() -> None:
    algorithm, state, _ = make()
    algorithm.update(state, sample_of())
    weights, alpha = snapshot(state.critic), state.log_alpha.detach().clone()
    gradients = [member_gradients(state.critic, member) for member in (0, 1)]
    before = snapshot(state.policy)

    batch = tensors_of(state, sample_of())
    loss = policy_loss(state, batch, state.policy(batch.observation), torch.tensor(0.5))
    gradient_step(state.policy_optimizer, loss)

    assert any((a != b).any() for a, b in zip(snapshot(state.policy), before, strict=True))
    for left, right in zip(snapshot(state.critic), weights, strict=True):
        np.testing.assert_array_equal(left, right)
    for member in (0, 1):
        for left, right in zip(
            member_gradients(state.critic, member), gradients[member], strict=True
        ):
            np.testing.assert_array_equal(left, right)
    assert torch.equal(state.log_alpha.detach(), alpha)


@pytest.mark.parametrize("alpha", [0.2, 2.0])
def test_bandit_with_known_q_is_solved_by_the_boltzmann_policy(alpha: float) -> None:
    """pi ~ exp(Q/alpha): Adam with a constant step settles far below 1e-3; a wrong weight of the
    entropy moves probabilities by tens of percent."""
    q = np.array([0.3, -0.1, 0.5])
    policy = CategoricalPolicy(CategoricalPolicy.Config(hidden_sizes=()), discrete_spec(3))
    state = SimpleNamespace(critic=lambda _: torch.from_numpy(q).expand(2, 1, 3))
    batch = SimpleNamespace(observation=torch.ones(1, 3))
    optimizer = adam(0.03, policy)
    for _ in range(600):
        loss = policy_loss(state, batch, policy(batch.observation), torch.tensor(alpha))
        gradient_step(optimizer, loss)
    expected = probabilities(q[None] / alpha)
    np.testing.assert_allclose(policy(batch.observation).detach().exp(), expected, atol=1e-3)


def test_the_two_critics_begin_different() -> None:
    algorithm, _, _ = make()
    critic = algorithm.initial_state(discrete_spec(ACTIONS)).critic
    pairs = zip(member_parameters(critic, 0), member_parameters(critic, 1), strict=True)
    assert all((first != second).any() for first, second in pairs)


def test_update_takes_the_batch_into_the_statistics() -> None:
    """Float32, which normalised observations are; the statistics themselves are float64."""
    torch.set_default_dtype(torch.float32)
    algorithm, state, _ = make(normalize_observation=True)
    sample = single_precision(sample_of())
    algorithm.update(state, sample)
    moments = state.policy.normalizer.observation_moments
    seen = sample.batch.observation.astype(np.float64)
    assert_close(moments.mean, seen.mean(0))
    assert_close(moments.variance, seen.var(0))


def test_update_on_pixels_moves_every_layer() -> None:
    torch.set_default_dtype(torch.float32)
    spec, rng = pixel_spec(ACTIONS), np.random.default_rng(0)
    algorithm = SACDiscrete(SACDiscrete.Config(hidden_sizes=(8,)), device=CPU, seed=SEED)
    state = algorithm.initial_state(spec)
    sample = single_precision(sample_of())
    columns = sample.batch.columns()
    for name in ("observation", "next_observation"):
        shape = (SIZE, *spec.observation_shape)
        columns[name] = rng.integers(0, 256, size=shape, dtype=np.uint8)
    before = snapshot(state.policy), snapshot(state.critic)
    batch = type(sample.batch).from_columns(columns)
    result = algorithm.update(state, Sample(batch, sample.keys, sample.weights))
    assert np.isfinite(float(result.metrics["critic_loss"]))
    for module, old in zip((state.policy, state.critic), before, strict=True):
        assert all((a != b).any() for a, b in zip(snapshot(module), old, strict=True))


def single_precision(sample: Sample) -> Sample:
    columns = {
        name: column.astype(np.float32) if column.dtype == np.float64 else column
        for name, column in sample.batch.columns().items()
    }
    batch = type(sample.batch).from_columns(columns)
    return Sample(batch, sample.keys, sample.weights.astype(np.float32))
