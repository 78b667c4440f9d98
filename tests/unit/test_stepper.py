"""What truly happened in a step, whatever the autoreset mode."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from scripted_envs import Counter

from actors.stepper import Step, Stepper

MODES = list(AutoresetMode)
COPIES = (
    {"lengths": (3, 1, 2), "endings": ("terminated", "truncated")},
    {"lengths": (1,), "endings": ("truncated",)},
    {"lengths": (2, 4), "endings": ("both", "terminated", "truncated")},
)


def make_stepper(mode: AutoresetMode, kind: type = SyncVectorEnv) -> Stepper:
    makers = [lambda kwargs=kwargs: Counter(**kwargs) for kwargs in COPIES]
    return Stepper(kind(makers, autoreset_mode=mode))


def scripted_transitions(kwargs: dict, count: int) -> list[tuple]:
    """(observation, reward, terminated, truncated, next observation) as the script says."""
    transitions, episode = [], 0
    while len(transitions) < count:
        length = kwargs["lengths"][episode % len(kwargs["lengths"])]
        ending = kwargs["endings"][episode % len(kwargs["endings"])]
        for step in range(1, length + 1):
            over = step == length
            transitions.append(
                (
                    (episode, step - 1),
                    10 * episode + step,
                    over and ending in ("terminated", "both"),
                    over and ending in ("truncated", "both"),
                    (episode, step),
                )
            )
        episode += 1
    return transitions[:count]


def run(stepper: Stepper, steps: int) -> tuple[list[list[tuple]], list[Step]]:
    """The valid transitions of each copy, and the raw steps."""
    observation = stepper.reset()
    transitions: list[list[tuple]] = [[] for _ in range(stepper.copies)]
    raw = []
    for _ in range(steps):
        step = stepper.step(np.zeros(stepper.copies, np.int64))
        for copy in np.flatnonzero(step.valid):
            transitions[copy].append(
                (
                    tuple(observation[copy]),
                    step.reward[copy],
                    step.terminated[copy],
                    step.truncated[copy],
                    tuple(step.next_observation[copy]),
                )
            )
        observation = step.observation
        raw.append(step)
    stepper.env.close()
    return transitions, raw


@pytest.mark.parametrize("mode", MODES)
def test_valid_transitions_are_those_of_the_script_in_every_mode(mode):
    transitions, _ = run(make_stepper(mode), 30)
    for copy, kwargs in enumerate(COPIES):
        assert transitions[copy] == scripted_transitions(kwargs, len(transitions[copy]))
        assert len(transitions[copy]) >= 15  # of 30 steps, NEXT_STEP may lose every second


@pytest.mark.parametrize("mode", MODES)
def test_copies_in_processes_of_their_own_give_the_same_transitions(mode):
    here, _ = run(make_stepper(mode), 10)
    there, _ = run(make_stepper(mode, AsyncVectorEnv), 10)
    assert here == there


@pytest.mark.parametrize("mode", MODES)
def test_next_observation_is_never_that_of_a_reset(mode):
    _, raw = run(make_stepper(mode), 30)
    for step in raw:
        assert (step.next_observation[step.valid][:, 1] > 0).all()  # a reset shows step 0


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_finished_copy_stands_at_its_reset_after_the_same_step(mode):
    _, raw = run(make_stepper(mode), 30)
    for step in raw:
        assert step.valid.all()
        assert (step.observation[step.boundary][:, 1] == 0).all()
        running = ~step.boundary
        np.testing.assert_array_equal(step.observation[running], step.next_observation[running])


def test_step_after_a_boundary_is_no_transition_in_next_step_mode():
    _, raw = run(make_stepper(AutoresetMode.NEXT_STEP), 30)
    assert raw[0].valid.all()
    for before, step in itertools.pairwise(raw):
        np.testing.assert_array_equal(step.valid, ~before.boundary)
        assert not step.boundary[~step.valid].any()
        assert (step.observation[~step.valid][:, 1] == 0).all()


def test_environment_that_does_not_say_its_mode_is_taken_for_next_step():
    stepper = make_stepper(AutoresetMode.NEXT_STEP)
    del stepper.env.metadata["autoreset_mode"]
    transitions, _ = run(Stepper(stepper.env), 10)
    assert transitions[0] == scripted_transitions(COPIES[0], len(transitions[0]))


def test_reset_in_the_middle_begins_a_valid_step():
    stepper = make_stepper(AutoresetMode.NEXT_STEP)
    stepper.reset()
    boundary = stepper.step(np.zeros(3, np.int64)).boundary
    assert boundary.any()
    stepper.reset()
    assert stepper.step(np.zeros(3, np.int64)).valid.all()


def test_steps_already_returned_are_not_changed_by_later_ones():
    stepper = make_stepper(AutoresetMode.SAME_STEP)
    stepper.reset()
    step = stepper.step(np.zeros(3, np.int64))
    names = ("reward", "terminated", "truncated", "next_observation", "observation", "valid")
    before = {name: getattr(step, name).copy() for name in names}
    for _ in range(5):
        stepper.step(np.zeros(3, np.int64))
    for name in names:
        np.testing.assert_array_equal(getattr(step, name), before[name], err_msg=name)
