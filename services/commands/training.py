"""Commands that train: `train` and `resume`.

Imports wait inside, so that `--help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from repertory.errors import UsageError
from services.commands.arguments import Environment, File, Folder, Run, Settings, Text, Whole
from services.user_code import make_importable

if TYPE_CHECKING:
    from repertory.config import RunConfig
    from services.local_run import RunResult
    from services.progress import Reporter
    from services.topology import Place


def train(
    env: Environment = None,
    /,
    algo: Text = None,
    strategy: Text = None,
    steps: Whole = None,
    seed: Whole = None,
    actors: Annotated[
        int | Literal["auto"] | None, arg(metavar="N|auto", help_behavior_hint="")
    ] = None,
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
    address: Annotated[str | None, arg(metavar="NAME|HOST:PORT", help_behavior_hint="")] = None,
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
        actors: Rollout processes; default, auto: as many as the machines have cores for. In a
            cluster auto follows the machines, and leaves other runs their share.
        envs_per_actor: Copies of the environment stepped side by side.
        shards: Replay processes; default: by the number of cores.
        device: auto, cpu, cuda or cuda:N.
        run_dir: Where everything goes; default runs/ENV_ALGO_SEED_TIME.
        config: A YAML file of settings.
        set_: One setting by its dotted name, as learner.lr=1e-3. May be repeated.
        local: Everything in one process, reproducible to the bit.
        replay: How a --local run reaches its replay: as an object, or over gRPC through a socket;
            the results are the same.
        address: A cluster that is up, by its name or its head's address; default: Ray is started
            here.
        token_file: The token of that cluster, where it is a Ray cluster of your own.
        redis_url: A Redis or Valkey of your own; default: one is started here.
        redis_password_file: Its password.
        dry_run: Check everything, print the resolved settings and how many processes of which
            kind there would be and why; start nothing.
        resume: auto goes on with the run in the run directory, if there is one.
        overwrite: Replace a run that is already in the run directory.
    """
    from repertory.config import parse_assignment, read_yaml, resolve
    from services import launcher

    place = None if local else _place(address, token_file, redis_url, redis_password_file)
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
    run_dir = run_dir or launcher.default_run_dir(resolved, place)
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
    from services.clusters.node import Node
    from services.topology import Place, place_at

    redis = None if redis_url is None else ControlAddress(redis_url, redis_password_file)
    node = None if address is None else Node.at(address)
    if node is not None:
        make_importable(str(node.code))  # what its environments may be made of
        return place_at(node, redis)
    if address is not None and token_file is None:
        raise UsageError(
            f"--address {address} takes --token-file, the token of that Ray cluster: this machine "
            "belongs to no cluster of that name or address that `repertory cluster up` has made"
        )
    return Place(address, token_file, redis)


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
