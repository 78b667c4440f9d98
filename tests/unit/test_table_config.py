"""Which table a learner gets: its columns, its stacks, its capacity in items and bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pixel_envs import PixelCopy, collect, stacked_signature

from buffer_server import table_config as module
from buffer_server.capacity import Capacity
from buffer_server.table_config import ColumnConfig, LimiterConfig, TableConfig, table_config
from repertory.config import RunConfig, resolve
from repertory.envs import make_env, probe
from repertory.errors import UsageError
from repertory.types import ColumnSpec

GREY = {"layout": "none", "channels": 1}
RGB_LAST = {"layout": "last", "channels": 3}
RGB_FIRST = {"layout": "first", "channels": 3}


def run_config(algorithm: str = "dqn", env: str = "Frames", **settings: Any) -> RunConfig:
    return resolve(f"scripted_envs:{env}", [algorithm], overrides=settings)


def made(config: RunConfig) -> TableConfig:
    (learner_config,) = config.learners.values()
    return table_config(config, learner_config, probe(config.env), {})


@pytest.mark.parametrize(
    ("kwargs", "channels"),
    [(GREY, 1), (RGB_LAST, 3), (RGB_FIRST, 3)],
    ids=["grey", "last", "first"],
)
def test_stacked_pixels_of_off_policy_learners_are_stacks_of_whole_frames(
    kwargs: dict[str, Any], channels: int
) -> None:
    config = run_config(**{"env.kwargs": kwargs, "env.frame_stack": 4, "steps": 100})
    signature = made(config).signature
    for name in ("observation", "next_observation"):
        assert signature[name] == ColumnSpec("|u1", (4 * channels, 40, 36), stack=4)
    assert all(column.stack == 1 for name, column in signature.items() if "obs" not in name)
    # Where a stack's frames lie, its first and the environment's own first frame agree.
    stacked_env, env = make_env(config.env), make_env(run_config(**{"env.kwargs": kwargs}).env)
    frame = np.zeros((channels, 40, 36), np.uint8) + env.reset()[0].reshape(-1, 40, 36)
    stacked_env.reset()
    following = stacked_env.step(0)[0]  # the first frame three times, then the next
    for place in range(3):
        np.testing.assert_array_equal(following[place * channels : (place + 1) * channels], frame)
    assert (following[3 * channels :] != frame).all()


@pytest.mark.parametrize(
    ("algorithm", "env", "stack"),
    [
        ("dqn", "Frames", 1),
        ("ppo", "Frames", 4),  # segments
        ("dqn", "Counter", 4),  # vectors
    ],
)
def test_everything_else_is_plain(algorithm: str, env: str, stack: int) -> None:
    signature = made(run_config(algorithm, env, **{"env.frame_stack": stack})).signature
    assert all(column.stack == 1 for column in signature.values())


def test_memory_is_asked_for_each_frame_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        module, "_refuse_more_than_memory", lambda nbytes, config: asked.append(nbytes)
    )
    kwargs = {"layout": "last", "channels": 1}
    settings = {"env.kwargs": kwargs, "steps": 100_000, "replay.capacity": 100_000}
    for stack in (4, 1):
        made(run_config(**{**settings, "env.frame_stack": stack}))
    frame = 40 * 36
    assert 1.0 * frame < asked[0] / 100_000 < 1.25 * frame  # with 100 bytes of the rest
    assert 2.0 * frame < asked[1] / 100_000 < 2.05 * frame  # two observations of one frame each


@pytest.mark.parametrize("stack", [1, 4])
def test_more_than_the_machine_has_is_refused_with_both_remedies(stack: int) -> None:
    settings = {"env.kwargs": GREY, "env.frame_stack": stack, "steps": 10**12}
    with pytest.raises(UsageError, match=r"GiB.*replay\.capacity=.* or replay\.capacity_bytes="):
        made(run_config(**settings, **{"replay.capacity": 10**12}))
    small = made(
        run_config(**settings, **{"replay.capacity": 10**12, "replay.capacity_bytes": 1e6})
    )
    assert small.capacity_bytes == 1_000_000


def test_a_capacity_in_bytes_reaches_the_table_and_its_sampler() -> None:
    settings = {"env": "Counter", "replay.sampler": "prioritized", "steps": 1000}
    config = made(run_config(**settings, **{"replay.capacity_bytes": 500}))
    table = config.build("replay")
    # Two observations of two float32, int64, two float32, int32, int64.
    assert table.capacity == 500 // (16 + 8 + 8 + 4 + 8)
    assert table.nbytes <= 500
    assert made(run_config(**settings)).build("replay").capacity == 1000


def test_consumers_reach_the_table() -> None:
    limiter = LimiterConfig(min_size=7, consumers={0: 256, 2: 0}, consumer_buffer_items=64)
    config = made(run_config(env="Counter", steps=1000)).model_copy(update={"limiter": limiter})
    written = TableConfig.model_validate(config.model_dump(mode="json"))  # as a file would be read
    statistics = written.build("replay").statistics()
    ratios = [(one.consumer, one.samples_per_insert) for one in statistics.consumers]
    assert ratios == [(0, 256.0), (2, 0.0)]
    assert (statistics.min_size, statistics.consumer_buffer_items) == (7, 64)


def test_a_queue_has_no_capacity_in_bytes() -> None:
    config = made(run_config("ppo", **{"env.kwargs": GREY, "replay.capacity_bytes": 10}))
    assert config.capacity_bytes is None


def test_stacked_tables_fill_the_bytes_they_may() -> None:
    batch = collect([PixelCopy(np.random.default_rng(0), frame=(1, 8, 8))], 1)
    signature = stacked_signature(batch, 4)
    config = TableConfig(
        columns={
            name: ColumnConfig(dtype=column.dtype, shape=column.shape, stack=column.stack)
            for name, column in signature.items()
        },
        capacity=10_000,
        capacity_bytes=400_000,
    )
    table = config.build("replay")
    assert table.capacity == Capacity.within(signature, 10_000, 400_000).items
    assert 0.99 * 400_000 < table.nbytes <= 400_000


def test_bytes_for_less_than_one_item_are_refused() -> None:
    config = TableConfig(
        columns={
            name: ColumnConfig(dtype=column.dtype, shape=column.shape)
            for name, column in collect([PixelCopy(np.random.default_rng(0))], 1)
            .signature()
            .items()
        },
        capacity_bytes=56_000,
    )
    with pytest.raises(UsageError, match="56000 bytes holds nothing: one item takes 56476 bytes"):
        config.build("replay")
