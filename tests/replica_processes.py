"""Two processes that learn as one, for tests: what each of them does, and how they are started."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from reference.from_torch import double_precision, scramble
from reference.samples import (
    as_sample,
    continuous_spec,
    discrete_spec,
    segments,
    transitions,
)

from learner.algorithms.actor_critic import ActorCritic
from learner.algorithms.c51 import C51
from learner.algorithms.ddpg import DDPG
from learner.algorithms.dqn import DQN
from learner.algorithms.natural_gradient import NPG, TRPO
from learner.algorithms.ppo import PPO
from learner.algorithms.q_learning import QLearning
from learner.algorithms.qr_dqn import QRDQN
from learner.algorithms.sac import SAC
from learner.algorithms.sac_discrete import SACDiscrete
from learner.algorithms.td3 import TD3
from learner.algorithms.vpg import VPG
from learner.loop import LearnerLoop
from repertory.config import resolve
from repertory.errors import RepertoryError, ReplayTimeout
from repertory.types import Array, Sample
from services.learner_process import LearnerProcess
from services.weights import SilentPublisher

SECONDS = 120.0
SIZE, ROWS, STEPS, SEED = 16, 4, 9, 3  # of the joined batch
CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"hidden_sizes": (8, 7), "lr": 1e-2}


@dataclass(frozen=True)
class Case:
    """An algorithm, and which extras its segments have; `updates` samples come one by one."""

    algorithm: Any
    spec: Any
    updates: int = 3
    stale: bool = False
    drift: float = 0.3  # of the policy that acted
    normalized: bool = False

    def sample(self, state: Any, update: int) -> Sample:
        """The joined batch; the same in every process as long as their states are."""
        if self.algorithm.data == "on_policy":
            columns = segments(
                self.spec, _Acting(state.policy), ROWS, STEPS, update, drift=self.drift
            )
            age = np.zeros((ROWS, STEPS), np.int64)
            age[-1] = 2  # only in the second replica's part
            sample = as_sample(columns, {"age": age} if self.stale else None)
        else:
            sample = transitions(self.spec, SIZE, update)
        return _single_precision(sample) if self.normalized else sample


def cases() -> dict[str, Case]:
    """Networks are float64 where they are made under `double_precision`."""
    discrete, continuous = discrete_spec(4), continuous_spec(2)

    def made(kind: Any, **settings: Any) -> Any:
        return kind(kind.Config(**(SMALL | settings)), device=CPU, seed=SEED)

    ppo: dict[str, Any] = {"epochs": 2, "batch_size": 10}
    critic: dict[str, Any] = {"target_updates": 2, "gradient_steps_per_target_update": 2}
    # So large a trust region that the search has to come back; what one replica alone would do
    # is not what both together do.
    far: dict[str, Any] = {"max_kl": 2.0, "cg_damping": 1e-2, "cg_steps": 4, "value_steps": 2}
    full: dict[str, Any] = {"mode": "full_batch", "policy_steps": 40, "value_steps": 2}
    return {
        "dqn": Case(made(DQN, double=True, max_grad_norm=0.05, target_period=2), discrete),
        "c51": Case(made(C51, noisy=True, dueling=True, v_min=-3, v_max=3, atoms=7), discrete),
        "qr_dqn": Case(made(QRDQN, double=True, quantiles=5), discrete),
        "td3": Case(made(TD3, tau=0.1), continuous),
        "sac": Case(made(SAC, tau=0.1), continuous),
        "ddpg": Case(made(DDPG, tau=0.1), continuous),
        "sac_discrete": Case(made(SACDiscrete, tau=0.1), discrete),
        "q_learning": Case(
            made(QLearning, bins=2, low=(-1.0,) * 3, high=(1.0,) * 3, lr=0.3), discrete
        ),
        "ppo": Case(made(PPO, **ppo), continuous, updates=2),
        "ppo stops": Case(made(PPO, **full, lr=1e-3, target_kl=0.003), continuous, drift=0.0),
        "ppo stale": Case(made(PPO, **ppo), discrete, updates=2, stale=True),
        "vpg": Case(made(VPG, value_steps=2), continuous),
        "vpg stale": Case(made(VPG, value_steps=2), discrete, stale=True),
        "actor-critic": Case(made(ActorCritic, **critic), discrete),
        "actor-critic stale": Case(made(ActorCritic, **critic), continuous, stale=True),
        "trpo": Case(made(TRPO, **far), discrete, drift=0.0),
        "trpo stale": Case(made(TRPO, **far), continuous, stale=True),
        "npg": Case(made(NPG, cg_steps=4, value_steps=2), continuous),
    }


def normalizing_cases() -> dict[str, Case]:
    """In float32, which normalised columns are."""
    both = {"normalize_observation": True, "normalize_reward": True}
    sac = SAC(SAC.Config(**SMALL, **both), device=CPU, seed=SEED)
    ppo = PPO(PPO.Config(**SMALL, **both, epochs=1, batch_size=36), device=CPU, seed=SEED)
    vpg = VPG(VPG.Config(**SMALL, **both, value_steps=1), device=CPU, seed=SEED)
    return {
        "sac": Case(sac, continuous_spec(2), normalized=True),
        "ppo": Case(ppo, continuous_spec(2), normalized=True),
        "vpg": Case(vpg, continuous_spec(2), normalized=True),
    }


def trained(case: Case, rank: int, replicas: int) -> dict[str, Array]:
    """Every parameter, last gradient, statistic and the priorities of this part."""
    state = case.algorithm.initial_state(case.spec)
    modules = [value for value in vars(state).values() if isinstance(value, torch.nn.Module)]
    for seed, module in enumerate(modules):
        scramble(module, seed)
    arrays: dict[str, Array] = {}
    for update in range(case.updates):
        joined = case.sample(state, update)
        rows = len(joined.keys) // replicas
        part = slice(rank * rows, (rank + 1) * rows)
        sample = Sample(joined.batch.select(part), joined.keys[part], joined.weights[part])
        result = case.algorithm.update(state, sample)
        if result.priorities is not None:
            arrays[f"priorities {update}"] = result.priorities.numpy()
        for name in ("stop_iteration", "line_search_steps"):
            if name in result.metrics:
                arrays[f"{name} {update}"] = np.array(result.metrics[name])
    for field, value in vars(state).items():
        if isinstance(value, torch.nn.Parameter):
            arrays[f"{field}"] = value.detach().numpy().copy()
        if isinstance(value, torch.Generator):
            arrays[f"{field}"] = value.get_state().numpy()
        if isinstance(value, torch.nn.Module):
            for name, tensor in value.state_dict().items():
                arrays[f"{field} {name}"] = tensor.numpy().copy()
            for name, parameter in value.named_parameters():
                if parameter.grad is not None:
                    arrays[f"{field} {name} gradient"] = parameter.grad.numpy().copy()
    return arrays


@dataclass
class _Acting:
    """A policy as the made-up segments want it."""

    policy: Any

    def log_prob(self, observation: Array, action: Array) -> Array:
        dtype = next(self.policy.parameters()).dtype
        with torch.no_grad():
            seen = self.policy.normalizer.observation(torch.from_numpy(observation).to(dtype))
            taken = torch.from_numpy(action)
            taken = taken.to(dtype) if taken.is_floating_point() else taken
            return self.policy.log_prob_and_entropy(seen, taken)[0].numpy()


def _single_precision(sample: Sample) -> Sample:
    """With the returns that a normaliser of rewards asks for, each replica's of its own scale."""
    batch = sample.batch
    columns = {
        name: column.astype(np.float32) if column.dtype == np.float64 else column
        for name, column in batch.columns().items()
    }
    ramp = np.arange(len(batch)).reshape(-1, *[1] * (batch.reward.ndim - 1))
    returns = (batch.reward * (1 + ramp)).astype(np.float32)
    narrow = type(batch).from_columns({**columns, "extras/discounted_return": returns})
    return replace(sample, batch=narrow, weights=sample.weights.astype(np.float32))


# What the processes of a pair do; each writes what it has to say into its own file.


def train_all(rank: int, folder: Path) -> None:
    _join(rank, folder)
    with double_precision():
        results = {name: trained(case, rank, 2) for name, case in cases().items()}
    results |= {
        f"normalizing {name}": trained(case, rank, 2) for name, case in normalizing_cases().items()
    }
    flat = {
        f"{case}/{name}": array
        for case, arrays in results.items()
        for name, array in arrays.items()
    }
    np.savez(folder / f"rank-{rank}.npz", **flat)
    dist.destroy_process_group()


def lose_the_other(rank: int, folder: Path) -> None:
    """The second ends without a word after its first update."""
    _join(rank, folder)
    case = cases()["dqn"]
    state = case.algorithm.initial_state(case.spec)
    try:
        for update in range(3):
            sample = _single_precision(transitions(case.spec, SIZE, update))
            case.algorithm.update(state, sample)
            if rank == 1:
                os._exit(9)
    except RepertoryError as error:
        said = {"error": type(error).__name__, "text": str(error), "updates": state.updates}
        (folder / f"rank-{rank}.json").write_text(json.dumps(said))


class _Replay:
    """Batches by number; the second replica's come late, and its third is broken."""

    def __init__(self, rank: int, spec: Any, on_draw: Callable[[int], None]) -> None:
        self._rank = rank
        self._spec = spec
        self._on_draw = on_draw
        self._refusals = 3 if rank == 1 else 0
        self.draws = 0

    def sample(self, size: int, *, timeout_seconds: float) -> Sample:
        if self._refusals:
            self._refusals -= 1
            raise ReplayTimeout("not yet")
        self._on_draw(self.draws)
        sample = _single_precision(transitions(self._spec, size, 100 * self._rank + self.draws))
        self.draws += 1
        if self._rank == 1 and self.draws == 3:
            sample.batch.reward[0] = math.nan
        return sample


class _Loop(LearnerLoop):
    """The second replica's fifth batch gives a loss that is not finite, and gradients that are."""

    def learn(self, sample: Sample) -> Any:
        metrics = super().learn(sample)
        own_trouble = dist.get_rank() == 1 and self._replay.draws == 5  # type: ignore[attr-defined]
        return {**metrics, "loss": math.inf} if own_trouble else metrics


class _Heartbeat:
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.reports = 0

    def progress(self) -> None: ...

    def event(self, kind: str, **details: Any) -> None: ...

    def count(self, **counts: int) -> None:
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count

    def metrics(self, updates: int, metrics: Any) -> None:
        self.reports += 1


def run_processes(rank: int, folder: Path) -> None:
    """Whole learner processes; only the second one is told to stop."""
    _join(rank, folder)
    config = resolve("CartPole-v1", ["dqn"], overrides={"topology.publish_every": 1})
    case = cases()["dqn"]
    state = case.algorithm.initial_state(case.spec)
    heartbeat, publisher = _Heartbeat(), SilentPublisher()

    def on_draw(number: int) -> None:
        if rank == 1 and number == 6:
            process.stopping.set()

    replay = _Replay(rank, case.spec, on_draw)
    loop = _Loop(case.algorithm, state, replay, batch_size=4, send_priorities=False)  # type: ignore[arg-type]
    process = LearnerProcess("dqn", config, loop, state.policy, publisher, heartbeat)  # type: ignore[arg-type]
    process.run()
    said = {
        "updates": state.updates,
        "draws": replay.draws,
        "checksum": _checksum(state.policy),
        "finite": all(bool(p.isfinite().all()) for p in state.policy.parameters()),
        "counts": heartbeat.counts,
        "reports": heartbeat.reports,
        "facts": process.facts(),
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


def _checksum(module: torch.nn.Module) -> str:
    return b"".join(p.detach().numpy().tobytes() for p in module.parameters()).hex()


def _join(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)


def run_pair(work: Callable[[int, Path], None], folder: Path) -> list[int]:
    """Both ranks at once; returns their exit codes."""
    return run_all([(work, (rank, folder)) for rank in range(2)])


def run_all(works: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> list[int]:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=given) for work, given in works]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
    codes = []
    for process in processes:
        if process.exitcode is None:
            process.kill()
            process.join()
        codes.append(process.exitcode if process.exitcode is not None else -1)
    return codes
