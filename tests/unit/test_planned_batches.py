"""Batches over scripted shards: what is asked of whom, and what the weights make of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest
from replay_shards import LONG_SECONDS, numbered, until

from buffer_server import sample_lanes, wire
from buffer_server.connection import Connection
from buffer_server.draws import Draw, Population, Selection
from buffer_server.planned_batches import PlannedBatches
from buffer_server.proto import replay_pb2 as pb
from buffer_server.remote_table import RemoteTable
from buffer_server.sharded_config import ShardedConfig
from buffer_server.shards import Shard
from buffer_server.statuses import ReplayUnavailable
from repertory.errors import RepertoryError, ReplayTimeout, UsageError
from repertory.types import Sample

SIGNATURE = numbered(0, 1).signature()
TABLE = RemoteTable(
    name="replay",
    address="",
    signature=SIGNATURE,
    signature_hash=wire.signature_hash(SIGNATURE),
    capacity=1000,
    consumes=False,
    max_message_bytes=2**20,
    compression="none",
)
DEADLINE = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
Reply = pb.SampleResponse | RepertoryError | None
Script = Callable[[pb.SampleRequest], Reply]


class ScriptedStream:
    """Answers each request as the script of its shard says; None: not before it is released."""

    scripts: dict[str, Script]
    released: threading.Event

    def __init__(
        self,
        connection: Connection,
        method: str,
        requests: Iterator[bytes],
        on_answer: Callable[[bytes], None],
        on_end: Callable[[RepertoryError], None],
    ) -> None:
        self._script = self.scripts[connection.address]
        self._work = (requests, on_answer, on_end)
        threading.Thread(target=self._serve, daemon=True).start()

    def cancel(self) -> None:
        self._work[2](ReplayUnavailable("cancelled"))

    def _serve(self) -> None:
        requests, on_answer, on_end = self._work
        for raw in requests:
            request = pb.SampleRequest.FromString(raw)
            reply = self._script(request)
            if reply is None:
                self.released.wait(LONG_SECONDS)
                reply = given(request.size, number=666)
            if isinstance(reply, RepertoryError):
                on_end(reply)
                return
            on_answer(reply.SerializeToString())


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    event = threading.Event()
    monkeypatch.setattr(sample_lanes, "Stream", ScriptedStream)
    ScriptedStream.released = event
    ScriptedStream.scripts = {}
    yield event
    event.set()


def given(
    size: int, *, number: int = 0, mass: float = 1.0, within: float | None = None
) -> pb.SampleResponse:
    """Items that all have the same number and, in their shard, the same probability."""
    probabilities = None if within is None else np.full(size, within)
    selection = Selection(np.full(size, number), probabilities, 1.0)
    columns = {name: np.repeat(c, size, 0) for name, c in numbered(number, 1).columns().items()}
    return wire.encode_draw(Draw(columns, selection, Population(100, mass)))


def held() -> pb.SampleResponse:
    return pb.SampleResponse(refusal=pb.Refusal(code=DEADLINE, message="must wait"))


def make_batches(
    *shards: tuple[float, Script],
    patience_seconds: float = LONG_SECONDS,
    prefetch: int = 0,
    consumer: int | None = None,
    batches_at_once: int = 1,
) -> tuple[PlannedBatches, list[Shard]]:
    """Shards with these masses and scripts."""
    config = ShardedConfig(
        addresses=tuple(f"unix:/{index}" for index in range(len(shards))),
        table="replay",
        patience_seconds=patience_seconds,
        prefetch=prefetch,
        consumer=consumer,
        batches_at_once=batches_at_once,
    )
    made = []
    for index, (mass, script) in enumerate(shards):
        shard = Shard(index, config.addresses[index], config, lambda _: None)
        shard.weigh(Population(100, mass), time.monotonic())
        shard.away, shard.table = None, TABLE
        ScriptedStream.scripts[shard.address] = script
        made.append(shard)
    return PlannedBatches(made, TABLE, config), made


def take(batches: PlannedBatches, size: int, timeout_seconds: float = LONG_SECONDS) -> Sample:
    return batches.take(size, time.monotonic() + timeout_seconds)


def owners(sample: Sample) -> list[int]:
    return (sample.keys >> 48).tolist()


def test_a_part_that_others_give_counts_into_their_chances(released: threading.Event) -> None:
    def lost(request: pb.SampleRequest) -> Reply:
        # Meanwhile the first shard has become three times as heavy as the second.
        shards[0].weigh(Population(100, 3.0), time.monotonic())
        return ReplayUnavailable("gone")

    batches, shards = make_batches(
        (1.0, lambda request: given(request.size, within=0.1, mass=3.0)),
        (1.0, lambda request: given(request.size, within=0.1)),
        (2.0, lost),
    )
    sample = take(batches, 80)
    # 1/4 + 1/2 * 3/4 and 1/4 + 1/2 * 1/4: the second shard's items were rarer.
    expected = {0: 0.375 / 0.625, 1: 1.0}
    weights = [expected[shard] for shard in owners(sample)]
    np.testing.assert_allclose(sample.weights, weights, rtol=1e-6)
    assert owners(sample) == [0] * 50 + [1] * 30
    assert batches.refilled == 1


@pytest.mark.parametrize("consumer", [None, 0, 3])
def test_every_request_says_for_which_consumer_it_is(
    consumer: int | None, released: threading.Event
) -> None:
    asked: list[int | None] = []

    def noted(request: pb.SampleRequest) -> Reply:
        asked.append(request.consumer if request.HasField("consumer") else None)
        return given(request.size)

    batches, _ = make_batches((1.0, noted), (1.0, noted), prefetch=1, consumer=consumer)
    for size in (8, 8, 20):
        take(batches, size)
    assert len(asked) >= 6
    assert set(asked) == {consumer}


def test_an_answer_that_comes_too_late_is_in_no_batch(released: threading.Event) -> None:
    silent_once = iter([True])

    def slow(request: pb.SampleRequest) -> Reply:
        return None if next(silent_once, False) else given(request.size, number=1)

    batches, _ = make_batches(
        (1.0, lambda request: given(request.size)), (1.0, slow), patience_seconds=0.1, prefetch=1
    )
    for _ in range(3):
        assert owners(take(batches, 10)) == [0] * 10
    lane = batches.lanes[1]
    assert "gave no sample for" in str(lane.away(time.monotonic()))
    released.set()
    until(lambda: lane.usable(time.monotonic()))
    take(batches, 10)  # planned before
    sample = take(batches, 10)
    assert set(owners(sample)) == {0, 1}
    assert set(sample.batch.reward.tolist()) == {0.0, 1.0}  # and not 666


def test_a_batch_of_another_size_does_not_get_what_an_earlier_one_asked_for(
    released: threading.Event,
) -> None:
    batches, _ = make_batches((1.0, lambda request: given(request.size)), prefetch=3)
    for size in (4, 9, 4, 1):
        assert len(take(batches, size).keys) == size


def test_with_one_silent_shard_nothing_is_taken_back(released: threading.Event) -> None:
    batches, _ = make_batches((1.0, lambda request: None), patience_seconds=0.05)
    with pytest.raises(ReplayTimeout, match="no answer for"):
        take(batches, 4, timeout_seconds=0.2)
    released.set()
    assert take(batches, 4).batch.reward.tolist() == [666.0] * 4


def test_a_held_shard_is_asked_again_for_the_same_part_within_the_patience(
    released: threading.Event,
) -> None:
    asked: list[int] = []

    def sometimes(request: pb.SampleRequest) -> Reply:
        asked.append(request.size)
        return held() if len(asked) < 4 else given(request.size)

    batches, _ = make_batches(
        (1.0, sometimes), (1.0, lambda request: given(request.size)), patience_seconds=5.0
    )
    assert owners(take(batches, 8)) == [0] * 4 + [1] * 4
    assert asked == [4] * 4
    assert batches.refilled == 0


def test_a_shard_held_for_longer_than_the_patience_is_asked_without_waiting(
    released: threading.Event,
) -> None:
    waits: list[float] = []

    def always(request: pb.SampleRequest) -> Reply:
        waits.append(request.timeout_seconds)
        return held()

    batches, _ = make_batches(
        (1.0, always), (1.0, lambda request: given(request.size)), patience_seconds=0.05
    )
    lane = batches.lanes[0]
    until(lambda: owners(take(batches, 8)) == [1] * 8 and lane.held_for(time.monotonic()) > 0.05)
    waits.clear()
    until(lambda: owners(take(batches, 8)) == [1] * 8 and waits)
    assert set(waits) == {0.0}


def test_while_all_are_held_parts_stay_whole(released: threading.Event) -> None:
    sizes: list[int] = []

    def always(request: pb.SampleRequest) -> Reply:
        sizes.append(request.size)
        return held()

    batches, _ = make_batches((1.0, always), (1.0, always), patience_seconds=0.02)
    with pytest.raises(ReplayTimeout, match=r"unix:/0: must wait; unix:/1: must wait"):
        take(batches, 8, timeout_seconds=0.5)
    assert len(sizes) > 10
    assert min(sizes) >= 4


def test_a_refusal_for_good_is_raised_and_the_next_batch_starts_anew(
    released: threading.Event,
) -> None:
    refused = iter([True, True])

    def picky(request: pb.SampleRequest) -> Reply:
        if next(refused, False):
            refusal = pb.Refusal(code=grpc.StatusCode.INVALID_ARGUMENT.value[0], message="too many")
            return pb.SampleResponse(refusal=refusal)
        return given(request.size)

    batches, _ = make_batches((1.0, picky), prefetch=2)
    with pytest.raises(UsageError, match="too many"):
        take(batches, 8)
    assert len(take(batches, 8).keys) == 8


def test_a_shard_that_sends_another_number_of_items_is_found_out(
    released: threading.Event,
) -> None:
    batches, _ = make_batches((1.0, lambda request: given(request.size + 1)))
    with pytest.raises(UsageError, match="8 items were asked for, but 9 came"):
        take(batches, 8)


def test_an_unreadable_answer_ends_the_stream_and_others_stand_in(
    released: threading.Event,
) -> None:
    def nonsense(request: pb.SampleRequest) -> Reply:
        response = given(request.size)
        response.population.mass = -1.0
        return response

    batches, _ = make_batches((1.0, nonsense), (1.0, lambda request: given(request.size)))
    assert owners(take(batches, 8)) == [1] * 8
    away = batches.lanes[0].trouble
    assert away is not None
    assert "mass came as -1" in away.reason


class Numbering:
    """A shard whose items are numbered one after the other, as long as its limiter lets them."""

    def __init__(self, allowed: int = 10**6) -> None:
        self.allowed = allowed  # items
        self.given = 0
        self.asked: list[int] = []
        self.waits: list[float] = []

    def __call__(self, request: pb.SampleRequest) -> Reply:
        self.asked.append(request.size)
        self.waits.append(request.timeout_seconds)
        if request.size > self.allowed:
            return held()
        keys = np.arange(self.given, self.given + request.size)
        self.given += request.size
        self.allowed -= request.size
        columns = numbered(int(keys[0]), request.size).columns()
        return wire.encode_draw(Draw(columns, Selection(keys), Population(100, 100.0)))


def test_one_shard_is_asked_for_more_and_more_batches_at_once(released: threading.Event) -> None:
    shard = Numbering()
    batches, _ = make_batches((1.0, shard), batches_at_once=4)
    samples = [take(batches, 10) for _ in range(15)]
    assert shard.asked == [10, 20, 40, 40, 40]
    keys = np.concatenate([sample.keys for sample in samples])
    np.testing.assert_array_equal(keys, np.arange(150))  # each once, in their order
    for sample in samples:
        assert len(sample.keys) == len(sample.weights) == len(sample.batch) == 10
        np.testing.assert_array_equal(sample.batch.reward, sample.keys)
    assert batches.taken == 15


def test_batches_of_one_message_share_no_item(released: threading.Event) -> None:
    batches, _ = make_batches((1.0, Numbering()), batches_at_once=2)
    take(batches, 3)
    first, second = take(batches, 3), take(batches, 3)
    first.batch.reward[:] = -1.0
    assert second.batch.reward.tolist() == [6.0, 7.0, 8.0]


def test_where_the_limiter_has_room_for_one_batch_only_one_comes(
    released: threading.Event,
) -> None:
    shard = Numbering(allowed=70)
    batches, _ = make_batches((1.0, shard), batches_at_once=8, prefetch=1)
    for _ in range(7):  # all there is, though the last request for several found too little
        take(batches, 10)
    assert shard.given == 70
    with pytest.raises(ReplayTimeout):
        take(batches, 10, timeout_seconds=0.05)
    shard.allowed = 10
    assert take(batches, 10).keys.tolist() == list(range(70, 80))
    # Only a request for one batch waits at the shard: others would keep it from what is there.
    assert all(
        seconds == 0 for size, seconds in zip(shard.asked, shard.waits, strict=True) if size > 10
    )


def test_a_call_that_does_not_wait_gets_the_one_batch_that_is_there(
    released: threading.Event,
) -> None:
    shard = Numbering(allowed=40)
    batches, _ = make_batches((1.0, shard), batches_at_once=4)
    taken = [take(batches, 10, timeout_seconds=0.0).keys[0] for _ in range(4)]
    assert taken == [0, 10, 20, 30]
    assert shard.asked == [10, 20, 40, 10]


def test_another_size_gets_nothing_that_came_for_the_one_before(released: threading.Event) -> None:
    shard = Numbering()
    batches, _ = make_batches((1.0, shard), batches_at_once=4)
    for _ in range(2):
        take(batches, 10)
    assert len(take(batches, 5).keys) == 5
    assert shard.asked == [10, 20, 5]


def test_large_batches_come_one_by_one(released: threading.Event) -> None:
    large = Numbering()
    items = 4000  # two of them are more than half of the largest message
    batches, _ = make_batches((1.0, large), batches_at_once=8)
    for _ in range(3):
        take(batches, items)
    assert large.asked == [items] * 3


def test_each_of_many_shards_is_asked_for_its_parts_of_several_batches(
    released: threading.Event,
) -> None:
    shards = [Numbering(), Numbering()]
    batches, _ = make_batches(*((100.0, shard) for shard in shards), batches_at_once=4)
    samples = [take(batches, 10) for _ in range(7)]
    for number, shard in enumerate(shards):
        assert shard.asked == [5, 10, 20]  # of one batch, of two, of four
        # Every batch has its half of each shard, and no item is in two.
        keys = [sample.keys[np.array(owners(sample)) == number] for sample in samples]
        assert [len(one) for one in keys] == [5] * 7
        np.testing.assert_array_equal(np.concatenate(keys) & (2**48 - 1), np.arange(35))
    for sample in samples:
        np.testing.assert_array_equal(sample.batch.reward, sample.keys & (2**48 - 1))
        assert owners(sample) == [0] * 5 + [1] * 5


def test_a_held_shard_gives_its_parts_of_several_batches_one_by_one(
    released: threading.Event,
) -> None:
    free, narrow = Numbering(), Numbering(allowed=17)
    batches, _ = make_batches((100.0, free), (100.0, narrow), batches_at_once=4)
    for _ in range(3):  # one, then two: so far both give all that they are asked for
        take(batches, 10)
    assert (free.given, narrow.given) == (15, 15)

    def let_one_pass(request: pb.SampleRequest) -> Reply:
        narrow.allowed = max(narrow.allowed, 5)
        return narrow(request)

    ScriptedStream.scripts["unix:/1"] = let_one_pass
    batches.lanes[1].close()  # another stream, of that script
    samples = [take(batches, 10) for _ in range(4)]
    assert narrow.asked[:3] == [5, 10, 20]
    assert set(narrow.asked[3:]) == {5}
    assert free.asked[:3] == [5, 10, 20]  # what it gave for all four is used
    assert [owners(sample) for sample in samples] == [[0] * 5 + [1] * 5] * 4
    assert batches.refilled == 0


def test_a_shard_that_is_lost_with_parts_of_several_batches_is_stood_in_for(
    released: threading.Event,
) -> None:
    steady, failing = Numbering(), Numbering()

    def lost_at_the_third(request: pb.SampleRequest) -> Reply:
        return ReplayUnavailable("gone") if len(failing.asked) == 2 else failing(request)

    batches, _ = make_batches((100.0, steady), (100.0, lost_at_the_third), batches_at_once=4)
    samples = [take(batches, 10) for _ in range(7)]
    assert [len(sample.keys) for sample in samples] == [10] * 7
    assert [set(owners(sample)) for sample in samples] == [{0, 1}] * 3 + [{0}] * 4
    assert batches.refilled == 4
    keys = np.concatenate([sample.keys for sample in samples])
    assert len(np.unique(keys)) == len(keys)
