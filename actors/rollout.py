"""Environment + players -> batches of transitions. Knows no Ray, no gRPC and no learner.

In every copy of the environment one player acts at a time: a `Casting` says who, with each episode
or within it. What they see goes through `Stream`s, one for each table of the replay. A plain run is
the case of one player, who acts everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from actors.assemblers import Assembler, NStep, Segments
from actors.casting import Casting
from actors.episodes import Episodes
from actors.hindsight import Hindsight
from actors.player import Player, Turn
from actors.stepper import Step, Stepper
from actors.stream import Stream
from actors.stretches import Stretches
from repertory.config import OffPolicyConfig, RunConfig
from repertory.envs import make_vector_env
from repertory.errors import CheckpointError, EnvironmentFailure
from repertory.goal_judge import GoalJudge
from repertory.parts import lookup
from repertory.protocols import Policy
from repertory.seeding import derive_seed
from repertory.specs import EnvSpec
from repertory.table_layout import TableLayout, shared_extras, tables_of
from repertory.types import Array, DecisionOutcome, EpisodeOutcome, TransitionBatch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Collected:
    """What a stretch of acting brought."""

    batches: Mapping[str, TransitionBatch]  # by table; none where all its items are still open
    outcomes: Sequence[EpisodeOutcome]
    decisions: Sequence[DecisionOutcome]  # for the director
    env_steps: int


class Rollout:
    """Acts in every copy of a vector environment at once and assembles what it sees."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        spec: EnvSpec,
        players: Sequence[Player],
        casting: Casting,
        streams: Sequence[Stream],
        *,
        rng: np.random.Generator,
        judge: GoalJudge | None = None,
        clip_reward: bool = False,
    ) -> None:
        """`judge` is that of the streams, if they need one; it is closed with the rest."""
        self.players = tuple(players)
        self.env_steps = 0
        self.broken_episodes = 0  # lost because the environment broke
        self._spec = spec
        self._stepper = Stepper(env)
        self._casting = casting
        self._streams = tuple(streams)
        self._rng = rng
        self._judge = judge
        self._clip_reward = clip_reward
        self._policy_ids = np.array([player.policy_id for player in players], np.int32)
        self._known_provenance: _Provenance | None = None
        # Choices counted from 0 in the environment's own type need not be translated.
        self._as_is = (
            spec.action_kind != "continuous"
            and not any(spec.action_low)
            and spec.action_dtype == spec.action_column.dtype
            and spec.action_shape == spec.action_column.shape
        )
        self._episodes = Episodes(self.players, self._stepper.copies)
        self._observation = self._stepper.reset()

    def collect(self, env_steps: int) -> Collected:
        """Takes at least `env_steps` steps, counted over all copies.

        Fewer only where nobody was there to act: then the casting is to be asked again.
        """
        start = self.env_steps
        gathered = _Gathered()
        while self.env_steps - start < env_steps and self._cast(gathered):
            self._step(gathered)
        for stream in self._streams:
            gathered.add(stream.table, stream.complete())
        return gathered.collected(self.env_steps - start)

    def _cast(self, gathered: _Gathered) -> bool:
        """Sees to it that somebody acts in every copy."""
        waiting = self._episodes.waiting()
        if not waiting:
            return True
        assignments = self._casting.assign(waiting)
        if assignments is None:
            return False
        beginning = self._episodes.begin(waiting, assignments)
        handed_over = beginning & (self._episodes.episode_length > 0)
        if handed_over.any():
            for stream in self._streams:
                gathered.add(stream.table, stream.cut(handed_over))
        for index, copies in self._episodes.acting():
            if beginning[copies].any():
                starting = beginning & (self._episodes.player == index)
                self.players[index].begin(starting)
        return True

    def _step(self, gathered: _Gathered) -> None:
        observation = self._observation
        turns = self._act(observation)
        action = self._joined_action(turns)
        step = self._stepper.step(action if self._as_is else self._spec.to_env_action(action))
        self.env_steps += int(step.valid.sum()) if step.eventful else self._stepper.copies
        self._observation = step.observation
        learned = self._learned(step)
        provenance = self._provenance()
        # No discount: the assembler knows how many steps an item spans.
        columns = {
            "observation": observation,
            "action": action,
            "reward": learned.reward.astype(np.float32),
            "next_observation": step.next_observation,
            "policy_id": provenance.policy_id,
            "policy_version": provenance.policy_version,
        }
        for stream in self._streams:
            gathered.add(stream.table, stream.add(columns, turns, learned))
        self._episodes.add(step)
        if step.eventful:
            self._mark(step, gathered)

    def _provenance(self) -> _Provenance:
        """The same as long as nobody takes over and no weights are newer."""
        versions = [player.version for player in self.players]
        known, acting = self._known_provenance, self._episodes.acting()
        if known is None or known.acting is not acting or known.versions != versions:
            player = self._episodes.player
            known = self._known_provenance = _Provenance(
                acting=acting,
                versions=versions,
                policy_id=self._policy_ids[player],
                policy_version=np.array(versions, np.int64)[player],
            )
        return known

    def _mark(self, step: Step, gathered: _Gathered) -> None:
        """Episodes ended or broke, or a copy merely reset itself."""
        if not step.valid.all():  # what was done while a copy merely reset itself is no beginning
            for player in self.players:
                player.begin(~step.valid)
        if step.broken.any():
            self.broken_episodes += int(step.broken.sum())
            if step.broken.all():
                self._require_one_that_works()
            self._lose_episodes(step.broken)
        if step.boundary.any():
            outcomes, decisions = self._episodes.end(step, self.env_steps)
            gathered.outcomes += outcomes
            gathered.decisions += decisions

    def _learned(self, step: Step) -> Step:
        """The step as learners see it; episodes and their returns are told of it as it was."""
        if self._clip_reward:
            step = replace(step, reward=np.clip(step.reward, -1, 1))
        if step.eventful and step.life_lost.any():
            terminated = step.terminated | step.life_lost
            step = replace(step, terminated=terminated, boundary=terminated | step.truncated)
        return step

    def _act(self, observation: Array) -> list[Turn]:
        """One inference for each player that acts somewhere."""
        turns = []
        for index, copies in self._episodes.acting():
            seen = observation if len(copies) == len(observation) else observation[copies]
            acted = self.players[index].act(seen, copies, self.env_steps, self._rng)
            turns.append(Turn(index, copies, acted))
        return turns

    def _joined_action(self, turns: Sequence[Turn]) -> Array:
        if len(turns) == 1:
            return turns[0].acted.action
        column = self._spec.action_column
        action = np.empty((self._stepper.copies, *column.shape), column.dtype)
        for turn in turns:
            action[turn.copies] = turn.acted.action
        return action

    def _require_one_that_works(self) -> None:
        """Raises where every copy is set aside for good: nothing would ever happen here again."""
        env: Any = self._stepper.env
        reasons = env.get_attr("quarantined")
        if all(reason is not None for reason in reasons):
            raise EnvironmentFailure(
                f"every copy of the environment is set aside, the last after {reasons[-1]}"
            )

    def _lose_episodes(self, copies: Array) -> None:
        unplayed = self._episodes.lose(copies)
        if unplayed:
            self._casting.give_back(unplayed)
        # A player that stays in its copy begins anew there.
        for player in self.players:
            player.begin(copies)

    def state(self) -> dict[str, Any]:
        """Everything needed to go on as if nothing had happened, running episodes included."""
        return {
            "env_steps": self.env_steps,
            "rng": self._rng.bit_generator.state,
            "observation": self._observation.copy(),
            "players": {player.name: player.state() for player in self.players},
            "casting": self._casting.state(),
            "episodes": self._episodes.state(),
            "streams": {stream.table: stream.state() for stream in self._streams},
            "records": self._episode_records(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        copies = self._stepper.copies
        if len(state["observation"]) != copies:
            raise CheckpointError(
                f"the checkpoint has {len(state['observation'])} copies of the environment, "
                f"this run {copies}: set env.copies back"
            )
        self.env_steps = state["env_steps"]
        self._rng.bit_generator.state = state["rng"]
        for player in self.players:
            player.load_state(state["players"][player.name])
        self._casting.load_state(state["casting"])
        self._episodes.load_state(state["episodes"])
        for stream in self._streams:
            stream.load_state(state["streams"][stream.table])
        self._replay_episodes(state)

    def _episode_records(self) -> dict[str, Any]:
        """What is needed to replay the running episodes; nothing for a foreign vector env."""
        call = getattr(self._stepper.env, "call", None)
        records = call("episode_record") if call is not None else ()
        return {str(copy): record for copy, record in enumerate(records)}

    def _replay_episodes(self, state: Mapping[str, Any]) -> None:
        copies = self._stepper.copies
        call = getattr(self._stepper.env, "call", None)
        same = np.zeros(copies, bool)
        if call is not None and len(state["records"]) == copies:
            records = [state["records"][str(copy)] for copy in range(copies)]
            replayed = call("replay_episode", records, state["observation"])
            self._observation = np.stack([observation for observation, _ in replayed])
            same = np.array([kept for _, kept in replayed])
        if not same.all():
            lost = int((~same).sum())
            logger.warning(
                "%d of %d running episodes cannot be replayed: they begin anew", lost, copies
            )
            for stream in self._streams:
                stream.forget(~same)
            self._lose_episodes(~same)

    def close(self) -> None:
        self._stepper.env.close()
        if self._judge is not None:
            self._judge.close()


@dataclass(frozen=True, slots=True)
class _Provenance:
    """Who acts in each copy, and with which weights."""

    acting: Sequence[tuple[int, Array]]  # of whom this was said
    versions: Sequence[int]
    policy_id: Array  # [B]
    policy_version: Array  # [B]


class _Gathered:
    """What has come so far of one collection."""

    def __init__(self) -> None:
        self.outcomes: list[EpisodeOutcome] = []
        self.decisions: list[DecisionOutcome] = []
        self._batches: dict[str, list[TransitionBatch]] = {}

    def add(self, table: str, batches: Sequence[TransitionBatch]) -> None:
        if batches:
            self._batches.setdefault(table, []).extend(batches)

    def collected(self, env_steps: int) -> Collected:
        batches = {
            table: TransitionBatch.concatenate(parts) for table, parts in self._batches.items()
        }
        return Collected(batches, self.outcomes, self.decisions, env_steps)


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Which of several rollout processes this is, and how often it was started."""

    index: int
    incarnation: int  # from 1


def rollout_for(
    config: RunConfig,
    spec: EnvSpec,
    policies: Mapping[str, Policy],
    casting: Casting,
    worker: WorkerPlace | None = None,
) -> Rollout:
    """The rollout of a run, in environments of its own; `policies` has one for each learner.

    Each worker, and each start of it, plays episodes of its own; the first start of the first one
    plays those of a local run. A worker's environments are made anew when they break.
    """
    seed = config.seed
    if worker is not None and (worker.index, worker.incarnation) != (0, 1):
        seed = derive_seed(config.seed, "worker", worker.index, worker.incarnation)
    copies, atari_config = config.env.copies, config.env.atari
    tables = tables_of(config)
    relabelling = any(layout.relabel is not None for layout in tables.values())
    judge = GoalJudge(config.env, spec) if relabelling else None
    return Rollout(
        make_vector_env(
            config.env, copies=copies, seed=seed, role="rollout", guarded=worker is not None
        ),
        spec,
        [_player(config, spec, name, policies[name]) for name in config.learners],
        casting,
        [
            _stream(config, table, layout, policies, _assembler(layout, judge, seed, table))
            for table, layout in tables.items()
        ],
        rng=np.random.default_rng(derive_seed(seed, "rollout")),
        judge=judge,
        clip_reward=atari_config is not None and atari_config.clip_reward,
    )


def _player(config: RunConfig, spec: EnvSpec, name: str, policy: Policy) -> Player:
    learner_config = config.learners[name]
    exploration_config, random_steps = lookup("exploration", "none").Config(), 0
    if isinstance(learner_config, OffPolicyConfig):
        exploration_config = learner_config.exploration
        random_steps = learner_config.random_steps
    exploration = lookup("exploration", exploration_config.name)
    return Player(
        name=name,
        policy_id=list(config.learners).index(name),
        policy=policy,
        exploration=exploration(exploration_config, spec, config.env.copies),
        spec=spec,
        random_steps=random_steps,
    )


def _assembler(layout: TableLayout, judge: GoalJudge | None, seed: int, table: str) -> Assembler:
    if layout.segment_length is not None:
        return Segments(layout.segment_length, layout.gamma)
    if layout.stretches:
        return Stretches(layout.gamma)
    if layout.relabel is not None:
        assert judge is not None
        choice = lookup("relabel", layout.relabel.name)(layout.relabel)
        bits = np.random.PCG64(derive_seed(seed, "relabel", table))
        return Hindsight(choice, judge, layout.gamma, bits)
    return NStep(layout.n_step, layout.gamma)


def _stream(
    config: RunConfig,
    table: str,
    layout: TableLayout,
    policies: Mapping[str, Policy],
    assembler: Assembler,
) -> Stream:
    names = list(config.learners)
    return Stream(
        table,
        assembler,
        config.env.copies,
        readers=[names.index(learner) for learner in layout.learners],
        own_only=layout.segment_length is not None or layout.stretches,
        extras=shared_extras(layout, {name: policies[name].extras for name in layout.learners}),
        return_gamma=layout.gamma if layout.discounted_return else None,
    )
