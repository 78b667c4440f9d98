"""A distributed run whose shards are reached by links that a test has made.

    python tests/linked_run.py RUN.json

The command line has no word for such links; they are for proxies that are cut while it trains.
RUN.json holds `env`, `algorithm`, `preset` (of which environment), `settings` by their dotted
names, `run_dir`, and `links`: pairs of where a shard listens and where it is reached.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from repertory.config import preset, resolve
from repertory.errors import RepertoryError
from services import launcher
from services.progress import reporter_for
from services.shard_link import ShardLink
from services.topology import Place


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """By dotted names; parts that are chosen by name stay whole."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict) and "name" not in value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def main(path: Path) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    run = json.loads(path.read_text())
    overrides = {**flat(preset(run["algorithm"], run["preset"])), **run["settings"]}
    overrides |= {"log.dashboard": False}
    config = resolve(run["env"], [run["algorithm"]], overrides=overrides)
    place = Place(links=[ShardLink(listen, connect) for listen, connect in run["links"]])
    try:
        result = launcher.train(
            config, Path(run["run_dir"]), reporter_for(Console()), place=place, overwrite=True
        )
    except RepertoryError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    sys.stdout.write(f"finished: {result.env_steps} steps, {result.updates} updates\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
