"""Commands about what runs have learned: `eval`, `play`, `plot`, `export`.

Imports wait inside, so that `--help` answers at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from repertory.errors import UsageError
from services.commands.arguments import File, Folder, Json, Mode, Run, Whole


def evaluate(
    run: Run,
    /,
    policy: str = "best",
    ensemble: Mode = None,
    episodes: int = 10,
    seed: Whole = None,
    json_: Json = False,
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


def _ensemble_line(ensemble: dict[str, Any]) -> str:
    """Who is in it and how it acted, in a line."""
    if ensemble["acted"] is None:
        return f"by {ensemble['mode']} of {', '.join(ensemble['members'])}"
    parts = [f"{name} in {share:.0%} of the steps" for name, share in ensemble["acted"].items()]
    return f"by the strategy {ensemble['strategy']}: {', '.join(parts)}"
