"""The ensemble of a run that was trained here: evaluated, played, exported, refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import imageio.v3 as iio
import numpy as np
import pytest
from small_runs import small_run

from repertory.api import LoadedPolicy, evaluate, load_policy
from repertory.errors import RepertoryError, UsageError
from services import cli
from services.ensemble import Ensemble
from services.export import export_safetensors
from services.run_directory import RunDirectory

Invoke = Callable[..., tuple[int, str, str]]
EVALUATION_KEYS = {"policy", "episodes", "mean_return", "std_return", "returns"}


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Invoke:
    """Runs the command in this process; returns exit code, standard output and error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["repertory", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DQN and PPO on CartPole, chosen among by Thompson sampling every seven steps."""
    path = tmp_path_factory.mktemp("runs") / "portfolio"
    small_run("dqn,ppo", path)
    return path


def played(policy: LoadedPolicy, episodes: int = 4) -> list[list[int]]:
    """The actions of whole episodes, in an environment of the user's own."""
    env = gym.make("CartPole-v1", max_episode_steps=60)
    found = []
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        policy.begin_episode()
        actions, over = [], False
        while not over:
            actions.append(int(policy.act(observation)))
            observation, _, terminated, truncated, _ = env.step(actions[-1])
            over = terminated or truncated
        found.append(actions)
    env.close()
    return found


@pytest.mark.parametrize("mode", ["strategy", "vote"])
def test_evaluating_twice_gives_the_same(run_dir: Path, mode: str) -> None:
    first, second = (
        evaluate(run_dir, "ensemble", episodes=6, ensemble=mode).to_json() for _ in range(2)
    )
    assert first == second
    assert len(first["returns"]) == 6


def test_members_are_the_best_policies_of_all_learners(run_dir: Path) -> None:
    ensemble = load_policy(run_dir, "ensemble").card
    assert isinstance(ensemble, Ensemble)
    assert list(ensemble.members) == ["dqn", "ppo"]
    for name, card in ensemble.members.items():
        returns = RunDirectory.open(run_dir).read_evaluations(name)
        means = {step: np.mean(values) for step, values in returns.items()}
        assert card.env_steps == max(means, key=lambda step: means[step])
        assert card.mean_return == pytest.approx(max(means.values()))
    assert ensemble.env_steps == 1000


def test_the_final_director_has_seen_the_whole_run(run_dir: Path) -> None:
    ensemble = load_policy(run_dir, "ensemble").card
    assert isinstance(ensemble, Ensemble)
    assert ensemble.director is not None
    report = ensemble.director.report()
    lines = (run_dir / "events.jsonl").read_text().splitlines()
    leases = [line for line in map(json.loads, lines) if line["event"] == "decisions"]
    assert report["strategy"] == "thompson"
    numbers = [number for lease in leases for number, *_ in lease["decisions"]]
    assert report["decisions"] == 1 + max(numbers)
    assert sum(share["choices"] for share in report["shares"].values()) == pytest.approx(1)


def test_eval_prints_the_same_keys_and_who_acted(invoke: Invoke, run_dir: Path) -> None:
    flags = ("--policy", "ensemble", "--episodes", 5)
    code, out, err = invoke("eval", run_dir, *flags, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document.keys() >= EVALUATION_KEYS
    assert document["policy"] == "ensemble"
    assert document["ensemble"]["mode"] == "strategy"
    assert document["ensemble"]["strategy"] == "thompson"
    assert document["ensemble"]["members"].keys() == {"dqn", "ppo"}
    acted = document["ensemble"]["acted"]
    assert sum(acted.values()) == pytest.approx(1)
    assert min(acted.values()) > 0  # every seven steps anew, by draws from close beliefs
    code, out, _ = invoke("eval", run_dir, *flags)
    assert code == 0
    assert "by the strategy thompson: dqn in " in out
    code, out, _ = invoke("eval", run_dir, *flags, "--ensemble", "vote")
    assert "by vote of dqn, ppo" in out
    code, out, _ = invoke("eval", run_dir, "--policy", "best", "--json")
    assert "ensemble" not in json.loads(out)


def test_play_shows_an_ensemble(invoke: Invoke, run_dir: Path) -> None:
    code, out, err = invoke("play", run_dir, "--policy", "ensemble", "--episodes", 2)
    assert code == 0, err
    assert "returns" in out
    assert len(iio.imread(run_dir / "videos" / "ensemble.gif")) > 2


@pytest.mark.parametrize("mode", ["strategy", "vote"])
def test_an_exported_ensemble_acts_as_the_one_in_the_run(
    run_dir: Path, tmp_path: Path, mode: str
) -> None:
    files = export_safetensors(run_dir, "ensemble", tmp_path, mode)
    assert [file.name for file in files] == ["dqn.safetensors", "ppo.safetensors", "ensemble.json"]
    inside = load_policy(run_dir, "ensemble", ensemble=mode, seed=5)
    outside = load_policy(tmp_path, seed=5)
    assert played(inside) == played(outside)


def test_the_card_of_an_exported_ensemble_says_what_the_director_knew(
    run_dir: Path, tmp_path: Path
) -> None:
    *_, card = export_safetensors(run_dir, "ensemble", tmp_path)
    document = json.loads(card.read_text())
    assert document["mode"] == "strategy"
    assert {m["weights"] for m in document["members"].values()} == {
        "dqn.safetensors",
        "ppo.safetensors",
    }
    ensemble = load_policy(run_dir, "ensemble").card
    assert isinstance(ensemble, Ensemble)
    assert ensemble.director is not None
    report = ensemble.director.report()
    assert document["director"]["report"]["shares"] == report["shares"]
    assert document["director"]["report"]["estimates"] == report["estimates"]


def test_an_exported_ensemble_can_act_in_another_way(run_dir: Path, tmp_path: Path) -> None:
    export_safetensors(run_dir, "ensemble", tmp_path)
    voting = load_policy(run_dir, "ensemble", ensemble="vote")
    assert played(load_policy(tmp_path, ensemble="vote")) == played(voting)


def test_an_ensemble_whose_weights_were_changed_is_refused(run_dir: Path, tmp_path: Path) -> None:
    export_safetensors(run_dir, "ensemble", tmp_path)
    (tmp_path / "dqn.safetensors").write_bytes((tmp_path / "ppo.safetensors").read_bytes())
    with pytest.raises(RepertoryError, match=r"dqn\.safetensors"):
        load_policy(tmp_path)
    (tmp_path / "dqn.safetensors").write_bytes(b"garbage")
    with pytest.raises(RepertoryError, match=r"dqn\.safetensors cannot be read"):
        load_policy(tmp_path)


def test_a_folder_holds_a_policy_or_an_ensemble(
    invoke: Invoke, run_dir: Path, tmp_path: Path
) -> None:
    code, out, err = invoke("export", run_dir, "--policy", "ensemble", "--out", tmp_path)
    assert code == 0, err
    assert str(tmp_path / "ensemble.json") in out
    code, _, err = invoke("export", run_dir, "--out", tmp_path)
    assert code == 2
    assert "holds an exported ensemble already" in err


@pytest.mark.parametrize("command", ["eval", "play", "export"])
def test_a_mode_that_does_not_fit_is_one_sentence(
    invoke: Invoke, run_dir: Path, command: str
) -> None:
    code, _, err = invoke(command, run_dir, "--policy", "ensemble", "--ensemble", "average")
    assert code == 2
    assert err.count("\n") == 1
    assert "CartPole-v1 has discrete actions; use strategy or vote" in err
    code, _, err = invoke(command, run_dir, "--ensemble", "vote")
    assert code == 2
    assert "add --policy ensemble" in err


def test_the_ensemble_of_one_is_that_policy(tmp_path: Path) -> None:
    run = tmp_path / "run"
    small_run("sac", run, **{"env.max_episode_steps": 25, "steps": 200})
    alone = evaluate(run, "ensemble", episodes=3)
    assert alone.returns == evaluate(run, "sac", episodes=3).returns
    assert alone.ensemble is None
    with pytest.raises(UsageError, match="continuous actions; use strategy or average"):
        evaluate(run, "ensemble", ensemble="vote")
    export_safetensors(run, "ensemble", tmp_path / "export")
    observation = np.zeros(3, np.float32)
    np.testing.assert_array_equal(
        load_policy(tmp_path / "export").act(observation), load_policy(run).act(observation)
    )


def test_continuous_actions_are_averaged(tmp_path: Path) -> None:
    run = tmp_path / "run"
    small_run("td3,sac,ppo", run, steps=200)
    export_safetensors(run, "ensemble", tmp_path / "export", "average")
    inside = load_policy(run, "ensemble", ensemble="average")
    outside = load_policy(tmp_path / "export")
    observations = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    action = inside.act(observations)
    np.testing.assert_array_equal(action, outside.act(observations))
    members = [load_policy(run, name).act(observations) for name in ("td3", "sac", "ppo")]
    # Pendulum's torques are affine in our actions, so that its means are the means; float32.
    np.testing.assert_allclose(action, np.mean(members, axis=0), rtol=1e-5, atol=1e-6)
    first, second = (evaluate(run, "ensemble", episodes=3, ensemble="average") for _ in range(2))
    assert first.returns == second.returns
