"""Parts from several shards become the sample that one table with everything would give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_shards import numbered

from buffer_server.draws import Draw, Population, Selection
from buffer_server.frames import share_frames
from buffer_server.joining import MOST_SHARDS, Piece, join, pack_keys, unpack_keys
from repertory.errors import UsageError
from repertory.types import ColumnSpec

SIGNATURE = numbered(0, 1).signature()


def piece(
    shard: int,
    first: int,
    count: int,
    *,
    chance: float = 1.0,
    probabilities: list[float] | None = None,
    beta: float = 0.0,
    items: int = 10,
) -> Piece:
    within = None if probabilities is None else np.array(probabilities)
    selection = Selection(np.arange(first, first + count), within, beta)
    columns = numbered(first, count).columns()
    return Piece(shard, Draw(columns, selection, Population(items, float(items))), chance)


@given(st.integers(0, MOST_SHARDS - 1), st.lists(st.integers(0, 2**48 - 1), min_size=1, max_size=5))
def test_keys_come_out_of_their_package_as_they_went_in(shard: int, keys: list[int]) -> None:
    shards, unpacked = unpack_keys(pack_keys(np.array(keys, dtype=np.int64), shard))
    assert shards.tolist() == [shard] * len(keys)
    assert unpacked.tolist() == keys


@pytest.mark.parametrize("key", [-1, 2**48])
def test_a_key_that_would_name_another_shard_is_refused(key: int) -> None:
    with pytest.raises(UsageError, match=r"from 0 to 2\^48 - 1"):
        pack_keys(np.array([3, key]), 0)


def test_columns_stand_in_the_order_of_the_pieces() -> None:
    sample = join([piece(2, 100, 3), piece(0, 7, 2)], SIGNATURE)
    numbers = [100, 101, 102, 7, 8]
    for name, column in sample.batch.columns().items():
        expected = np.concatenate([numbered(n, 1).columns()[name] for n in numbers])
        assert column.dtype == expected.dtype
        np.testing.assert_array_equal(column, expected)
        assert column.flags.writeable
        assert column.flags.owndata
    assert [key & 0xFFFF for key in sample.keys.tolist()] == numbers
    assert [key >> 48 for key in sample.keys.tolist()] == [2, 2, 2, 0, 0]


def test_an_item_is_as_likely_as_its_shard_times_itself() -> None:
    sample = join(
        [
            piece(0, 0, 2, chance=0.75, probabilities=[0.2, 0.4], beta=0.5),
            piece(1, 0, 1, chance=0.25, probabilities=[0.3], beta=0.5),
        ],
        SIGNATURE,
    )
    # P over the whole: 0.15, 0.3, 0.075; the rarest has weight 1.
    np.testing.assert_allclose(
        sample.weights, [(0.15 / 0.075) ** -0.5, (0.3 / 0.075) ** -0.5, 1.0], rtol=1e-6
    )


def test_without_probabilities_all_weights_are_one() -> None:
    sample = join([piece(0, 0, 2, chance=0.9), piece(1, 0, 1, chance=0.1)], SIGNATURE)
    assert sample.weights.tolist() == [1.0, 1.0, 1.0]


def test_the_largest_shards_beta_counts() -> None:
    parts = [
        piece(0, 0, 1, chance=0.5, probabilities=[0.1], beta=1.0, items=5),
        piece(1, 0, 1, chance=0.5, probabilities=[0.2], beta=0.0, items=6),
    ]
    assert join(parts, SIGNATURE).weights.tolist() == [1.0, 1.0]


def test_shards_with_different_samplers_are_refused() -> None:
    with pytest.raises(UsageError, match="only some shards sent probabilities"):
        join([piece(0, 0, 1), piece(1, 0, 1, probabilities=[0.5])], SIGNATURE)


def test_a_piece_is_cut_without_loss() -> None:
    head, rest = piece(1, 10, 5).cut(2)
    sample = join([rest, head], SIGNATURE)
    assert sample.batch.reward.tolist() == [12.0, 13.0, 14.0, 10.0, 11.0]
    assert (sample.keys & 0xFFFF).tolist() == [12, 13, 14, 10, 11]


def test_stacks_of_frames_are_put_together_where_they_belong() -> None:
    rng = np.random.default_rng(0)
    stacks = rng.integers(0, 255, (6, 4, 2, 3), dtype=np.uint8)
    signature = {**SIGNATURE, "observation": ColumnSpec("|u1", (4, 2, 3), stack=4)}

    def part(shard: int, rows: slice) -> Piece:
        count = len(stacks[rows])
        columns = {**numbered(0, count).columns(), "observation": stacks[rows]}
        shared = share_frames(columns, signature)
        selection = Selection(np.arange(count))
        return Piece(shard, Draw(shared, selection, Population(count, float(count))))

    joined = join([part(0, slice(0, 4)), part(1, slice(4, 6))], signature)
    np.testing.assert_array_equal(joined.batch.observation, stacks)
    head, _ = part(0, slice(0, 4)).cut(3)
    np.testing.assert_array_equal(join([head], signature).batch.observation, stacks[:3])
