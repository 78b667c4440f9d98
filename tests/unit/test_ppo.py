"""One iteration of PPO against the NumPy reference, for every kind of action and both modes.

Both sides run in float64 (where not said otherwise); the tolerance is in `reference.from_torch`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
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
from reference.ppo import PpoReference, Segments
from reference.samples import (
    as_sample,
    continuous_spec,
    discrete_spec,
    multi_discrete_spec,
    pixel_spec,
    segments,
)
from reference.stochastic import distribution_of, played, policy_gradients, policy_parameters

from learner.algorithms.ppo import PPO, State, policy_loss
from learner.experience import Experience
from learner.value_regression import value_loss
from repertory.specs import EnvSpec

SEED, ROWS, STEPS = 7, 3, 9
SIZE = ROWS * STEPS
CPU = torch.device("cpu")
SPECS = {
    "continuous": continuous_spec(2),
    "discrete": discrete_spec(4),
    "multi_discrete": multi_discrete_spec((3, 2)),
}
SWITCHES = {
    "defaults": {},
    "entropy bonus": {"entropy_coefficient": 0.3},
    "advantage as it is": {"normalize_advantage": False},
    "gradients not clipped": {"max_grad_norm": None},
    "gradients clipped hard": {"max_grad_norm": 0.01},
    "narrow clip, short lambda": {"clip": 0.05, "gae_lambda": 0.5},
    "heavy value loss": {"value_coefficient": 3.0, "value_lr": 0.03},
}


@pytest.fixture(autouse=True)
def _float64():
    with double_precision():
        yield


def make(
    spec: EnvSpec, *, stale: bool = False, **switches: object
) -> tuple[PPO, State, PpoReference]:
    config = PPO.Config(hidden_sizes=(8, 7), **({"lr": 1e-2} | switches))
    algorithm = PPO(config, device=CPU, seed=SEED)
    state = algorithm.initial_state(spec)
    scramble(state.policy, seed=0)
    scramble(state.value, seed=1)
    reference = PpoReference(
        policy=distribution_of(state.policy),
        value=mlp_of(state.value, "tanh"),
        clip=config.clip,
        gae_lambda=config.gae_lambda,
        lr=config.lr,
        entropy_coefficient=config.entropy_coefficient,
        normalize_advantage=config.normalize_advantage,
        max_grad_norm=config.max_grad_norm,
        value_coefficient=config.value_coefficient,
        value_lr=config.value_lr,
        target_kl=config.target_kl,
        v_trace_clips=(config.rho_clip, config.c_clip) if stale else None,
    )
    return algorithm, state, reference


def segments_of(reference: PpoReference, spec: EnvSpec, seed: int = 0, drift: float = 0.3):
    return segments(spec, reference.policy, ROWS, STEPS, seed, drift=drift)


def same_shuffles(epochs: int, batch_size: int, generator: torch.Generator):
    """The learner's minibatches: one permutation for each epoch, cut into pieces."""
    return [
        [index.numpy() for index in torch.randperm(SIZE, generator=generator).split(batch_size)]
        for _ in range(epochs)
    ]


def assert_same_parameters(state: State, reference: PpoReference) -> None:
    assert_all_close(policy_parameters(state.policy), reference.policy.parameters, "policy")
    assert_all_close(linear_parameters(state.value), reference.value.parameters, "value")


@pytest.mark.parametrize("batch_size", [SIZE, 5])  # one minibatch, and several with a short last
@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_minibatch_iterations_equal_the_reference(
    spec: EnvSpec, switches: dict[str, object], batch_size: int
) -> None:
    algorithm, state, reference = make(spec, epochs=2, batch_size=batch_size, **switches)
    generator = torch.Generator().manual_seed(SEED)
    for iteration in range(2):
        columns = segments_of(reference, spec, iteration)
        metrics = algorithm.update(state, as_sample(columns)).metrics
        stopped = reference.minibatches(columns, same_shuffles(2, batch_size, generator))

        assert metrics["stop_iteration"] == stopped == 2
        assert_close(metrics["policy_loss"], reference.policy_losses[-1], "policy loss")
        assert_close(metrics["value_loss"], reference.value_losses[-1], "value loss")
        assert_close(metrics["kl"], reference.kls[-1], "KL")
        assert_close(metrics["grad_norm"], reference.last_norm, "norm of both gradients")
        assert_all_close(
            policy_gradients(state.policy) + linear_gradients(state.value),
            reference.last_gradients,
            "last gradient",
        )
        assert_same_parameters(state, reference)


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_full_batch_iterations_equal_the_reference(
    spec: EnvSpec, switches: dict[str, object]
) -> None:
    algorithm, state, reference = make(
        spec, mode="full_batch", policy_steps=3, value_steps=2, target_kl=10.0, **switches
    )
    for iteration in range(2):
        columns = segments_of(reference, spec, iteration)
        value_target = reference.flatten(columns)[-1]
        metrics = algorithm.update(state, as_sample(columns)).metrics
        reference.policy_losses.clear()
        reference.value_losses.clear()
        assert reference.full_batch(columns, policy_steps=3, value_steps=2) == 3

        assert metrics["stop_iteration"] == 3
        policy_losses, value_losses = reference.policy_losses, reference.value_losses
        assert_close(metrics["policy_loss"], policy_losses[-1], "policy loss")
        assert_close(metrics["value_loss"], value_losses[-1], "value loss")
        assert_close(metrics["kl"], reference.kls[-1], "KL")
        change = policy_losses[-1] - policy_losses[0]
        assert_close(metrics["policy_loss_change"], change, "policy loss change")
        assert_close(
            metrics["value_loss_change"], value_losses[-1] - value_losses[0], "value loss change"
        )
        assert_same_parameters(state, reference)
        flat = columns.observation.reshape(SIZE, -1)
        residual = value_target - reference.value(flat)[:, 0]
        explained = 1 - residual.var(ddof=1) / value_target.var(ddof=1)
        # Ours guards the division with 1e-8, some 1e-8 relative at a variance of about one.
        assert float(metrics["explained_variance"]) == pytest.approx(explained, abs=1e-7)


def test_policy_loss_change_compares_like_with_like() -> None:
    """The surrogate before and after, with no entropy bonus in one of the two alone."""
    spec = SPECS["discrete"]
    algorithm, state, reference = make(
        spec, mode="full_batch", policy_steps=1, value_steps=1, entropy_coefficient=0.3
    )
    columns = segments_of(reference, spec, drift=0.0)
    metrics = algorithm.update(state, as_sample(columns)).metrics
    assert float(metrics["policy_loss_change"]) == pytest.approx(0.0, abs=1e-12)


def test_the_example_is_clipped_on_both_sides_and_not_everywhere() -> None:
    """Otherwise the equalities above would not see a wrong clip."""
    spec = SPECS["continuous"]
    _, _, reference = make(spec)
    columns = segments_of(reference, spec)
    observation, action, old, advantage, _ = reference.flatten(columns)
    ratio = np.exp(reference.policy.log_prob(observation, action) - old)
    for good in (True, False):
        chosen = ratio[(advantage > advantage.mean()) == good]
        assert (chosen > 1.2).any()
        assert (chosen < 0.8).any()
        assert (np.abs(chosen - 1) < 0.2).any()


def experience_of(
    reference: PpoReference, columns: Segments, *, log_ratio: float = 0.0, sign: float | None = None
) -> Experience:
    """The segments as the update sees them, with every log ratio set; `sign`: all A alike."""
    observation, action, _, advantage, value_target = reference.flatten(columns)
    old = reference.policy.log_prob(observation, action) - log_ratio
    if sign is not None:
        advantage = sign * np.abs(advantage)
    return Experience(
        *(torch.from_numpy(x) for x in (observation, action, old, advantage, value_target))
    )


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_first_gradient_is_the_vanilla_policy_gradient(spec: EnvSpec) -> None:
    """-1/N sum A grad log pi(a|s), where the policy is still the one that acted."""
    algorithm, state, reference = make(spec, normalize_advantage=False)
    columns = segments_of(reference, spec, drift=0.0)
    experience = experience_of(reference, columns)
    policy_loss(state.policy, experience, algorithm.config)[0].backward()

    observation, action, _, advantage, _ = reference.flatten(columns)
    expected = reference.policy.backward(observation, action, -advantage / SIZE, np.zeros(SIZE))
    gradients = policy_gradients(state.policy)
    assert_all_close(gradients, expected)
    assert all((gradient != 0).any() for gradient in gradients)


def test_mean_of_the_gaussian_gets_a_score_function_gradient() -> None:
    """An action sampled with reparametrisation would move with the mean, and this would be zero."""
    spec = SPECS["continuous"]
    algorithm, state, reference = make(spec, normalize_advantage=False)
    experience = experience_of(reference, segments_of(reference, spec, drift=0.0))
    policy_loss(state.policy, experience, algorithm.config)[0].backward()
    # d log pi/dm = (a - m) / std^2, and the head's bias is the mean's own offset.
    mean, std = state.policy(experience.observation), state.policy.log_std.exp()
    score = (experience.action - mean) / std**2
    expected = -(experience.advantage[:, None] * score).mean(0)
    assert_close(state.policy.head.bias.grad, expected.detach().numpy())
    assert (state.policy.head.bias.grad != 0).all()


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize(
    ("log_ratio", "sign", "vanishes"),
    [(0.5, 1.0, True), (-0.5, -1.0, True), (0.5, -1.0, False), (-0.5, 1.0, False)],
)
def test_gradient_vanishes_exactly_where_the_clip_is_the_smaller(
    spec: EnvSpec, log_ratio: float, sign: float, vanishes: bool
) -> None:
    algorithm, state, reference = make(spec, normalize_advantage=False)
    experience = experience_of(
        reference, segments_of(reference, spec), log_ratio=log_ratio, sign=sign
    )
    loss, metrics = policy_loss(state.policy, experience, algorithm.config)
    loss.backward()
    gradients = policy_gradients(state.policy)
    assert all((gradient == 0).all() for gradient in gradients) == vanishes
    assert float(metrics["clip_fraction"]) == 1.0


def test_entropy_bonus_alone_raises_the_entropy() -> None:
    for spec in SPECS.values():
        algorithm, state, reference = make(
            spec, mode="full_batch", policy_steps=2, value_steps=1, entropy_coefficient=1.0
        )
        columns = segments_of(reference, spec, drift=0.0)
        silent = dataclasses.replace(
            columns, reward=0 * columns.reward, discount=0 * columns.discount
        )
        with torch.no_grad():
            for parameter in state.value.parameters():
                parameter.zero_()
        before = float(reference.policy.entropy(columns.observation.reshape(SIZE, -1)).mean())
        metrics = algorithm.update(state, as_sample(silent)).metrics
        assert float(metrics["entropy"]) > before


@pytest.mark.parametrize("target_kl", [None, 0.003])
def test_full_batch_stops_at_one_and_a_half_times_the_target_kl(target_kl: float | None) -> None:
    spec = SPECS["continuous"]
    algorithm, state, reference = make(
        spec, mode="full_batch", lr=1e-3, policy_steps=80, value_steps=1, target_kl=target_kl
    )
    columns = segments_of(reference, spec, drift=0.0)
    metrics = algorithm.update(state, as_sample(columns)).metrics
    stopped = reference.full_batch(columns, policy_steps=80, value_steps=1)

    limit = 1.5 * (target_kl or 0.01)
    assert 1 < stopped < 80
    assert metrics["stop_iteration"] == stopped
    assert float(metrics["kl"]) > limit >= max(reference.kls[:-1])
    assert_same_parameters(state, reference)


def test_minibatch_stops_at_one_and_a_half_times_the_target_kl() -> None:
    spec = SPECS["continuous"]
    algorithm, state, reference = make(spec, lr=1e-3, epochs=50, batch_size=9, target_kl=0.01)
    columns = segments_of(reference, spec, drift=0.0)
    metrics = algorithm.update(state, as_sample(columns)).metrics
    shuffles = same_shuffles(50, 9, torch.Generator().manual_seed(SEED))
    stopped = reference.minibatches(columns, shuffles)

    assert 0 < stopped < 50
    assert metrics["stop_iteration"] == stopped
    assert float(metrics["kl"]) > 1.5 * 0.01
    assert_same_parameters(state, reference)


@pytest.mark.parametrize("mode", ["minibatch", "full_batch"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_constant_rewards_stay_finite(spec: EnvSpec, mode: str) -> None:
    """All advantages equal: their deviation is exactly 0, and the policy has nothing to learn."""
    algorithm, state, reference = make(spec, mode=mode, epochs=2, batch_size=9)
    with torch.no_grad():
        for parameter in state.value.parameters():
            parameter.zero_()
    columns = segments_of(reference, spec, drift=0.0)
    constant = dataclasses.replace(
        columns, reward=np.ones_like(columns.reward), discount=np.zeros_like(columns.discount)
    )
    before = snapshot(state.policy)
    metrics = algorithm.update(state, as_sample(constant)).metrics
    assert all(np.isfinite(float(value)) for value in metrics.values())
    for left, right in zip(snapshot(state.policy), before, strict=True):
        np.testing.assert_array_equal(left, right)


def test_last_minibatch_of_a_single_step_stays_finite() -> None:
    """The deviation of one advantage is not a number; it is used as it is."""
    spec = SPECS["discrete"]
    algorithm, state, reference = make(spec, epochs=1, batch_size=SIZE - 1)
    columns = segments_of(reference, spec)
    algorithm.update(state, as_sample(columns))
    generator = torch.Generator().manual_seed(SEED)
    reference.minibatches(columns, same_shuffles(1, SIZE - 1, generator))
    assert_same_parameters(state, reference)


def test_shapes_never_broadcast() -> None:
    spec = SPECS["discrete"]
    algorithm, state, reference = make(spec)
    experience = experience_of(reference, segments_of(reference, spec))
    assert state.value(experience.observation).shape == (SIZE,)
    with pytest.raises(AssertionError):
        policy_loss(
            state.policy,
            dataclasses.replace(experience, advantage=experience.advantage[:, None]),
            algorithm.config,
        )
    with pytest.raises(AssertionError):
        value_loss(
            state.value,
            dataclasses.replace(experience, value_target=experience.value_target[:, None]),
        )


def test_value_step_of_full_batch_mode_leaves_the_policy_alone() -> None:
    spec = SPECS["continuous"]
    algorithm, state, reference = make(
        spec, mode="full_batch", lr=0.0, policy_steps=1, value_steps=5
    )
    before, value_before = snapshot(state.policy), snapshot(state.value)
    algorithm.update(state, as_sample(segments_of(reference, spec)))
    for left, right in zip(snapshot(state.policy), before, strict=True):
        np.testing.assert_array_equal(left, right)
    assert all((a != b).any() for a, b in zip(snapshot(state.value), value_before, strict=True))


@pytest.mark.parametrize("normalize_reward", [False, True])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_ratio_is_one_at_the_first_step_with_normalisation_on(
    spec: EnvSpec, normalize_reward: bool
) -> None:
    """Statistics must not move between acting and the likelihood ratio, whatever iteration it is.

    Float32, as in a run. Acting went row by row and the update over all rows at once, so the log
    densities may differ in their last bit: 1e-6 for each, and the estimate of the KL divergence is
    quadratic in it.
    """
    torch.set_default_dtype(torch.float32)
    algorithm = PPO(
        PPO.Config(
            hidden_sizes=(8, 7),
            normalize_observation=True,
            normalize_reward=normalize_reward,
            mode="full_batch",
            policy_steps=1,  # the metrics are then those before the first step
            lr=1e-2,
        ),
        device=CPU,
        seed=SEED,
    )
    state = algorithm.initial_state(spec)
    scramble(state.policy, seed=0)
    for iteration in range(3):
        columns = played(state.policy, ROWS, STEPS, iteration)
        returns = np.random.default_rng(iteration).normal(scale=4.0, size=(ROWS, STEPS))
        sample = as_sample(columns, {"discounted_return": returns.astype(np.float32)})
        metrics = algorithm.update(state, sample).metrics
        assert abs(float(metrics["kl"])) < 1e-6
        assert float(metrics["clip_fraction"]) == 0
        moments = state.policy.normalizer.observation_moments
        assert float(moments.count) == SIZE * (iteration + 1)


def test_update_takes_the_segments_into_the_statistics() -> None:
    torch.set_default_dtype(torch.float32)
    spec = SPECS["discrete"]
    config = PPO.Config(hidden_sizes=(8, 7), normalize_observation=True, epochs=1)
    algorithm = PPO(config, device=CPU, seed=SEED)
    state = algorithm.initial_state(spec)
    seen = []
    for iteration in range(2):
        columns = played(state.policy, ROWS, STEPS, iteration)
        algorithm.update(state, as_sample(columns))
        seen.append(columns.observation.reshape(SIZE, -1).astype(np.float64))
    moments, everything = state.policy.normalizer.observation_moments, np.concatenate(seen)
    assert_close(moments.mean, everything.mean(0))
    assert_close(moments.variance, everything.var(0))


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_normalised_update_trains_on_normalised_columns(spec: EnvSpec) -> None:
    """With statistics of their own, an update equals the plain one on columns normalised in NumPy.

    Float32, which normalised columns are: its rounding (1e-7) through three layers and one Adam
    step of 1e-2 stays below 1e-5.
    """
    torch.set_default_dtype(torch.float32)
    settings = {"epochs": 1, "batch_size": SIZE, "lr": 1e-2, "hidden_sizes": (8, 7)}
    rng = np.random.default_rng(0)
    seen = rng.normal(loc=2.0, scale=3.0, size=(50, 3)).astype(np.float32)
    returns = rng.normal(loc=1.0, scale=4.0, size=50).astype(np.float32)

    normalising = PPO(
        PPO.Config(normalize_observation=True, normalize_reward=True, **settings),
        device=CPU,
        seed=SEED,
    )
    state = normalising.initial_state(spec)
    state.policy.normalizer.update(torch.from_numpy(seen), torch.from_numpy(returns))
    columns = played(state.policy, ROWS, STEPS, seed=0)
    unused = {"discounted_return": np.ones((ROWS, STEPS), np.float32)}
    result = normalising.update(state, as_sample(columns, unused))

    mean, deviation = seen.mean(0, dtype=np.float64), seen.std(0, dtype=np.float64)
    plain = PPO(PPO.Config(**settings), device=CPU, seed=SEED)
    plain_state = plain.initial_state(spec)
    by_hand = dataclasses.replace(
        columns,
        observation=((columns.observation - mean) / deviation).astype(np.float32),
        next_observation=((columns.next_observation - mean) / deviation).astype(np.float32),
        reward=(columns.reward / returns.std(dtype=np.float64)).astype(np.float32),
    )
    expected = plain.update(plain_state, as_sample(by_hand))

    for name in ("value_loss", "grad_norm", "entropy"):
        assert float(result.metrics[name]) == pytest.approx(
            float(expected.metrics[name]), rel=1e-5
        ), name
    for left, right in zip(
        [*state.policy.parameters(), *state.value.parameters()],
        [*plain_state.policy.parameters(), *plain_state.value.parameters()],
        strict=True,
    ):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


def test_gaussian_begins_at_the_configured_deviation() -> None:
    algorithm = PPO(PPO.Config(initial_log_std=-0.7), device=CPU, seed=SEED)
    log_std = algorithm.initial_state(SPECS["continuous"]).policy.log_std
    assert log_std.tolist() == [-0.7, -0.7]


def test_update_on_pixels_moves_every_layer() -> None:
    torch.set_default_dtype(torch.float32)
    spec = pixel_spec(4)
    config = PPO.Config(hidden_sizes=(8,), epochs=1)
    algorithm = PPO(config, device=CPU, seed=SEED)
    state = algorithm.initial_state(spec)
    columns = played(state.policy, ROWS, STEPS, seed=0)
    modules = (state.policy, state.value)
    before = [snapshot(module) for module in modules]
    algorithm.update(state, as_sample(columns))
    for module, old in zip(modules, before, strict=True):
        assert all((a != b).any() for a, b in zip(snapshot(module), old, strict=True))


# Segments that older weights made

AGED = {"age": np.ones((ROWS, STEPS), np.int64)}


@pytest.mark.parametrize("clips", [{}, {"rho_clip": 2.0, "c_clip": 0.5}], ids=["ones", "others"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_stale_minibatch_iterations_equal_the_reference(
    spec: EnvSpec, clips: dict[str, object]
) -> None:
    """V-trace advantages, and ratios against the policy as it was before the update."""
    algorithm, state, reference = make(spec, stale=True, epochs=2, batch_size=5, **clips)
    generator = torch.Generator().manual_seed(SEED)
    for iteration in range(2):
        columns = segments_of(reference, spec, iteration)
        metrics = algorithm.update(state, as_sample(columns, AGED)).metrics
        reference.minibatches(columns, same_shuffles(2, 5, generator))
        assert_close(metrics["policy_loss"], reference.policy_losses[-1], "policy loss")
        assert_close(metrics["value_loss"], reference.value_losses[-1], "value loss")
        assert_same_parameters(state, reference)


def test_stale_full_batch_iterations_equal_the_reference() -> None:
    spec = SPECS["continuous"]
    algorithm, state, reference = make(
        spec, stale=True, mode="full_batch", policy_steps=3, value_steps=2, target_kl=10.0
    )
    columns = segments_of(reference, spec)
    algorithm.update(state, as_sample(columns, AGED))
    reference.full_batch(columns, policy_steps=3, value_steps=2)
    assert_same_parameters(state, reference)


def test_one_stale_step_is_enough() -> None:
    spec = SPECS["discrete"]
    age = np.zeros((ROWS, STEPS), np.int64)
    age[1, 3] = 2
    algorithm, state, reference = make(spec, stale=True, epochs=1, batch_size=SIZE)
    columns = segments_of(reference, spec)
    metrics = algorithm.update(state, as_sample(columns, {"age": age})).metrics
    assert float(metrics["age"]) == pytest.approx(2 / SIZE)
    reference.minibatches(columns, [[np.arange(SIZE)]])
    assert_same_parameters(state, reference)


@pytest.mark.parametrize("mode", ["minibatch", "full_batch"])
def test_an_age_of_zero_changes_nothing_to_the_bit(mode: str) -> None:
    spec = SPECS["continuous"]
    ages = ({}, {"age": np.zeros((ROWS, STEPS), np.int64)})
    made = [make(spec, mode=mode, policy_steps=3, value_steps=2, epochs=2) for _ in ages]
    columns = segments_of(made[0][2], spec)
    left, right = (
        algorithm.update(state, as_sample(columns, extras)).metrics
        for (algorithm, state, _), extras in zip(made, ages, strict=True)
    )
    assert {name: float(value) for name, value in left.items()} == {
        name: float(value) for name, value in right.items()
    }
    assert "age" not in left
    for one, other in zip(snapshot(made[0][1].policy), snapshot(made[1][1].policy), strict=True):
        np.testing.assert_array_equal(one, other)


def test_stale_metrics_say_how_old_and_how_far_off() -> None:
    spec = SPECS["continuous"]
    algorithm, state, reference = make(spec, stale=True, rho_clip=1.5)
    columns = segments_of(reference, spec)
    now = reference.policy.log_prob(
        columns.observation.reshape(SIZE, -1), columns.action.reshape(SIZE, -1)
    )
    metrics = algorithm.update(state, as_sample(columns, AGED)).metrics
    assert float(metrics["age"]) == 1.0
    rho = np.minimum(1.5, np.exp(now - columns.log_prob.reshape(SIZE)))
    assert_close(metrics["rho"], rho.mean())


def test_a_stale_update_begins_at_a_ratio_of_one() -> None:
    """However far the policy that acted is away: nothing is clipped before the first step."""
    spec = SPECS["continuous"]
    algorithm, state, reference = make(
        spec, stale=True, mode="full_batch", policy_steps=1, value_steps=1
    )
    columns = segments_of(reference, spec, drift=2.0)
    metrics = algorithm.update(state, as_sample(columns, AGED)).metrics
    assert float(metrics["kl"]) == pytest.approx(0.0, abs=1e-12)
    assert float(metrics["clip_fraction"]) == 0.0
