"""Gradient updates follow what the director gives each learner, while a run goes on.

Off-policy learners are held by the limiters of the shards: another share is another ratio there. An
on-policy learner updates once for each round of its own policy, so its updates follow how often it
acts by themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from buffer_server.client import ClientConfig, ReplayClient
from repertory.config import RunConfig
from repertory.errors import RepertoryError
from repertory.table_layout import tables_of
from services.replay_access import samples_per_insert
from services.shard_link import ShardLink

logger = logging.getLogger(__name__)

SHARD_SECONDS = 2.0


class LearnerTime:
    def __init__(self, config: RunConfig, links: Sequence[ShardLink]) -> None:
        self._config = config
        self._links = links
        director = config.director
        alone = len(config.learners) == 1
        # Otherwise everybody makes the updates of their own settings, for ever.
        self.shared = not alone and (director.learner_share, director.updates) != (
            "equal",
            "per_learner",
        )

    def apply(self, factors: Mapping[str, float]) -> None:
        """Said again each time: a shard that was away hears it the next time."""
        for table, layout in tables_of(self._config).items():
            if layout.segment_length is not None or layout.stretches:
                continue
            ratios = samples_per_insert(self._config, layout, factors)
            for link in self._links:
                settings = ClientConfig(
                    address=link.connect, table=table, timeout_seconds=SHARD_SECONDS
                )
                try:
                    with ReplayClient(settings) as client:
                        client.configure_consumers(ratios)
                except RepertoryError as error:
                    logger.warning("%s keeps its ratios for now: %s", link.connect, error)
