"""What a run leaves behind, and what it refuses to write into."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from hooks import Recorder
from small_runs import small_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from repertory.api import evaluate, load_policy, resume, train
from repertory.errors import RepertoryError, RunDirectoryError, UsageError
from repertory.seeding import derive_seed
from services.export import export_safetensors
from services.plotting import curves, write_plot
from services.run_directory import RunDirectory
from services.run_policy import load_card


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "sac"
    small_run("sac", path)
    return path


def test_a_run_holds_its_config_versions_metrics_and_checkpoints(run_dir: Path) -> None:
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    assert config["learners"]["sac"]["hidden_sizes"] == [16, 16]
    versions = json.loads((run_dir / "versions.json").read_text())
    assert versions["packages"]["torch"]
    assert len(list((run_dir / "checkpoints").glob("step_*"))) == 3  # the last three of four
    assert (run_dir / "checkpoints" / "best").is_dir()
    events = [
        json.loads(line)["event"] for line in (run_dir / "events.jsonl").read_text().splitlines()
    ]
    assert events == ["started", "finished"]


def test_the_untrained_policy_is_evaluated_first_then_at_each_interval(run_dir: Path) -> None:
    with np.load(run_dir / "evaluations.npz") as file:
        assert file["timesteps"].tolist() == [0, 400, 800, 1000]
        assert file["results"].shape == (4, 2)


def test_metrics_have_the_names_people_know_and_grow_with_steps(run_dir: Path) -> None:
    rows = RunDirectory.open(run_dir).read_metrics()
    names = set().union(*rows)
    assert {
        "rollout/ep_rew_mean",
        "rollout/ep_len_mean",
        "charts/episodic_return",
        "charts/SPS",
        "eval/mean_reward",
        "time/fps",
        "learner/critic_loss",
        "learner/alpha",
    } <= names
    steps = [row["step"] for row in rows]
    assert steps == sorted(steps)


def test_tensorboard_shows_the_same_numbers_as_the_json_lines(run_dir: Path) -> None:
    events = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    seen = {e.step: e.value for e in events.Scalars("learner/critic_loss")}
    rows = RunDirectory.open(run_dir).read_metrics()
    written = {r["step"]: r["learner/critic_loss"] for r in rows if "learner/critic_loss" in r}
    assert seen == pytest.approx(written)  # TensorBoard keeps float32


def test_updates_follow_the_set_ratio(run_dir: Path) -> None:
    rows = [r for r in RunDirectory.open(run_dir).read_metrics() if "learner/updates" in r]
    # A quarter of an update for each step after the first hundred.
    assert [r["learner/updates"] for r in rows] == [(r["step"] - 100) // 4 for r in rows]


def test_the_best_policy_is_the_one_with_the_best_evaluation(run_dir: Path) -> None:
    with np.load(run_dir / "evaluations.npz") as file:
        means = dict(zip(file["timesteps"].tolist(), file["results"].mean(1).tolist(), strict=True))
    card = load_policy(run_dir, "best").card
    assert card.env_steps == max(means, key=lambda step: means[step])
    assert card.mean_return == pytest.approx(max(means.values()))


def test_evaluating_twice_gives_the_same_returns_and_another_seed_others(run_dir: Path) -> None:
    first, second = evaluate(run_dir, episodes=3), evaluate(run_dir, episodes=3)
    assert first.returns == second.returns
    assert evaluate(run_dir, episodes=3, seed=derive_seed(9, "x")).returns != first.returns
    assert len(first.returns) == first.episodes == 3


def test_an_exported_policy_acts_as_the_one_in_the_run(run_dir: Path, tmp_path: Path) -> None:
    export_safetensors(run_dir, "best", tmp_path)
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    inside, outside = load_policy(run_dir), load_policy(tmp_path)
    np.testing.assert_array_equal(inside.act(observations), outside.act(observations))
    # Pendulum's own bounds, and one observation is a batch of one.
    assert np.abs(outside.act(observations)).max() <= 2
    np.testing.assert_array_equal(outside.act(observations[0]), outside.act(observations)[0])
    weights = outside.card.snapshot.arrays
    assert weights["normalizer.observation_moments.count"] > 0  # statistics came along


def test_an_export_whose_weights_were_changed_is_refused(run_dir: Path, tmp_path: Path) -> None:
    _, card = export_safetensors(run_dir, "best", tmp_path)
    document = json.loads(card.read_text())
    card.write_text(json.dumps({**document, "checksum": document["checksum"] ^ 1}))
    with pytest.raises(RepertoryError, match="checksum"):
        load_policy(tmp_path)


def test_curves_of_several_seeds_become_one_with_a_band(run_dir: Path, tmp_path: Path) -> None:
    small_run("sac", tmp_path / "other", seed=5)
    (curve,) = curves([run_dir, tmp_path / "other"])
    assert curve.runs == 2
    assert (curve.low <= curve.mean).all()
    assert (curve.mean <= curve.high).all()
    for name in ("curve.png", "curve.html"):
        write_plot([curve], tmp_path / name)
        assert (tmp_path / name).stat().st_size > 10_000
    assert "https://" not in (tmp_path / "curve.html").read_text().split("<body>")[0]


def test_a_folder_with_something_in_it_is_not_written_into(run_dir: Path, tmp_path: Path) -> None:
    before = (run_dir / "metrics.jsonl").read_bytes()
    with pytest.raises(UsageError, match="resume"):
        small_run("sac", run_dir)
    assert (run_dir / "metrics.jsonl").read_bytes() == before
    (tmp_path / "thesis.txt").write_text("dear")
    with pytest.raises(UsageError, match="not look like a run"):
        train("CartPole-v1", "dqn", run_dir=tmp_path, overwrite=True, progress=False)
    assert (tmp_path / "thesis.txt").read_text() == "dear"


def test_a_place_that_cannot_be_written_to_is_named() -> None:
    with pytest.raises(RunDirectoryError, match=r"/proc/nowhere.*--run-dir"):
        train("CartPole-v1", "dqn", run_dir="/proc/nowhere", progress=False)


def test_two_processes_do_not_train_in_one_folder(run_dir: Path) -> None:
    first, second = RunDirectory.open(run_dir), RunDirectory.open(run_dir)
    first.lock()
    try:
        with pytest.raises(RepertoryError, match="another process"):
            second.lock()
    finally:
        first.close()


def test_callbacks_named_in_the_config_are_called(tmp_path: Path) -> None:
    Recorder.calls.clear()
    small_run("dqn", tmp_path / "run", callbacks=["hooks:Recorder"])
    assert Recorder.calls[0] == "evaluation"
    assert Recorder.calls[-1] == "end"
    assert {"step", "checkpoint"} <= set(Recorder.calls)


def test_a_callback_can_stop_the_run(tmp_path: Path) -> None:
    class GoodEnough:
        def on_evaluation(self, env_steps: int, returns: object, policy: object) -> bool:
            return env_steps > 0

    result = train(
        "CartPole-v1",
        "dqn",
        steps=5000,
        run_dir=tmp_path / "run",
        settings={"evaluation.every": 500, "evaluation.episodes": 1},
        callbacks=[GoodEnough()],  # type: ignore[list-item]
        progress=False,
    )
    assert result.stopped_by == "GoodEnough.on_evaluation"
    assert result.env_steps < 2000
    assert (tmp_path / "run" / "checkpoints").is_dir()


def test_a_diverging_run_stops_with_a_reason_and_keeps_whole_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(RepertoryError, match=r"diverged.*learner\.lr"):
        train(
            "broken_envs:ExplodingReward",
            "td3",
            steps=2000,
            run_dir=tmp_path / "run",
            settings={
                "learner.random_steps": 50, "learner.learning_starts": 50,
                "learner.hidden_sizes": [8], "learner.batch_size": 8, "log.every": 50,
            },
            progress=False,
        )  # fmt: skip
    assert load_policy(tmp_path / "run", "best").card.env_steps == 0


def test_a_better_policy_than_the_checkpoint_knows_of_is_not_overwritten(tmp_path: Path) -> None:
    """Its evaluation came after the last checkpoint before a kill."""
    run_dir = tmp_path / "run"
    small_run("ppo", run_dir)
    directory = RunDirectory.open(run_dir)
    tree = directory.checkpoints.named("best").load("policy")
    directory.checkpoints.save(900, {"policy": {**tree, "mean_return": 1e6}}, name="best")
    resume(run_dir, steps=1600, progress=False)
    assert load_card(run_dir, "best").mean_return == 1e6
    assert load_card(run_dir, "ppo").mean_return < 1e6
