"""What is due every so many steps."""

from __future__ import annotations

from services.due import Due


def test_it_is_due_at_every_multiple_and_once_for_several_that_were_jumped_over() -> None:
    due = Due(10, env_steps=0)
    moments = [steps for steps in (0, 9, 10, 11, 19, 45, 49, 50) if due.now(steps)]
    assert moments == [10, 45, 50]


def test_a_run_that_goes_on_at_a_multiple_was_there_already() -> None:
    assert not Due(10, env_steps=20).now(20)
    assert Due(10, env_steps=20).now(30)
