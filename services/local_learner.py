"""One learner of a local run: its loop, its policy, its part of the replay, its pace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buffer_server.learner_view import Draws, LearnerView
from buffer_server.table import Table
from learner.checkpoint import load_state_tree, state_tree
from learner.fresh_segments import FreshSegments
from learner.loop import LearnerLoop
from learner.own_discount import OwnDiscount
from learner.paired_replay import PairedReplay
from repertory.config import OffPolicyConfig, OnPolicyConfig, RunConfig
from repertory.parts import lookup
from repertory.policies.policy import TorchPolicy
from repertory.protocols import Algorithm, Replay
from repertory.seeding import derive_seed
from repertory.specs import EnvSpec
from repertory.table_layout import TableLayout
from repertory.types import WeightSnapshot
from services.fit import choose_device
from services.pace import Pace
from services.replay_access import batch_size, sends_priorities
from services.step_compilation import compilation_for


class LocalLearner:
    """`read` tells it where its experience is; then it can `learn`."""

    def __init__(self, config: RunConfig, name: str, spec: EnvSpec) -> None:
        self._run_config = config
        self.name = name
        self.place = list(config.learners).index(name)
        self.config = config.learners[name]
        self._algorithm: Algorithm[Any] = lookup("algorithm", self.config.algorithm)(
            self.config,
            device=choose_device(config.device),
            seed=derive_seed(config.seed, "learner", name),
        )
        self._state = self._algorithm.initial_state(spec)
        policy: Any = self._algorithm.policy(self._state)
        self.policy: TorchPolicy = policy
        self._compilation = compilation_for(config, name, self._algorithm, spec, local=True)
        self._pace = Pace(0, 0.0)
        if isinstance(self.config, OffPolicyConfig):
            self._pace = Pace(self.config.learning_starts, self.config.updates_per_step)

    def read(
        self, table: Table, way: Draws, layout: TableLayout, stretches: Table | None = None
    ) -> None:
        """From this table, by this way: the table itself, or a client of the shard it is in.

        A learner of two levels reads `stretches` beside it.
        """
        config, run_config = self.config, self._run_config
        self._table = table
        self._segments: FreshSegments | None = None
        alone = len(run_config.learners) == 1
        replay: Replay = way
        if isinstance(config, OnPolicyConfig):
            replay = self._segments = FreshSegments(way, run_config.max_lag)
        elif isinstance(config, OffPolicyConfig) and not alone:
            replay = LearnerView(way, self.place, config.own_share, config.max_age)
            if layout.gamma != config.gamma:
                replay = OwnDiscount(replay, config.gamma)
        if stretches is not None:
            replay = PairedReplay(replay, stretches)
        self.loop = LearnerLoop(
            self._algorithm,
            self._state,
            replay,
            batch_size=batch_size(run_config, config, actors=1),
            send_priorities=sends_priorities(run_config),
            own_policy=None if alone else self.place,
            after_update=None if self._compilation is None else self._compilation.attend,
        )

    @property
    def updates(self) -> int:
        updates: int = self._state.updates
        return updates

    def steps_between_updates(self) -> int:
        """Environment steps of all copies after which there may be something to learn from."""
        if isinstance(self.config, OnPolicyConfig):
            return self.config.segment_length * self._run_config.env.copies
        assert isinstance(self.config, OffPolicyConfig)
        return self.config.train_every

    def learn(self, env_steps: int, factor: float = 1.0) -> None:
        """As much as what was experienced so far allows."""
        if self._segments is None:
            allowed = self._pace.allowed(env_steps, factor)
            if self._table.size > 0:
                self.loop.run(allowed - self.updates)
            return
        while self._segments.take_in(self._table.available) >= self.loop.batch_size:
            self.loop.run(1)
            self._segments.version = self._segments.fresh_since = self.updates

    def close(self) -> None:
        if self._compilation is not None:
            self._compilation.close()

    def snapshot(self) -> WeightSnapshot:
        return WeightSnapshot(self.name, self.updates, self.policy.weights())

    def state(self) -> dict[str, Any]:
        """All that learning changes, for a checkpoint."""
        return state_tree(self._state)

    def progress(self) -> dict[str, Any]:
        """And what it had begun."""
        segments = {} if self._segments is None else self._segments.state()
        return {"pace": self._pace.state(), "segments": segments}

    def load(self, state: Mapping[str, Any], progress: Mapping[str, Any]) -> None:
        load_state_tree(self._state, state)
        self._pace.load_state(progress["pace"])
        if self._segments is not None:
            self._segments.load_state(progress["segments"])
            self._segments.version = self._segments.fresh_since = self.updates
