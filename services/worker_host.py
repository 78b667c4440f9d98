"""A rollout process as a Ray actor: plays for all policies of the portfolio."""

from __future__ import annotations

from typing import Any

import torch

from actors.casting import Casting, Leased, Solo
from actors.rollout import WorkerPlace, rollout_for
from actors.worker import RolloutWorker
from repertory.orders import Orders
from repertory.policies.policy import build_policy, policy_config
from repertory.table_layout import tables_of
from services.director_link import DirectorLink
from services.hosts import Process, ProcessContext
from services.replay_access import inserts_for
from services.weights import WeightSource

STOP_SECONDS = 30.0
LISTEN_SECONDS = 10.0  # for orders: one that comes wakes the listener at once


class WorkerHost(Process):
    def __init__(self, context: ProcessContext, index: int) -> None:
        super().__init__(context)
        torch.set_num_threads(1)
        config = self.config
        self._heartbeat = self.beat("worker", self._facts)
        self._edition = 0
        self._link: DirectorLink | None = None
        casting: Casting = Solo()
        if context.director is not None:
            self._link = DirectorLink(context.director, context.name, lambda: self._edition)
            room = config.director.lease_size(config.env.copies)
            casting = Leased(self._link, tuple(config.learners), room)
        self._rollout = rollout_for(
            config,
            self.spec,
            {
                name: build_policy(policy_config(context.policies[name]), self.spec)
                for name in config.learners
            },
            casting,
            WorkerPlace(index, context.incarnation),
        )
        self._replays = {
            table: inserts_for(
                table,
                context.shards,
                caller=context.name,
                window_bytes=context.window_bytes[table],
                credentials=self.as_client,
            )
            for table in tables_of(config)
        }
        self._worker = RolloutWorker(
            config,
            self._rollout,
            self._replays,
            {name: WeightSource(context.hub, name) for name in config.learners},
            self._heartbeat,
            **({} if self._link is None else {"report": self._link.report}),
            total_env_steps=context.counters.get("env_steps", 0),
        )
        self._orders = Orders(
            self.control(timeout_seconds=LISTEN_SECONDS),
            context.name,
            context.incarnation,
            {"stop": self.stop, "pause": self.pause, "heed": self.heed},
        )

    def run(self) -> None:
        try:
            self._worker.run()
            for replay in self._replays.values():
                replay.flush(timeout_seconds=STOP_SECONDS)
            if self._link is not None:
                self._link.flush(timeout_seconds=STOP_SECONDS)
        finally:
            self._orders.close()
            self._heartbeat.close()
            for replay in self._replays.values():
                replay.close()
            self._rollout.close()

    def stop(self) -> None:
        self._worker.stopping.set()

    def pause(self, paused: bool) -> None:
        (self._worker.paused.set if paused else self._worker.paused.clear)()

    def heed(self, edition: int) -> None:
        """The director has decided anew: what it decided before and has not begun is void."""
        self._edition = max(self._edition, edition)

    def _facts(self) -> dict[str, Any]:
        worker = getattr(self, "_worker", None)  # the heart beats before all is made
        if worker is None:
            return {}
        inserts = [replay.client_statistics().inserts for replay in self._replays.values()]
        return {
            **worker.facts(),
            # By shards that came back without them.
            "lost_items": sum(one.lost_items for one in inserts),
            # To others than the shard that was silent.
            "handed_over": sum(one.handed_over for one in inserts),
        }
