"""The command line: `repertory train | eval | play | resume | plot | export | ...`.

Heavy imports wait inside the commands, so that `--help` answers at once. Errors are one sentence on
standard error; exit code 2 means the call was wrong, 1 that something failed.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import Positional, UseAppendAction, arg

from repertory.errors import RepertoryError, UsageError
from services.buffer_server_command import BufferServerOptions
from services.user_code import make_importable

if TYPE_CHECKING:
    from repertory.config import RunConfig
    from services.local_run import RunResult
    from services.progress import Reporter
    from services.topology import Place

app = tyro.extras.SubcommandApp()

# How optional values look in --help: a word for the value, no "default: None".
Whole = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]
Text = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")]
Settings = Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="KEY=VALUE")]
Mode = Annotated[
    Literal["strategy", "vote", "average"] | None,
    arg(metavar="strategy|vote|average", help_behavior_hint=""),
]
File = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
Folder = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")]
Run = Annotated[Positional[Path], arg(metavar="RUN")]


@app.command
def train(
    env: Annotated[Positional[str | None], arg(metavar="ENV", help_behavior_hint="")] = None,
    /,
    algo: Text = None,
    strategy: Text = None,
    steps: Whole = None,
    seed: Whole = None,
    actors: Whole = None,
    envs_per_actor: Whole = None,
    shards: Whole = None,
    device: Text = None,
    run_dir: Folder = None,
    config: File = None,
    set_: Settings = (),
    local: bool = False,
    replay: Annotated[
        Literal["local", "grpc"] | None, arg(metavar="local|grpc", help_behavior_hint="")
    ] = None,
    address: Annotated[str | None, arg(metavar="HOST:PORT", help_behavior_hint="")] = None,
    token_file: File = None,
    redis_url: Annotated[str | None, arg(metavar="URL", help_behavior_hint="")] = None,
    redis_password_file: File = None,
    dry_run: bool = False,
    resume: Literal["auto", "never"] = "never",
    overwrite: bool = False,
) -> None:
    """Train on an environment.

    Args:
        env: A Gymnasium id, module:EnvId-v0, or package.module:make_env.
        algo: The algorithm: td3, sac, dqn, ppo, or package.module:Name; several train together,
            as td3,sac,ppo. Default: sac for continuous actions, ppo for the others.
        strategy: How the director of several chooses who acts: ucb (default), thompson, exp3, ...;
            `repertory strategies` lists them. Or package.module:Name.
        steps: Environment steps over all copies.
        seed: Of everything random; --local runs with one seed are equal to the bit.
        actors: Rollout processes; default: as many as the machines have cores for.
        envs_per_actor: Copies of the environment stepped side by side.
        shards: Replay processes; default: by the number of cores.
        device: auto, cpu, cuda or cuda:N.
        run_dir: Where everything goes; default runs/ENV_ALGO_SEED_TIME.
        config: A YAML file of settings.
        set_: One setting by its dotted name, as learner.lr=1e-3. May be repeated.
        local: Everything in one process, reproducible to the bit.
        replay: How a --local run reaches its replay: as an object, or over gRPC through a socket;
            the results are the same.
        address: The head of a running Ray cluster; default: Ray is started here.
        token_file: The token of that cluster.
        redis_url: A Redis or Valkey of your own; default: one is started here.
        redis_password_file: Its password.
        dry_run: Check everything, print the resolved settings and how many processes of which
            kind there would be and why; start nothing.
        resume: auto goes on with the run in the run directory, if there is one.
        overwrite: Replace a run that is already in the run directory.
    """
    from repertory.config import parse_assignment, read_yaml, resolve
    from services import launcher

    overrides = dict(parse_assignment(text) for text in set_)
    flags = {
        "steps": steps,
        "seed": seed,
        "env.copies": envs_per_actor,
        "device": device,
        "director.strategy": strategy,
        "replay.transport": replay,
        "topology.actors": actors,
        "topology.shards": shards,
    }
    overrides |= {key: value for key, value in flags.items() if value is not None}
    algorithms = algo.split(",") if algo else []
    if not algorithms and "learners" not in (read_yaml(config) if config else {}):
        algorithms = [_fitting_algorithm(env, config, overrides)]
    resolved = resolve(env, algorithms, file=config, overrides=overrides)
    spec = launcher.check(resolved)
    run_dir = run_dir or launcher.default_run_dir(resolved)
    place = None if local else _place(address, token_file, redis_url, redis_password_file)
    if dry_run:
        print(resolved.to_yaml(), end="")
        print(f"# {spec.env_id}: {spec.observation_kind} observations {spec.observation_shape},")
        print(f"# {spec.action_kind} actions {spec.action_sizes}; would train in {run_dir}")
        _print_plan(resolved, place)
        return
    if resume == "auto" and (run_dir / "checkpoints").is_dir():
        result = launcher.resume(run_dir, _reporter(), steps=resolved.steps, place=place)
    else:
        result = launcher.train(resolved, run_dir, _reporter(), place=place, overwrite=overwrite)
    _summarise(result)


@app.command(name="resume")
def resume_run(run: Run, /, steps: Whole = None, set_: Settings = ()) -> None:
    """Go on with a run from its newest whole checkpoint.

    Args:
        run: The run directory.
        steps: A new total of environment steps; default: as planned.
        set_: Another value for one setting, as learner.lr=1e-4. May be repeated.
    """
    from repertory.config import parse_assignment
    from services import launcher

    settings = dict(parse_assignment(text) for text in set_)
    _summarise(launcher.resume(run, _reporter(), steps=steps, settings=settings))


@app.command
def status(run: Run, /, json_: Annotated[bool, arg(name="json")] = False) -> None:
    """Show the processes of a distributed run: where each is, what it does, how it fares.

    Args:
        run: The run directory.
        json_: Print one JSON object.
    """
    from services.run_status import print_status, read_status

    found = read_status(run)
    if json_:
        print(json.dumps(found.to_json()))
    else:
        print_status(found)


@app.command
def scale(run: Run, /, actors: int) -> None:
    """Change the number of rollout processes of a distributed run while it goes on.

    Args:
        run: The run directory.
        actors: How many there shall be.
    """
    if actors < 0:
        raise UsageError(f"--actors {actors} is refused: give 0 or more")
    _tell(run, "scale", actors=actors)
    print(f"{run}: {actors} actors")


@app.command
def stop(run: Run, /) -> None:
    """Let a distributed run write a checkpoint and end.

    Args:
        run: The run directory.
    """
    _tell(run, "stop")
    print(f"{run}: stopping; go on with `repertory resume {run}`")


@app.command
def pause(run: Run, /, off: bool = False) -> None:
    """Hold a distributed run where it is.

    Args:
        run: The run directory.
        off: Let it go on.
    """
    _tell(run, "resume" if off else "pause")
    print(f"{run}: {'going on' if off else 'paused'}")


@app.command
def pin(run: Run, policy: Annotated[Positional[str], arg(metavar="POLICY")], /) -> None:
    """Let one policy of a portfolio act alone, from the next episode on.

    Args:
        run: The run directory.
        policy: The learner's name.
    """
    _tell(run, "pin", policy=policy)
    print(f"{run}: {policy} acts alone; `repertory release {run}` ends that")


@app.command
def bench(run: Run, policy: Annotated[Positional[str], arg(metavar="POLICY")], /) -> None:
    """Let one policy of a portfolio not act, from the next episode on; it goes on learning.

    Args:
        run: The run directory.
        policy: The learner's name.
    """
    _tell(run, "bench", policy=policy)
    print(f"{run}: {policy} does not act; `repertory release {run} {policy}` ends that")


@app.command
def release(
    run: Run,
    policy: Annotated[Positional[str | None], arg(metavar="POLICY", help_behavior_hint="")] = None,
    /,
) -> None:
    """Let the director choose freely again.

    Args:
        run: The run directory.
        policy: The learner that is no longer pinned or benched; default: all.
    """
    _tell(run, "release", policy=policy)
    print(f"{run}: {policy or 'every policy'} is neither pinned nor benched")


@app.command(name="eval")
def evaluate(
    run: Run,
    /,
    policy: str = "best",
    ensemble: Mode = None,
    episodes: int = 10,
    seed: Whole = None,
    json_: Annotated[bool, arg(name="json")] = False,
) -> None:
    """Play whole episodes without exploration and report the returns.

    Args:
        run: The run directory.
        policy: best (by evaluated mean), last, a learner's name, or ensemble (all learners' best).
        ensemble: How the ensemble acts: strategy (the director as it stood at the end chooses who
            acts; default), vote (discrete actions) or average (continuous actions).
        episodes: How many episodes.
        seed: Of the episodes; default: derived from the run's.
        json_: Print one JSON object.
    """
    from services.run_policy import evaluate_run

    if episodes < 1:
        raise UsageError(f"--episodes {episodes} is refused: give at least 1")
    result = evaluate_run(run, policy, episodes, seed, ensemble)
    if json_:
        print(json.dumps(result.to_json()))
        return
    low, high = result.interval
    print(f"{policy} policy of {run} on {result.env}, trained for {result.env_steps} steps")
    if result.ensemble is not None:
        print(_ensemble_line(result.ensemble))
    print(f"return over {episodes} episodes: {result.mean_return:.1f} +- {result.std_return:.1f}")
    print(f"95 % interval of the mean: {low:.1f} to {high:.1f}; IQM {result.iqm_return:.1f}")


@app.command
def play(
    run: Run,
    /,
    policy: str = "best",
    ensemble: Mode = None,
    gif: File = None,
    mp4: File = None,
    window: bool = False,
    episodes: int = 1,
    seed: int = 0,
) -> None:
    """Show a trained policy, as a GIF, an MP4 or in a window.

    Args:
        run: The run directory.
        policy: best (by evaluated mean), last, a learner's name, or ensemble (all learners' best).
        ensemble: How the ensemble acts: strategy (default), vote or average.
        gif: Write a GIF; default when nothing is chosen: videos/POLICY.gif of the run.
        mp4: Write an MP4.
        window: Open a window; needs a screen.
        episodes: How many episodes.
        seed: Of the episodes.
    """
    from services.run_policy import load_playable
    from services.video import record, show

    card = load_playable(run, policy, ensemble, seed)
    if window:
        returns = show(card, episodes=episodes, seed=seed)
        print(f"returns: {', '.join(f'{value:.1f}' for value in returns)}")
        return
    if gif is None and mp4 is None:
        gif = run / "videos" / f"{policy}.gif"
    for path in (gif, mp4):
        if path is not None:
            returns = record(card, path, episodes=episodes, seed=seed)
            print(f"{path}: returns {', '.join(f'{value:.1f}' for value in returns)}")


@app.command
def plot(
    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN")],
    /,
    out: Path = Path("curves.png"),
) -> None:
    """Draw learning curves; runs that differ in their seed alone become one curve with a band.

    Args:
        runs: Run directories.
        out: A .png, .svg or .html file; for a .png, an .html is written beside it.
    """
    from rich.console import Console
    from rich.table import Table

    from services.plotting import curves, write_plot

    if not runs:
        raise UsageError("nothing to plot: name one or more run directories")
    drawn = curves(runs)
    outputs = [out, out.with_suffix(".html")] if out.suffix == ".png" else [out]
    for path in outputs:
        write_plot(drawn, path)
    table = Table("curve", "runs", "steps", "last mean", "95 % interval", "last IQM")
    for curve in drawn:
        low, high = curve.final_interval
        table.add_row(
            curve.label, str(curve.runs), str(curve.steps[-1]), f"{curve.mean[-1]:.1f}",
            f"{low:.1f} to {high:.1f}", f"{curve.final_iqm:.1f}",
        )  # fmt: skip
    Console().print(table)
    print("wrote " + " and ".join(str(path) for path in outputs))


@app.command
def export(
    run: Run,
    /,
    policy: str = "best",
    ensemble: Mode = None,
    format: Literal["safetensors"] = "safetensors",
    out: Folder = None,
) -> None:
    """Take a policy out of a run: weights as safetensors, everything else as a JSON card.

    Args:
        run: The run directory.
        policy: best (by evaluated mean), last, a learner's name, or ensemble (all learners' best).
        ensemble: How the ensemble acts: strategy (default), vote or average.
        format: The file format of the weights.
        out: The folder to write; default: export/ in the run directory, export-ensemble/ for the
            ensemble.
    """
    from services.export import export_safetensors

    out = out or run / ("export-ensemble" if policy == "ensemble" else "export")
    for path in export_safetensors(run, policy, out, ensemble):
        print(path)


@app.command(name="buffer-server")
def buffer_server(options: Annotated[BufferServerOptions, arg(name="")]) -> None:
    """Serve one shard of a replay: tables on a socket or a port, with checkpoints and metrics."""
    from services import buffer_server_command

    buffer_server_command.run(options)


@app.command
def algorithms() -> None:
    """List the algorithms: what data they learn from, where they fit, what can be switched."""
    from rich.console import Console

    from services.algorithm_table import algorithm_table

    Console().print(algorithm_table())


@app.command
def strategies() -> None:
    """List the strategies by which the director of a portfolio chooses who acts."""
    from rich.console import Console
    from rich.table import Table

    from repertory.parts import SHORT_NAMES, lookup

    table = Table("name", "what it does", "settings")
    for name in SHORT_NAMES["strategy"]:
        strategy = lookup("strategy", name)
        fields = strategy.Config.model_fields
        settings = [f"{key} = {field.default}" for key, field in fields.items() if key != "name"]
        summary = (sys.modules[strategy.__module__].__doc__ or "").partition("\n")[0]
        table.add_row(name, summary, "\n".join(settings))
    Console().print(table)


@app.command
def describe(env: Annotated[Positional[str], arg(metavar="ENV")], /) -> None:
    """Describe an environment: spaces, limits, and which algorithms fit.

    Args:
        env: A Gymnasium id, module:EnvId-v0, or package.module:make_env.
    """
    from rich.console import Console

    from services.describe import description

    Console().print(description(env))


@app.command
def doctor() -> None:
    """Look over this machine and say what is missing."""
    from rich.console import Console
    from rich.table import Table

    from services.doctor import examine

    findings = examine()
    table = Table("", "what", "found")
    for finding in findings:
        mark = "[green]ok" if finding.ok else "[red]no" if finding.required else "[yellow]no"
        table.add_row(mark, finding.topic, finding.detail)
    Console().print(table)
    if any(finding.required and not finding.ok for finding in findings):
        raise RepertoryError("something that training needs is missing: see the table above")


def _fitting_algorithm(env: str | None, config: Path | None, overrides: dict[str, object]) -> str:
    from repertory.config import resolve
    from repertory.envs import probe
    from services.fit import default_algorithm

    env_settings = {key: value for key, value in overrides.items() if key.startswith("env.")}
    # The environment's own settings are the same whatever the algorithm; ppo fits all of them.
    return default_algorithm(probe(resolve(env, ["ppo"], file=config, overrides=env_settings).env))


def _print_plan(config: RunConfig, place: Place | None) -> None:
    from services.topology import plan_for

    if place is None:
        print("# --local: everything in one process")
        return
    for line in plan_for(config, place).lines():
        print(f"# {line}")


def _place(
    address: str | None,
    token_file: Path | None,
    redis_url: str | None,
    redis_password_file: Path | None,
) -> Place:
    from repertory.control import ControlAddress
    from services.topology import Place

    if address is not None and token_file is None:
        raise UsageError(f"--address {address} takes --token-file: the token of that Ray cluster")
    redis = None if redis_url is None else ControlAddress(redis_url, redis_password_file)
    return Place(address, token_file, redis)


def _tell(run: Path, command: str, **arguments: object) -> None:
    """Waits for the answer of the run."""
    from services.topology import steering

    with steering(run) as control:
        control.await_reply(control.send(command, **arguments), timeout_seconds=30.0)


def _ensemble_line(ensemble: dict[str, Any]) -> str:
    """Who is in it and how it acted, in a line."""
    if ensemble["acted"] is None:
        return f"by {ensemble['mode']} of {', '.join(ensemble['members'])}"
    parts = [f"{name} in {share:.0%} of the steps" for name, share in ensemble["acted"].items()]
    return f"by the strategy {ensemble['strategy']}: {', '.join(parts)}"


def _reporter() -> Reporter:
    from rich.console import Console

    from services.progress import reporter_for

    return reporter_for(Console())


def _summarise(result: RunResult) -> None:
    run_dir = result.run_dir
    if result.stopped_by is None:
        print(f"finished: {result.env_steps} steps, {result.updates} updates")
    else:
        print(f"stopped by {result.stopped_by} at step {result.env_steps}; go on with:")
        print(f"  repertory resume {run_dir}")
    if result.best_mean_return is not None and result.last_mean_return is not None:
        print(
            f"evaluated return: last {result.last_mean_return:.1f}, "
            f"best {result.best_mean_return:.1f}"
        )
    print(f"config       {run_dir / 'config.yaml'}")
    print(f"metrics      {run_dir / 'metrics.jsonl'}, tensorboard --logdir {run_dir}")
    print(f"checkpoints  {run_dir / 'checkpoints'}")
    print(f"next         repertory play {run_dir}; repertory plot {run_dir}")


class CurrentStderr(logging.StreamHandler):
    """Writes to what standard error is at the moment: a live display puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def main() -> None:
    make_importable(os.getcwd())
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s: %(message)s", handlers=[CurrentStderr()]
    )
    try:
        app.cli(
            prog="repertory",
            description="Distributed reinforcement learning: many algorithms, one environment.",
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    except RepertoryError as error:
        print(f"repertory: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("repertory: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
