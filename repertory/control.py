"""The control plane: every Redis key of a run, with its owner and its lifetime.

| key after `repertory:RUN:` | holds                              | written by   | lives           |
|----------------------------|------------------------------------|--------------|-----------------|
| `card`                     | what the run is, as JSON           | launcher     | with the server |
| `desired`                  | state, actors, updates per step    | people       | with the server |
| `members`                  | name -> last heartbeat, as JSON    | each process | until dismissed |
| `counters`                 | env_steps, episodes, faults ...    | each process | with the server |
| `epochs`                   | learner -> its newest epoch        | head         | with the server |
| `meeting:LEARNER`          | where its replicas find each other | learner      | two minutes     |
| `director`                 | all that it knows, as JSON         | director     | with the server |
| `metrics`, `events`        | streams                            | each process | newest entries  |
| `commands`                 | stream of what people asked for    | people       | newest entries  |
| `reply:ID`                 | how a command ended                | supervisor   | five minutes    |
| `orders`                   | stream of what workers are told    | head         | newest entries  |

and `repertory:runs`, a set of all runs here, and `repertory:claims`, what each run that goes on
takes of the machines they share. Nothing of the data plane waits for any of it: calls
have a deadline and raise `ControlUnavailable`, and whoever reports tries again later. Two learners
of one policy are told apart by their epoch: the weight hub takes nothing from the older.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import redis

from repertory.closing import Closing
from repertory.errors import RepertoryError, UsageError

RUNS_KEY = "repertory:runs"
TIMEOUT_SECONDS = 2.0
METRICS_KEPT = 50_000
EVENTS_KEPT = 10_000
COMMANDS_KEPT = 1_000
ORDERS_KEPT = 10_000
REPLY_SECONDS = 300
MEETING_SECONDS = 120
CLAIM_SECONDS = 15.0
CLAIMS_KEY = "repertory:claims"

RunState = Literal["running", "paused", "stopped"]
Stream = Literal["metrics", "events", "commands"]


class ControlUnavailable(RepertoryError):
    """The control server did not answer in time."""


@dataclass(frozen=True, slots=True)
class ControlTls:
    """Files: who signed the server's certificate, and what we show to it."""

    authority: Path
    certificate: Path
    key: Path

    def __post_init__(self) -> None:
        """Those who get an address work in folders of their own."""
        for name in ("authority", "certificate", "key"):
            object.__setattr__(self, name, getattr(self, name).resolve())


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """Where the control server is. The password stays in its file."""

    url: str  # redis://host:port/0, rediss://..., unix:///path
    password_file: Path | None = None
    tls: ControlTls | None = None  # None: as the system has it, for rediss://

    def __post_init__(self) -> None:
        """Those who get an address work in folders of their own."""
        if self.password_file is not None:
            object.__setattr__(self, "password_file", self.password_file.resolve())

    def to_json(self) -> dict[str, Any]:
        file, tls = self.password_file, self.tls
        return {
            "url": self.url,
            "password_file": None if file is None else str(file),
            **({} if tls is None else {"tls": {k: str(v) for k, v in asdict(tls).items()}}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ControlAddress:
        file, tls = document["password_file"], document.get("tls")
        return cls(
            str(document["url"]),
            None if file is None else Path(file),
            None if tls is None else ControlTls(**{k: Path(v) for k, v in tls.items()}),
        )

    def connect(self, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Any:
        """A `redis.Redis` that speaks str (its own types say bytes or str); nothing is sent yet."""
        try:
            password = None if self.password_file is None else self.password_file.read_text()
        except OSError as error:
            raise RepertoryError(
                f"cannot read {self.password_file}, which opens the control server: "
                f"{error.strerror}"
            ) from error
        tls = {} if self.tls is None else {"connection_class": _connection_class(self.tls)}
        try:
            return redis.Redis.from_url(
                self.url,
                password=None if password is None else password.strip(),
                socket_timeout=timeout_seconds,
                socket_connect_timeout=timeout_seconds,
                decode_responses=True,
                **tls,
            )
        except ValueError as error:
            raise UsageError(
                f"{self.url!r} is not the address of a Redis: write redis://HOST:PORT/0, "
                f"rediss://HOST:PORT/0 or unix:///PATH ({error})"
            ) from error


@cache
def _connection_class(tls: ControlTls) -> type[redis.SSLConnection]:
    """Believes this authority alone: redis-py would add it to all that the system trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(tls.authority)
    context.load_cert_chain(tls.certificate, tls.key)

    class Connection(redis.SSLConnection):
        def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
            return context.wrap_socket(sock, server_hostname=self.host)

    return Connection


@dataclass(frozen=True, slots=True)
class RunCard:
    """What a run is, for those who list runs."""

    run_dir: str
    env: str
    learners: Mapping[str, str]  # name -> algorithm
    steps: int
    started: float  # seconds since the epoch
    host: str
    process_id: int


@dataclass(frozen=True, slots=True)
class Desired:
    """What people want of a run."""

    state: RunState = "running"
    actors: int | None = None  # None: as planned
    # Gradient updates per environment step of learners that are not to keep to their settings.
    updates_per_step: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """What one run takes of the machines that it shares with others."""

    learner_cores: float
    actors: int | None  # a number of its own; None: its share of what is left
    since: float  # seconds since the epoch
    at: float  # when it said so


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a run, as it last said of itself."""

    role: str  # worker, learner, shard, evaluator, supervisor
    host: str
    process_id: int
    incarnation: int  # how often it was started
    at: float  # seconds since the epoch, of this heartbeat
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def age_seconds(self) -> float:
        return max(0.0, time.time() - self.at)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the first replica of a learner waits for the others."""

    epoch: int  # of that learner: a newer one makes this meeting stale
    address: str  # HOST:PORT


@dataclass(frozen=True, slots=True)
class Command:
    """Something a person asked for."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a stream, and where to go on reading after it."""

    id: str
    fields: Mapping[str, Any]


class Control(Closing):
    """One run's view of the control server. Safe to share between threads."""

    def __init__(
        self, address: ControlAddress, run_id: str, *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self.address = address
        self.run_id = run_id
        self._timeout_seconds = timeout_seconds
        self._redis = address.connect(timeout_seconds=timeout_seconds)

    def close(self) -> None:
        self._redis.close()

    # The run

    def register(self, card: RunCard) -> None:
        with self._deadline():
            self._redis.set(self._key("card"), json.dumps(asdict(card)))
            self._redis.sadd(RUNS_KEY, self.run_id)

    def card(self) -> RunCard | None:
        with self._deadline():
            text = self._redis.get(self._key("card"))
        return None if text is None else RunCard(**json.loads(text))

    def desire(self, **changes: Any) -> None:
        """Changes what is wanted; what is not named stays."""
        Desired(**changes)  # refuses names that are not there
        with self._deadline():
            values = {name: json.dumps(value) for name, value in changes.items()}
            self._redis.hset(self._key("desired"), mapping=values)

    def desired(self) -> Desired:
        with self._deadline():
            values = self._redis.hgetall(self._key("desired"))
        return Desired(**{name: json.loads(value) for name, value in values.items()})

    # Other runs beside this one

    def runs(self) -> list[str]:
        """All that this server has heard of."""
        with self._deadline():
            return sorted(self._redis.smembers(RUNS_KEY))

    def claim(self, claim: Claim) -> None:
        with self._deadline():
            self._redis.hset(CLAIMS_KEY, self.run_id, json.dumps(asdict(claim)))

    def claims(self) -> dict[str, Claim]:
        """Of the runs that are going on: each says it again and again."""
        with self._deadline():
            values = self._redis.hgetall(CLAIMS_KEY)
        claims = {run: Claim(**json.loads(value)) for run, value in values.items()}
        oldest = time.time() - CLAIM_SECONDS
        return {run: claim for run, claim in claims.items() if claim.at > oldest}

    def withdraw_claim(self) -> None:
        with self._deadline():
            self._redis.hdel(CLAIMS_KEY, self.run_id)

    # Processes

    def heartbeat(self, name: str, member: Member, **counts: int) -> dict[str, int]:
        """A sign of life, and what to add to the run's counters: returns their new values."""
        with self._deadline():
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.hset(self._key("members"), name, json.dumps(asdict(member)))
            for counter, count in counts.items():
                pipeline.hincrby(self._key("counters"), counter, count)
            return dict(zip(counts, pipeline.execute()[1:], strict=True))

    def members(self) -> dict[str, Member]:
        with self._deadline():
            values = self._redis.hgetall(self._key("members"))
        return {name: Member(**json.loads(value)) for name, value in sorted(values.items())}

    def dismiss(self, *names: str) -> None:
        with self._deadline():
            if names:
                self._redis.hdel(self._key("members"), *names)

    def counters(self) -> dict[str, int]:
        with self._deadline():
            values = self._redis.hgetall(self._key("counters"))
        return {name: int(value) for name, value in values.items()}

    def set_counters(self, **counts: int) -> None:
        """For a run that goes on from a checkpoint."""
        with self._deadline():
            self._redis.hset(self._key("counters"), mapping=dict(counts))

    # Learners

    def next_epoch(self, learner: str) -> int:
        """Whoever has an older one can publish no more."""
        with self._deadline():
            return int(self._redis.hincrby(self._key("epochs"), learner, 1))

    def announce_meeting(self, learner: str, epoch: int, address: str) -> None:
        text = json.dumps(asdict(Meeting(epoch, address)))
        with self._deadline():
            self._redis.set(self._key(f"meeting:{learner}"), text, ex=MEETING_SECONDS)

    def meeting(self, learner: str) -> Meeting | None:
        with self._deadline():
            text = self._redis.get(self._key(f"meeting:{learner}"))
        return None if text is None else Meeting(**json.loads(text))

    # The director

    def save_director_state(
        self, state: Mapping[str, Any] | None, events: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        """None: a director that begins. What led to this state is recorded with it, or not at all.

        An event is what `record_event` takes, `kind` included.
        """
        with self._deadline():
            pipeline = self._redis.pipeline(transaction=True)
            if state is None:
                pipeline.delete(self._key("director"))
            else:
                pipeline.set(self._key("director"), json.dumps(state))
            for event in events:
                self._append_event(pipeline, **event)
            pipeline.execute()

    def director_state(self) -> dict[str, Any] | None:
        with self._deadline():
            text = self._redis.get(self._key("director"))
        return None if text is None else dict(json.loads(text))

    # What happens

    def report_metrics(self, source: str, env_steps: int, metrics: Mapping[str, float]) -> None:
        self._append("metrics", METRICS_KEPT, source=source, env_steps=env_steps, metrics=metrics)

    def record_event(self, kind: str, **details: Any) -> None:
        """What others than the head say has `said_by`, and is written down by the head."""
        with self._deadline():
            self._append_event(self._redis, kind, **details)

    def read(self, stream: Stream, after: str = "0", limit: int = 1000) -> list[Entry]:
        """Entries after the one with this id, oldest first."""
        with self._deadline():
            found = self._redis.xrange(self._key(stream), min=f"({after}", count=limit)
        return [_entry(id_, fields) for id_, fields in found]

    def newest_id(self, stream: Stream) -> str:
        """Where to go on for whoever wants only what comes from now on."""
        with self._deadline():
            found = self._redis.xrevrange(self._key(stream), count=1)
        return str(found[0][0]) if found else "0"

    # What people ask for

    def send(self, name: str, **arguments: Any) -> str:
        """Returns the id under which the answer will come."""
        id_ = uuid.uuid4().hex
        self._append("commands", COMMANDS_KEPT, id=id_, name=name, arguments=arguments)
        return id_

    def commands(self, after: str) -> tuple[str, list[Command]]:
        """Where to go on, and what was asked since."""
        with self._deadline():
            found = self._redis.xrange(self._key("commands"), min=f"({after}", count=100)
        entries = [_entry(id_, fields) for id_, fields in found]
        asked = [
            Command(entry.fields["id"], entry.fields["name"], entry.fields["arguments"])
            for entry in entries
        ]
        return (entries[-1].id if entries else after), asked

    def reply(self, command: Command, *, error: str | None = None, **result: Any) -> None:
        """A list, so that whoever waits for it is woken."""
        key = self._key(f"reply:{command.id}")
        with self._deadline():
            self._redis.rpush(key, json.dumps({"error": error, **result}))
            self._redis.expire(key, REPLY_SECONDS)

    def await_reply(self, id_: str, timeout_seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_seconds
        key = self._key(f"reply:{id_}")
        while (remaining := deadline - time.monotonic()) > 0:
            with self._deadline():
                # Shorter than the socket's own deadline, so that waiting is not an error.
                wait = min(remaining, self._timeout_seconds / 2)  # else waiting were an error
                found = self._redis.blpop([key], timeout=wait)
            if found is not None:
                answer: dict[str, Any] = json.loads(found[1])
                error = answer.pop("error")
                if error is not None:
                    raise RepertoryError(error)
                return answer
        raise RepertoryError(
            f"run {self.run_id} did not answer within {timeout_seconds:g} s: is it running? "
            "`repertory status` tells"
        )

    # What workers are told

    def order(self, to: str, incarnation: int, name: str, *arguments: Any) -> None:
        """To one process, in one of its lives."""
        self._append(
            "orders", ORDERS_KEPT, to=to, incarnation=incarnation, name=name, arguments=arguments
        )

    def await_orders(self, after: str) -> list[Entry]:
        """What was ordered after the entry with this id, of anybody; waits a moment for it."""
        with self._deadline():
            milliseconds = int(1000 * self._timeout_seconds / 2)  # as in `await_reply`
            found = self._redis.xread({self._key("orders"): after}, block=milliseconds)
        return [_entry(id_, fields) for _, entries in found for id_, fields in entries]

    def _append_event(self, client: Any, kind: str, **details: Any) -> None:
        self._add(client, "events", EVENTS_KEPT, event=kind, time=time.time(), **details)

    def _append(self, stream: str, kept: int, **fields: Any) -> None:
        with self._deadline():
            self._add(self._redis, stream, kept, **fields)

    def _add(self, client: Any, stream: str, kept: int, **fields: Any) -> None:
        values = {name: json.dumps(value) for name, value in fields.items()}
        # About: whole blocks of the stream are dropped, which costs next to nothing.
        client.xadd(self._key(stream), values, maxlen=kept, approximate=True)

    def _key(self, name: str) -> str:
        return f"repertory:{self.run_id}:{name}"

    @contextmanager
    def _deadline(self) -> Iterator[None]:
        try:
            yield
        except redis.AuthenticationError as error:
            raise ControlUnavailable(
                f"the control server at {self.address.url} refuses the password: {error}"
            ) from error
        except redis.RedisError as error:
            raise ControlUnavailable(
                f"the control server at {self.address.url}: {' '.join(str(error).split())}"
            ) from error


def runs(address: ControlAddress) -> list[str]:
    """The ids of all runs that are known to this server."""
    client = address.connect()
    try:
        return sorted(client.smembers(RUNS_KEY))
    except redis.RedisError as error:
        raise ControlUnavailable(
            f"the control server at {address.url}: {' '.join(str(error).split())}"
        ) from error
    finally:
        client.close()


def _entry(id_: str, fields: Mapping[str, str]) -> Entry:
    return Entry(id_, {name: json.loads(value) for name, value in fields.items()})
