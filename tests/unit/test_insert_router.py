"""Every insert ends up in one shard, once, whatever happens on the way."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from buffer_server.insert_router import MAX_INSERTS_UNDER_WAY, InsertRouter, Parcel
from buffer_server.proto import replay_pb2 as pb
from buffer_server.writer_ledger import WINDOW, Origin, WriterLedger
from repertory.errors import UsageError


def parcel(name: str = "x", nbytes: int = 0) -> Parcel:
    name += "." * max(0, nbytes - len(name) - 2)
    return Parcel(pb.InsertRequest(table=name).SerializeToString())


def make_router(
    shards: int, *, window: int = 0, queue: int = 2**20, first: int = 0
) -> InsertRouter:
    router = InsertRouter(shards, first, window, queue)
    for index in range(shards):
        router.lanes[index].max_message_bytes = 2**20
        router.set_usable(index, True)
        router.begin_stream(index)
    return router


def sent(router: InsertRouter, index: int) -> list[str]:
    """Takes all that the router would send to a shard now."""
    names = []
    while (raw := router.next_request(index)) is not None:
        names.append(pb.InsertRequest.FromString(raw).table)
    return names


def fill(router: InsertRouter, names: str) -> None:
    for name in names:
        router.accept(parcel(name))


class FakeShard:
    """What a shard does with what it gets: in order, with a ledger."""

    def __init__(self) -> None:
        self.ledger = WriterLedger()
        self.items: list[str] = []
        self.inbox: deque[pb.InsertRequest] = deque()
        self.outbox: deque[tuple[int, bool]] = deque()  # sequence, whether it was done
        self.up = True

    def process(self) -> None:
        request = self.inbox.popleft()
        origin = Origin(request.writer, request.sequence)
        if not self.ledger.contains(origin):
            self.items.append(request.table)
            self.ledger.note(origin)
        self.outbox.append((request.sequence, True))

    def hold(self) -> None:
        self.outbox.append((self.inbox.popleft().sequence, False))


ALL_KNOWN = 2**62  # the shard has forgotten nothing


class Traffic(RuleBasedStateMachine):
    """Streams break at any moment; shards go and come back with what they had done."""

    @initialize(shards=st.integers(1, 4), window=st.sampled_from([0, 1, 60]))
    def start(self, shards: int, window: int) -> None:
        self.router = make_router(shards, window=window, queue=400)
        self.shards = [FakeShard() for _ in range(shards)]
        self.accepted: list[str] = []

    def shard(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.shards) - 1))

    @rule()
    def insert(self) -> None:
        new = parcel(str(len(self.accepted)))
        if self.router.has_room(len(new.body)):
            self.accepted.append(str(len(self.accepted)))
            self.router.accept(new)

    @rule(data=st.data())
    def transmit(self, data: st.DataObject) -> None:
        index = self.shard(data)
        if self.shards[index].up and (raw := self.router.next_request(index)) is not None:
            self.shards[index].inbox.append(pb.InsertRequest.FromString(raw))

    @rule(data=st.data(), done=st.booleans())
    def serve(self, data: st.DataObject, done: bool) -> None:
        shard = self.shards[self.shard(data)]
        if shard.inbox:
            shard.process() if done else shard.hold()

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        self.deliver(self.shard(data))

    @rule(data=st.data(), served=st.integers(0, 3))
    def break_stream(self, data: st.DataObject, served: int) -> None:
        """The shard may do some of what it has got; nobody hears of it."""
        index = self.shard(data)
        shard = self.shards[index]
        for _ in range(min(served, len(shard.inbox))):
            shard.process()
        shard.inbox.clear()
        shard.outbox.clear()
        shard.up = False
        self.router.set_usable(index, False)

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        self.revive(self.shard(data))

    @precondition(lambda self: hasattr(self, "shards"))
    @invariant()
    def nothing_is_there_twice(self) -> None:
        counts = Counter(name for shard in self.shards for name in shard.items)
        assert all(count == 1 for count in counts.values())

    def teardown(self) -> None:
        if not hasattr(self, "shards"):
            return
        for index in range(len(self.shards)):
            self.revive(index)
        while self.router.pending:
            for index, shard in enumerate(self.shards):
                while (raw := self.router.next_request(index)) is not None:
                    shard.inbox.append(pb.InsertRequest.FromString(raw))
                while shard.inbox:
                    shard.process()
                while shard.outbox:
                    self.deliver(index)
        assert sorted(name for shard in self.shards for name in shard.items) == sorted(
            self.accepted
        )
        statistics = self.router.statistics()
        assert statistics.acknowledged == statistics.accepted == len(self.accepted)
        assert statistics.pending_bytes == 0

    def revive(self, index: int) -> None:
        if not self.shards[index].up:
            self.shards[index].up = True
            self.router.begin_stream(index)
            self.router.set_usable(index, True)

    def deliver(self, index: int) -> None:
        if self.shards[index].outbox:
            sequence, done = self.shards[index].outbox.popleft()
            if done:
                self.router.acknowledge(index, sequence, items=1, previous=ALL_KNOWN)
            else:
                self.router.send_again(index, sequence)


Traffic.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestTraffic = Traffic.TestCase


def test_inserts_take_turns_from_the_first_shard_on() -> None:
    router = make_router(3, first=2)
    fill(router, "abcdef")
    assert [sent(router, index) for index in range(3)] == [["b", "e"], ["c", "f"], ["a", "d"]]


def test_a_shard_that_cannot_be_used_or_has_no_room_is_passed_over() -> None:
    router = make_router(3, window=1)
    router.set_usable(1, False)
    fill(router, "abc")
    assert [sent(router, index) for index in range(3)] == [["a"], [], ["b"]]
    router.acknowledge(2, 1, items=1, previous=ALL_KNOWN)
    assert sent(router, 2) == ["c"]


def test_what_has_not_left_goes_elsewhere_and_what_has_left_stays() -> None:
    router = make_router(2)
    fill(router, "abcd")
    assert router.next_request(0) is not None  # a has left, c has not
    router.set_usable(0, False)
    assert sorted(sent(router, 1)) == ["b", "c", "d"]
    router.begin_stream(0)
    router.set_usable(0, True)
    assert sent(router, 0) == ["a"]


def test_what_is_sent_again_keeps_its_name() -> None:
    router = make_router(1)
    fill(router, "ab")
    first = [router.next_request(0), router.next_request(0)]
    router.begin_stream(0)
    assert [router.next_request(0), router.next_request(0)] == first


def test_what_may_be_sent_again_stays_within_what_the_shard_remembers() -> None:
    router = make_router(1, queue=2**30)
    fill(router, "a" * (2 * WINDOW))
    assert len(sent(router, 0)) == MAX_INSERTS_UNDER_WAY
    # The oldest is never answered; all others are, again and again.
    for sequence in range(2, MAX_INSERTS_UNDER_WAY + 1):
        router.acknowledge(0, sequence, items=1, previous=ALL_KNOWN)
    assert sent(router, 0) == []
    router.acknowledge(0, 1, items=1, previous=ALL_KNOWN)
    assert len(sent(router, 0)) == MAX_INSERTS_UNDER_WAY


def test_each_shard_is_a_writer_of_its_own_so_a_long_absence_makes_nothing_too_old() -> None:
    router = make_router(2)
    ledgers = [WriterLedger(), WriterLedger()]
    fill(router, "ab")
    away = pb.InsertRequest.FromString(router.next_request(0) or b"")
    router.set_usable(0, False)
    for _ in range(3 * WINDOW):
        request = pb.InsertRequest.FromString(router.next_request(1) or b"")
        ledgers[1].note(Origin(request.writer, request.sequence))
        router.acknowledge(1, request.sequence, items=1, previous=ALL_KNOWN)
        router.accept(parcel())
    router.begin_stream(0)
    again = pb.InsertRequest.FromString(router.next_request(0) or b"")
    assert again == away
    assert not ledgers[0].contains(Origin(again.writer, again.sequence))


def test_an_abandoned_shards_inserts_go_to_the_others_first_and_are_counted() -> None:
    router = make_router(2, window=1)
    fill(router, "abcd")
    assert sent(router, 0) == ["a"]
    assert sent(router, 1) == ["b"]
    router.set_usable(0, False)
    router.abandon(0)
    router.acknowledge(1, 1, items=1, previous=ALL_KNOWN)
    assert sent(router, 1) == ["a"]
    assert router.statistics().handed_over == 1
    assert router.statistics().pending == 3
    router.acknowledge(0, 1, items=1, previous=ALL_KNOWN)  # too late, and nobody's any more
    assert router.statistics().acknowledged == 1


def test_the_queue_is_bounded_in_bytes_but_takes_one_however_large() -> None:
    router = make_router(2, window=10, queue=100)
    assert router.has_room(1000)
    router.accept(parcel(nbytes=60))
    assert router.has_room(40)
    assert not router.has_room(41)
    assert router.statistics().pending_bytes == 60


def test_one_alone_may_be_larger_than_the_window_but_not_than_a_message() -> None:
    router = make_router(2, window=10)
    router.lanes[0].max_message_bytes = 50
    router.accept(parcel("large", nbytes=60))
    assert sent(router, 0) == []
    assert [name[:5] for name in sent(router, 1)] == ["large"]


def test_a_refused_insert_is_gone_and_counted() -> None:
    router = make_router(1)
    fill(router, "a")
    sent(router, 0)
    error = UsageError("no")
    refused = router.refuse(0, 1, error)
    assert refused is not None
    assert refused.error is error
    assert router.refuse(0, 1, error) is None
    statistics = router.statistics()
    assert (statistics.refused, statistics.pending) == (1, 0)


@pytest.mark.parametrize("usable", [True, False])
def test_only_what_has_not_left_can_be_withdrawn(usable: bool) -> None:
    router = make_router(1)
    fill(router, "a")
    sent(router, 0)
    router.set_usable(0, usable)
    late = parcel("b")
    router.accept(late)
    assert router.withdraw(late)
    assert not router.withdraw(router.lanes[0].pending[1])
    assert (router.statistics().accepted, router.statistics().pending) == (1, 1)


def test_a_dropped_insert_is_counted() -> None:
    router = make_router(1)
    router.drop()
    assert router.statistics().dropped == 1


def test_what_a_shard_has_forgotten_since_it_acknowledged_it_is_counted_once() -> None:
    router = make_router(1)
    fill(router, "abcdef")
    sent(router, 0)
    for sequence in (1, 2, 3, 4):
        router.acknowledge(0, sequence, items=10 * sequence, previous=sequence - 1)
    assert router.statistics().lost == 0
    # It came back from a checkpoint that had the first two.
    router.acknowledge(0, 5, items=1, previous=2)
    assert (router.statistics().lost, router.statistics().lost_items) == (2, 70)
    router.acknowledge(0, 6, items=1, previous=5)
    assert (router.statistics().lost, router.statistics().lost_items) == (2, 70)


def test_inserts_that_passed_each_other_are_not_taken_for_lost() -> None:
    router = make_router(1)
    fill(router, "abc")
    sent(router, 0)
    router.acknowledge(0, 1, items=1, previous=0)
    router.acknowledge(0, 3, items=1, previous=1)  # the limiter held the second one
    router.acknowledge(0, 2, items=1, previous=3)
    assert router.statistics().lost == 0
