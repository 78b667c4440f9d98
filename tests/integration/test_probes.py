"""Every algorithm on probe environments whose right answer is known: seconds each.

A probe that fails points at one thing: P1 the value's regression, P2 its inputs, P3 the discount,
P4 the policy's improvement, P5 both together, P6 bootstrapping through a truncation, P7 the mapping
of actions, P8 telling observations apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner.checkpoint import load_state_tree
from repertory.api import evaluate, load_policy, train
from repertory.config import RunConfig
from repertory.envs import make_env, probe
from repertory.parts import lookup
from services.run_directory import RunDirectory

GAMMA = 0.5

SHARED: dict[str, Any] = {
    "learner.gamma": GAMMA,
    "learner.hidden_sizes": [32],
    "learner.lr": 3e-3,
    "log.every": 500,
    "log.tensorboard": False,
    "evaluation.every": 100_000,
    "evaluation.episodes": 5,
    "checkpoint.every": 100_000,
}
OFF_POLICY: dict[str, Any] = {
    "steps": 1200,
    "learner.batch_size": 64,
    "learner.random_steps": 200,
    "learner.learning_starts": 200,
    "learner.train_every": 1,
    "learner.updates_per_step": 1.0,
}
ON_POLICY: dict[str, Any] = {
    "steps": 3200,
    "env.copies": 8,
    "learner.segment_length": 16,
}
TRUST_REGION: dict[str, Any] = {
    "learner.lr": 1e-2,
    "learner.max_kl": 0.05,
    "learner.value_steps": 20,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": {**OFF_POLICY, "learner.target_period": 20},
    # Values of -2 to 2 in steps of 0.1: those of the probes are on atoms.
    "c51": {
        **OFF_POLICY,
        "learner.target_period": 20,
        "learner.v_min": -2.0,
        "learner.v_max": 2.0,
        "learner.atoms": 41,
    },
    "qr_dqn": {**OFF_POLICY, "learner.target_period": 20, "learner.quantiles": 10},
    "td3": {**OFF_POLICY, "learner.tau": 0.05, "learner.target_noise": 0.0},
    # Hardly any entropy, so that the soft value is the value.
    "sac": {
        **OFF_POLICY,
        "learner.tau": 0.05,
        "learner.learn_alpha": False,
        "learner.alpha": 1e-3,
    },
    "ddpg": {**OFF_POLICY, "learner.tau": 0.05},
    "sac_discrete": {
        **OFF_POLICY,
        "learner.tau": 0.05,
        "learner.learn_alpha": False,
        "learner.alpha": 1e-3,
    },
    # Three bins between -1 and 1 tell -1, 0 and 1 apart, and 0 from 1 where these are the bounds.
    "q_learning": {**OFF_POLICY, "learner.lr": 0.1, "learner.bins": 3},
    "option_critic": {
        **OFF_POLICY,
        "steps": 2400,
        "learner.options": 2,
        "learner.target_period": 20,
        "learner.option_epsilon": {"start": 0.2},
    },
    "ppo": {**ON_POLICY, "steps": 6400, "learner.batch_size": 64, "learner.epochs": 8},
    "vpg": {**ON_POLICY, "learner.lr": 3e-2, "learner.value_lr": 1e-2, "learner.value_steps": 20},
    "trpo": {**ON_POLICY, **TRUST_REGION},
    "npg": {**ON_POLICY, **TRUST_REGION},
    "actor_critic": {
        **ON_POLICY,
        "learner.lr": 3e-2,
        "learner.value_lr": 1e-2,
        "learner.target_updates": 5,
        "learner.gradient_steps_per_target_update": 5,
    },
}
# Of NPG, which differs from TRPO in the policy's step alone, those probes that look at the policy.
POLICY_GRADIENTS = ["vpg", "trpo", "actor_critic"]
DISCRETE = [
    "dqn",
    "c51",
    "qr_dqn",
    "option_critic",
    "ppo",
    "sac_discrete",
    "q_learning",
    *POLICY_GRADIENTS,
]
CONTINUOUS = ["option_critic", "td3", "sac", "ppo", "ddpg", *POLICY_GRADIENTS]
BOTH = [(algo, "discrete") for algo in DISCRETE] + [(algo, "continuous") for algo in CONTINUOUS]
# The others are probed in `make test-all`.
EVERY_TIME = {"dqn", "td3", "sac", "ppo"}


def timed(cases: list[Any]) -> list[Any]:
    """Marks those that do not run every time; the algorithm comes first."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[]
            if (case[0] if isinstance(case, tuple) else case) in EVERY_TIME
            else [pytest.mark.slow],
        )
        for case in cases
    ]


def learn(
    algo: str, probe_name: str, run_dir: Path, kwargs: dict[str, Any], **changes: Any
) -> Path:
    settings = {**SHARED, **SETTINGS[algo], **changes, "env.kwargs": kwargs}
    train(f"probes:{probe_name}", algo, seed=1, run_dir=run_dir, settings=settings, progress=False)
    return run_dir


def values(run_dir: Path, shown: list[float]) -> np.ndarray:
    """The learner's own value of observations, by its critic, from the last checkpoint."""
    config: RunConfig = RunDirectory.open(run_dir).config
    (learner,) = config.learners.values()
    algorithm = lookup("algorithm", learner.algorithm)(learner, device=torch.device("cpu"), seed=0)
    spec = probe(config.env)
    state = algorithm.initial_state(spec)
    checkpoint = RunDirectory.open(run_dir).checkpoints.newest_valid()
    load_state_tree(state, checkpoint.load(f"learner-{next(iter(config.learners))}"))
    env = make_env(config.env)
    image = spec.observation_kind == "pixels"
    observations = [env.unwrapped.show(number) for number in shown]  # type: ignore[attr-defined]
    batch = np.stack([np.moveaxis(o, -1, 0) if image else o for o in observations])
    with torch.no_grad():
        observation = torch.from_numpy(batch)
        if learner.algorithm in ("dqn", "q_learning"):
            value = state.policy(observation).amax(-1)
        elif learner.algorithm == "sac_discrete":
            value = state.critic(observation).amin(0).amax(-1)
        elif learner.algorithm in ("c51", "qr_dqn"):
            value = state.policy.expected(state.policy(observation)).amax(-1)
        elif learner.algorithm == "option_critic":
            value = state.policy(observation).q.amax(-1)
        elif algorithm.data == "on_policy":
            value = state.value(observation)
        else:
            action = torch.from_numpy(state.policy.act(batch, None).action)
            value = state.critic(observation, action)
            value = value if learner.algorithm == "ddpg" else value.amin(0)
    return value.numpy()


@pytest.mark.parametrize(("algo", "actions"), timed(BOTH))
def test_p1_the_value_of_a_certain_reward_is_the_reward(
    algo: str, actions: str, tmp_path: Path
) -> None:
    run = learn(algo, "P1OneStep", tmp_path / "run", {"actions": actions})
    np.testing.assert_allclose(values(run, [0.0]), [1.0], atol=0.1)


@pytest.mark.parametrize(("algo", "actions"), timed(BOTH))
def test_p2_the_value_depends_on_the_observation(algo: str, actions: str, tmp_path: Path) -> None:
    run = learn(algo, "P2ObservedReward", tmp_path / "run", {"actions": actions})
    np.testing.assert_allclose(values(run, [-1.0, 1.0]), [-1.0, 1.0], atol=0.15)


@pytest.mark.parametrize(("algo", "actions"), timed(BOTH))
def test_p3_a_reward_one_step_later_is_discounted_once(
    algo: str, actions: str, tmp_path: Path
) -> None:
    run = learn(algo, "P3DelayedReward", tmp_path / "run", {"actions": actions})
    np.testing.assert_allclose(values(run, [0.0, 1.0]), [GAMMA, 1.0], atol=0.1)


@pytest.mark.parametrize(("algo", "actions"), timed(BOTH))
def test_p4_the_better_action_is_found(algo: str, actions: str, tmp_path: Path) -> None:
    run = learn(algo, "P4ActionReward", tmp_path / "run", {"actions": actions})
    assert evaluate(run, "last", episodes=1).mean_return > 0.95


@pytest.mark.parametrize(
    ("algo", "actions"), timed([*BOTH, ("npg", "discrete"), ("npg", "continuous")])
)
def test_p5_the_better_action_depends_on_the_observation(
    algo: str, actions: str, tmp_path: Path
) -> None:
    run = learn(algo, "P5ObservationTimesAction", tmp_path / "run", {"actions": actions})
    assert evaluate(run, "last", episodes=10).mean_return > 0.9
    policy = load_policy(run, "last")
    low, high = policy.act(np.array([[-1.0], [1.0]], np.float32)).ravel()
    assert low < high


@pytest.mark.parametrize(("algo", "actions"), timed(BOTH))
def test_p6_a_truncation_bootstraps_and_a_termination_does_not(
    algo: str, actions: str, tmp_path: Path
) -> None:
    cut = learn(algo, "P6SelfLoop", tmp_path / "cut", {"actions": actions})
    ended = learn(algo, "P6SelfLoop", tmp_path / "ended", {"actions": actions, "terminated": True})
    np.testing.assert_allclose(values(cut, [0.0]), [1 / (1 - GAMMA)], atol=0.2)
    np.testing.assert_allclose(values(ended, [0.0]), [1.0], atol=0.1)


@pytest.mark.parametrize("algo", timed(CONTINUOUS))
def test_p7_actions_reach_the_environments_own_range(algo: str, tmp_path: Path) -> None:
    # Gaussians that are clipped at the bounds: a wide one is best with its mean beyond 2.4.
    narrow = {"learner.initial_log_std": -1.5} if algo in POLICY_GRADIENTS else {}
    run = learn(algo, "P7ShiftedRange", tmp_path / "run", {}, **narrow)
    action = load_policy(run, "last").act(np.zeros(1, np.float32))
    np.testing.assert_allclose(action, [2.4], atol=0.35)


@pytest.mark.parametrize(
    ("algo", "actions"),
    timed([("option_critic", "discrete"), ("option_critic", "continuous"),
     ("dqn", "discrete"), ("c51", "discrete"), ("qr_dqn", "discrete"),
     ("ppo", "discrete"), ("ppo", "multi_discrete"), ("td3", "continuous"),
     ("sac", "continuous"), ("ppo", "continuous"), ("sac_discrete", "discrete"),
     ("q_learning", "discrete"), ("ddpg", "continuous"), ("vpg", "discrete"), ("vpg", "continuous"),
     ("trpo", "multi_discrete"), ("trpo", "continuous"), ("npg", "discrete"),
     ("actor_critic", "multi_discrete"), ("actor_critic", "continuous")]),
)  # fmt: skip
def test_p8_what_is_shown_is_repeated(algo: str, actions: str, tmp_path: Path) -> None:
    run = learn(
        algo,
        "P8Identity",
        tmp_path / "run",
        {"actions": actions},
        steps=SETTINGS[algo]["steps"] * 2,
        **{"learner.gamma": 0.0},
    )
    assert evaluate(run, "last", episodes=5).mean_return > 9.0  # of 10


@pytest.mark.parametrize(
    ("algo", "actions", "changes"),
    timed(
        [
            ("dqn", "discrete", {"steps": 500, "learner.batch_size": 32}),
            ("c51", "discrete", {"steps": 500, "learner.batch_size": 32}),
            ("qr_dqn", "discrete", {"steps": 500, "learner.batch_size": 32}),
            ("ppo", "discrete", {"steps": 1280, "learner.batch_size": 32}),
            ("sac_discrete", "discrete", {"steps": 500, "learner.batch_size": 32}),
            ("ddpg", "continuous", {"steps": 500, "learner.batch_size": 32}),
            ("trpo", "discrete", {"steps": 1280, "learner.value_steps": 5}),
        ]
    ),
    ids=["dqn", "c51", "qr_dqn", "ppo", "sac_discrete", "ddpg", "trpo"],
)
def test_p5_from_pixels(algo: str, actions: str, changes: dict[str, Any], tmp_path: Path) -> None:
    run = learn(
        algo,
        "P5ObservationTimesAction",
        tmp_path / "run",
        {"pixels": True, "actions": actions},
        **{"learner.lr": 1e-3, **changes},
    )
    assert evaluate(run, "last", episodes=10).mean_return > 0.9


def test_p3_with_two_step_returns(tmp_path: Path) -> None:
    run = learn("dqn", "P3DelayedReward", tmp_path / "run", {}, **{"learner.n_step": 2})
    np.testing.assert_allclose(values(run, [0.0, 1.0]), [GAMMA, 1.0], atol=0.1)


def test_p5_with_prioritised_replay(tmp_path: Path) -> None:
    run = learn(
        "dqn", "P5ObservationTimesAction", tmp_path / "run", {}, **{"replay.sampler": "prioritized"}
    )
    assert evaluate(run, "last", episodes=10).mean_return > 0.9


@pytest.mark.parametrize("algo", ["dqn", "c51"])
def test_p5_with_a_noisy_network_and_no_other_exploration(algo: str, tmp_path: Path) -> None:
    changes = {"learner.noisy": True, "learner.exploration": "none", "learner.random_steps": 0}
    run = learn(algo, "P5ObservationTimesAction", tmp_path / "run", {}, **changes)
    assert evaluate(run, "last", episodes=10).mean_return > 0.9


def test_p5_with_full_batch_ppo(tmp_path: Path) -> None:
    run = learn(
        "ppo", "P5ObservationTimesAction", tmp_path / "run", {}, **{"learner.mode": "full_batch"}
    )
    assert evaluate(run, "last", episodes=10).mean_return > 0.9
