"""An environment in words: spaces, limits, and which algorithms can learn it."""

from __future__ import annotations

from rich.table import Table

from repertory.config import EnvConfig
from repertory.envs import make_env, probe
from repertory.parts import SHORT_NAMES, lookup
from services.fit import misfit


def description(env_id: str) -> Table:
    config = EnvConfig(id=env_id)
    spec = probe(config)
    env = make_env(config)
    try:
        own_observation = env.unwrapped.observation_space
        own_action = env.unwrapped.action_space
        render_modes = env.metadata.get("render_modes", [])
    finally:
        env.close()
    table = Table("what", env_id, show_header=True)
    table.add_row("observation space", str(own_observation))
    table.add_row("seen by policies as", f"{spec.observation_kind} {spec.observation_shape}")
    table.add_row("action space", str(own_action))
    table.add_row("kind of actions", spec.action_kind.replace("_", "-"))
    bounds = ", ".join(
        f"{low:g} to {high:g}" for low, high in zip(spec.action_low, spec.action_high, strict=True)
    )
    table.add_row("action range", bounds)
    table.add_row("time limit", f"{spec.max_episode_steps or 'none'} (steps of an episode)")
    table.add_row("render modes", ", ".join(render_modes) or "none")
    for name in sorted(SHORT_NAMES["algorithm"]):
        reason = misfit(lookup("algorithm", name), spec)
        table.add_row(name, "fits" if reason is None else f"does not fit: {reason}")
    return table
