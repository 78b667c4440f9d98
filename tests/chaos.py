"""Breaks a distributed run on purpose, in a seeded order, and measures how it recovers.

    python tests/chaos.py --algo dqn --faults 60 --steps 60000 --seed 1 [--json FILE]

Processes are killed with SIGKILL, in any state; shards are cut off by proxies between them and
everybody else. The next fault does not wait for the last to be over, only for the process it is
meant for to be at work. DQN runs on `numbered_cartpole`, so that every row is accounted for
(`row_account`); the rows of an on-policy learner are consumed, so that PPO is only watched. The run
is patient (`max_failures`): nothing outside of this program breaks the same process so often.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from cut_proxy import CutProxy
from distributed_runs import Train
from numbered_cartpole import records
from rich.console import Console
from rich.table import Table
from row_account import Account, Rows, ShardKill, saved_rows, settle
from run_watch import RunWatch

from buffer_server.client import ClientConfig, ReplayClient
from repertory.errors import RepertoryError

Kind = Literal[
    "worker", "learner", "shard", "evaluator", "hub", "control", "dropped", "silent", "unanswered"
]
KINDS: tuple[Kind, ...] = get_args(Kind)

WORKERS = 2
SHARDS = 2
SEND_ITEMS = 64
CUT_SECONDS = (3.0, 8.0)
RECOVERY_SECONDS = 120.0  # only something broken takes this long
LOOK_SECONDS = 0.02


@dataclass(slots=True)
class Fault:
    kind: Kind
    target: str
    at: float  # seconds since the epoch; of a cut, when it was healed
    env_steps: int
    recovery_seconds: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done to which run."""

    algorithm: Literal["dqn", "ppo"]
    steps: int
    faults: int
    seed: int
    gap_seconds: tuple[float, float] = (1.0, 5.0)  # from one fault to the next
    kinds: tuple[Kind, ...] = KINDS

    def order(self) -> list[Kind]:
        """Every kind about as often, each round of them in an order of its own."""
        chance = random.Random(self.seed)
        order: list[Kind] = []
        while len(order) < self.faults:
            order += chance.sample(self.kinds, len(self.kinds))
        return order[: self.faults]


@dataclass(frozen=True, slots=True)
class Report:
    plan: Plan
    seconds: float  # of the whole run, start and end included
    env_steps: int
    best_return: float
    last_return: float
    faults: Sequence[Fault]
    rows: Account | None
    went_back: dict[str, list[tuple[int, int]]]
    versions_heard: int
    restarts: dict[str, int]

    def troubles(self) -> list[str]:
        """What must not be, in words."""
        found = [] if self.rows is None else self.rows.troubles()
        found += [f"the version that {who} went back: {how}" for who, how in self.went_back.items()]
        found += [
            f"{fault.kind} {fault.target} at step {fault.env_steps} was not recovered from"
            for fault in self.faults
            if fault.recovery_seconds is None
        ]
        if self.env_steps < self.plan.steps:
            found.append(f"{self.env_steps} of {self.plan.steps} steps were taken")
        return found

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "troubles": self.troubles()}


class Chaos:
    """One run and what is done to it. `report` when it is over."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._chance = random.Random(plan.seed + 1)
        self._copies = folder / "copies"
        self._copies.mkdir()
        self._sockets = Path(tempfile.mkdtemp(prefix="repertory-chaos-"))  # a short path
        self._proxies = [
            CutProxy(self._sockets / f"near-{index}", self._sockets / f"far-{index}")
            for index in range(SHARDS)
        ]
        self.train = Train(folder)
        self.faults: list[Fault] = []
        self._shard_kills: list[ShardKill] = []
        self._killed_workers: set[int] = set()
        self._recovering: list[threading.Thread] = []
        self._begin = time.time()
        self.train.start_linked(self._description())
        self.watch = RunWatch(self.train.run_dir)

    def run(self) -> None:
        for kind in self._plan.order():
            if not self._going_on():
                break
            self._pause()
            self._inject(kind)
        for thread in self._recovering:
            thread.join(RECOVERY_SECONDS)

    def report(self) -> Report:
        """Waits for the end of the run."""
        self.train.finish(timeout_seconds=3600.0)
        self.watch.close()
        if self.watch.failure is not None:
            raise self.watch.failure
        self.train.assert_nothing_left()
        with np.load(self.train.run_dir / "evaluations.npz") as evaluations:
            means = evaluations["results"].mean(axis=1)
        restarts: dict[str, int] = {}
        for event in self.train.events("restarting"):
            restarts[event["member"]] = restarts.get(event["member"], 0) + 1
        return Report(
            plan=self._plan,
            seconds=time.time() - self._begin,
            env_steps=self.train.events("finished")[-1]["env_steps"],
            best_return=float(means.max()),
            last_return=float(means[-1]),
            faults=self.faults,
            rows=self._account() if self._plan.algorithm == "dqn" else None,
            went_back=self.watch.went_back(),
            versions_heard=sum(one.said for one in self.watch.versions.values()),
            restarts=restarts,
        )

    def close(self) -> None:
        self.watch.close()
        self.train.end()
        for proxy in self._proxies:
            proxy.close()
        for path in self._sockets.iterdir():
            path.unlink()
        self._sockets.rmdir()

    def _description(self) -> dict[str, Any]:
        plan = self._plan
        numbered = plan.algorithm == "dqn"
        settings: dict[str, Any] = {
            "steps": plan.steps,
            "seed": plan.seed,
            "topology.actors": WORKERS,
            "topology.shards": SHARDS,
            "topology.send_items": SEND_ITEMS,
            "topology.restarts.first_pause_seconds": 0.2,
            "topology.restarts.longest_pause_seconds": 2.0,
            "topology.restarts.max_failures": 1000,
            "checkpoint.every": 1000,
            "evaluation.every": 2500,
            "evaluation.episodes": 10,
        }
        if numbered:
            settings["env.kwargs"] = {"folder": str(self._copies)}
        return {
            "env": "numbered_cartpole:NumberedCartPole" if numbered else "CartPole-v1",
            "algorithm": plan.algorithm,
            "preset": "CartPole-v1",
            "settings": settings,
            "links": [
                (f"unix:{self._sockets}/far-{index}", f"unix:{self._sockets}/near-{index}")
                for index in range(SHARDS)
            ],
        }

    def _going_on(self) -> bool:
        """Faults in the last steps would have nothing left to recover for."""
        return self.train.process.poll() is None and self.watch.env_steps < 0.9 * self._plan.steps

    def _pause(self) -> None:
        """Until the first evaluation and checkpoint are there, then as long as planned."""
        self.train.until(lambda: any(self.train.run_dir.glob("checkpoints/step_*")))
        hurry = self.watch.env_steps > 0.7 * self._plan.steps
        wait = 0.0 if hurry else self._chance.uniform(*self._plan.gap_seconds)
        threading.Event().wait(wait)

    # Faults

    def _inject(self, kind: Kind) -> None:
        if kind in ("dropped", "silent", "unanswered"):
            self._cut(kind)
        elif kind == "control":
            self._kill_control()
        elif kind == "hub":
            self._kill_hub()
        else:
            self._kill_member(kind)

    def _kill_member(self, kind: Kind) -> None:
        name = {
            "worker": f"worker-{self._chance.randrange(WORKERS)}",
            "shard": f"shard-{self._chance.randrange(SHARDS)}",
            "learner": f"learner-{self._plan.algorithm}",
            "evaluator": "evaluator",
        }[kind]
        self._until(lambda: self.watch.working(name) is not None)
        if kind == "learner":
            self._until(lambda: not self._pending("hub"))
        working = self.watch.working(name)
        if working is None:  # the run is at its end
            return
        life, seen = working
        fault = self._note(kind, name)
        if kind == "shard":
            size = self._shard_size(int(name.removeprefix("shard-")))
        with contextlib.suppress(ProcessLookupError):
            os.kill(seen.process_id, signal.SIGKILL)
        fault.at = time.time()
        if kind == "worker":
            self._killed_workers.add(seen.process_id)
        if kind == "shard" and self._plan.algorithm == "dqn":
            saved = saved_rows(self.train.run_dir / "replay" / name).number.tolist()
            self._shard_kills.append(ShardKill(size, frozenset(saved)))
            fault.details = {"items": size, "in the checkpoint": len(saved)}

        def back() -> bool:
            now = self.watch.working(name)
            return now is not None and now[0] > life

        self._await_recovery(fault, back)

    def _kill_control(self) -> None:
        fault = self._note("control", "control server")
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.train.control_server(), signal.SIGKILL)
        fault.at = time.time()
        roles = ("worker", "learner", "shard", "evaluator")
        before = [seen for seen in self.watch.lives.values() if seen.role in roles]
        # Whoever is there speaks again; those that were gone before never will.
        speaking = [seen for seen in before if fault.at - seen.heard_at < 2.0]
        self._await_recovery(
            fault,
            lambda: bool(speaking) and any(seen.heard_at > fault.at for seen in speaking),
        )

    def _kill_hub(self) -> None:
        """Never together with the learner: one of them must remember the last version."""
        self._until(lambda: not self._pending("hub") and not self._pending("learner"))
        fault = self._note("hub", "weight hub")
        for process_id in self.train.processes(b"WeightHub"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        fault.at = time.time()

        def newer() -> bool:
            """Somebody acts with weights that were published since."""
            seen = [one for one in list(self.watch.lives.values()) if one.role == "worker"]
            return any(
                one.heard_at - one.facts.get("weights_age_seconds", np.inf) > fault.at
                for one in seen
            )

        self._await_recovery(fault, newer)

    def _cut(self, kind: Literal["dropped", "silent", "unanswered"]) -> None:
        index = self._chance.randrange(SHARDS)
        name = f"shard-{index}"
        self._until(lambda: self.watch.working(name) is not None)
        if self.watch.working(name) is None:
            return
        seconds = self._chance.uniform(*CUT_SECONDS)
        fault = self._note(kind, name)
        steps = self.watch.env_steps
        self._proxies[index].cut(kind)
        threading.Event().wait(seconds)  # this is the fault, not a wait for something
        self._proxies[index].heal()
        fault.at = time.time()
        fault.details = {"seconds": round(seconds, 1), "steps": self.watch.env_steps - steps}
        found = self.watch.newest(name)
        assert found is not None
        life, inserted = found[0], found[1].facts.get("inserted", 0)

        def taken() -> bool:
            now = self.watch.newest(name)
            # One that was killed meanwhile is the other fault's to speak of.
            return now is not None and (now[0] > life or now[1].facts.get("inserted", 0) > inserted)

        self._await_recovery(fault, taken)

    def _note(self, kind: Kind, target: str) -> Fault:
        fault = Fault(kind, target, time.time(), self.watch.env_steps)
        self.faults.append(fault)
        return fault

    def _pending(self, kind: Kind) -> bool:
        return any(one.recovery_seconds is None for one in self.faults if one.kind == kind)

    def _await_recovery(self, fault: Fault, recovered: Callable[[], bool]) -> None:
        """In a thread: other faults come meanwhile."""

        def wait() -> None:
            deadline = fault.at + RECOVERY_SECONDS
            while time.time() < deadline and self.train.process.poll() is None:
                if recovered():
                    fault.recovery_seconds = time.time() - fault.at
                    return
                threading.Event().wait(LOOK_SECONDS)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        self._recovering.append(thread)

    def _until(self, condition: Callable[[], bool]) -> None:
        self.train.until(lambda: condition() or not self._going_on())

    def _shard_size(self, index: int) -> int:
        """As it says itself, by a way that is never cut."""
        table = "replay" if self._plan.algorithm == "dqn" else self._plan.algorithm
        address = f"unix:{self._sockets}/far-{index}"
        try:
            with ReplayClient(ClientConfig(address=address, table=table)) as client:
                return client.statistics().tables[table].size
        except RepertoryError:
            return 0

    def _account(self) -> Account:
        """One message waits, and one for each shard is under way."""
        message = SEND_ITEMS + 1
        lives = list(self.watch.lives.items())
        workers = {seen.process_id for _, seen in lives if seen.role == "worker"}
        folder = self.train.run_dir / "replay"
        present = [saved_rows(folder / f"shard-{index}") for index in range(SHARDS)]
        return settle(
            [copy for copy in records(self._copies) if copy.process_id in workers],
            Rows.join(present),
            killed_workers=self._killed_workers,
            shard_kills=self._shard_kills,
            rows_under_way=2 * WORKERS * message,
            rows_with_worker=(2 + SHARDS) * message,
            not_sent=self.watch.counters.get("items_not_sent", 0),
            reported_lost=sum(
                seen.facts.get("lost_items", 0) for _, seen in lives if seen.role == "worker"
            ),
        )


@contextlib.contextmanager
def chaos(plan: Plan, folder: Path) -> Iterator[Chaos]:
    made = Chaos(plan, folder)
    try:
        yield made
    finally:
        made.close()


def print_report(report: Report, console: Console) -> None:
    plan = report.plan
    console.print(
        f"{plan.algorithm}, seed {plan.seed}: {report.env_steps} steps in {report.seconds:.0f} s, "
        f"{len(report.faults)} faults; evaluated return: best {report.best_return:.1f}, "
        f"last {report.last_return:.1f}"
    )
    table = Table("fault", "times", "median", "worst", "not recovered")
    for kind in KINDS:
        times = [fault.recovery_seconds for fault in report.faults if fault.kind == kind]
        known = [seconds for seconds in times if seconds is not None]
        if times:
            table.add_row(
                kind,
                str(len(times)),
                f"{statistics.median(known):.1f} s" if known else "",
                f"{max(known):.1f} s" if known else "",
                str(len(times) - len(known)),
            )
    console.print(table)
    if report.rows is not None:
        rows = report.rows
        console.print(
            f"rows: {rows.made} made, {rows.present} there, {rows.missing} missing: "
            f"{rows.overwritten} overwritten, {rows.not_sent} not sent in the end, "
            f"{rows.lost_with_workers} with workers (at most {rows.worker_bound}), "
            f"{rows.lost_with_shards} with shards (at most {rows.shard_bound}); "
            f"{rows.reported_lost} reported by clients; {rows.twice} twice, {rows.torn} torn"
        )
    console.print(f"versions: {report.versions_heard} heard, went back: {report.went_back or 'no'}")
    for trouble in report.troubles():
        console.print(f"TROUBLE: {trouble}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Break a distributed run on purpose.")
    parser.add_argument("--algo", choices=("dqn", "ppo"), default="dqn")
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--json", type=Path, help="where the report goes besides")
    parser.add_argument("--keep", type=Path, help="a folder for the run, which is left there")
    options = parser.parse_args(arguments)
    plan = Plan(
        options.algo, options.steps, options.faults, options.seed, kinds=tuple(options.kinds)
    )
    with contextlib.ExitStack() as stack:
        folder = options.keep
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        made = stack.enter_context(chaos(plan, folder))
        made.run()
        report = made.report()
    print_report(report, Console())
    if options.json is not None:
        options.json.write_text(json.dumps(report.to_json(), indent=1))
    return 1 if report.troubles() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
