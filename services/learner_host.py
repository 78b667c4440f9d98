"""The learner process as a Ray actor, or one of its replicas."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import ray
import torch

from learner.checkpoint import load_state_tree, state_tree
from learner.data_parallel import check_alike, highest
from learner.fresh_segments import FreshSegments
from learner.loop import LearnerLoop
from learner.own_discount import OwnDiscount
from learner.paired_replay import PairedReplay
from repertory.config import OnPolicyConfig
from repertory.control import ControlUnavailable
from repertory.parts import lookup
from repertory.protocols import Replay
from repertory.seeding import derive_seed
from repertory.table_layout import table_of, tables_of
from services import meeting
from services.batch_shares import items_per_replica
from services.fit import choose_device
from services.hosts import Process, ProcessContext
from services.learner_process import LearnerProcess
from services.replay_access import samples_for, sends_priorities, stretches_for
from services.step_compilation import compilation_for
from services.threads import threads_of
from services.weights import SilentPublisher, WeightPublisher

logger = logging.getLogger(__name__)

PREFETCH = 2
STRETCH_SECONDS = 0.1  # for stretches that may not be there yet


class LearnerHost(Process):
    """One learner of the portfolio, from a checkpoint's state where there is one.

    Of `topology.replicas` processes for it this is number `rank`; the first, 0, is the one that
    publishes, reports and is asked for checkpoints, and the only one whose epoch counts.
    """

    def __init__(
        self,
        context: ProcessContext,
        learner: str,
        epoch: int,
        actors: int,
        state: Mapping[str, Any] | None,
        rank: int = 0,
    ) -> None:
        super().__init__(context)
        config = self.config
        torch.set_num_threads(1)  # here; `run` has its own
        self._threads = threads_of(config, learner)
        learner_config = config.learners[learner]
        self._heartbeat = self.beat("replica" if rank else "learner", self._facts)
        device = choose_device(config.device)
        self._place = meeting.Place(
            learner,
            epoch,
            rank,
            config.topology.replicas,
            host=ray.util.get_node_ip_address(),
            device=device,
        )
        items = items_per_replica(config, learner, actors)
        # The same seed for every replica: they begin alike, and their generators stay alike.
        algorithm = lookup("algorithm", learner_config.algorithm)(
            learner_config, device=device, seed=derive_seed(config.seed, "learner", learner)
        )
        learner_state = algorithm.initial_state(self.spec)
        if state is not None:
            load_state_tree(learner_state, state)
        self._replay = samples_for(
            config,
            learner,
            context.shards,
            caller=context.name,
            prefetch=PREFETCH,
            seed=derive_seed(config.seed, "shards", learner, *([rank] if rank else [])),
            credentials=self.as_client,
        )
        replay: Replay = self._replay
        segments = None
        if isinstance(learner_config, OnPolicyConfig):
            replay = segments = FreshSegments(self._replay, config.max_lag)
        elif tables_of(config)[table_of(config, learner)].gamma != learner_config.gamma:
            replay = OwnDiscount(self._replay, learner_config.gamma)
        self._stretches = stretches_for(
            config,
            learner,
            context.shards,
            caller=context.name,
            prefetch=PREFETCH,
            seed=derive_seed(config.seed, "stretches", learner, rank),
            credentials=self.as_client,
        )
        if self._stretches is not None:
            replay = PairedReplay(replay, self._stretches, STRETCH_SECONDS)
        self._compilation = compilation_for(config, learner, algorithm, self.spec, local=False)
        self._loop = LearnerLoop(
            algorithm,
            learner_state,
            replay,
            batch_size=items,
            send_priorities=sends_priorities(config),
            own_policy=list(config.learners).index(learner) if len(config.learners) > 1 else None,
            after_update=None if self._compilation is None else self._compilation.attend,
        )
        self._publisher: WeightPublisher | SilentPublisher = SilentPublisher()
        if rank == 0:
            self._publisher = WeightPublisher(
                context.hub, learner, epoch, self._loop.updates, self._acted_with(learner)
            )
        self._learner = LearnerProcess(
            learner,
            config,
            self._loop,
            algorithm.policy(learner_state),
            self._publisher,
            self._heartbeat,
            segments,
        )

    def _acted_with(self, learner: str) -> int:
        """The highest version that any worker says it has; -1 where none does."""
        try:
            with self.control() as control:
                members = control.members().values()
        except ControlUnavailable as error:
            logger.warning("%s; only the hub knows what was published", error)
            return -1
        known = (member.facts.get("weights", {}).get(learner) for member in members)
        return max((int(one["version"]) for one in known if one is not None), default=-1)

    def run(self) -> None:
        # In the thread that learns, and no other: with a team of threads for each of two, OpenMP
        # sees more than the machine has cores, and lets them sleep between any two products.
        torch.set_num_threads(self._threads)
        try:
            if self._place.replicas > 1:
                self._meet()
            self._learner.run()
        except meeting.ToldToStop:
            pass
        finally:
            meeting.part()
            if self._compilation is not None:
                self._compilation.close()
            self._heartbeat.close()
            self._replay.close()
            if self._stretches is not None:
                self._stretches.close()

    def stop(self) -> None:
        self._learner.stopping.set()

    def pause(self, paused: bool) -> None:
        (self._learner.paused.set if paused else self._learner.paused.clear)()

    def set_actors(self, actors: int) -> None:
        self._learner.set_actors(actors)

    def checkpoint(self, timeout_seconds: float) -> dict[str, Any]:
        return self._learner.checkpoint(timeout_seconds)

    def _meet(self) -> None:
        def at_rest() -> None:
            self._heartbeat.progress()
            self._learner.answer_requests()

        with self.control() as control:
            meeting.meet(control, self._place, self._learner.stopping, at_rest)
        check_alike(state_tree(self._loop.state))
        offset = torch.tensor(self._publisher.offset, dtype=torch.int64)
        self._publisher.offset = int(highest(offset))

    def _facts(self) -> dict[str, Any]:
        learner = getattr(self, "_learner", None)  # the heart beats before all is made
        return {} if learner is None else learner.facts()
