"""One update of Option-Critic against the NumPy reference, and how its policy carries options.

Both sides run in float64; the tolerance is explained in `reference.from_torch`.
"""

from __future__ import annotations

from dataclasses import replace

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
)
from reference.option_critic import Network, OptionCriticReference
from reference.samples import continuous_spec, discrete_spec, transitions

from learner.algorithms.option_critic import (
    OptionCritic,
    State,
    critic_loss,
    policy_loss,
    q_target,
    termination_loss,
    usage,
)
from learner.optimization import adam, gradient_step
from learner.tensors import TensorBatch, to_tensors
from repertory.config import validate
from repertory.errors import UsageError
from repertory.policies.options import OptionsPolicy, of_option
from repertory.schedule import Schedule
from repertory.specs import EnvSpec
from repertory.types import Array, Sample

SEED, SIZE, OPTIONS = 5, 18, 3
CPU = torch.device("cpu")
SPECS = {"discrete": discrete_spec(4), "continuous": continuous_spec(2)}
SWITCHES = {
    "default": {},
    "no importance ratios": {"rho_clip": None},
    "ratios up to two": {"rho_clip": 2.0},
    "more entropy": {"entropy_coefficient": 0.7},
    "a wide margin": {"termination_margin": 0.8},
    "clipped gradients": {"max_grad_norm": 0.05},
    "target moved a little, every second update": {"tau": 0.1, "target_period": 2},
    "one option": {"options": 1},
}


@pytest.fixture(autouse=True)
def _float64():
    with double_precision():
        yield


def make(actions: str, **switches: object) -> tuple[OptionCritic, State, OptionCriticReference]:
    """Our learner and the reference with the same weights; the target differs from the network."""
    settings = {"lr": 1e-2, "options": OPTIONS, "target_period": 1, "tau": 0.3} | switches
    config = OptionCritic.Config(hidden_sizes=(8, 7), **settings)
    algorithm = OptionCritic(config, device=CPU, seed=SEED)
    state = algorithm.initial_state(SPECS[actions])
    for seed, module in ((0, state.policy), (3, state.target)):
        scramble(module, seed)
    reference = OptionCriticReference(
        online=network_of(state.policy),
        frozen=network_of(state.target),
        options=config.options,
        lr=config.lr,
        tau=config.tau,
        target_period=config.target_period,
        margin=config.termination_margin,
        entropy_coefficient=config.entropy_coefficient,
        rho_clip=config.rho_clip,
        max_grad_norm=config.max_grad_norm,
    )
    return algorithm, state, reference


def network_of(policy: OptionsPolicy) -> Network:
    return Network(
        torso=mlp_of(policy.torso, "relu", "relu"),
        q=mlp_of(policy.q, "identity"),
        termination=mlp_of(policy.termination, "identity"),
        intra_option=mlp_of(policy.intra_option, "identity"),
        log_std=None if policy.log_std is None else policy.log_std.detach().numpy().copy(),
    )


def arrays_of(policy: OptionsPolicy, *, gradient: bool) -> list[Array]:
    """In the order of the reference."""
    read = linear_gradients if gradient else linear_parameters
    parts = (policy.torso, policy.q, policy.termination, policy.intra_option)
    arrays = [array for part in parts for array in read(part)]
    if policy.log_std is not None:
        free = policy.log_std.grad if gradient else policy.log_std
        arrays.append(free.detach().numpy().copy())
    return arrays


def sample_of(actions: str, seed: int = 0, options: int = OPTIONS) -> Sample:
    """Options of all kinds, and some steps without one."""
    spec, rng = SPECS[actions], np.random.default_rng(100 + seed)
    sample = transitions(spec, SIZE, seed)
    action = sample.batch.action
    if actions == "continuous":
        action = action + rng.normal(size=action.shape)  # as sampled, beyond the bounds
    extras = {
        "option": rng.integers(1, options + 1, size=SIZE) * (np.arange(SIZE) % 5 != 3),
        "beginning": rng.random(SIZE) < 0.4,
        "log_prob": rng.normal(loc=-1.5, size=SIZE),
        "policy_action": action,
    }
    return replace(sample, batch=replace(sample.batch, extras=extras))


def tensors_of(state: State, sample: Sample) -> TensorBatch:
    return to_tensors(sample, state.policy.normalizer, CPU, learn_moments=False)


def index_of(batch: TensorBatch) -> torch.Tensor:
    return (batch.extras["option"] - 1).clamp(min=0)


@pytest.mark.parametrize("actions", SPECS)
@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_three_updates_equal_the_reference(switches: dict[str, object], actions: str) -> None:
    algorithm, state, reference = make(actions, **switches)
    for step in range(3):
        sample = sample_of(actions, step, algorithm.config.options)
        batch = tensors_of(state, sample)
        target = q_target(state, batch, index_of(batch))
        result = algorithm.update(state, sample)
        expected = reference.update(sample)

        assert_close(target, expected.target, "target")
        assert_close(result.priorities, expected.priorities, "priorities")
        for name, value in (
            ("critic_loss", expected.critic_loss),
            ("policy_loss", expected.policy_loss),
            ("termination_loss", expected.termination_loss),
            ("grad_norm", expected.norm),
        ):
            assert_close(result.metrics[name], value, name)
        assert_all_close(arrays_of(state.policy, gradient=True), expected.gradients, "gradient")
        assert_all_close(
            arrays_of(state.policy, gradient=False), reference.online.parameters, "after Adam"
        )
        assert_all_close(
            arrays_of(state.target, gradient=False), reference.frozen.parameters, "target network"
        )


@pytest.mark.parametrize("actions", SPECS)
def test_the_example_has_ratios_on_both_sides_of_the_clip(actions: str) -> None:
    """Otherwise a clip that is left out would go unnoticed above."""
    _, state, _ = make(actions)
    batch = tensors_of(state, sample_of(actions))
    heads = state.policy(batch.observation)
    log_prob, _ = state.policy.log_prob_and_entropy(
        heads, index_of(batch), batch.extras["policy_action"]
    )
    above = int((log_prob > batch.extras["log_prob"]).sum())
    assert 0 < above < SIZE


@pytest.mark.parametrize("part", ["torso", "q", "termination", "intra_option"])
def test_no_part_of_the_online_network_is_in_the_target(part: str) -> None:
    """The trap: the target's heads fed with online features."""
    _, state, _ = make("discrete")
    batch = tensors_of(state, sample_of("discrete"))
    before = q_target(state, batch, index_of(batch))
    scramble(getattr(state.policy, part), 77)
    assert torch.equal(q_target(state, batch, index_of(batch)), before)


@pytest.mark.parametrize("part", ["torso", "q", "termination"])
def test_features_values_and_terminations_of_the_target_network_are_in_the_target(
    part: str,
) -> None:
    _, state, _ = make("discrete")
    batch = tensors_of(state, sample_of("discrete"))
    before = q_target(state, batch, index_of(batch))
    scramble(getattr(state.target, part), 77)
    changed = q_target(state, batch, index_of(batch)) != before
    assert changed.any()
    assert not changed[batch.discount == 0].any()


def test_target_by_hand() -> None:
    """One row, two options: 1 + 0.5 (0.75 * 4 + 0.25 * 8) = 3.5."""
    _, state, _ = make("discrete", options=2)
    for module in state.target.parameters():
        torch.nn.init.zeros_(module)
    with torch.no_grad():
        state.target.q.bias.copy_(torch.tensor([4.0, 8.0]))
        state.target.termination.bias.copy_(torch.logit(torch.tensor([0.25, 0.5])))
    batch = TensorBatch(
        observation=torch.ones(1, 3),
        action=torch.zeros(1, dtype=torch.int64),
        reward=torch.tensor([1.0]),
        discount=torch.tensor([0.5]),
        next_observation=torch.ones(1, 3),
        weights=torch.ones(1),
        extras={},
    )
    assert_close(q_target(state, batch, torch.tensor([0])), [3.5])


def test_target_is_the_reward_where_the_episode_terminated() -> None:
    _, state, _ = make("discrete")
    batch = tensors_of(state, sample_of("discrete"))
    target = q_target(state, batch, index_of(batch))
    terminated = batch.discount == 0
    assert 0 < int(terminated.sum()) < SIZE
    assert torch.equal(target == batch.reward, terminated)


@pytest.mark.parametrize("actions", SPECS)
def test_one_option_is_actor_critic(actions: str) -> None:
    """y = r + discount Q'(s'), and whether the option ends changes nothing but its own margin."""
    _, state, _ = make(actions, options=1, rho_clip=None, termination_margin=0.0)
    config = OptionCritic.Config(options=1, rho_clip=None, termination_margin=0.0)
    batch = tensors_of(state, sample_of(actions, options=1))
    index = torch.zeros(SIZE, dtype=torch.int64)
    with torch.no_grad():
        value = state.target.q(state.target.torso(batch.next_observation))[:, 0]
    target = q_target(state, batch, index)
    assert_close(target, batch.reward + batch.discount * value)

    heads, next_heads = state.policy(batch.observation), state.policy(batch.next_observation)
    advantage = (target - heads.q[:, 0]).detach()
    loss, entropy = policy_loss(state, batch, heads, index, advantage, batch.weights, config)
    ending = termination_loss(next_heads, index, batch.discount, batch.weights, config)
    assert float(ending.detach()) == 0.0
    parameters = heads.parameters[:, 0]
    distribution = (
        torch.distributions.Categorical(logits=parameters)
        if actions == "discrete"
        else torch.distributions.Independent(
            torch.distributions.Normal(parameters, state.policy.log_std[0].exp()), 1
        )
    )
    log_prob = distribution.log_prob(batch.extras["policy_action"])
    actor = -(batch.weights * (log_prob * advantage + 0.01 * distribution.entropy())).mean()
    assert_close(loss, actor.detach())
    assert_close(entropy, distribution.entropy().detach())
    ours = torch.autograd.grad(loss + ending, state.policy.intra_option.weight, retain_graph=True)
    theirs = torch.autograd.grad(actor, state.policy.intra_option.weight)
    assert_close(ours[0], theirs[0].numpy())


def test_the_score_of_a_gaussian_does_not_vanish() -> None:
    """The trap: a reparametrised sample would cancel the mean's gradient."""
    algorithm, state, _ = make("continuous")
    algorithm.update(state, sample_of("continuous"))
    assert state.policy.intra_option.weight.grad.abs().max() > 1e-3


def test_steps_without_an_option_weigh_nothing() -> None:
    sample = sample_of("discrete")
    nobody = sample.batch.extras["option"] == 0
    assert 0 < nobody.sum() < SIZE
    reward = np.where(nobody, 1e3, sample.batch.reward)
    other = replace(sample, batch=replace(sample.batch, reward=reward))
    results = []
    for given in (sample, other):
        algorithm, state, _ = make("discrete")
        algorithm.update(state, given)
        results.append(arrays_of(state.policy, gradient=True))
    for left, right in zip(*results, strict=True):
        np.testing.assert_array_equal(left, right)


def test_an_option_ends_sooner_where_another_is_better_and_later_where_it_is_best() -> None:
    _, state, _ = make("discrete", options=2)
    batch = tensors_of(state, sample_of("discrete"))
    observation = batch.next_observation
    config = OptionCritic.Config(options=2, termination_margin=0.01)
    q = state.policy(observation).q.detach()
    best = q.argmax(-1)
    assert 0 < int(best.sum()) < SIZE
    optimizer = adam(1e-3, state.policy.termination)
    for index, rises in ((best, False), (1 - best, True)):
        before = of_option(state.policy(observation).termination, index).detach()
        loss = termination_loss(
            state.policy(observation), index, torch.ones(SIZE), torch.ones(SIZE), config
        )
        gradient_step(optimizer, loss)
        after = of_option(state.policy(observation).termination, index).detach()
        assert bool(((after - before).mean() > 0) == rises)


def test_shapes_never_broadcast() -> None:
    algorithm, state, _ = make("discrete")
    batch = tensors_of(state, sample_of("discrete"))
    index, heads = index_of(batch), state.policy(batch.observation)
    q = of_option(heads.q, index)
    assert q.shape == q_target(state, batch, index).shape == (SIZE,)
    assert algorithm.update(state, sample_of("discrete")).priorities.shape == (SIZE,)
    with pytest.raises(AssertionError):
        critic_loss(q, q.unsqueeze(-1), batch.weights)
    with pytest.raises(AssertionError):
        policy_loss(state, batch, heads, index, q.unsqueeze(-1), batch.weights, algorithm.config)
    with pytest.raises(AssertionError):
        termination_loss(
            heads, index, batch.discount, batch.weights.unsqueeze(-1), algorithm.config
        )


def test_usage_by_hand() -> None:
    """Of four steps with an option: one half, one quarter, none, one quarter."""
    shares = usage(torch.tensor([0, 1, 1, 2, 0, 4]), options=4)
    assert [float(shares[f"option_share_{k}"]) for k in (1, 2, 3, 4)] == [0.5, 0.25, 0.0, 0.25]
    expected = 0.5 * np.log(2) + 2 * 0.25 * np.log(4)
    assert float(shares["option_entropy"]) == pytest.approx(expected, rel=1e-6)  # of float32
    assert float(usage(torch.zeros(3, dtype=torch.int64), 4)["option_entropy"]) == 0.0


@pytest.mark.parametrize(("setting", "value"), [("n_step", 3), ("own_share", 0.5)])
def test_what_would_mix_options_up_is_refused(setting: str, value: float) -> None:
    learner = {"algorithm": "option_critic", setting: value}
    with pytest.raises(UsageError, match=setting):
        validate({"env": {"id": "CartPole-v1"}, "learners": {"oc": learner}})


# The policy


def policy_of(spec: EnvSpec, epsilon: Schedule | None = None, options: int = 4) -> OptionsPolicy:
    torch.set_default_dtype(torch.float32)
    config = OptionsPolicy.Config(
        hidden_sizes=(8,), options=options, option_epsilon=epsilon or Schedule(start=0.0)
    )
    policy = OptionsPolicy(config, spec)
    scramble(policy, 1)
    return policy.requires_grad_(False)


def set_terminations(policy: OptionsPolicy, logit: float) -> None:
    policy.termination.weight.zero_()
    policy.termination.bias.fill_(logit)


def observations(rows: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(rows, 3)).astype(np.float32)


def test_where_it_begins_the_best_option_is_chosen() -> None:
    policy, seen = policy_of(SPECS["discrete"]), observations(50)
    acted = policy.act(seen, None)
    best = policy(torch.from_numpy(seen)).q.argmax(-1).numpy() + 1
    np.testing.assert_array_equal(acted.extras["option"], best)
    assert acted.extras["beginning"].all()
    assert len(np.unique(best)) > 1


def test_an_option_acts_until_it_ends() -> None:
    policy, seen = policy_of(SPECS["discrete"]), observations(50)
    before = {"option": np.random.default_rng(2).integers(1, 5, size=50)}
    for rng in (None, np.random.default_rng(0)):
        set_terminations(policy, -50.0)
        acted, after = policy.act_remembering(seen, before, 0, rng)
        np.testing.assert_array_equal(acted.extras["option"], before["option"])
        np.testing.assert_array_equal(after["option"], before["option"])
        assert not acted.extras["beginning"].any()

        set_terminations(policy, 50.0)
        acted, after = policy.act_remembering(seen, before, 0, rng)
        best = policy(torch.from_numpy(seen)).q.argmax(-1).numpy() + 1
        np.testing.assert_array_equal(after["option"], best)
        assert acted.extras["beginning"].all()


def test_each_row_ends_by_the_termination_of_its_own_option() -> None:
    policy, seen = policy_of(SPECS["discrete"]), observations(60)
    policy.termination.weight.zero_()
    policy.termination.bias.copy_(torch.tensor([50.0, -50.0, 50.0, -50.0]))
    before = {"option": np.arange(60) % 4 + 1}
    acted, _ = policy.act_remembering(seen, before, 0, np.random.default_rng(0))
    np.testing.assert_array_equal(acted.extras["beginning"], before["option"] % 2 == 1)


def test_an_option_ends_as_often_as_its_probability_says() -> None:
    policy = policy_of(SPECS["discrete"])
    set_terminations(policy, float(torch.logit(torch.tensor(0.3))))
    before = {"option": np.ones(20_000, np.int64)}
    acted, _ = policy.act_remembering(observations(20_000), before, 0, np.random.default_rng(0))
    # Five deviations of a binomial share: sqrt(.3 * .7 / 20000) = .0032.
    assert acted.extras["beginning"].mean() == pytest.approx(0.3, abs=0.017)


def test_epsilon_follows_its_schedule_and_never_falls_below_its_floor() -> None:
    policy = policy_of(SPECS["discrete"], Schedule(start=1.0, final=0.2, steps=100))
    policy.q.weight.zero_()
    policy.q.bias.copy_(torch.tensor([0.0, 0.0, 1.0, 0.0]))
    seen, fresh = observations(20_000), {"option": np.zeros(20_000, np.int64)}
    for env_steps, epsilon in ((0, 1.0), (50, 0.6), (100, 0.2), (5000, 0.2)):
        rng = np.random.default_rng(env_steps)
        acted, _ = policy.act_remembering(seen, fresh, env_steps, rng)
        shares = np.bincount(acted.extras["option"], minlength=5)[1:] / 20_000
        expected = np.full(4, epsilon / 4)
        expected[2] += 1 - epsilon
        np.testing.assert_allclose(shares, expected, atol=0.018)  # five deviations at one half


def test_without_a_generator_nothing_is_random_whatever_the_schedule_says() -> None:
    policy = policy_of(SPECS["discrete"], Schedule(start=1.0, final=0.5, steps=100))
    seen, before = observations(50), {"option": np.arange(50) % 5}
    first, after = policy.act_remembering(seen, before, 0, None)
    again, _ = policy.act_remembering(seen, before, 99, None)
    np.testing.assert_array_equal(first.action, again.action)
    np.testing.assert_array_equal(after["option"], again.extras["option"])


@pytest.mark.parametrize("actions", SPECS)
def test_what_is_recorded_is_what_the_option_did(actions: str) -> None:
    spec = SPECS[actions]
    policy, seen = policy_of(spec), observations(200)
    acted, _ = policy.act_remembering(
        seen, {"option": np.arange(200) % 5}, 0, np.random.default_rng(0)
    )
    assert set(acted.extras) == set(policy.extras)
    for name, column in policy.extras.items():
        assert acted.extras[name].dtype == np.dtype(column.dtype), name
        assert acted.extras[name].shape == (200, *column.shape), name
    index = torch.from_numpy(acted.extras["option"] - 1)
    log_prob, _ = policy.log_prob_and_entropy(
        policy(torch.from_numpy(seen)), index, torch.from_numpy(acted.extras["policy_action"])
    )
    np.testing.assert_array_equal(acted.extras["log_prob"], log_prob.numpy())
    if actions == "continuous":
        recorded = acted.extras["policy_action"]
        assert (np.abs(recorded) > 1).any()
        np.testing.assert_array_equal(acted.action, np.clip(recorded, -1, 1))


def test_a_discrete_option_is_sampled_by_its_own_probabilities() -> None:
    policy = policy_of(SPECS["discrete"])
    set_terminations(policy, -50.0)
    seen = np.repeat(observations(1), 20_000, 0)
    acted, _ = policy.act_remembering(
        seen, {"option": np.full(20_000, 3)}, 0, np.random.default_rng(0)
    )
    shares = np.bincount(acted.action, minlength=4) / 20_000
    logits = policy(torch.from_numpy(seen[:1])).parameters[0, 2]
    np.testing.assert_allclose(shares, logits.softmax(-1).numpy(), atol=0.018)
