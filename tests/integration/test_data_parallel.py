"""Two learner processes with half a batch each are one learner with the whole of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference.from_torch import double_precision
from replica_processes import (
    cases,
    lose_the_other,
    normalizing_cases,
    run_pair,
    run_processes,
    train_all,
    trained,
)

from learner.data_parallel import share
from repertory.errors import UsageError

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, np.ndarray]]:
    """What both replicas had at the end, of every case."""
    folder = tmp_path_factory.mktemp("pair")
    assert run_pair(train_all, folder) == [0, 0]
    return [dict(np.load(folder / f"rank-{rank}.npz")) for rank in range(2)]


def of_case(arrays: dict[str, np.ndarray], case: str) -> dict[str, np.ndarray]:
    prefix = f"{case}/"
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


@pytest.fixture
def joined_shuffles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minibatches of one learner that are those of two: the same rows of either half."""
    randperm = torch.randperm

    def both_halves(size: int, *, generator: torch.Generator) -> torch.Tensor:
        half = size // 2
        pieces = randperm(half, generator=generator).split(5)  # half of batch_size = 10
        return torch.cat([torch.cat([piece, piece + half]) for piece in pieces])

    monkeypatch.setattr(torch, "randperm", both_halves)


@pytest.mark.parametrize("name", list(cases()))
@pytest.mark.usefixtures("joined_shuffles")
def test_two_replicas_equal_one_learner_on_the_joined_batch(
    name: str, pair: list[dict[str, np.ndarray]]
) -> None:
    """Parameters, gradients, targets, temperature: float64, so only the order of sums differs."""
    with double_precision():
        alone = trained(cases()[name], 0, 1)
    first, second = (of_case(arrays, name) for arrays in pair)
    assert set(first) == set(second) == set(alone)
    for array in alone:
        if array.startswith("priorities"):  # each has those of its own part
            joined = np.concatenate([first[array], second[array]])
            np.testing.assert_allclose(joined, alone[array], rtol=1e-9, atol=1e-12)
            continue
        np.testing.assert_array_equal(first[array], second[array], err_msg=array)
        np.testing.assert_allclose(first[array], alone[array], rtol=1e-7, atol=1e-10, err_msg=array)


def test_the_kl_of_all_stops_all(pair: list[dict[str, np.ndarray]]) -> None:
    """The case is one in which it does, before the last step and after the first."""
    stopped = int(of_case(pair[0], "ppo stops")["stop_iteration 0"])
    assert 1 < stopped < 40


def test_the_search_of_all_comes_back_for_all(pair: list[dict[str, np.ndarray]]) -> None:
    """The case is one in which it has to, and does not give up."""
    tried = [int(of_case(pair[0], "trpo")[f"line_search_steps {update}"]) for update in range(3)]
    assert 1 < max(tried) < 10


@pytest.mark.parametrize("name", list(normalizing_cases()))
def test_statistics_are_those_of_everybodys_observations(
    name: str, pair: list[dict[str, np.ndarray]]
) -> None:
    alone = trained(normalizing_cases()[name], 0, 1)
    for arrays in pair:
        replica = of_case(arrays, f"normalizing {name}")
        moments = [array for array in alone if "moments" in array]
        assert len(moments) >= 6  # mean, variance, count of observations and returns
        for array in moments:
            np.testing.assert_allclose(replica[array], alone[array], rtol=1e-12, err_msg=array)


def test_without_the_other_half_it_would_be_another_result() -> None:
    """Otherwise the equalities above would say nothing."""
    with double_precision():
        whole, half = (trained(cases()["dqn"], 0, replicas) for replicas in (1, 2))
    gradients = [name for name in whole if name.endswith("gradient")]
    assert gradients
    assert not all(np.allclose(whole[name], half[name], rtol=1e-3) for name in gradients)


def test_a_replica_whose_peer_is_gone_ends_and_says_why(tmp_path: Path) -> None:
    assert run_pair(lose_the_other, tmp_path) == [0, 9]
    said = json.loads((tmp_path / "rank-0.json").read_text())
    assert said["error"] == "ReplicaLost"
    assert "another replica of this learner is gone" in said["text"]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("processes")
    assert run_pair(run_processes, folder) == [0, 0]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def test_replicas_stop_together_after_the_same_updates(processes: list[dict[str, Any]]) -> None:
    """Of the second one's six batches two are skipped; at the seventh it is told to stop."""
    first, second = processes
    assert first["updates"] == second["updates"] == 4
    assert first["checksum"] == second["checksum"]


def test_who_has_a_batch_keeps_it_until_all_have_one(processes: list[dict[str, Any]]) -> None:
    """The first had its batch three turns before the second; none was drawn in vain."""
    first, second = processes
    assert first["draws"] == second["draws"] == 7


def test_a_loss_that_is_not_finite_anywhere_is_skipped_everywhere(
    processes: list[dict[str, Any]],
) -> None:
    assert all(one["finite"] for one in processes)
    # One that spoils everybody's gradients, one that only the second replica sees; counted once.
    assert processes[0]["counts"] == {"skipped_updates": 2}


def test_the_first_replica_alone_reports(processes: list[dict[str, Any]]) -> None:
    first, second = processes
    assert first["reports"] > 0
    assert second["reports"] == 0
    assert second["counts"] == {}


def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    assert share(64, 4, "learner.batch_size") == 16
    with pytest.raises(UsageError, match=r"batch_size = 64 .*replicas = 3: .* 66"):
        share(64, 3, "learner.batch_size")
