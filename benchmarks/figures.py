"""The figures of docs/performance.md, from the results: `python -m benchmarks.figures`.

Each is drawn where its results are there; the others are left as they are.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import RESULTS, ROOT
from benchmarks.training_cases import OURS
from benchmarks.training_records import median_seconds
from services.plotting import COLORS

IMAGES = ROOT / "docs" / "images"
GREY = "#999999"
NAMES = {
    "sb3": "Stable-Baselines3",
    "sb3_vector": "Stable-Baselines3, as many copies",
    "rllib": "RLlib",
    "plain": "plain torch",
    "repertory": "ours",
    "repertory_first": "ours, first run",
    "repertory_local": "ours, --local",
}


def _narrow(name: str) -> str:
    """A system's name below a bar."""
    return textwrap.fill(NAMES[name].replace("Stable-Baselines3", "SB3"), 11)


def draw_learner(results: Path, image: Path = IMAGES / "performance-learner.png") -> Path:
    """Updates per second, each case over Stable-Baselines3's; what products allow as a line."""
    cases = json.loads(results.read_text())["cases"]
    figure, (panel,) = _panels(1, width=7.5)
    sides = [side for side in cases[0]["updates_per_second"] if side != "matrix products"]
    for place, side in enumerate(sides):
        rates = [
            median(case["updates_per_second"][side]) / median(case["updates_per_second"]["sb3"])
            for case in cases
        ]
        at = [
            number + (place - (len(sides) - 1) / 2) * 0.8 / len(sides)
            for number in range(len(cases))
        ]
        bars = panel.bar(
            at, rates, 0.8 / len(sides), label=NAMES.get(side, side), color=_color(side, place)
        )
        labels = [f"{median(case['updates_per_second'][side]):,.0f}" for case in cases]
        panel.bar_label(bars, labels, fontsize=7)
    panel.axhline(2.0, color="black", linestyle=":", linewidth=1)
    panel.set_xticks(range(len(cases)), [_case_title(case["job"]) for case in cases], fontsize=8)
    panel.set_ylabel("updates/s, times Stable-Baselines3")
    panel.legend(frameon=False, fontsize=8)
    return _save(figure, image)


def draw_end_to_end(results: Path, image: Path = IMAGES / "performance-end-to-end.png") -> Path:
    """Steps per second while learning: a panel for each case."""
    records = json.loads(results.read_text())["records"]
    there = [one for one in records if one["part"] == "throughput" and one["steps_per_second"]]
    cases = list(dict.fromkeys(one["case"] for one in there))
    figure, panels = _panels(max(1, len(cases)), width=2.6 * max(1, len(cases)))
    for panel, case in zip(panels, cases, strict=False):
        rates: dict[str, list[float]] = {}
        for one in there:
            if one["case"] == case:
                rates.setdefault(one["system"], []).append(one["steps_per_second"])
        names = [name for name in ("repertory", "sb3", "sb3_vector", "rllib") if name in rates]
        heights = [median(rates[name]) for name in names]
        bars = panel.bar(
            [_narrow(name) for name in names], heights, color=[_color(n, 0) for n in names]
        )
        panel.bar_label(bars, [f"{height:,.0f}" for height in heights], fontsize=8)
        job = next(one["job"] for one in there if one["case"] == case)
        panel.set_title(f"{case}, {job['env_id']}", fontsize=9)
        panel.tick_params(labelsize=7)
    panels[0].set_ylabel("environment steps/s while learning")
    return _save(figure, image)


def draw_threshold(results: Path, image: Path = IMAGES / "performance-threshold.png") -> Path:
    """Seconds to the threshold: every seed a point, but for those that never arrive."""
    records = json.loads(results.read_text())["records"]
    there = [one for one in records if one["part"] == "time_to_threshold"]
    cases = list(dict.fromkeys(one["case"] for one in there))
    figure, panels = _panels(max(1, len(cases)), width=2.6 * max(1, len(cases)))
    for panel, case in zip(panels, cases, strict=False):
        names = [
            name
            for name in (*OURS, "sb3")
            if any(one["system"] == name and one["case"] == case for one in there)
        ]
        for place, name in enumerate(names):
            seconds = [
                one["threshold_seconds"]
                for one in there
                if (one["case"], one["system"]) == (case, name)
            ]
            color, middle = _color(name, place), median_seconds(seconds)
            arrived = [one for one in seconds if one is not None]
            panel.plot([place] * len(arrived), arrived, "o", color=color, alpha=0.6)
            panel.plot([place - 0.25, place + 0.25], [middle] * 2, color=color)
            if len(arrived) < len(seconds):
                never = f"{len(seconds) - len(arrived)} of {len(seconds)} never"
                panel.annotate(never, (place, max(arrived, default=0.0)), xytext=(0, 8),
                               textcoords="offset points", ha="center", fontsize=7)  # fmt: skip
        panel.set_xticks(range(len(names)), [_narrow(name) for name in names], fontsize=7)
        panel.set_xlim(-0.5, len(names) - 0.5)
        panel.set_ylim(bottom=0)
        panel.set_title(case, fontsize=9)
    panels[0].set_ylabel("seconds to the threshold")
    return _save(figure, image)


def draw_replay(results: Path, image: Path = IMAGES / "performance-replay.png") -> Path:
    return _draw_ratios(results, "items/s, times dm-reverb", image)


def draw_rollout(results: Path, image: Path = IMAGES / "performance-rollout.png") -> Path:
    return _draw_ratios(results, "steps/s, of the bare environment's", image)


def _draw_ratios(results: Path, label: str, image: Path) -> Path:
    """A bar for each comparison, with what its rounds span and a mark at its target."""
    found = json.loads(results.read_text())["comparisons"][::-1]  # the first on top
    figure, (panel,) = _panels(1, width=7.5, height=0.6 + 0.26 * len(found))
    places = range(len(found))
    ratios = [one["ratio"] for one in found]
    spans = [
        [one["ratio"] - one["interval"][0] for one in found],
        [one["interval"][1] - one["ratio"] for one in found],
    ]
    panel.barh(places, ratios, color=COLORS[0], alpha=0.8)
    panel.errorbar(ratios, places, xerr=spans, fmt="none", ecolor="black", elinewidth=0.8)
    for place, one in zip(places, found, strict=True):
        if one["target"] is not None:
            panel.plot([one["target"]] * 2, [place - 0.4, place + 0.4], color="black", linewidth=2)
    panel.set_yticks(places, [one["work"] for one in found], fontsize=7)
    panel.set_xlabel(f"{label}; thick: target", fontsize=8)
    panel.grid(visible=False, axis="y")
    panel.grid(alpha=0.3, axis="x")
    return _save(figure, image)


def draw_weights(results: Path, image: Path = IMAGES / "performance-weights.png") -> Path:
    found = json.loads(results.read_text())["results"]
    figure, (panel,) = _panels(1, width=5.5)
    for place, width in enumerate(dict.fromkeys(one["width"] for one in found)):
        of_width = [one for one in found if one["width"] == width]
        readers = [one["readers"] for one in of_width]
        color = COLORS[place % len(COLORS)]
        panel.plot(readers, [one["median_ms"] for one in of_width], "o-", color=color,
                   label=f"2 x {width}, median")  # fmt: skip
        panel.plot(readers, [one["late_ms"] for one in of_width], "o--", color=color,
                   label=f"2 x {width}, 95 %")  # fmt: skip
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    ticks = list(dict.fromkeys(one["readers"] for one in found))
    panel.set_xticks(ticks, [str(tick) for tick in ticks])
    panel.set_xlabel("readers")
    panel.set_ylabel("ms from publish to loaded")
    panel.legend(frameon=False, fontsize=8)
    return _save(figure, image)


def draw_scaling(results: Path, image: Path = IMAGES / "performance-scaling.png") -> Path:
    """A panel for each part that was measured."""
    document = json.loads(results.read_text())
    parts = [part for part in ("actors", "nodes", "shards", "items") if document[part]]
    figure, panels = _panels(max(1, len(parts)), width=3.6 * max(1, len(parts)))
    for panel, part in zip(panels, parts, strict=False):
        _SCALING[part](panel, document[part])
        panel.set_title(part, fontsize=9)
    return _save(figure, image)


def _draw_linear(panel: Any, rows: Sequence[Mapping[str, Any]], unit: str) -> None:
    counts = [row[unit] for row in rows]
    possible = [row["possible"] for row in rows]
    panel.plot(counts, possible, color=GREY, linestyle="--", label="linear")
    panel.fill_between(counts, [0.9 * one for one in possible], possible, color=GREY, alpha=0.2)
    panel.plot(
        counts, [row["steps_per_second"] for row in rows], "o-", color=COLORS[0], label="ours"
    )
    panel.set_xlabel(unit)
    panel.set_ylabel("steps/s")
    panel.set_xlim(left=0)
    panel.set_ylim(bottom=0)
    panel.locator_params(axis="x", integer=True)
    panel.legend(frameon=False, fontsize=8)


def _draw_actors(panel: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    _draw_linear(panel, rows, "actors")


def _draw_nodes(panel: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    _draw_linear(panel, rows, "nodes")


def _draw_shards(panel: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    counts = [row["shards"] for row in rows]
    drawn = {"insert": "in", "sample": "out", "as_learners": "out, as learners do"}
    for place, (name, label) in enumerate(drawn.items()):
        rates = [median(row[name]) for row in rows]
        panel.plot(counts, rates, "o-", color=COLORS[place], label=label)
    panel.set_xticks(counts)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("shards")
    panel.set_ylabel("items/s")
    panel.legend(frameon=False, fontsize=8)


def _draw_items(panel: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    for place, row in enumerate(rows):
        sizes = [int(items) for items in row["medians"]]
        panel.plot(
            sizes, list(row["medians"].values()), "o-", color=COLORS[place], label=row["sampler"]
        )
    panel.set_xscale("log")
    panel.set_ylim(bottom=0)
    panel.set_xlabel("items")
    panel.set_ylabel("us for a batch of 256")
    panel.legend(frameon=False, fontsize=8)


_SCALING = {
    "actors": _draw_actors,
    "nodes": _draw_nodes,
    "shards": _draw_shards,
    "items": _draw_items,
}
DRAWN = {
    "replay.json": (draw_replay,),
    "rollout.json": (draw_rollout,),
    "learner.json": (draw_learner,),
    "end_to_end.json": (draw_end_to_end, draw_threshold),
    "weights.json": (draw_weights,),
    "scaling.json": (draw_scaling,),
}


def _case_title(job: Mapping[str, Any]) -> str:
    return f"{job['algorithm']}\n{job['env_id']}\nbatch {job['batch']}"


def _color(side: str, place: int) -> str:
    fixed = {
        "sb3": GREY,
        "sb3_vector": "#777777",
        "rllib": "#555555",
        "plain": "#cccccc",
        "repertory": COLORS[0],
    }
    return fixed.get(side, COLORS[place % len(COLORS)])


def _panels(count: int, *, width: float, height: float = 3.2) -> tuple[Any, list[Any]]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    # White, whatever the page around it is.
    figure, panels = plt.subplots(
        1, count, figsize=(width, height), layout="constrained", squeeze=False, facecolor="white"
    )
    for panel in panels.flat:
        panel.grid(alpha=0.3, axis="y")
        panel.spines[["top", "right"]].set_visible(False)
    return figure, list(panels.flat)


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def draw_all(folder: Path = RESULTS) -> list[Path]:
    return [
        draw(folder / name)
        for name, draws in DRAWN.items()
        if (folder / name).exists()
        for draw in draws
    ]


def main() -> int:
    for path in draw_all():
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
