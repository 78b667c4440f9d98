"""What policies do: densities against NumPy, sampling, greedy acting, weights in and out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from reference.from_torch import assert_close, double_precision, mlp_of, scramble
from reference.ppo import CategoricalsReference, GaussianReference
from reference.samples import continuous_spec, discrete_spec, multi_discrete_spec, pixel_spec

from repertory.errors import CheckpointError
from repertory.policies.categorical import CategoricalPolicy
from repertory.policies.deterministic import DeterministicPolicy
from repertory.policies.greedy_q import GreedyQPolicy
from repertory.policies.policy import TorchPolicy, build_policy
from repertory.policies.squashed_gaussian import SquashedGaussianPolicy, squash
from repertory.policies.stochastic import StochasticPolicy
from repertory.specs import EnvSpec

HIDDEN = (8, 7)
SIZE = 12
CASES = {
    "deterministic": (DeterministicPolicy, continuous_spec()),
    "squashed_gaussian": (SquashedGaussianPolicy, continuous_spec()),
    "greedy_q": (GreedyQPolicy, discrete_spec()),
    "greedy_q on pixels": (GreedyQPolicy, pixel_spec()),
    "all probabilities": (CategoricalPolicy, discrete_spec()),
    "all probabilities on pixels": (CategoricalPolicy, pixel_spec()),
    "gaussian": (StochasticPolicy, continuous_spec()),
    "unbounded gaussian": (StochasticPolicy, continuous_spec(bounded=False)),
    "categorical": (StochasticPolicy, discrete_spec()),
    "categoricals": (StochasticPolicy, multi_discrete_spec()),
    "categorical on pixels": (StochasticPolicy, pixel_spec()),
}
every_policy = pytest.mark.parametrize(("kind", "spec"), CASES.values(), ids=CASES)
STOCHASTIC = {name: spec for name, (kind, spec) in CASES.items() if kind is StochasticPolicy}


def make(kind: type[TorchPolicy], spec: EnvSpec, **settings: object) -> TorchPolicy:
    policy = kind(kind.Config(hidden_sizes=HIDDEN, **settings), spec)
    scramble(policy, seed=0)
    return policy.requires_grad_(False)


def observations(spec: EnvSpec, size: int = SIZE) -> np.ndarray:
    rng = np.random.default_rng(0)
    if spec.observation_kind == "pixels":
        return rng.integers(0, 256, size=(size, *spec.observation_shape), dtype=np.uint8)
    return rng.normal(size=(size, *spec.observation_shape)).astype(np.float32)


# --- every policy -------------------------------------------------------------------------------


@every_policy
def test_action_has_the_form_the_environments_column_has(
    kind: type[TorchPolicy], spec: EnvSpec
) -> None:
    policy = make(kind, spec)
    for rng in (None, np.random.default_rng(0)):
        action = policy.act(observations(spec), rng).action
        assert action.shape == (SIZE, *spec.action_column.shape)
        assert action.dtype == np.dtype(spec.action_column.dtype)


@every_policy
def test_extras_are_those_announced(kind: type[TorchPolicy], spec: EnvSpec) -> None:
    policy = make(kind, spec)
    extras = policy.act(observations(spec), np.random.default_rng(0)).extras
    assert extras.keys() == policy.extras.keys()
    for name, column in policy.extras.items():
        assert extras[name].shape == (SIZE, *column.shape)
        assert extras[name].dtype == np.dtype(column.dtype)


@every_policy
def test_greedy_acting_repeats_itself(kind: type[TorchPolicy], spec: EnvSpec) -> None:
    policy, observation = make(kind, spec), observations(spec)
    first, second = (policy.act(observation, None).action for _ in range(2))
    np.testing.assert_array_equal(first, second)


@every_policy
def test_same_generator_same_action(kind: type[TorchPolicy], spec: EnvSpec) -> None:
    policy, observation = make(kind, spec), observations(spec)
    first, second = (policy.act(observation, np.random.default_rng(4)).action for _ in range(2))
    np.testing.assert_array_equal(first, second)


@every_policy
def test_weights_rebuild_the_policy_from_its_config(kind: type[TorchPolicy], spec: EnvSpec) -> None:
    policy, observation = make(kind, spec), observations(spec)
    rebuilt = build_policy(policy.config, spec)
    assert type(rebuilt) is kind
    assert not any(parameter.requires_grad for parameter in rebuilt.parameters())
    rebuilt.load_weights(policy.weights())
    np.testing.assert_array_equal(
        rebuilt.act(observation, np.random.default_rng(1)).action,
        policy.act(observation, np.random.default_rng(1)).action,
    )


@every_policy
def test_weights_are_a_copy(kind: type[TorchPolicy], spec: EnvSpec) -> None:
    policy = make(kind, spec)
    weights = policy.weights()
    scramble(policy, seed=9)
    assert all((weights[name] != value).any() for name, value in policy.weights().items())


@every_policy
def test_weights_of_another_shape_are_refused(kind: type[TorchPolicy], spec: EnvSpec) -> None:
    other = kind(kind.Config(hidden_sizes=(5,)), spec)
    with pytest.raises(CheckpointError, match=f"policy {other.config.name}"):
        make(kind, spec).load_weights(other.weights())


# --- mu(s) and argmax Q -------------------------------------------------------------------------


def test_deterministic_policy_is_its_network_squashed() -> None:
    """The same network in NumPy; ours runs in float32, 1e-6 after three layers."""
    policy = make(DeterministicPolicy, continuous_spec())
    observation = observations(policy.spec)
    action = policy.act(observation, np.random.default_rng(0)).action
    np.testing.assert_allclose(action, mlp_of(policy, "relu", "tanh")(observation), atol=1e-6)
    assert np.abs(action).max() <= 1


def test_greedy_q_takes_the_best_action() -> None:
    policy = make(GreedyQPolicy, discrete_spec())
    observation = observations(policy.spec)
    q = mlp_of(policy, "relu")(observation)
    np.testing.assert_array_equal(policy.act(observation, None).action, q.argmax(1))


def test_categorical_policy_gives_the_logarithms_of_its_probabilities() -> None:
    """The softmax of the same network in NumPy; ours runs in float32, 1e-6 after three layers."""
    policy = make(CategoricalPolicy, discrete_spec())
    observation = observations(policy.spec)
    weights = np.exp(mlp_of(policy, "relu")(observation))
    expected = weights / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(policy(torch.from_numpy(observation)).exp(), expected, atol=1e-6)
    np.testing.assert_array_equal(policy.act(observation, None).action, expected.argmax(1))


def test_categorical_policy_samples_by_its_probabilities() -> None:
    """Four standard errors of 20 000 samples, seeded."""
    policy, draws = make(CategoricalPolicy, discrete_spec(4)), 20_000
    observation = np.repeat(observations(policy.spec, 1), draws, axis=0)
    action = policy.act(observation, np.random.default_rng(0)).action
    p = policy(torch.from_numpy(observation[:1])).exp().numpy()[0]
    share = np.bincount(action, minlength=4) / draws
    assert (np.abs(share - p) < 4 * np.sqrt(p * (1 - p) / draws)).all()


def test_pixels_are_divided_by_255() -> None:
    policy = make(GreedyQPolicy, pixel_spec())
    image = torch.full((1, *policy.spec.observation_shape), 255, dtype=torch.uint8)
    features = policy.torso.dense(policy.torso.convolutions(torch.ones(image.shape)))
    assert torch.equal(policy(image), policy.advantage(features))


# --- tanh of a Gaussian -------------------------------------------------------------------------


def density(action: np.ndarray, mean: float, std: float) -> np.ndarray:
    """Our density of a one-dimensional squashed action: the noise that leads to it, and back."""
    with double_precision():
        noise = torch.from_numpy((np.arctanh(action) - mean) / std)[:, None]
        means = torch.full_like(noise, mean)
        squashed, log_prob = squash(means, torch.full_like(noise, math.log(std)), noise)
        np.testing.assert_allclose(squashed[:, 0].numpy(), action, rtol=1e-9, atol=1e-12)
        return log_prob.exp().numpy()


@pytest.mark.parametrize("mean", [-0.8, 0.0, 1.5])
@pytest.mark.parametrize("std", [0.1, 0.5, 1.0])
def test_squashed_density_integrates_to_one(mean: float, std: float) -> None:
    """Gauss-Legendre over (-1, 1); up to a deviation of 1 the density ends smoothly at +-1, and a
    thousand nodes leave less than 1e-6."""
    nodes, weights = np.polynomial.legendre.leggauss(1000)
    assert (density(nodes, mean, std) * weights).sum() == pytest.approx(1.0, abs=1e-6)


def test_squashed_density_is_the_slope_of_the_distribution_function() -> None:
    """P(a < x) = Phi((atanh x - m) / s), by central differences, whose error is below 1e-6."""
    mean, std, step = 0.3, 0.7, 1e-5
    x = np.linspace(-0.95, 0.95, 20)

    def distribution(at: np.ndarray) -> np.ndarray:
        z = (np.arctanh(at) - mean) / std
        return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])

    slope = (distribution(x + step) - distribution(x - step)) / (2 * step)
    np.testing.assert_allclose(density(x, mean, std), slope, rtol=1e-6)


def test_log_density_of_several_dimensions_by_change_of_variables() -> None:
    """sum_i log N(atanh a_i) - log(1 - a_i^2), from the actions alone."""
    with double_precision():
        policy = make(SquashedGaussianPolicy, continuous_spec(actions=2))
        observation = torch.from_numpy(observations(policy.spec).astype(np.float64))
        noise = torch.randn(SIZE, 2, generator=torch.Generator().manual_seed(0))
        action, log_prob = policy.sample(observation, noise)
        mean, log_std = (part.numpy() for part in policy(observation))
    a, std = action.numpy(), np.exp(log_std)
    normal = np.exp(-0.5 * ((np.arctanh(a) - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    assert log_prob.shape == (SIZE,)
    # atanh of an action near 1 loses some digits: 1e-7 in place of 1e-9.
    np.testing.assert_allclose(
        log_prob.numpy(), np.log(normal / (1 - a**2)).sum(1), rtol=1e-7, atol=1e-7
    )


@pytest.mark.parametrize("u", [-60.0, -20.0, 20.0, 60.0])
def test_squashed_log_density_is_finite_where_the_action_saturates(u: float) -> None:
    """log(1 - tanh(u)^2) goes as 2 log 2 - 2 |u|, where 1 - tanh(u)^2 itself is 0 in float32."""
    mean = torch.tensor([[u]], requires_grad=True)
    _, log_prob = squash(mean, torch.zeros(1, 1), torch.zeros(1, 1))
    log_prob.sum().backward()
    expected = -0.5 * math.log(2 * math.pi) - (2 * math.log(2) - 2 * abs(u))
    assert float(log_prob.detach()) == pytest.approx(expected, rel=1e-6)
    assert mean.grad.item() == pytest.approx(2 * math.copysign(1, u), rel=1e-6)


def test_squashed_gaussian_samples_around_its_mean() -> None:
    policy = make(SquashedGaussianPolicy, continuous_spec())
    observation = observations(policy.spec)
    mean, log_std = np.split(mlp_of(policy, "relu")(observation), 2, axis=1)
    noise = np.random.default_rng(2).standard_normal(mean.shape, dtype=np.float32)
    sampled = policy.act(observation, np.random.default_rng(2)).action
    np.testing.assert_allclose(sampled, np.tanh(mean + np.exp(log_std) * noise), atol=1e-6)
    np.testing.assert_allclose(policy.act(observation, None).action, np.tanh(mean), atol=1e-6)


@pytest.mark.parametrize(("asked", "given"), [(50.0, 2.0), (-50.0, -20.0), (0.5, 0.5)])
def test_log_deviation_is_clamped(asked: float, given: float) -> None:
    policy = make(SquashedGaussianPolicy, continuous_spec())
    policy.head.weight.zero_()
    policy.head.bias[2:] = asked
    _, log_std = policy(torch.zeros(1, 3))
    assert log_std.tolist() == [[given, given]]


# --- pi(a|s) of policy gradients ----------------------------------------------------------------


def reference_of(policy: StochasticPolicy) -> GaussianReference | CategoricalsReference:
    network = mlp_of(policy, "tanh")
    if policy.log_std is None:
        return CategoricalsReference(network, policy.spec.action_sizes)
    return GaussianReference(network, policy.log_std.numpy().copy())


@pytest.mark.parametrize(
    "spec", [continuous_spec(), discrete_spec(), multi_discrete_spec()], ids=lambda s: s.action_kind
)
def test_log_prob_and_entropy_equal_the_reference(spec: EnvSpec) -> None:
    with double_precision():
        policy = make(StochasticPolicy, spec)
        observation = observations(spec).astype(np.float64)
        action = spec.random_actions(SIZE, np.random.default_rng(3))
        log_prob, entropy = policy.log_prob_and_entropy(
            torch.from_numpy(observation), torch.from_numpy(action)
        )
    assert_close(log_prob, reference_of(policy).log_prob(observation, action))
    assert_close(entropy, reference_of(policy).entropy(observation))


def test_joint_probabilities_of_all_choices_sum_to_one_and_give_the_entropy() -> None:
    """Over every combination of the two choices: H = -sum p log p needs no independence."""
    with double_precision():
        policy = make(StochasticPolicy, multi_discrete_spec((3, 2)))
        joint = torch.tensor(list(itertools.product(range(3), range(2))))
        observation = torch.randn(1, 3).expand(len(joint), -1)
        log_prob, entropy = policy.log_prob_and_entropy(observation, joint)
    assert float(log_prob.exp().sum()) == pytest.approx(1.0, rel=1e-12)
    assert float(entropy[0]) == pytest.approx(float(-(log_prob.exp() * log_prob).sum()), rel=1e-12)


def test_gaussian_density_integrates_to_one_and_gives_the_entropy() -> None:
    """On a grid over ten deviations: the trapezoid rule is exact to rounding for a Gaussian."""
    with double_precision():
        policy = make(StochasticPolicy, continuous_spec(actions=1))
        std = float(policy.log_std.exp())
        observation = torch.zeros(4001, 3)
        grid = float(policy(observation[:1])) + std * torch.linspace(-10, 10, 4001)
        log_prob, entropy = policy.log_prob_and_entropy(observation, grid[:, None])
    step = float(grid[1] - grid[0])
    assert float(log_prob.exp().sum() * step) == pytest.approx(1.0, rel=1e-9)
    surprise = -(log_prob.exp() * log_prob).sum() * step
    assert float(entropy[0]) == pytest.approx(float(surprise), rel=1e-9)


@pytest.mark.parametrize("spec", STOCHASTIC.values(), ids=STOCHASTIC)
def test_recorded_log_prob_is_that_of_the_recorded_action(spec: EnvSpec) -> None:
    """But for rounding: the likelihood ratio of an untouched policy is one."""
    policy, observation = make(StochasticPolicy, spec), observations(spec)
    for rng in (None, np.random.default_rng(5)):
        extras = policy.act(observation, rng).extras
        log_prob, _ = policy.log_prob_and_entropy(
            torch.from_numpy(observation), torch.from_numpy(extras["policy_action"])
        )
        # Float32, and sums of at most eight products of about one in another order.
        np.testing.assert_allclose(log_prob.numpy(), extras["log_prob"], rtol=1e-5, atol=1e-5)


def test_bounded_gaussian_executes_the_clip_and_records_the_sample() -> None:
    policy = make(StochasticPolicy, continuous_spec())
    policy.log_std.fill_(1.0)
    acted = policy.act(observations(policy.spec), np.random.default_rng(0))
    recorded = acted.extras["policy_action"]
    assert np.abs(recorded).max() > 1
    np.testing.assert_array_equal(acted.action, np.clip(recorded, -1, 1))


def test_unbounded_gaussian_executes_its_sample() -> None:
    policy = make(StochasticPolicy, continuous_spec(bounded=False))
    policy.log_std.fill_(1.0)
    acted = policy.act(observations(policy.spec), np.random.default_rng(0))
    assert np.abs(acted.action).max() > 1
    np.testing.assert_array_equal(acted.action, acted.extras["policy_action"])


def test_gaussian_samples_have_its_mean_and_deviation() -> None:
    """Four standard errors of 20 000 samples, seeded."""
    policy, draws = make(StochasticPolicy, continuous_spec()), 20_000
    observation = np.repeat(observations(policy.spec, 1), draws, axis=0)
    samples = policy.act(observation, np.random.default_rng(0)).extras["policy_action"]
    mean, std = policy(torch.from_numpy(observation[:1]))[0].numpy(), policy.log_std.exp().numpy()
    assert (np.abs(samples.mean(0) - mean) < 4 * std / math.sqrt(draws)).all()
    assert (np.abs(samples.std(0) - std) < 4 * std / math.sqrt(2 * draws)).all()


@pytest.mark.parametrize("spec", [discrete_spec(4), multi_discrete_spec((3, 2))])
def test_categorical_samples_have_its_probabilities(spec: EnvSpec) -> None:
    """Four standard errors of 20 000 samples, seeded, for each value of each choice."""
    policy, draws = make(StochasticPolicy, spec), 20_000
    observation = np.repeat(observations(spec, 1), draws, axis=0)
    action = policy.act(observation, np.random.default_rng(0)).action.reshape(draws, -1)
    logits = mlp_of(policy, "tanh")(observation[:1])[0]
    start = 0
    for column, size in enumerate(spec.action_sizes):
        p = np.exp(logits[start : start + size])
        p /= p.sum()
        share = np.bincount(action[:, column], minlength=size) / draws
        assert (np.abs(share - p) < 4 * np.sqrt(p * (1 - p) / draws)).all()
        start += size


@pytest.mark.parametrize("spec", [discrete_spec(4), multi_discrete_spec((3, 2))])
def test_greedy_categorical_takes_the_likeliest(spec: EnvSpec) -> None:
    policy, observation = make(StochasticPolicy, spec), observations(spec)
    logits = np.split(
        mlp_of(policy, "tanh")(observation), np.cumsum(spec.action_sizes)[:-1], axis=1
    )
    expected = np.stack([part.argmax(1) for part in logits], axis=1)
    action = policy.act(observation, None).action
    np.testing.assert_array_equal(action.reshape(SIZE, -1), expected)


def test_fresh_policy_is_nearly_uniform_and_starts_at_the_configured_deviation() -> None:
    categorical = StochasticPolicy(StochasticPolicy.Config(), discrete_spec(4))
    gaussian = StochasticPolicy(StochasticPolicy.Config(initial_log_std=-0.5), continuous_spec())
    observation = torch.from_numpy(observations(continuous_spec()))
    with torch.no_grad():
        spread = categorical(observation).softmax(-1) - 0.25
        assert spread.abs().max() < 0.05
        assert gaussian(observation).abs().max() < 0.1
        assert gaussian.log_std.tolist() == [-0.5, -0.5]


@pytest.mark.parametrize("spec", STOCHASTIC.values(), ids=STOCHASTIC)
def test_divergence_is_that_of_torchs_own_distributions(spec: EnvSpec) -> None:
    old, new = make(StochasticPolicy, spec), make(StochasticPolicy, spec)
    scramble(new, seed=1)
    seen = torch.from_numpy(observations(spec))
    before, after = old.distribution(seen), new.distribution(seen)

    def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        if spec.action_kind == "continuous":
            normals = [
                torch.distributions.Normal(mean, log_std.exp())
                for mean, log_std in (p.split(spec.action_size, -1), q.split(spec.action_size, -1))
            ]
            return torch.distributions.kl_divergence(*normals).sum(-1)
        pairs = zip(p.split(spec.action_sizes, -1), q.split(spec.action_sizes, -1), strict=True)
        return sum(
            torch.distributions.kl_divergence(
                *(torch.distributions.Categorical(logits=logits) for logits in pair)
            )
            for pair in pairs
        )

    divergence = old.divergence(before, after)
    assert divergence.shape == (SIZE,)
    # Float32: sums of a few terms of about one.
    torch.testing.assert_close(divergence, kl(before, after), rtol=1e-4, atol=1e-5)
    assert (divergence > 0).all()
    torch.testing.assert_close(old.divergence(before, before), torch.zeros(SIZE), rtol=0, atol=1e-6)
