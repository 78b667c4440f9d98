"""What an environment looks like: bounds, action maps, signatures, JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repertory.config import EnvConfig
from repertory.envs import make_env, probe
from repertory.errors import UsageError
from repertory.specs import EnvSpec
from repertory.types import ColumnSpec


def echo_spec(space: str) -> EnvSpec:
    return probe(EnvConfig(id="scripted_envs:ActionEcho", kwargs={"space": space}))


def box_spec(low: list[float], high: list[float]) -> EnvSpec:
    return EnvSpec(
        env_id="box",
        observation_kind="vector",
        observation_shape=(1,),
        observation_dtype="<f4",
        action_kind="continuous",
        action_sizes=(len(low),),
        action_low=tuple(low),
        action_high=tuple(high),
        action_shape=(len(low),),
        action_dtype="<f4",
        max_episode_steps=None,
    )


# The continuous map


def test_asymmetric_range_is_reached_at_both_ends_of_every_dimension():
    spec = echo_spec("asymmetric")  # Box([0, -1], [1, 3])
    corners = np.array([[-1, -1], [1, 1], [-1, 1], [1, -1], [0, 0]], np.float32)
    np.testing.assert_array_equal(
        spec.to_env_action(corners), [[0, -1], [1, 3], [0, 3], [1, -1], [0.5, 1]]
    )


def test_asymmetric_range_is_never_left():
    spec = echo_spec("asymmetric")
    beyond = np.array([[-7, -7], [7, 7], [np.inf, -np.inf]], np.float32)
    np.testing.assert_array_equal(spec.to_env_action(beyond), [[0, -1], [1, 3], [1, -1]])


def test_random_actions_fill_the_asymmetric_range_evenly():
    spec = echo_spec("asymmetric")
    taken = spec.to_env_action(spec.random_actions(20_000, np.random.default_rng(0)))
    share = (taken - [0, -1]) / [1, 4]  # of each dimension's range
    counts = np.stack([np.histogram(column, bins=10, range=(0, 1))[0] for column in share.T])
    # Each bin expects 2000 with a deviation of 42: 5 deviations, over 20 bins, is 1 in 90 000.
    assert np.abs(counts - 2000).max() < 5 * 42
    assert share.min() >= 0
    assert share.max() <= 1


def test_environment_takes_every_mapped_action():
    env = make_env(EnvConfig(id="scripted_envs:ActionEcho", kwargs={"length": 1000}))
    spec = echo_spec("asymmetric")
    env.reset()
    for action in spec.to_env_action(spec.random_actions(200, np.random.default_rng(1)) * 3):
        env.step(action)  # raises where the action is outside
    taken = np.array(env.unwrapped.taken)
    np.testing.assert_allclose(taken.min(0), [0, -1])
    np.testing.assert_allclose(taken.max(0), [1, 3])


finite = st.floats(-1e6, 1e6, width=32)


@given(
    bounds=st.lists(
        st.tuples(finite, finite).filter(lambda pair: pair[0] < pair[1]), min_size=1, max_size=4
    ),
    ours=st.floats(-3, 3, width=32),
)
@settings(max_examples=50, deadline=None)
def test_map_is_affine_clipped_and_inside_the_bounds_for_any_box(bounds, ours):
    low, high = [pair[0] for pair in bounds], [pair[1] for pair in bounds]
    mapped = box_spec(low, high).to_env_action(np.full((1, len(low)), ours, np.float32))[0]
    share = (min(max(ours, -1), 1) + 1) / 2
    expected = [a + share * (b - a) for a, b in bounds]
    assert mapped.dtype == np.float32
    assert (mapped >= np.float32(low)).all()
    assert (mapped <= np.float32(high)).all()
    # One rounding to float32 (2^-24) of a value up to the larger bound, and float64's before.
    scale = np.maximum(np.abs(low), np.abs(high))
    np.testing.assert_allclose(mapped, expected, rtol=0, atol=1e-30 + (scale * 2**-23).max())


def test_unbounded_actions_are_passed_on_as_they_are():
    spec = echo_spec("unbounded")
    action = np.array([[-7.5, 0.25], [100, -3]], np.float32)
    np.testing.assert_array_equal(spec.to_env_action(action), action)


def test_only_the_bounded_dimension_of_a_mixed_box_is_mapped():
    spec = echo_spec("mixed")  # Box([0, -inf], [2, inf])
    action = np.array([[1, 1], [-5, -5]], np.float32)
    np.testing.assert_array_equal(spec.to_env_action(action), [[2, 1], [0, -5]])


def test_actions_of_a_matrix_space_get_its_shape():
    spec = echo_spec("matrix")  # Box(0, 4, (2, 3))
    assert spec.action_size == 6
    action = np.array([[-1, -0.5, 0, 0.5, 1, 2]], np.float32)
    np.testing.assert_array_equal(spec.to_env_action(action), [[[0, 1, 2], [3, 4, 4]]])


def test_bounded_says_whether_all_dimensions_are():
    assert echo_spec("asymmetric").bounded
    assert not echo_spec("mixed").bounded
    assert not echo_spec("unbounded").bounded


def test_random_actions_of_an_unbounded_box_are_standard_normal():
    actions = echo_spec("unbounded").random_actions(20_000, np.random.default_rng(0))
    # Deviation of a mean 1/sqrt(20000) = .007, of a standard deviation .005: five of them.
    np.testing.assert_allclose(actions.mean(0), 0, atol=0.035)
    np.testing.assert_allclose(actions.std(0), 1, atol=0.025)


# The discrete maps


def test_discrete_actions_count_from_the_start_of_their_space():
    spec = echo_spec("discrete_from_5")
    assert spec.num_actions == 3
    np.testing.assert_array_equal(spec.to_env_action(np.array([0, 1, 2])), [5, 6, 7])


def test_multi_discrete_actions_count_from_zero():
    spec = echo_spec("multi_discrete")
    assert spec.action_sizes == (2, 3, 4)
    np.testing.assert_array_equal(spec.to_env_action(np.array([[0, 2, 3]])), [[0, 2, 3]])


def test_multi_discrete_actions_count_from_their_starts():
    spec = echo_spec("multi_discrete_from")
    np.testing.assert_array_equal(
        spec.to_env_action(np.array([[0, 0], [1, 2]])), [[10, -1], [11, 1]]
    )


def test_multi_discrete_table_gets_its_shape():
    spec = echo_spec("multi_discrete_table")  # MultiDiscrete([[2, 3], [4, 5]])
    np.testing.assert_array_equal(spec.to_env_action(np.array([[0, 1, 2, 3]])), [[[0, 1], [2, 3]]])


@pytest.mark.parametrize("space", ["discrete_from_5", "multi_discrete", "multi_discrete_from"])
def test_random_discrete_actions_cover_every_choice_and_no_other(space):
    spec = echo_spec(space)
    actions = spec.random_actions(500, np.random.default_rng(0)).reshape(500, -1)
    for column, size in zip(actions.T, spec.action_sizes, strict=True):
        assert set(column) == set(range(size))


@pytest.mark.parametrize("space", ["asymmetric", "discrete_from_5", "multi_discrete"])
def test_random_actions_repeat_with_their_generator(space):
    spec = echo_spec(space)
    np.testing.assert_array_equal(
        spec.random_actions(20, np.random.default_rng(3)),
        spec.random_actions(20, np.random.default_rng(3)),
    )


@pytest.mark.parametrize(
    "space", ["asymmetric", "unbounded", "discrete_from_5", "multi_discrete", "matrix"]
)
def test_random_actions_fit_the_action_column(space):
    spec = echo_spec(space)
    actions = spec.random_actions(7, np.random.default_rng(0))
    assert ColumnSpec(actions.dtype.str, actions.shape[1:]) == spec.action_column


def test_number_of_actions_of_a_continuous_space_is_refused():
    with pytest.raises(UsageError, match="has continuous actions, not discrete"):
        _ = echo_spec("asymmetric").num_actions


# Descriptions


@pytest.mark.parametrize(
    ("space", "column"),
    [
        ("asymmetric", ColumnSpec("<f4", (2,))),
        ("matrix", ColumnSpec("<f4", (6,))),
        ("discrete_from_5", ColumnSpec("<i8", ())),
        ("multi_discrete", ColumnSpec("<i8", (3,))),
    ],
)
def test_action_column(space, column):
    assert echo_spec(space).action_column == column


def test_transition_signature_names_every_column():
    signature = echo_spec("asymmetric").transition_signature({"log_prob": ColumnSpec("<f4", ())})
    assert signature == {
        "observation": ColumnSpec("<f4", (2,)),
        "action": ColumnSpec("<f4", (2,)),
        "reward": ColumnSpec("<f4", ()),
        "discount": ColumnSpec("<f4", ()),
        "next_observation": ColumnSpec("<f4", (2,)),
        "policy_id": ColumnSpec("<i4", ()),
        "policy_version": ColumnSpec("<i8", ()),
        "extras/log_prob": ColumnSpec("<f4", ()),
    }


def test_segment_signature_has_the_length_in_front():
    signature = echo_spec("discrete_from_5").transition_signature({}, segment_length=16)
    assert signature["observation"] == ColumnSpec("<f4", (16, 1))
    assert signature["reward"] == ColumnSpec("<f4", (16,))


def test_pixels_are_stored_as_bytes():
    spec = probe(EnvConfig(id="scripted_envs:Frames"))
    assert spec.observation_kind == "pixels"
    assert spec.transition_signature({})["observation"].nbytes == 3 * 40 * 36


@pytest.mark.parametrize(
    "space", ["asymmetric", "unbounded", "matrix", "discrete_from_5", "multi_discrete_from"]
)
def test_json_round_trip(space):
    spec = echo_spec(space)
    assert EnvSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_bounds_of_a_vector_are_described_and_survive_json():
    spec = probe(EnvConfig(id="CartPole-v1"))
    assert spec.observation_low[0] == pytest.approx(-4.8)
    assert spec.observation_high[0] == pytest.approx(4.8)
    assert spec.observation_low[1] == -np.inf
    assert spec.observation_high[3] == np.inf
    assert EnvSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_bounds_of_a_one_hot_vector_are_zero_and_one():
    spec = probe(EnvConfig(id="probes:P8Identity"))
    assert (spec.observation_low, spec.observation_high) == ((0.0,) * 3, (1.0,) * 3)


def test_pixels_have_no_bounds_of_their_own():
    spec = probe(EnvConfig(id="scripted_envs:Frames"))
    assert spec.observation_low == spec.observation_high == ()


def test_description_from_before_there_were_bounds_is_read():
    document = echo_spec("asymmetric").to_json()
    del document["observation_low"], document["observation_high"]
    spec = EnvSpec.from_json(json.loads(json.dumps(document)))
    assert spec.observation_low == spec.observation_high == ()


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ("dict", "is not supported; use a float Box, Discrete or MultiDiscrete"),
        ("integer_box", "is not supported; use a float Box, Discrete or MultiDiscrete"),
        ("empty_box", "are empty"),
    ],
)
def test_action_space_that_nothing_can_choose_from_is_refused(space, words):
    with pytest.raises(UsageError, match=words):
        probe(EnvConfig(id="scripted_envs:OddActions", kwargs={"space": space}))


def test_observation_space_that_cannot_be_flattened_is_refused():
    with pytest.raises(UsageError, match="is not supported; use Box, Discrete or Dict"):
        probe(EnvConfig(id="scripted_envs:Odd", kwargs={"space": "sequence"}))
