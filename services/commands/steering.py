"""Commands to a distributed run that goes on: how it fares, how many act, who acts, when it ends.

Imports wait inside, so that `--help` answers at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from repertory.errors import UsageError
from services.commands.arguments import Json, Run

Policy = Annotated[Positional[str], arg(metavar="POLICY")]


def status(
    run: Annotated[Positional[Path | None], arg(metavar="RUN", help_behavior_hint="")] = None,
    /,
    address: Annotated[str | None, arg(metavar="NAME|HOST:PORT", help_behavior_hint="")] = None,
    json_: Json = False,
) -> None:
    """Show the processes of a distributed run: where each is, what it does, how it fares.

    Args:
        run: The run directory; without one, all runs that go on in a cluster are listed.
        address: Of that cluster; default: the one that this machine belongs to.
        json_: Print one JSON object.
    """
    from services.run_status import print_status, read_status

    if run is None:
        _list_runs(address, json_=json_)
        return
    found = read_status(run)
    if json_:
        print(json.dumps(found.to_json()))
    else:
        print_status(found)


def scale(run: Run, /, actors: Annotated[int | Literal["auto"], arg(metavar="N|auto")]) -> None:
    """Change the number of rollout processes of a distributed run while it goes on.

    Args:
        run: The run directory.
        actors: How many there shall be; auto: in a cluster, as many as there is room for.
    """
    if actors != "auto" and actors < 0:
        raise UsageError(f"--actors {actors} is refused: give 0 or more")
    _tell(run, "scale", actors=actors)
    print(f"{run}: {actors} actors")


def stop(run: Run, /) -> None:
    """Let a distributed run write a checkpoint and end.

    Args:
        run: The run directory.
    """
    _tell(run, "stop")
    print(f"{run}: stopping; go on with `repertory resume {run}`")


def pause(run: Run, /, off: bool = False) -> None:
    """Hold a distributed run where it is.

    Args:
        run: The run directory.
        off: Let it go on.
    """
    _tell(run, "resume" if off else "pause")
    print(f"{run}: {'going on' if off else 'paused'}")


def pin(run: Run, policy: Policy, /) -> None:
    """Let one policy of a portfolio act alone, from the next episode on.

    Args:
        run: The run directory.
        policy: The learner's name.
    """
    _tell(run, "pin", policy=policy)
    print(f"{run}: {policy} acts alone; `repertory release {run}` ends that")


def bench(run: Run, policy: Policy, /) -> None:
    """Let one policy of a portfolio not act, from the next episode on; it goes on learning.

    Args:
        run: The run directory.
        policy: The learner's name.
    """
    _tell(run, "bench", policy=policy)
    print(f"{run}: {policy} does not act; `repertory release {run} {policy}` ends that")


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


def _list_runs(address: str | None, *, json_: bool) -> None:
    from dataclasses import asdict

    from services.cluster_runs import cluster_here, print_runs, runs_of

    found = runs_of(cluster_here(address))
    if json_:
        print(json.dumps([asdict(one) for one in found]))
    else:
        print_runs(found)


def _tell(run: Path, command: str, **arguments: object) -> None:
    """Waits for the answer of the run."""
    from services.run_control import steering

    with steering(run) as control:
        control.await_reply(control.send(command, **arguments), timeout_seconds=30.0)
