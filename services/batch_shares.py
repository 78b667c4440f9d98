"""What each replica of a learner takes of its batches, said before anything starts."""

from __future__ import annotations

from learner.data_parallel import share
from repertory.config import OffPolicyConfig, RunConfig
from services.replay_access import batch_size


def items_per_replica(config: RunConfig, learner: str, actors: int) -> int:
    """Of one update; refused where the replicas cannot have equal parts of everything."""
    learner_config, count = config.learners[learner], config.topology.replicas
    minibatch = getattr(learner_config, "batch_size", None)
    if minibatch is not None:
        share(minibatch, count, f"learners.{learner}.batch_size")
    items = batch_size(config, learner_config, actors)
    if isinstance(learner_config, OffPolicyConfig):
        return items // count
    return share(items, count, "env.copies times the number of actors")
