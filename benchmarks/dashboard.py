"""Does the dashboard stay out of the way? `python -m benchmarks.dashboard`.

How long a finished run of a million metric points takes from the click to the drawn chart, in a
fresh server each time; and what the server costs while a browser watches a run with many actors.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.table import Table

from benchmarks import actor_scaling
from benchmarks.measure import ROOT, machine_facts
from benchmarks.measured_run import MeasuredRun, usage_of
from repertory.closing import Closing
from repertory.config import resolve
from repertory.errors import RepertoryError

ROWS, METRICS = 50_000, 20
OPEN_SECONDS = 2.0  # at most
SHARE = 0.05  # of a core, at most
DRAWN = """() => [...document.querySelectorAll('[data-testid="chart-return"] .js-plotly-plot')]
    .some(plot => plot.data?.some(trace => trace.x?.length > 100))"""


@dataclass(frozen=True)
class Options:
    """What a page costs."""

    rounds: int = 5
    """Times that the large run is opened."""
    actors: int = 32
    """Of the run that is watched; 0 leaves that part out."""
    seconds: float = 60.0
    """For which it is watched."""
    check: bool = False
    """Exit with 1 if one is above its limit."""
    out: Path = ROOT / "benchmarks" / "results" / "dashboard.json"


class Served(Closing):
    """`repertory dashboard` over a folder, in a process of its own."""

    def __init__(self, runs: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "services.cli", "dashboard", str(runs), "--json", "--port", "0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        document = json.loads(self._process.stdout.readline())
        self.address: str = document["address"]
        self.link: str = document["link"]
        self.process_id = self._process.pid

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def million_points(path: Path) -> None:
    path.mkdir()
    (path / "config.yaml").write_text(resolve("CartPole-v1", ["dqn"]).to_yaml())
    others = {f"learner/metric_{number}": 0.12345678 * number for number in range(METRICS - 2)}
    with (path / "metrics.jsonl").open("w") as file:
        for row in range(ROWS):
            values = {"rollout/ep_rew_mean": row % 97, **others, "time/time_elapsed": row / 10}
            file.write(json.dumps({"step": 64 * row, **values}) + "\n")
    events: list[dict[str, Any]] = [
        {"time": 1.0, "event": "started", "env_steps": 0},
        {"time": 2.0, "event": "finished", "env_steps": 64 * ROWS, "stopped_by": None},
    ]
    (path / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))


def opening_seconds(browser: Browser, runs: Path) -> float:
    """From the click in the list to the drawn chart; the server has not read the run before."""
    with Served(runs) as served:
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        page = context.new_page()
        page.goto(served.link)
        page.wait_for_function("() => window.Plotly")  # which the list fetches when it is idle
        begin = time.monotonic()
        page.get_by_test_id("run-row").get_by_role("link").first.click()
        page.wait_for_function(DRAWN, timeout=60_000)
        seconds = time.monotonic() - begin
        context.close()
    return seconds


def watching_share(browser: Browser, options: Options) -> dict[str, float]:
    """Of a core, that the server takes while a page is open and moving."""
    scaling = actor_scaling.Options(actors=options.actors)
    with MeasuredRun(actor_scaling.arguments(scaling)) as run:
        run.until(lambda: len(run.workers()) == options.actors, actor_scaling.START_SECONDS)
        with Served(run.run_dir) as served:
            context = browser.new_context(viewport={"width": 1280, "height": 800})
            page = context.new_page()
            page.goto(served.link)
            shares = {}
            for name in ("", "actors"):
                page.goto(f"{served.address}/runs/run/{name}".rstrip("/"))
                page.get_by_test_id("state").wait_for()
                time.sleep(5.0)  # what is loaded once is loaded
                before, begin = usage_of(served.process_id).cpu_seconds, time.monotonic()
                time.sleep(options.seconds / 2)
                spent = usage_of(served.process_id).cpu_seconds - before
                shares[name or "overview"] = spent / (time.monotonic() - begin)
            context.close()
    return shares


def main() -> int:
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise RepertoryError("there is no Chromium: python tests/browser_setup.py")
    facts = machine_facts()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        million_points(Path(folder) / "long")
        opened = [opening_seconds(browser, Path(folder)) for _ in range(options.rounds)]
        shares = watching_share(browser, options) if options.actors else {}
        browser.close()
    table = Table("what", "measured", "limit")
    median = statistics.median(opened)
    spread = f"{median:.2f} s ({min(opened):.2f} to {max(opened):.2f})"
    table.add_row(f"{ROWS * METRICS:,} points, click to chart", spread, f"{OPEN_SECONDS:g} s")
    for name, share in shares.items():
        what = f"server, {options.actors} actors, page {name}"
        table.add_row(what, f"{share:.1%} of a core", f"{SHARE:.0%}")
    Console(width=110).print(table)
    document = {
        "machine": facts,
        "options": {**asdict(options), "out": options.out.name},
        "opening_seconds": opened,
        "server_share_of_a_core": shares,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    good = median <= OPEN_SECONDS and all(share <= SHARE for share in shares.values())
    return 0 if good or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
