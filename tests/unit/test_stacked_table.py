"""A table of stacked pixels: the samples of a plain one, and no key of an item that is gone."""

from __future__ import annotations

import numpy as np
import pytest
from pixel_envs import PixelCopy, collect, stacked_signature

from buffer_server.capacity import Capacity
from buffer_server.draws import DrawRequest
from buffer_server.rate_limiter import RateLimiter
from buffer_server.table import Table
from repertory.errors import UsageError
from repertory.parts import lookup
from repertory.types import Sample, TransitionBatch

SAMPLERS = ["uniform", "prioritized", "mixture"]


def copies(count: int = 3, *, ending: float = 0.05) -> list[PixelCopy]:
    rng = np.random.default_rng(1)
    return [PixelCopy(rng, stack=4, frame=(3, 4, 4), ending=ending) for _ in range(count)]


def make_table(
    sampler: str = "uniform",
    *,
    stack: int = 4,
    capacity: int = 200,
    capacity_bytes: int | None = None,
    seed: int = 7,
) -> Table:
    signature = stacked_signature(collect(copies(1), 1), stack)
    items = Capacity.within(signature, capacity, capacity_bytes).items
    kind = lookup("sampler", sampler)
    return Table(
        "replay",
        signature,
        capacity,
        kind(kind.Config(), items),
        RateLimiter(),
        seed,
        capacity_bytes=capacity_bytes,
    )


def learn(table: Table, steps: int = 60) -> list[Sample]:
    envs, rng = copies(), np.random.default_rng(2)
    samples = []
    for step in range(steps):
        table.insert(collect(envs, 1 + step % 7), None)
        sample = table.sample(16, timeout_seconds=0)
        table.update_priorities(sample.keys, rng.random(16))
        samples.append(sample)
    return samples


def assert_same(one: Sample, other: Sample) -> None:
    np.testing.assert_array_equal(one.keys, other.keys)
    np.testing.assert_array_equal(one.weights, other.weights)
    for name, column in one.batch.columns().items():
        np.testing.assert_array_equal(column, other.batch.columns()[name])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samples_are_those_of_a_plain_table(sampler: str) -> None:
    plain, stacked = make_table(sampler, stack=1), make_table(sampler, stack=4)
    for one, other in zip(learn(plain), learn(stacked), strict=True):
        assert_same(one, other)
    assert stacked.statistics().size_nbytes < 0.4 * plain.statistics().size_nbytes


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_items_without_their_frames_are_never_sampled(sampler: str) -> None:
    # Every episode has one step: two frames for each item, so the frames run out first.
    table, envs = make_table(sampler, capacity=2000), copies(ending=1.0)
    inserted: list[TransitionBatch] = []
    rng = np.random.default_rng(0)
    for _ in range(300):
        inserted.append(collect(envs, 20))
        table.insert(inserted[-1], rng.random(20))
        sample = table.sample(8, timeout_seconds=0)
        table.update_priorities(sample.keys, 10 * rng.random(8))
    everything = TransitionBatch.concatenate(inserted)
    assert 1000 < table.size < 2000
    for _ in range(50):
        sample = table.sample(64, timeout_seconds=0)
        assert sample.keys.min() >= len(everything) - table.size
        for name, column in everything.columns().items():
            np.testing.assert_array_equal(sample.batch.columns()[name], column[sample.keys])


def test_evicted_items_have_no_mass() -> None:
    table, envs = make_table("prioritized", capacity=2000), copies(ending=1.0)
    for _ in range(200):
        table.insert(collect(envs, 20), np.ones(20))
    statistics = table.statistics()
    assert statistics.size < 2000
    population = table.population(DrawRequest(1))
    assert population.items == statistics.size
    assert population.mass == pytest.approx(statistics.size, rel=1e-3)  # of (1 + epsilon)^alpha


def test_priorities_of_evicted_items_are_ignored() -> None:
    table, envs = make_table("prioritized", capacity=2000), copies(ending=1.0)
    for _ in range(200):
        table.insert(collect(envs, 20))
    table.update_priorities(np.array([0, 4000 - table.size - 1]), np.array([1e9, 1e9]))
    keys = table.sample(100, timeout_seconds=0).keys
    assert len(np.unique(keys)) > 50


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_restored_table_gives_the_same_samples(sampler: str) -> None:
    whole, restored = make_table(sampler, capacity=50), make_table(sampler, capacity=50, seed=1)
    learn(whole, steps=20)
    restored.load_arrays(whole.arrays())
    for one, other in zip(learn(whole), learn(restored), strict=True):
        assert_same(one, other)


def test_a_queue_takes_no_stacks() -> None:
    with pytest.raises(UsageError, match=r"uses its items up .* leave `stack` out"):
        make_table("fifo")


def test_a_sampler_for_another_capacity_than_the_bytes_allow_is_refused() -> None:
    signature = collect(copies(1), 1).signature()
    kind = lookup("sampler", "uniform")
    with pytest.raises(UsageError, match="capacity of 3, but its sampler was made for 10"):
        Table(
            "replay", signature, 10, kind(kind.Config(), 10), RateLimiter(), 0,
            capacity_bytes=3 * 420,
        )  # fmt: skip


@pytest.mark.parametrize("stack", [1, 4])
def test_statistics_tell_the_bytes(stack: int) -> None:
    table = make_table(stack=stack, capacity=10_000, capacity_bytes=100_000)
    envs = copies()
    assert table.statistics().size_nbytes == 0
    for _ in range(200):
        table.insert(collect(envs, 6))
    statistics = table.statistics()
    assert 0 < statistics.size_nbytes <= statistics.capacity_nbytes <= 100_000
    if stack == 1:
        assert statistics.size_nbytes == statistics.capacity_nbytes
    assert statistics.capacity == table.capacity
