"""Gradient updates follow what the director gives each learner, and people, while a run goes on.

Off-policy learners are held by the limiters of the shards: another share is another ratio there. An
on-policy learner updates once for each round of its own policy, so its updates follow how often it
acts by themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from buffer_server.client import ClientConfig, ReplayClient
from repertory.config import OffPolicyConfig, RunConfig
from repertory.errors import RepertoryError, UsageError
from repertory.table_layout import tables_of
from services.replay_access import samples_per_insert
from services.shard_link import ShardLink

logger = logging.getLogger(__name__)

SHARD_SECONDS = 2.0


class LearnerTime:
    def __init__(
        self,
        config: RunConfig,
        links: Sequence[ShardLink],
        asked: Mapping[str, float],
        credentials: Mapping[str, Any],
    ) -> None:
        """`asked`: updates per step that people have asked for already."""
        self._config = config
        self._links = links
        self._credentials = credentials
        director = config.director
        alone = len(config.learners) == 1
        # Otherwise the director leaves everybody the updates of their own settings.
        self.shared = not alone and (director.learner_share, director.updates) != (
            "equal",
            "per_learner",
        )
        self.asked = {name: value for name, value in asked.items() if name in config.learners}

    @property
    def settled(self) -> bool:
        """Everybody makes the updates of their own settings, which shards know from the start."""
        return not self.shared and not self.asked

    def ask(self, learner: str, updates_per_step: float) -> None:
        """A person's wish, from now on, in the place of that learner's setting."""
        reader = self._config.learners.get(learner)
        if reader is None:
            known = ", ".join(self._config.learners)
            raise UsageError(f"there is no learner {learner!r} here: choose of {known}")
        if not isinstance(reader, OffPolicyConfig):
            raise UsageError(
                f"{learner} learns from each round of its own once: it has no updates per step"
            )
        self.asked[learner] = updates_per_step

    def apply(self, factors: Mapping[str, float] | None) -> None:
        """What the director gives each, None: as asked.

        Said again each time: a shard that was away hears it the next time.
        """
        factors = {
            name: (1.0 if factors is None else factors[name]) * self._wish(name)
            for name in self._config.learners
        }
        for table, layout in tables_of(self._config).items():
            if layout.segment_length is not None or layout.stretches:
                continue
            ratios = samples_per_insert(self._config, layout, factors)
            for link in self._links:
                settings = ClientConfig(
                    address=link.connect,
                    table=table,
                    timeout_seconds=SHARD_SECONDS,
                    **self._credentials,
                )
                try:
                    with ReplayClient(settings) as client:
                        client.configure_consumers(ratios)
                except RepertoryError as error:
                    logger.warning("%s keeps its ratios for now: %s", link.connect, error)

    def _wish(self, learner: str) -> float:
        """As a factor of its setting."""
        reader = self._config.learners[learner]
        if learner not in self.asked or not isinstance(reader, OffPolicyConfig):
            return 1.0
        return self.asked[learner] / reader.updates_per_step
