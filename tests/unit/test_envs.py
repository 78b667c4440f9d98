"""Making environments: ids, wrappers, encodings, seeds, errors, playing an episode again."""

from __future__ import annotations

import itertools
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from repertory import envs
from repertory.config import EnvConfig
from repertory.envs import ROLES, SeededEpisodes, ShapedReward, make_env, make_vector_env, probe
from repertory.errors import EnvironmentFailure, UsageError


def play(env: gym.Env, steps: int, action=0) -> list:
    """The first observation, then everything each step gave; resets at the end of an episode."""
    observation, _ = env.reset()
    seen = [observation]
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append((observation, reward, terminated, truncated))
        if terminated or truncated:
            env.reset()
    return seen


# Ids


def test_gymnasium_id():
    spec = probe(EnvConfig(id="CartPole-v1"))
    assert (spec.env_id, spec.action_kind, spec.num_actions) == ("CartPole-v1", "discrete", 2)
    assert (spec.observation_kind, spec.observation_shape) == ("vector", (4,))
    assert spec.max_episode_steps == 500


def test_module_and_id_imports_the_module_that_registers_it(tmp_path, monkeypatch):
    (tmp_path / "my_registered_envs.py").write_text(
        "import gymnasium\n"
        "counter = 'scripted_envs:Counter'\n"
        "gymnasium.register(id='Mine-v0', entry_point=counter, max_episode_steps=2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        spec = probe(EnvConfig(id="my_registered_envs:Mine-v0", kwargs={"lengths": [9]}))
    finally:
        gym.registry.pop("Mine-v0", None)
        sys.modules.pop("my_registered_envs", None)
    assert spec.env_id == "my_registered_envs:Mine-v0"
    assert spec.max_episode_steps == 2


@pytest.mark.parametrize(
    "config",
    [
        EnvConfig(id="scripted_envs:Counter", kwargs={"lengths": [2]}),
        EnvConfig(id="scripted_envs:make_counter", kwargs={"length": 2}),
    ],
    ids=["class", "function"],
)
def test_factory_by_dotted_path_gets_the_kwargs(config):
    env = make_env(config)
    env.reset()
    assert [env.step(0)[2] for _ in range(2)] == [False, True]


def test_gymnasium_id_gets_the_kwargs():
    assert make_env(EnvConfig(id="Pendulum-v1", kwargs={"g": 3.5})).unwrapped.g == 3.5


def test_render_mode_reaches_the_environment():
    env = make_env(EnvConfig(id="CartPole-v1"), render_mode="rgb_array")
    assert env.render_mode == "rgb_array"
    env.close()


# Wrappers, rewards, limits


@pytest.mark.parametrize(
    ("wrappers", "reward"),
    [
        (("scripted_envs:TimesTen", "scripted_envs:PlusOne"), 1 * 10 + 1),
        (("scripted_envs:PlusOne", "scripted_envs:TimesTen"), (1 + 1) * 10),
    ],
)
def test_wrappers_are_put_on_innermost_first(wrappers, reward):
    env = make_env(EnvConfig(id="scripted_envs:Counter", wrappers=wrappers))
    env.reset()
    assert env.step(0)[1] == reward


@pytest.mark.parametrize(
    ("ending", "terminated", "truncated"),
    [
        ("terminated", True, False),
        ("truncated", False, True),
        ("both", True, True),
        (None, False, False),
    ],
)
def test_reward_function_sees_the_end_but_cannot_change_it(ending, terminated, truncated):
    kwargs = {"lengths": [1], "endings": [ending]} if ending else {"lengths": [9]}
    config = EnvConfig(
        id="scripted_envs:Counter", kwargs=kwargs, reward_function="scripted_envs:shaped_reward"
    )
    env = make_env(config)
    env.reset()
    _, reward, *end, _ = env.step(0)
    assert end == [terminated, truncated]
    # It was told of both, of the observation before (step 0) and of the one after (step 1).
    assert reward == 1000 * terminated + 100 * truncated + 0 + 1


def test_reward_function_sees_the_observation_of_each_step_and_episode():
    config = EnvConfig(
        id="scripted_envs:Counter",
        kwargs={"lengths": [2]},
        reward_function="scripted_envs:shaped_reward",
    )
    rewards = [step[1] for step in play(make_env(config), 4)[1:]]
    assert rewards == [0 + 1, 1000 + 1 + 2, 0 + 1, 1000 + 1 + 2]


@pytest.mark.parametrize("id", ["scripted_envs:Counter", "CartPole-v1"])
def test_step_limit_truncates_and_does_not_terminate(id):
    kwargs = {"lengths": [50]} if id == "scripted_envs:Counter" else {}
    env = make_env(EnvConfig(id=id, kwargs=kwargs, max_episode_steps=3))
    env.reset()
    ends = [env.step(step % 2)[2:4] for step in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]


@pytest.mark.parametrize("id", ["scripted_envs:Counter", "CartPole-v1"])
def test_step_limit_is_in_the_description(id):
    assert probe(EnvConfig(id=id, max_episode_steps=30)).max_episode_steps == 30


def test_reward_function_sees_the_truncation_of_the_step_limit():
    config = EnvConfig(
        id="scripted_envs:Counter",
        kwargs={"lengths": [50]},
        max_episode_steps=2,
        reward_function="scripted_envs:shaped_reward",
    )
    assert [step[1] for step in play(make_env(config), 2)[1:]] == [0 + 1, 100 + 1 + 2]


# Encodings


@pytest.mark.parametrize(
    ("space", "width"),
    [
        ("discrete", 4),
        ("multi_discrete", 2 + 3),
        ("multi_binary", 3),
        ("dict", 2 + 4 + 3),
        ("tuple", 2 + 1),
        ("float64", 3),
        ("matrix", 6),
    ],
)
def test_observations_become_flat_float32(space, width):
    config = EnvConfig(id="scripted_envs:Odd", kwargs={"space": space})
    spec = probe(config)
    assert (spec.observation_kind, spec.observation_shape) == ("vector", (width,))
    assert spec.observation_dtype == "<f4"
    env = make_env(config)
    for observation in (env.reset()[0], env.step(0)[0]):
        assert (observation.shape, observation.dtype) == ((width,), np.float32)


def test_discrete_observation_is_one_hot():
    env = make_env(EnvConfig(id="probes:P8Identity", kwargs={"choices": 4}))
    rows = [env.reset()[0], *(env.step(0)[0] for _ in range(9))]
    assert all(sorted(row) == [0, 0, 0, 1] for row in rows)
    assert len({int(row.argmax()) for row in rows}) > 1


@pytest.mark.parametrize(
    ("kwargs", "shape"),
    [
        ({"layout": "last", "channels": 3}, (3, 40, 36)),
        ({"layout": "last", "channels": 1}, (1, 40, 36)),
        ({"layout": "first", "channels": 3}, (3, 40, 36)),
    ],
)
def test_pixels_are_channel_first_bytes(kwargs, shape):
    config = EnvConfig(id="scripted_envs:Frames", kwargs=kwargs)
    spec = probe(config)
    assert (spec.observation_kind, spec.observation_shape) == ("pixels", shape)
    assert spec.observation_dtype == "|u1"
    env = make_env(config)
    env.reset()
    image = env.step(0)[0]
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image[:, 0, 0], 10 + np.arange(shape[0]))
    assert (image == image[:, :1, :1]).all()  # channels were moved, not mixed


def stacked_pixels(layout: str, channels: int) -> np.ndarray:
    config = EnvConfig(
        id="scripted_envs:Frames", kwargs={"layout": layout, "channels": channels}, frame_stack=3
    )
    env = make_env(config)
    env.reset()
    return [env.step(0)[0] for _ in range(2)][-1]


def test_stacked_frames_join_the_channels_oldest_first():
    image = stacked_pixels("last", 3)
    assert (image.shape, image.dtype) == ((9, 40, 36), np.uint8)
    np.testing.assert_array_equal(image[:, 5, 5], [0, 1, 2, 10, 11, 12, 20, 21, 22])


def test_stacked_grey_frames_are_channels():
    image = stacked_pixels("none", 1)
    assert image.shape == (3, 40, 36)
    np.testing.assert_array_equal(image[:, 5, 5], [0, 10, 20])


def test_stacked_channel_first_frames_join_the_channels():
    image = stacked_pixels("first", 3)
    assert image.shape == (9, 40, 36)
    np.testing.assert_array_equal(image[:, 5, 5], [0, 1, 2, 10, 11, 12, 20, 21, 22])


def test_stacked_vectors_are_one_vector_oldest_first():
    config = EnvConfig(id="scripted_envs:Counter", kwargs={"lengths": [9]}, frame_stack=3)
    env = make_env(config)
    env.reset()
    env.step(0)
    np.testing.assert_array_equal(env.step(0)[0], [0, 0, 0, 1, 0, 2])
    assert probe(config).observation_shape == (6,)


def test_stack_of_a_new_episode_holds_nothing_of_the_old_one():
    env = make_env(EnvConfig(id="scripted_envs:Counter", kwargs={"lengths": [2]}, frame_stack=3))
    play(env, 1)
    np.testing.assert_array_equal(env.reset()[0], [1, 0, 1, 0, 1, 0])


# Seeds


def first_observations(config: EnvConfig, episodes: int, **identity) -> np.ndarray:
    env = make_env(config, **identity)
    return np.stack([env.reset()[0] for _ in range(episodes)])


@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1", "scripted_envs:Seeded"])
def test_every_episode_begins_differently(id):
    seen = first_observations(EnvConfig(id=id), 20)
    assert len(np.unique(seen, axis=0)) == 20


def test_same_seed_role_copy_and_episode_repeat_exactly():
    config = EnvConfig(id="scripted_envs:Seeded")
    runs = [
        play(make_env(config, seed=7, role="evaluation", copy=2), 50, action=1) for _ in range(2)
    ]
    for one, other in zip(*runs, strict=True):
        np.testing.assert_equal(one, other)


def test_runs_roles_and_copies_never_share_an_episode():
    config = EnvConfig(id="CartPole-v1")
    seen = [
        first_observations(config, 5, seed=seed, role=role, copy=copy)
        for seed, role, copy in itertools.product((0, 1, 2), ROLES, (0, 1, 2))
    ]
    everything = np.concatenate(seen)
    assert len(np.unique(everything, axis=0)) == len(everything) == 3 * 3 * 3 * 5


def test_what_is_done_in_an_episode_does_not_change_the_next():
    config = EnvConfig(id="CartPole-v1")
    idle, busy = make_env(config), make_env(config)
    idle.reset()
    busy.reset()
    for _ in range(5):
        busy.step(1)
    np.testing.assert_array_equal(idle.reset()[0], busy.reset()[0])


@pytest.mark.parametrize("vector", ["sync", "async"])
def test_copies_side_by_side_have_the_seeds_of_single_ones(vector):
    config = EnvConfig(id="CartPole-v1", vector=vector)
    env = make_vector_env(config, copies=2, seed=3, role="rollout")
    try:
        observation, _ = env.reset()
    finally:
        env.close()
    single = [make_env(config, seed=3, copy=copy).reset()[0] for copy in range(2)]
    np.testing.assert_array_equal(observation, single)


# Side by side


@pytest.mark.parametrize(("vector", "kind"), [("sync", SyncVectorEnv), ("async", AsyncVectorEnv)])
def test_vector_environment_is_of_the_kind_asked_for_and_resets_in_the_same_step(vector, kind):
    env = make_vector_env(
        EnvConfig(id="scripted_envs:Counter", vector=vector), copies=2, seed=0, role="rollout"
    )
    try:
        assert isinstance(env, kind)
        assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    finally:
        env.close()


def test_one_copy_needs_no_process_of_its_own():
    config = EnvConfig(id="scripted_envs:Counter", vector="async")
    env = make_vector_env(config, copies=1, seed=0, role="rollout")
    assert isinstance(env, SyncVectorEnv)


def test_sync_and_async_copies_live_the_same_life():
    streams = []
    for vector in ("sync", "async"):
        config = EnvConfig(id="scripted_envs:Seeded", kwargs={"longest": 4}, vector=vector)
        env = make_vector_env(config, copies=2, seed=5, role="rollout")
        try:
            steps = [env.reset()[0]]
            steps += [env.step(np.array([k % 2, 1]))[:4] for k in range(12)]
        finally:
            env.close()
        streams.append(steps)
    np.testing.assert_equal(streams[0], streams[1])


# Playing an episode again


def random_action(env: gym.Env, rng: np.random.Generator):
    if isinstance(env.action_space, gym.spaces.Discrete):
        return int(rng.integers(env.action_space.n))
    return rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32)


@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1"])
def test_recorded_episode_leads_back_to_the_very_same_place(id):
    config, rng = EnvConfig(id=id), np.random.default_rng(0)
    env = make_env(config, seed=4, copy=1)
    for _ in range(3):  # the third episode is the one that is recorded
        observation, _ = env.reset()
    for _ in range(7):
        observation, *_ = env.step(random_action(env, rng))
    record = env.episode_record()
    assert (record["episode"], len(record["actions"])) == (2, 7)

    again = make_env(config, seed=4, copy=1)
    replayed, same = again.replay_episode([None, record], [None, observation])
    assert same
    np.testing.assert_array_equal(replayed, observation)
    # And on from there, over the end of the episode into the next.
    action = random_action(env, rng)
    np.testing.assert_equal(env.step(action)[:4], again.step(action)[:4])
    np.testing.assert_array_equal(env.reset()[0], again.reset()[0])


@pytest.mark.parametrize("vector", ["sync", "async"])
def test_all_copies_are_brought_back_at_once(vector):
    config = EnvConfig(id="CartPole-v1", vector=vector)
    made = [make_vector_env(config, copies=2, seed=1, role="rollout") for _ in range(2)]
    try:
        env, again = made
        env.reset()
        again.reset()
        for k in range(30):  # CartPole falls within 11 steps of pushing one way: several episodes
            observation, *_ = env.step(np.array([0, k // 5 % 2]))
        replayed = again.call("replay_episode", env.call("episode_record"), observation)
        assert [same for _, same in replayed] == [True, True]
        np.testing.assert_array_equal(np.stack([seen for seen, _ in replayed]), observation)
        action = np.array([1, 0])
        np.testing.assert_array_equal(env.step(action)[0], again.step(action)[0])
    finally:
        for each in made:
            each.close()


def test_episode_with_no_step_yet_is_brought_back():
    env = make_env(EnvConfig(id="CartPole-v1"))
    observation, _ = env.reset()
    again = make_env(EnvConfig(id="CartPole-v1"))
    replayed, same = again.replay_episode([env.episode_record()], [observation])
    assert same
    np.testing.assert_array_equal(replayed, observation)


def test_episode_too_long_to_keep_is_given_up_for_the_next(monkeypatch):
    monkeypatch.setattr(envs, "MAX_RECORDED_ACTIONS", 3)
    config = EnvConfig(id="CartPole-v1")
    env = make_env(config)
    play(env, 4)
    record = env.episode_record()
    assert record["actions"] is None
    replayed, same = make_env(config).replay_episode([record], [None])
    assert not same
    np.testing.assert_array_equal(replayed, env.reset()[0])


def test_episode_that_ends_sooner_when_played_again_is_given_up():
    longer = make_env(EnvConfig(id="scripted_envs:Counter", kwargs={"lengths": [9]}))
    play(longer, 5)
    shorter = make_env(EnvConfig(id="scripted_envs:Counter", kwargs={"lengths": [2]}))
    replayed, same = shorter.replay_episode([longer.episode_record()], [None])
    assert not same
    assert replayed[1] == 0  # the first step of a new episode


def test_seeded_episodes_is_the_outermost_wrapper():
    config = EnvConfig(
        id="scripted_envs:Counter",
        wrappers=("scripted_envs:PlusOne",),
        reward_function="scripted_envs:shaped_reward",
    )
    env = make_env(config)
    assert isinstance(env, SeededEpisodes)
    assert isinstance(env.env, ShapedReward)


# Errors


def assert_one_sentence(error: BaseException, *words: str) -> None:
    message = str(error)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("Nope-v0", ["there is no environment 'Nope-v0'", "package.module:EnvId-v0"]),
        ("CartPol-v1", ["there is no environment 'CartPol-v1'", "did you mean CartPole-v1?"]),
        ("CartPole-v9", ["there is no environment 'CartPole-v9'", "did you mean CartPole-v1?"]),
        ("no_such_module:Env-v0", ["cannot import 'no_such_module'", "PYTHONPATH"]),
        ("no_such_module:make", ["cannot import 'no_such_module'", "PYTHONPATH"]),
        ("scripted_envs:Countr", ["has no 'Countr'", "did you mean Counter?"]),
    ],
)
def test_id_that_leads_nowhere_is_refused_with_a_remedy(id, words):
    with pytest.raises(UsageError) as caught:
        probe(EnvConfig(id=id))
    assert_one_sentence(caught.value, *words)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("init", ["cannot make scripted_envs:Broken", "no such level"]),
        ("reset", ["failed when tried out", "RuntimeError: the simulator is gone"]),
        ("step", ["failed when tried out", "ZeroDivisionError: division by zero"]),
        ("shape", ["observations have shape (4,)", "its space says (3,)"]),
        ("nan", ["an observation is not finite", "nan"]),
        ("nan_later", ["an observation is not finite", "inf"]),
        ("nan_reward", ["step() returned the reward nan"]),
        ("four_values", ["step() returned 4 values", "observation, reward, terminated"]),
    ],
)
def test_environment_that_breaks_its_promise_is_named_before_the_run(how, words):
    with pytest.raises(EnvironmentFailure) as caught:
        probe(EnvConfig(id="scripted_envs:Broken", kwargs={"how": how}))
    assert_one_sentence(caught.value, "scripted_envs:Broken", *words)


def test_kwargs_that_the_environment_does_not_take_are_named():
    with pytest.raises(EnvironmentFailure, match=r"cannot make CartPole-v1: .*gravitty"):
        probe(EnvConfig(id="CartPole-v1", kwargs={"gravitty": 1}))


def test_wrapper_that_does_not_exist_is_named():
    with pytest.raises(UsageError, match="has no 'NoWrapper' for the environment wrapper"):
        probe(EnvConfig(id="CartPole-v1", wrappers=("scripted_envs:NoWrapper",)))


def test_reward_function_that_fails_is_named():
    config = EnvConfig(id="CartPole-v1", reward_function="scripted_envs:failing_reward")
    with pytest.raises(EnvironmentFailure, match="failed when tried out: KeyError: 'velocity'"):
        probe(config)


# The probes themselves are what they say


@pytest.mark.parametrize("actions", ["discrete", "continuous"])
@pytest.mark.parametrize("pixels", [False, True], ids=["vector", "pixels"])
@pytest.mark.parametrize(
    "name",
    [
        "P1OneStep",
        "P2ObservedReward",
        "P3DelayedReward",
        "P4ActionReward",
        "P5ObservationTimesAction",
        "P6SelfLoop",
    ],
)
def test_probe_comes_in_every_form(name, pixels, actions):
    spec = probe(EnvConfig(id=f"probes:{name}", kwargs={"pixels": pixels, "actions": actions}))
    assert spec.action_kind == actions
    assert spec.observation_shape == ((1, 36, 36) if pixels else (1,))


@pytest.mark.parametrize(
    "kwargs",
    [{"actions": "discrete"}, {"actions": "multi_discrete"}, {"actions": "continuous"}],
    ids=lambda kwargs: kwargs["actions"],
)
def test_identity_pays_its_length_for_repeating(kwargs):
    env = make_env(EnvConfig(id="probes:P8Identity", kwargs={**kwargs, "length": 6}))
    env.reset()
    total, truncated = 0.0, False
    while not truncated:
        _, reward, terminated, truncated, _ = env.step(env.unwrapped._target)
        total += reward
        assert not terminated
    assert total == 6


def test_shifted_range_pays_1_at_our_action_of_0_6():
    config = EnvConfig(id="probes:P7ShiftedRange")
    env, spec = make_env(config), probe(config)
    env.reset()
    action = spec.to_env_action(np.array([[0.6]], np.float32))[0]
    assert env.step(action)[1] == pytest.approx(1, abs=1e-12)  # squares of float32 roundings
