"""A learner's state as a tree: the next update after a restore is equal to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner.checkpoint import load_state_tree, state_tree
from repertory.checkpoints import CheckpointStore
from repertory.errors import CheckpointError
from repertory.parts import lookup
from repertory.specs import EnvSpec
from repertory.types import ColumnSpec, Sample, TransitionBatch

ON_POLICY = ["actor_critic", "npg", "ppo", "trpo", "vpg"]
ALGORITHMS = ["td3", "sac", "dqn", "ddpg", "sac_discrete", "c51", "qr_dqn", *ON_POLICY]
NOISY = {"c51"}


def spec_for(algo: str) -> EnvSpec:
    discrete = algo in ("dqn", "sac_discrete", "c51", "qr_dqn")
    return EnvSpec(
        env_id="hand-made",
        observation_kind="vector",
        observation_shape=(3,),
        observation_dtype="<f4",
        action_kind="discrete" if discrete else "continuous",
        action_sizes=(4,) if discrete else (2,),
        action_low=(0.0,) if discrete else (-1.0, -1.0),
        action_high=(3.0,) if discrete else (1.0, 1.0),
        action_shape=() if discrete else (2,),
        action_dtype="<i8" if discrete else "<f4",
        max_episode_steps=None,
    )


def make(algo: str) -> tuple[Any, Any]:
    cls = lookup("algorithm", algo)
    switches = {"noisy": True} if algo in NOISY else {}
    config = cls.Config(
        algorithm=algo, hidden_sizes=(8,), normalize_observation=True, normalize_reward=True,
        **switches,
        **({"batch_size": 8} if "batch_size" in cls.Config.model_fields else {}),
    )  # fmt: skip
    algorithm = cls(config, device=torch.device("cpu"), seed=0)
    return algorithm, algorithm.initial_state(spec_for(algo))


def sample(algo: str, policy: Any, seed: int) -> Sample:
    rng = np.random.default_rng(seed)
    extras = {**policy.extras, "discounted_return": ColumnSpec("<f4", ())}
    if algo in ON_POLICY:
        extras["boundary"] = ColumnSpec("|b1", ())
    signature = spec_for(algo).transition_signature(extras, 5 if algo in ON_POLICY else None)
    draw = {
        "f": lambda shape: rng.normal(size=shape),
        "i": lambda shape: rng.integers(3, size=shape),
        "b": lambda shape: rng.random(shape) < 0.2,
    }
    columns = {
        name: draw[np.dtype(column.dtype).kind]((8, *column.shape)).astype(column.dtype)
        for name, column in signature.items()
    }
    batch = TransitionBatch.from_columns(columns)
    return Sample(batch, np.arange(8), np.ones(8, np.float32))


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {
            name: leaf
            for key, value in tree.items()
            for name, leaf in leaves(value, f"{path}/{key}").items()
        }
    # JSON has no tuples: an optimiser's settings come back with lists in their place.
    return {path: json.dumps(tree) if isinstance(tree, list) else tree}


def assert_equal_states(left: Any, right: Any) -> None:
    mine, theirs = leaves(state_tree(left)), leaves(state_tree(right))
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_update_after_a_restore_is_equal_to_the_bit(algo: str, tmp_path: Path) -> None:
    algorithm, state = make(algo)
    for seed in range(3):
        algorithm.update(state, sample(algo, state.policy, seed))
    store = CheckpointStore(tmp_path)
    store.save(3, {"learner": state_tree(state)})

    _, restored = make(algo)
    load_state_tree(restored, store.newest_valid().load("learner"))
    assert_equal_states(state, restored)
    for one in (state, restored):
        algorithm.update(one, sample(algo, one.policy, 9))
    assert_equal_states(state, restored)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_targets_and_optimisers_and_generators_are_part_of_it(algo: str) -> None:
    algorithm, state = make(algo)
    algorithm.update(state, sample(algo, state.policy, 0))
    names = leaves(state_tree(state))
    assert any("exp_avg_sq" in name for name in names)
    assert any("count" in name for name in names)  # of the normaliser
    if algo not in ON_POLICY:
        assert any(name.startswith("/target") for name in names)
    if algo in ("td3", "sac", "ppo"):  # those with randomness of their own
        assert "/generator" in names


def test_a_saved_state_is_a_copy(tmp_path: Path) -> None:
    algorithm, state = make("td3")
    tree = state_tree(state)
    before = {name: np.copy(value) for name, value in leaves(tree).items()}
    algorithm.update(state, sample("td3", state.policy, 0))
    for name, value in leaves(tree).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_the_state_of_another_algorithm_is_refused() -> None:
    _, td3 = make("td3")
    _, sac = make("sac")
    with pytest.raises(CheckpointError, match="another algorithm"):
        load_state_tree(td3, state_tree(sac))


def test_a_state_of_other_sizes_is_refused_naming_the_part() -> None:
    _, state = make("td3")
    tree = state_tree(state)
    tree["critic"] = {name: array[..., :1] for name, array in tree["critic"].items()}
    with pytest.raises(CheckpointError, match="critic"):
        load_state_tree(state, tree)
