"""Exploration: schedules with a floor, noise in our units, epsilon-greedy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.exploration.epsilon_greedy import EpsilonGreedy
from actors.exploration.gaussian import Gaussian
from actors.exploration.none import NoExploration
from actors.exploration.ornstein_uhlenbeck import OrnsteinUhlenbeck
from repertory.config import EnvConfig
from repertory.envs import probe
from repertory.errors import UsageError
from repertory.parts import SHORT_NAMES, lookup
from repertory.protocols import Exploration
from repertory.schedule import Schedule
from repertory.specs import EnvSpec


def explored_by(part: Exploration, action: np.ndarray, env_steps: int, rng) -> np.ndarray:
    """In all copies at once."""
    return part.explore(action, np.arange(len(action)), env_steps, rng)


def echo_spec(space: str) -> EnvSpec:
    return probe(EnvConfig(id="scripted_envs:ActionEcho", kwargs={"space": space}))


BOX, DISCRETE, MULTI = (
    echo_spec(space) for space in ("asymmetric", "discrete_from_5", "multi_discrete")
)


# Schedules


def test_linear_schedule_by_hand():
    schedule = Schedule(start=1.0, final=0.2, steps=100)
    assert [schedule.at(t) for t in (0, 25, 50)] == pytest.approx([1.0, 0.8, 0.6])


def test_exponential_schedule_by_hand():
    schedule = Schedule(start=1.0, final=0.01, steps=100, shape="exponential")
    assert [schedule.at(t) for t in (0, 50)] == pytest.approx([1.0, 0.1])


@pytest.mark.parametrize("shape", ["linear", "exponential"])
@pytest.mark.parametrize("final", [0.0, 0.05])
def test_schedule_reaches_its_floor_and_stays_there(shape, final):
    schedule = Schedule(start=1.0, final=final, steps=1000, shape=shape)
    assert [schedule.at(t) for t in (1000, 1001, 5000, 10**9)] == pytest.approx([final] * 4)


@given(
    start=st.floats(0.01, 10),
    share=st.floats(0, 1),
    steps=st.integers(1, 10_000),
    shape=st.sampled_from(["linear", "exponential"]),
    t=st.integers(0, 20_000),
)
@settings(max_examples=60, deadline=None)
def test_schedule_falls_and_never_below_its_floor(start, share, steps, shape, t):
    schedule = Schedule(start=start, final=share * start, steps=steps, shape=shape)
    # Powers and sums in float64: a few units in the last place.
    slack = 1e-12 * start
    assert (
        share * start - slack <= schedule.at(t + 1) <= schedule.at(t) + slack <= start + 2 * slack
    )


def test_schedule_without_steps_stays_at_its_start():
    assert [Schedule(start=0.3).at(t) for t in (0, 1, 10**6)] == [0.3] * 3


# Gaussian


def gaussian(**std) -> Gaussian:
    return Gaussian(Gaussian.Config(std=std), BOX, copies=1)


def test_gaussian_noise_has_its_deviation_in_our_units():
    action = np.zeros((50_000, 2), np.float32)
    explored = explored_by(gaussian(start=0.1), action, 0, np.random.default_rng(0))
    # Not clipped at 10 deviations. The deviation's own is .1/sqrt(2 * 50000) = .0003: five.
    np.testing.assert_allclose(explored.std(0), 0.1, atol=0.0016)
    np.testing.assert_allclose(explored.mean(0), 0, atol=5 * 0.1 / np.sqrt(50_000))


def test_gaussian_noise_moves_each_dimension_by_its_own_range():
    action = np.zeros((50_000, 2), np.float32)
    explored = explored_by(gaussian(start=0.1), action, 0, np.random.default_rng(0))
    taken = BOX.to_env_action(explored)  # ranges of 1 and 4: half of each times .1
    np.testing.assert_allclose(taken.std(0), [0.05, 0.2], rtol=0.016)


def test_gaussian_noise_is_clipped_to_the_range():
    action = np.ones((1000, 2), np.float32)
    explored = explored_by(gaussian(start=5.0), action, 0, np.random.default_rng(0))
    assert (explored.min(), explored.max()) == (-1, 1)
    assert explored.dtype == np.float32


def test_gaussian_noise_follows_its_schedule():
    noise, action = gaussian(start=0.2, final=0.0, steps=10), np.zeros((2000, 2), np.float32)
    rng = np.random.default_rng(0)
    deviations = [explored_by(noise, action, t, rng).std() for t in (0, 5, 10, 5000)]
    np.testing.assert_allclose(deviations, [0.2, 0.1, 0, 0], rtol=0.06)  # 5/sqrt(2 * 4000)


def test_gaussian_noise_leaves_the_policys_action_as_it_is():
    action = np.zeros((3, 2), np.float32)
    explored_by(gaussian(start=0.5), action, 0, np.random.default_rng(0))
    assert not action.any()


# Ornstein-Uhlenbeck


def ornstein_uhlenbeck(copies: int = 1, **config) -> OrnsteinUhlenbeck:
    return OrnsteinUhlenbeck(OrnsteinUhlenbeck.Config(**config), BOX, copies)


def noise_of(process: OrnsteinUhlenbeck, copies: int, steps: int, seed: int = 0) -> np.ndarray:
    """[steps, copies, A]: what is added to an action of zero."""
    rng, action = np.random.default_rng(seed), np.zeros((copies, 2), np.float32)
    return np.stack([explored_by(process, action, t, rng) for t in range(steps)])


def test_ornstein_uhlenbeck_first_step_is_its_kick():
    process = ornstein_uhlenbeck(std={"start": 0.3}, dt=0.25)
    kick = np.random.default_rng(0).standard_normal((1, 2), dtype=np.float32)
    # x = 0 + .3 sqrt(.25) N, in float32
    np.testing.assert_allclose(noise_of(process, 1, 1)[0], 0.3 * 0.5 * kick, rtol=1e-6)


def test_ornstein_uhlenbeck_remembers():
    process = ornstein_uhlenbeck(copies=500, std={"start": 0.1}, theta=0.2, dt=0.5)
    noise = noise_of(process, 500, 400)[100:].astype(np.float64)  # stationary after 100 steps
    # x' = (1 - theta dt) x + kick: lag-1 correlation 1 - .1 = .9, whatever the deviation.
    correlation = (noise[1:] * noise[:-1]).sum() / (noise[:-1] ** 2).sum()
    # 299 * 1000 pairs: its deviation is sqrt((1 - .9^2) / 299000) = .0008; five of them.
    assert correlation == pytest.approx(0.9, abs=0.004)


def test_ornstein_uhlenbeck_spreads_as_far_as_the_formula_says():
    process = ornstein_uhlenbeck(copies=2000, std={"start": 0.1}, theta=0.2, dt=0.5)
    noise = noise_of(process, 2000, 101)[-1].astype(np.float64)
    # Stationary deviation: .1 sqrt(.5) / sqrt(1 - .9^2) = .1622; clipped at six times that.
    expected = 0.1 * np.sqrt(0.5) / np.sqrt(1 - 0.9**2)
    # 4000 independent values give it with a relative deviation of 1/sqrt(8000) = .011; five.
    assert noise.std() == pytest.approx(expected, rel=0.056)


def test_ornstein_uhlenbeck_resets_the_copies_that_begin_and_no_other():
    process = ornstein_uhlenbeck(copies=3, std={"start": 0.1}, theta=0.0)
    before = noise_of(process, 3, 5)[-1]
    process.begin_episode(np.array([False, True, False]))
    quiet = explored_by(process, np.zeros((3, 2), np.float32), 5, np.random.default_rng(9))
    kick = 0.1 * np.random.default_rng(9).standard_normal((3, 2), dtype=np.float32)
    # float32 sums of numbers below 1
    np.testing.assert_allclose(quiet[1], kick[1], atol=1e-6)
    np.testing.assert_allclose(quiet[[0, 2]], (before + kick)[[0, 2]], atol=1e-6)


def test_ornstein_uhlenbeck_is_clipped_to_the_range():
    explored = noise_of(ornstein_uhlenbeck(copies=50, std={"start": 3.0}), 50, 20)
    assert (explored.min(), explored.max()) == (-1, 1)
    assert explored.dtype == np.float32


def test_copies_have_processes_of_their_own():
    noise = noise_of(ornstein_uhlenbeck(copies=2), 2, 5)
    assert (noise[:, 0] != noise[:, 1]).all()


def test_ornstein_uhlenbeck_moves_only_the_copies_it_is_asked_for():
    process = ornstein_uhlenbeck(copies=3, std={"start": 0.1}, theta=0.0)
    before = noise_of(process, 3, 5)[-1]
    some = np.array([0, 2])
    moved = process.explore(np.zeros((2, 2), np.float32), some, 5, np.random.default_rng(9))
    kick = 0.1 * np.random.default_rng(9).standard_normal((2, 2), dtype=np.float32)
    # float32 sums of numbers below 1
    np.testing.assert_allclose(moved, before[some] + kick, atol=1e-6)
    still = process.explore(np.zeros((1, 2), np.float32), np.array([1]), 5, Silent())
    np.testing.assert_array_equal(still, before[[1]])


class Silent(np.random.Generator):
    """Draws nothing but zeros."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def standard_normal(self, size=None, dtype=np.float64, out=None):
        return np.zeros(size, dtype)


def going_on_after(state_of: OrnsteinUhlenbeck, state: dict) -> tuple[np.ndarray, np.ndarray]:
    restored = ornstein_uhlenbeck(copies=20)
    restored.load_state(state)
    return noise_of(restored, 20, 50, seed=1), noise_of(state_of, 20, 50, seed=1)


def test_ornstein_uhlenbeck_goes_on_exactly_after_a_restart():
    process = ornstein_uhlenbeck(copies=20)
    noise_of(process, 20, 30)
    restored, original = going_on_after(process, process.state())
    np.testing.assert_array_equal(restored, original)


def test_ornstein_uhlenbeck_goes_on_after_a_restart():
    process = ornstein_uhlenbeck(copies=20)
    noise_of(process, 20, 30)
    restored, original = going_on_after(process, process.state())
    np.testing.assert_allclose(restored, original, atol=1e-5)  # float32, over 50 steps


def test_ornstein_uhlenbeck_state_is_not_changed_by_what_comes_after():
    process = ornstein_uhlenbeck(copies=2)
    noise_of(process, 2, 3)
    state = process.state()
    before = state["noise"].copy()
    process.begin_episode(np.array([True, True]))
    np.testing.assert_array_equal(state["noise"], before)


# Epsilon-greedy


def epsilon_greedy(spec: EnvSpec = DISCRETE, **epsilon) -> EpsilonGreedy:
    return EpsilonGreedy(EpsilonGreedy.Config(epsilon=epsilon), spec, copies=1)


def test_epsilon_is_the_share_of_random_actions():
    greedy = np.full(60_000, 1)
    explored = explored_by(epsilon_greedy(start=0.3), greedy, 0, np.random.default_rng(0))
    shares = np.bincount(explored, minlength=3) / len(greedy)
    # A third of the random 30 % is the greedy action again. Deviations are below .0017: five.
    np.testing.assert_allclose(shares, [0.1, 0.8, 0.1], atol=0.0085)


@pytest.mark.parametrize(("epsilon", "share"), [(0.0, 1.0), (1.0, 1 / 3)])
def test_epsilon_of_nothing_and_of_everything(epsilon, share):
    greedy = np.full(9000, 2)
    explored = explored_by(epsilon_greedy(start=epsilon), greedy, 0, np.random.default_rng(0))
    assert (explored == greedy).mean() == pytest.approx(share, abs=0.025)  # 5 * .005


def test_epsilon_follows_its_schedule_to_its_floor():
    greedy = np.zeros(20_000, np.int64)
    part, rng = epsilon_greedy(start=1.0, final=0.1, steps=100), np.random.default_rng(0)
    shares = [(explored_by(part, greedy, t, rng) != 0).mean() for t in (0, 50, 100, 10**6)]
    # Two thirds of the random actions differ from the greedy one; five deviations of .0035.
    np.testing.assert_allclose(shares, np.array([1, 0.55, 0.1, 0.1]) * 2 / 3, atol=0.0175)


def test_epsilon_greedy_replaces_a_multi_discrete_action_whole():
    greedy = np.full((5000, 3), -1)  # no random action is like it
    explored = explored_by(epsilon_greedy(MULTI, start=0.4), greedy, 0, np.random.default_rng(0))
    replaced = (explored != -1).sum(1)
    assert set(replaced) == {0, 3}
    assert (replaced == 3).mean() == pytest.approx(0.4, abs=0.035)  # 5 * .0069


def test_epsilon_greedy_gives_actions_of_the_action_column():
    explored = explored_by(
        epsilon_greedy(start=1.0), np.zeros(5, np.int64), 0, np.random.default_rng(0)
    )
    assert (explored.dtype.str, explored.shape) == (DISCRETE.action_column.dtype, (5,))


# All of them


def test_no_exploration_is_the_policys_action():
    action = np.random.default_rng(0).uniform(-1, 1, (4, 2)).astype(np.float32)
    part = NoExploration(NoExploration.Config(), BOX, copies=4)
    np.testing.assert_array_equal(explored_by(part, action, 0, np.random.default_rng(0)), action)


PARTS = [(Gaussian, BOX), (OrnsteinUhlenbeck, BOX), (EpsilonGreedy, DISCRETE), (NoExploration, BOX)]


@pytest.mark.parametrize(("part", "spec"), PARTS)
def test_same_generator_gives_the_same_actions(part, spec):
    start = spec.random_actions(50, np.random.default_rng(5))
    runs = []
    for _ in range(2):
        exploration, rng = part(part.Config(), spec, 50), np.random.default_rng(7)
        runs.append([explored_by(exploration, start, t, rng) for t in range(10)])
    np.testing.assert_array_equal(runs[0], runs[1])


@pytest.mark.parametrize("name", ["gaussian", "ornstein_uhlenbeck"])
@pytest.mark.parametrize("spec", [DISCRETE, MULTI], ids=lambda spec: spec.action_kind)
def test_noise_on_actions_that_are_not_continuous_is_refused_with_a_remedy(name, spec):
    part = lookup("exploration", name)
    with pytest.raises(UsageError, match=f"{name} needs continuous.*use epsilon_greedy"):
        part(part.Config(), spec, 1)


def test_epsilon_greedy_on_continuous_actions_is_refused_with_a_remedy():
    with pytest.raises(UsageError, match=r"needs discrete actions.*use gaussian"):
        EpsilonGreedy(EpsilonGreedy.Config(), BOX, 1)


@pytest.mark.parametrize("name", sorted(SHORT_NAMES["exploration"]))
def test_every_exploration_can_be_saved_before_its_first_step(name):
    part, spec = lookup("exploration", name), DISCRETE if name == "epsilon_greedy" else BOX
    exploration = part(part.Config(), spec, 2)
    exploration.load_state(exploration.state())
    exploration.begin_episode(np.array([True, False]))
