"""What a director says of itself, as the rows of a run have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def metrics_of(report: Mapping[str, Any]) -> dict[str, float]:
    """Flat, for the rows of a run."""
    metrics: dict[str, float] = {}
    for member, share in report["shares"].items():
        metrics[f"director/{member}/share"] = share["recent_choices"]
        metrics[f"director/{member}/step_share"] = share["recent_env_steps"]
        metrics[f"director/{member}/update_share"] = report["update_shares"][member]
        mean = report["estimates"][member]["mean"]
        if mean is not None:
            metrics[f"director/{member}/estimate"] = mean
    if report["regret"]["recent"] is not None:
        metrics["director/regret"] = report["regret"]["recent"]
    metrics["director/decisions"] = float(report["decisions"])
    return metrics
