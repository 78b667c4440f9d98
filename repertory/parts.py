"""Replaceable parts: a config names each by a short name, or by `my_package.module:Name`.

This table is the whole list of short names. It is data: nothing is imported until it is asked for,
so that the floor stays free of what stands on it.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, Literal

from repertory.errors import UsageError

PartKind = Literal["algorithm", "policy", "exploration", "relabel", "sampler", "strategy"]

SHORT_NAMES: Mapping[PartKind, Mapping[str, str]] = {
    "algorithm": {
        "actor_critic": "learner.algorithms.actor_critic:ActorCritic",
        "c51": "learner.algorithms.c51:C51",
        "ddpg": "learner.algorithms.ddpg:DDPG",
        "dqn": "learner.algorithms.dqn:DQN",
        "h_dqn": "learner.algorithms.h_dqn:HDQN",
        "npg": "learner.algorithms.natural_gradient:NPG",
        "option_critic": "learner.algorithms.option_critic:OptionCritic",
        "ppo": "learner.algorithms.ppo:PPO",
        "q_learning": "learner.algorithms.q_learning:QLearning",
        "qr_dqn": "learner.algorithms.qr_dqn:QRDQN",
        "rainbow": "learner.algorithms.c51:C51",  # its preset switches everything on
        "sac": "learner.algorithms.sac:SAC",
        "sac_discrete": "learner.algorithms.sac_discrete:SACDiscrete",
        "td3": "learner.algorithms.td3:TD3",
        "trpo": "learner.algorithms.natural_gradient:TRPO",
        "vpg": "learner.algorithms.vpg:VPG",
    },
    "policy": {
        "deterministic": "repertory.policies.deterministic:DeterministicPolicy",
        "squashed_gaussian": "repertory.policies.squashed_gaussian:SquashedGaussianPolicy",
        "distributional_q": "repertory.policies.distributional_q:DistributionalQPolicy",
        "greedy_q": "repertory.policies.greedy_q:GreedyQPolicy",
        "categorical": "repertory.policies.categorical:CategoricalPolicy",
        "tabular_q": "repertory.policies.tabular_q:TabularQPolicy",
        "goal_directed": "repertory.policies.goal_directed:GoalDirectedPolicy",
        "options": "repertory.policies.options:OptionsPolicy",
        "stochastic": "repertory.policies.stochastic:StochasticPolicy",
    },
    "exploration": {
        "none": "actors.exploration.none:NoExploration",
        "gaussian": "actors.exploration.gaussian:Gaussian",
        "ornstein_uhlenbeck": "actors.exploration.ornstein_uhlenbeck:OrnsteinUhlenbeck",
        "epsilon_greedy": "actors.exploration.epsilon_greedy:EpsilonGreedy",
    },
    "relabel": {
        "future": "actors.goal_choices:Future",
        "final": "actors.goal_choices:Final",
        "episode": "actors.goal_choices:Episode",
    },
    "sampler": {
        "uniform": "buffer_server.samplers.uniform:Uniform",
        "prioritized": "buffer_server.samplers.prioritized:Prioritized",
        "fifo": "buffer_server.samplers.fifo:Fifo",
        "mixture": "buffer_server.samplers.mixture:Mixture",
    },
    "strategy": {
        "uniform": "services.strategies.uniform:Uniform",
        "round_robin": "services.strategies.round_robin:RoundRobin",
        "scripted": "services.strategies.scripted:Scripted",
        "epsilon_greedy": "services.strategies.epsilon_greedy:EpsilonGreedy",
        "ucb": "services.strategies.ucb:UCB",
        "thompson": "services.strategies.thompson:Thompson",
        "exp3": "services.strategies.exp3:Exp3",
        "epochal": "services.strategies.epochal:Epochal",
        "roulette": "services.strategies.roulette:Roulette",
    },
}


def lookup(kind: PartKind, name: str) -> Any:
    """The class behind a short name or a dotted path."""
    known = SHORT_NAMES[kind]
    path = known.get(name, name)
    if ":" not in path:
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.3)
        hint = f"did you mean {nearest[0]}? " if nearest else ""
        raise UsageError(
            f"{name!r} is not a known {kind}: {hint}"
            f"choose one of {', '.join(sorted(known))}, or give your own as package.module:Name"
        )
    return load_attribute(path, f"the {kind}")


def load_attribute(path: str, purpose: str) -> Any:
    """Imports `package.module:attribute`; errors name the path and what it was wanted for."""
    module_name, separator, attribute = path.partition(":")
    if not separator or not module_name or not attribute:
        raise UsageError(f"{path!r} does not name {purpose}: write it as package.module:Name")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(
            f"cannot import {module_name!r} for {purpose} {path!r}: {error}; "
            "is it installed, or is its folder on PYTHONPATH?"
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        names = [name for name in vars(module) if not name.startswith("_")]
        nearest = difflib.get_close_matches(attribute, names, n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise UsageError(f"{module_name!r} has no {attribute!r} for {purpose}{hint}") from None
