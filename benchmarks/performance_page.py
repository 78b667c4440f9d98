"""The tables of docs/performance.md, from the results: `python -m benchmarks.performance_page`.

Each benchmark has its own place in the page, between comments; prose around them is left alone. A
table is written where its results are there.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from benchmarks import figures
from benchmarks.end_to_end import title_of as training_title
from benchmarks.learner import title_of as update_title
from benchmarks.measure import RESULTS, ROOT, Comparison
from benchmarks.peers.training import TrainingJob
from benchmarks.peers.updates import UpdateJob
from benchmarks.scaling import rows_of
from benchmarks.study import Place
from benchmarks.training_cases import CASES, OURS, System
from benchmarks.training_records import Records, measured, median_seconds, spread
from benchmarks.training_verdicts import compare, return_verdicts, time_verdicts
from repertory.checkpoints import write_atomically

PAGE = ROOT / "docs" / "performance.md"
Document = Mapping[str, Any]
NAMES: Mapping[str, str] = figures.NAMES


def made_of(document: Document, command: str) -> str:
    """What made the numbers: command, commit, machine, and how busy it was."""
    machine = document["machine"]
    return (
        f"`{command}`, commit `{machine['commit']}`, {machine['date'][:10]}; {machine['cpu']}, "
        f"{machine['cores']} cores, load {machine['load']} before."
    )


def _trainings_made_of(document: Document) -> str:
    """Trainings are kept one by one, perhaps of several days: the commits, most of them first."""
    machine = document["machine"]
    of = Counter(record.at for record in _records(document))
    commits = ", ".join(f"`{commit}` ({count})" for commit, count in of.most_common() if commit)
    where = f"{machine['cpu']}, {machine['cores']} cores"
    return f"`make bench-end-to-end`; {where}. Trainings by commit: {commits}."


def learner_tables(document: Document) -> str:
    sides = [s for s in document["cases"][0]["updates_per_second"] if s != "matrix products"]
    ours = [side for side in sides if side not in ("sb3", "plain")]
    ratios = [f"{side} / {NAMES[peer]}" for side in ours for peer in ("sb3", "plain")]
    rows = []
    for case in document["cases"]:
        rates = case["updates_per_second"]
        job = UpdateJob.from_json(case["job"])
        cells = [f"{update_title(job)}, {job.threads} thread(s), {case['device']}"]
        cells += [f"{median(rates[side]):,.0f}" for side in sides]
        cells += [
            ratio_text(Comparison("", rates[side], rates[peer]))
            for side in ours
            for peer in ("sb3", "plain")
        ]
        best = max(case["share_of_limit"].values())
        cells += [f"{case['limit_updates_per_second']:,.0f}", f"{100 * best:.0f} %"]
        rows.append(cells)
    head = ["updates/s", *(NAMES.get(side, side) for side in sides), *ratios, "limit", "reached"]
    versions = _versions(document["versions"])
    threads = document["options"]["threads"]
    command = "make bench-learner" + (f' ARGS="--threads {threads}"' if threads > 1 else "")
    return f"{made_of(document, command)} {versions}\n\n{table(head, rows)}"


def end_to_end_tables(document: Document) -> str:
    records = Records(_records(document))
    throughput, reached, returns = [], [], []
    systems: tuple[System, ...] = (*OURS, "sb3", "sb3_vector", "rllib")
    for case in CASES:
        sooner = {one.system: f"{one.ratio:.2f}" for one in time_verdicts(records, case)}
        better = {
            one.system: f"{one.difference:+.0f} ± {one.error:.0f}"
            for one in return_verdicts(records, case)
        }
        for system in systems:
            there = measured(records.of("throughput", case, system))
            if there:
                verdict = compare(records, case, system) if system not in OURS else None
                against = "" if verdict is None else (verdict.refusal or "")
                if verdict is not None and verdict.comparison is not None:
                    against = ratio_text(verdict.comparison)
                throughput.append(
                    [
                        training_title(TrainingJob.from_json(there[-1].job)),
                        NAMES[system],
                        f"{median(one.steps_per_second or 0 for one in there):,.0f}",
                        f"{median(one.updates_per_second or 0 for one in there):,.0f}",
                        f"{median(one.updates_per_step or 0 for one in there):.3f}",
                        f"{median(one.first_update_seconds or 0 for one in there):.1f}",
                        against,
                    ]
                )
            judged = records.of("time_to_threshold", case, system)
            if judged:
                seconds = [one.threshold_seconds for one in judged]
                job = TrainingJob.from_json(judged[0].job)
                steps = [one.threshold_steps for one in judged]
                reached.append(
                    [
                        f"{training_title(job)}, to {job.threshold:g}",
                        NAMES[system],
                        f"{median_seconds(seconds):.1f}",
                        ", ".join("never" if one is None else f"{one:.1f}" for one in seconds),
                        ", ".join("-" if n is None else f"{n:,}" for n in steps),
                        sooner.get(system, ""),
                    ]
                )
            ended = [
                one.final_return
                for one in records.of("returns", case, system)
                if one.final_return is not None
            ]
            if ended:
                first = records.of("returns", case, system)[0]
                job = TrainingJob.from_json(first.job)
                returns.append(
                    [
                        training_title(job),
                        NAMES[system],
                        f"{job.steps:,}",
                        spread(ended),
                        ", ".join(f"{value:.0f}" for value in ended),
                        better.get(system, ""),
                    ]
                )
    parts = [_trainings_made_of(document)]
    if throughput:
        head = ["while learning", "system", "steps/s", "updates/s", "updates per step",
                "first update, s", "ours / theirs, steps/s"]  # fmt: skip
        parts.append(table(head, throughput))
    if reached:
        head = ["time to a threshold", "system", "median, s", "by seed, s", "steps by seed",
                "ours / theirs"]  # fmt: skip
        parts.append(table(head, reached))
    if returns:
        head = ["return at equal steps", "system", "steps", "mean", "by seed", "ours - theirs"]
        parts.append(table(head, returns))
    return "\n\n".join(parts)


def weights_table(document: Document) -> str:
    rows = [
        [
            f"2 x {one['width']}, {one['megabytes']:.2f} MB",
            str(one["readers"]),
            f"{one['median_ms']:.1f}",
            f"{one['late_ms']:.1f}",
            f"{mean(one['staleness']):.2f}",
        ]
        for one in document["results"]
    ]
    head = ["policy", "readers", "median, ms", "95 %, ms", "versions behind"]
    every = document["options"]["every_seconds"]
    made = f"{made_of(document, 'make bench-weights')} A publication every {every:g} s."
    return f"{made}\n\n{table(head, rows)}"


def scaling_table(document: Document) -> str:
    head = ["what", "rate", "against", "target", "met"]
    rows = [list(row) for row in rows_of(dict(document))]
    skipped = "".join(
        f"\n\nNot measured: {name}, {why}." for name, why in document["skipped"].items()
    )
    return f"{made_of(document, 'make bench-scaling')}\n\n{table(head, rows)}{skipped}"


def replay_table(document: Document) -> str:
    rows = comparison_table(document, "items/s", "ours", "dm-reverb")
    return f"{made_of(document, 'make bench-replay')}\n\n{rows}"


def rollout_table(document: Document) -> str:
    rows = comparison_table(document, "environment steps/s of one core", "with a policy", "bare")
    versions = _versions({"": document["versions"]})
    return f"{made_of(document, 'make bench-rollout')} {versions}\n\n{rows}"


def comparison_table(document: Document, what: str, ours: str, peer: str) -> str:
    rows = [
        [
            one["work"],
            f"{median(one['ours']):,.0f}",
            f"{median(one['peer']):,.0f}",
            ratio_text(Comparison("", one["ours"], one["peer"])),
            "" if one["target"] is None else f">= {one['target']:g}",
        ]
        for one in document["comparisons"]
    ]
    return table([what, ours, peer, "ratio", "target"], rows)


TABLES: Mapping[str, Callable[[Document], str]] = {
    "learner": learner_tables,
    "learner_threads": learner_tables,
    "end_to_end": end_to_end_tables,
    "weights": weights_table,
    "scaling": scaling_table,
    "replay": replay_table,
    "rollout": rollout_table,
}


def place_of(benchmark: str) -> Place:
    return Place(f"benchmarks.performance_page, {benchmark}")


def filled(page: str, documents: Mapping[str, Document]) -> str:
    """The page with the tables of these benchmarks; a page that has no place for one lacks it."""
    for name, document in documents.items():
        place = place_of(name)
        if place.begin in page:
            page = place.filled(page, TABLES[name](document))
    return page


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def ratio_text(comparison: Comparison) -> str:
    low, high = comparison.interval
    return f"{comparison.ratio:.2f} ({low:.2f} to {high:.2f})"


def _records(document: Document) -> list[Any]:
    from benchmarks.training_records import Record

    return [Record(**one) for one in document["records"]]


def _versions(versions: Mapping[str, Mapping[str, str]]) -> str:
    joined = {name: number for of_side in versions.values() for name, number in of_side.items()}
    return "Versions: " + ", ".join(f"{name} {number}" for name, number in joined.items()) + "."


def main() -> int:
    paths = {name: RESULTS / f"{name}.json" for name in TABLES}
    documents = {
        name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()
    }
    write_atomically(PAGE, filled(PAGE.read_text(), documents).encode())
    figures.draw_all()
    print(
        f"written: {', '.join(documents)}; not measured: {', '.join(set(paths) - set(documents))}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
