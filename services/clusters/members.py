"""Prints who is in a Ray cluster, as JSON: `python -m services.clusters.members HOST:PORT`."""

from __future__ import annotations

import json
import logging
import sys

import ray


def main() -> None:
    ray.init(address=sys.argv[1], logging_level=logging.ERROR, log_to_driver=False)
    found = [
        {
            "name": one["NodeName"],
            "address": one["NodeManagerAddress"],
            "alive": one["Alive"],
            "why_dead": one.get("DeathReasonMessage", ""),
            "resources": {
                name: amount
                for name, amount in one["Resources"].items()
                if name in ("CPU", "GPU", "memory", "learners", "actors")
            },
        }
        for one in ray.nodes()
    ]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
