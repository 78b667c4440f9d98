"""`repertory cluster up | status | scale | logs | exec | down FILE`, and what nodes run themselves.

Imports wait inside, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from repertory.errors import RepertoryError, UsageError
from services.commands.arguments import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.clusters.preflight import Finding
    from services.clusters.provider import MachineStatus, Provider

Inventory = Annotated[Positional[Path], arg(metavar="FILE")]
Host = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")]


def up(
    file: Inventory, /, render_only: Annotated[Path | None, arg(metavar="FOLDER")] = None
) -> None:
    """Start a cluster, or what is missing of it; returns when it is healthy.

    Args:
        file: The inventory.
        render_only: Write all files that would be used into this folder, and do nothing else.
    """
    from services.clusters.hosts_cluster import Refused

    cluster = _provider(file)
    if render_only is not None:
        for name, text in cluster.render().items():
            path = render_only / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(path)
        return
    try:
        cluster.up(_say)
    except Refused as error:
        _print_findings(error.findings)
        raise
    print(f"{cluster.inventory.name} is up")
    for name, value in cluster.details().items():
        print(f"{name.replace('_', ' '):16} {value}")


def check(file: Inventory, /) -> None:
    """Look at every machine of an inventory, as `up` does first; start nothing.

    Args:
        file: The inventory.
    """
    from services.clusters.hosts_cluster import HostsCluster, Refused

    cluster = _provider(file)
    if not isinstance(cluster, HostsCluster):
        raise UsageError(f"provider {cluster.inventory.provider} has no machines to look at yet")
    findings = [finding for look in cluster.preflight() for finding in look.findings]
    _print_findings(findings)
    if not all(finding.ok for finding in findings):
        raise Refused(findings)


def status(file: Inventory, /, json_: Json = False) -> None:
    """Show what runs where, and why something does not.

    Args:
        file: The inventory.
        json_: Print one JSON object.
    """
    from dataclasses import asdict

    cluster = _provider(file)
    machines = cluster.status()
    if json_:
        document = {"name": cluster.inventory.name, "machines": [asdict(one) for one in machines]}
        print(json.dumps(document))
        return
    _print_status(machines)


def scale(file: Inventory, /, workers: Annotated[int, arg(metavar="N")]) -> None:
    """Use so many workers from now on; runs with --actors auto follow.

    Args:
        file: The inventory.
        workers: How many, the first of those in the inventory.
    """
    if workers < 0:
        raise UsageError(f"--workers {workers} is refused: give 0 or more")
    cluster = _provider(file)
    cluster.scale(workers, _say)
    print(f"{cluster.inventory.name}: {workers} workers")


def logs(
    file: Inventory,
    /,
    host: Host = None,
    lines: Annotated[int, arg(metavar="N")] = 20,
    follow: Annotated[bool, arg(aliases=["-f"])] = False,
) -> None:
    """Show the newest lines of all logs, of all machines.

    Args:
        file: The inventory.
        host: Of this machine only.
        lines: How many of each file.
        follow: Go on as they come; Ctrl-C ends it.
    """
    _provider(file).logs(host=host, lines=lines, follow=follow)


def execute(
    file: Inventory,
    words: Annotated[Positional[tuple[str, ...]], arg(metavar="WORDS")],
    /,
    detach: bool = False,
) -> None:
    """Run a command of repertory on the head: `cluster exec FILE -- train ENV --address NAME`.

    Args:
        file: The inventory.
        words: The command and its options, after `--`.
        detach: Let it go on by itself there; `cluster logs` shows what it says.
    """
    from services.clusters.hosts_cluster import HostsCluster

    cluster = _provider(file)
    if not isinstance(cluster, HostsCluster):
        raise UsageError(
            f"provider {cluster.inventory.provider} has its own way: {cluster.details()['submit']}"
        )
    code = cluster.execute(words, detach=detach)
    if detach:
        print(f"it goes on by itself: `repertory cluster logs {file}` shows what it says")
    sys.exit(code)


def down(file: Inventory, /) -> None:
    """End a cluster: what `up` has started, and nothing else. Runs and checkpoints stay.

    Args:
        file: The inventory.
    """
    cluster = _provider(file)
    cluster.down(_say)
    print(f"{cluster.inventory.name} is down")


def node(
    file: Inventory,
    /,
    role: Literal["head", "worker"],
    name: Annotated[str, arg(metavar="NAME")],
    address: Annotated[str, arg(metavar="ADDRESS")],
    head_address: Annotated[str, arg(metavar="ADDRESS")],
    secrets: Annotated[Path, arg(metavar="FOLDER")],
    folder: Annotated[Path, arg(metavar="FOLDER")],
    also_known_as: tuple[str, ...] = (),
    prepare_only: bool = False,
) -> None:
    """Be a machine of a cluster until told to stop: for SLURM, containers, or by hand.

    Args:
        file: The inventory.
        role: Of this machine.
        name: Of this machine.
        address: Where the others reach it.
        head_address: Where they reach the head.
        secrets: A folder with the cluster's authority and token.
        folder: Of this machine, for its own key, its logs and its runs.
        also_known_as: Other names under which it is reached.
        prepare_only: Write the folder, its certificate among it, and do nothing else.
    """
    from services.clusters.hand_made_node import be_node

    be_node(
        file,
        is_head=role == "head",
        name=name,
        address=address,
        head_address=head_address,
        secrets=secrets,
        folder=folder,
        also_known_as=also_known_as,
        prepare_only=prepare_only,
    )


def healthy(folder: Annotated[Path, arg(metavar="FOLDER")], alive: bool = False) -> None:
    """Whether this machine is a member of its cluster: exit code 0, or 1 and why not.

    Args:
        folder: Of this machine.
        alive: Ask only whether somebody keeps it there: it may still wait for its head.
    """
    from services.clusters.keeper import KeeperState, is_kept

    state = KeeperState.read(folder)
    if state is None or not is_kept(folder):
        raise RepertoryError(f"{folder}: nobody keeps this machine in a cluster")
    if state.phase != "ready" and not alive:
        raise RepertoryError(f"{folder}: {state.phase} {state.reason}")
    print("ready")


def overview() -> None:
    """Launch and look after clusters: `repertory cluster --help`."""


VERBS: dict[str, Callable[..., None]] = {
    "up": up,
    "check": check,
    "status": status,
    "scale": scale,
    "logs": logs,
    "exec": execute,
    "down": down,
    "node": node,
    "healthy": healthy,
}


def _provider(file: Path) -> Provider:
    from services.clusters.providers import provider_for

    return provider_for(file)


def _say(text: str) -> None:
    print(text, flush=True)


def _print_findings(findings: Sequence[Finding]) -> None:
    """What is wrong in full; what is right in a line for each machine."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("machine", "check", "", "found", "remedy")
    for name in dict.fromkeys(one.machine for one in findings):
        good = [one.check for one in findings if one.machine == name and one.ok]
        for one in findings:
            if one.machine == name and not one.ok:
                words = [one.machine, one.check, "[red]no", escape(one.said), escape(one.remedy)]
                table.add_row(*words)
        if good:
            table.add_row(name, ", ".join(good), "[green]ok", "", "")
    Console().print(table)


def _print_status(machines: Sequence[MachineStatus]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("machine", "address", "state", "heard", "offers")
    for one in machines:
        colour = {"ready": "green", "not used": "dim"}.get(one.state, "red")
        reason = f": {escape(one.reason)}" if one.reason else ""
        restarts = f", {one.restarts} restarts" if one.restarts else ""
        heard = "" if one.heard_seconds is None else f"{one.heard_seconds:.0f} s ago"
        offers = ", ".join(
            f"{one.resources[key]:g} {unit}"
            for key, unit in (("CPU", "cores"), ("GPU", "GPUs"))
            if one.resources.get(key)
        )
        tasks = [task for task in ("learners", "actors") if one.resources.get(task)]
        table.add_row(
            f"{one.name} ({one.role})" if one.role == "head" else one.name,
            one.address,
            f"[{colour}]{one.state}[/]{restarts}{reason}",
            heard,
            "; ".join(filter(None, [offers, " and ".join(tasks), one.version])),
        )
    Console().print(table)
