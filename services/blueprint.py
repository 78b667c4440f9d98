"""What every process of a distributed run is made of: from its name to a Ray actor.

    shard-K             a part of the replay
    learner-NAME        one learner of the portfolio
    replica-K-NAME      one more process for the same learner, which shares its batches
    evaluator
    worker-K            copies of the environment

The director of a portfolio is not among them: Ray restarts it (`services.direction`).

`services.distributed_run` says which of them shall be there; nothing here starts by itself.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from buffer_server.table_config import TableConfig
from repertory.config import RunConfig
from repertory.control import Control
from repertory.parts import lookup
from repertory.policies.policy import TorchPolicy, build_policy
from repertory.specs import EnvSpec
from repertory.table_layout import tables_of
from services.direction import Direction
from services.evaluator_host import EvaluatorHost
from services.fit import choose_device
from services.hosts import ProcessContext
from services.learner_host import LearnerHost
from services.placement import Placement
from services.plan import Plan
from services.replay_access import shard_tables
from services.run_directory import RunDirectory
from services.shard_host import ShardHost
from services.shard_link import ShardLink
from services.worker_host import WorkerHost

EVALUATOR = "evaluator"


class Blueprint:
    """Of one run."""

    def __init__(
        self,
        config: RunConfig,
        spec: EnvSpec,
        plan: Plan,
        directory: RunDirectory,
        control: Control,
        hub: Any,
        placement: Placement,
        links: Sequence[ShardLink],
        user_paths: tuple[str, ...],
    ) -> None:
        """`links` may change when the shards move: whoever is made then gets the new ones."""
        self._config = config
        self._spec = spec
        self._plan = plan
        self._directory = directory
        self._control = control
        self._hub = hub
        self._placement = placement
        self._links = links
        self._user_paths = user_paths
        self.policies = {name: self._untrained_policy(name) for name in config.learners}
        alone = len(self.policies) == 1
        self.direction = Direction(
            None if alone else self._context("director", 1, 0), placement.options("director")
        )

    def names(self, actors: int) -> list[str]:
        """Of all processes that a run with so many workers has."""
        return [
            *(f"shard-{index}" for index in range(self._plan.shards)),
            *(
                process_name(learner, rank)
                for learner in self._config.learners
                for rank in range(self._config.topology.replicas)
            ),
            EVALUATOR,
            *(f"worker-{index}" for index in range(actors)),
        ]

    def make(self, name: str, incarnation: int, *, actors: int, env_steps: int) -> Any:
        """A new Ray actor for this name, in a run that stands at so many steps."""
        context = self._context(name, incarnation, env_steps)
        plan = self._plan
        role, _, rest = name.partition("-")
        where = self._placement.options(role)
        if role == "shard":
            index = int(rest)
            host = _actor(ShardHost, where, cores=0)
            return host.remote(context, index, self._links[index].listen, self._tables(index))
        if role == "worker":
            host = _actor(WorkerHost, where, cores=self.needs(name)["CPU"], threads=1)
            return host.remote(context, int(rest))
        if role == EVALUATOR:
            return _actor(EvaluatorHost, where, cores=0).remote(context)
        rank, learner = (0, rest) if role == "learner" else _replica(rest)
        # Who has an older epoch can publish no more; all processes of one learner share it.
        epoch = self._control.next_epoch(learner) if rank == 0 else 0
        cores, gpus = plan.learner_cores, plan.learner_gpus[learner]
        host = _actor(LearnerHost, where, cores=cores, gpus=gpus)
        state = self.learner_state(learner)
        return host.remote(context, learner, epoch, actors, state, *([rank] if rank else []))

    def needs(self, name: str) -> dict[str, float]:
        """What Ray sets aside for it."""
        role, _, rest = name.partition("-")
        if role == "worker":
            # The first never waits for a core: without any actor a run would stand still.
            return {"CPU": self._plan.actor_cores if int(rest) else 0.0}
        if role in ("learner", "replica"):
            learner = rest if role == "learner" else _replica(rest)[1]
            return {"CPU": self._plan.learner_cores, "GPU": self._plan.learner_gpus[learner]}
        return {}

    def tables(self) -> list[str]:
        return list(self._tables(0))

    @property
    def as_client(self) -> dict[str, Any]:
        """What the head shows to the replay."""
        node = self._placement.node
        return {} if node is None else node.as_client()

    def shard_addresses(self) -> tuple[str, ...]:
        return tuple(link.connect for link in self._links)

    def learner_state(self, learner: str) -> Mapping[str, Any] | None:
        """Of the newest checkpoint that is whole."""
        if not self._directory.checkpoints.paths():
            return None
        state: Mapping[str, Any] = self._directory.checkpoints.newest_valid().load(
            f"learner-{learner}"
        )
        return state

    def _context(self, name: str, incarnation: int, env_steps: int) -> ProcessContext:
        return ProcessContext(
            version=importlib.metadata.version("repertory"),
            name=name,
            incarnation=incarnation,
            config=self._config.to_yaml(),
            spec=self._spec.to_json(),
            run_id=self._control.run_id,
            run_dir=self._directory.path.resolve(),
            control=self._control.address,
            clustered=self._placement.node is not None,
            shards=self.shard_addresses(),
            window_bytes=self._window_bytes(),
            # The director itself needs neither: Ray can start it again from what it was made of.
            hub=None if name == "director" else self._hub,
            director=None if name == "director" else self.direction.actor,
            user_paths=self._user_paths,
            counters={"env_steps": env_steps},
            policies={
                name: policy.config.model_dump(mode="json")
                for name, policy in self.policies.items()
            },
        )

    def _tables(self, shard: int) -> dict[str, TableConfig]:
        return shard_tables(
            self._config,
            self._spec,
            {name: policy.extras for name, policy in self.policies.items()},
            actors=self._plan.actors,
            shards=self._plan.shards,
            index=shard,
        )

    def _window_bytes(self) -> dict[str, int]:
        """One message of an actor: whatever more is under way, the limiter does not see."""
        copies = self._config.env.copies
        tables, window_bytes = self._tables(0), {}
        for name, layout in tables_of(self._config).items():
            item = sum(column.nbytes for column in tables[name].signature.values())
            segments = layout.segment_length is not None
            items = copies if segments else self._config.topology.send_items + copies
            window_bytes[name] = items * item
        return window_bytes

    def _untrained_policy(self, learner: str) -> TorchPolicy:
        """Only its settings and what it records beside its actions are of interest."""
        config = self._config.learners[learner]
        algorithm = lookup("algorithm", config.algorithm)(
            config, device=choose_device("cpu"), seed=self._config.seed
        )
        policy = algorithm.policy(algorithm.initial_state(self._spec))
        return build_policy(policy.config, self._spec)


def process_name(learner: str, rank: int = 0) -> str:
    return f"learner-{learner}" if rank == 0 else f"replica-{rank}-{learner}"


def _replica(rest: str) -> tuple[int, str]:
    rank, _, learner = rest.partition("-")
    return int(rank), learner


def _actor(
    host: type[Any],
    where: Mapping[str, Any],
    *,
    cores: float,
    gpus: float = 0.0,
    threads: int = 4,
) -> Any:
    """We restart it, not Ray. Threads are for `run` and for what it is told meanwhile.

    With one, `run` has the main thread, which Ray else wakes a hundred times a second: of many
    workers on few cores that is a tenth of what they do. It gets `repertory.orders` instead.
    """
    return ray.remote(host).options(
        num_cpus=cores,
        num_gpus=gpus,
        max_restarts=0,
        max_task_retries=0,
        max_concurrency=threads,
        **where,
    )
