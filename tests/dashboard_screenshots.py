"""Pictures of every page of the dashboard, over a real run, for the docs: `make screenshots`.

A small portfolio trains meanwhile, so the numbers are what this machine gives. Pages are taken wide
and light, wide and dark, and narrow.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from browser_setup import chromium
from dashboard_runs import DashboardProcess
from distributed_runs import Train
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "runs": "/",
    "compare": "/compare?runs=seed-1&runs=seed-2",
    "overview": "/runs/portfolio",
    "learners": "/runs/portfolio/learners",
    "director": "/runs/portfolio/director",
    "replay": "/runs/portfolio/replay",
    "actors": "/runs/portfolio/actors",
    "system": "/runs/portfolio/system",
}
LOOKS = {
    "light": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
SETTLE_MILLISECONDS = 2500  # charts are drawn, and the first live values are there


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "dashboard")
    parser.add_argument("--steps", type=int, default=6000, help="of the run, before pictures")
    options = parser.parse_args()
    if chromium() is None:
        sys.stderr.write("there is no Chromium: see tests/browser_setup.py\n")
        return 1
    with tempfile.TemporaryDirectory(prefix="repertory-pictures-") as folder:
        runs = Path(folder)
        for seed in (1, 2):
            _finished_run(runs, seed)
        train = Train(runs)
        train.run_dir = runs / "portfolio"
        try:
            train.start(
                "train", "Pendulum-v1", "--algo", "td3,sac,ppo", "--strategy", "ucb",
                "--steps", "100000", "--actors", "4", "--shards", "2", "--seed", "1",
                "--run-dir", str(train.run_dir), "--set", "evaluation.video=true",
                "--set", "evaluation.every=2000", "--set", "log.every=100",
            )  # fmt: skip
            train.until(lambda: train.env_steps() >= options.steps)
            with DashboardProcess(runs) as dashboard, sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=chromium(), args=["--no-sandbox"]
                )
                for look in LOOKS:
                    _take(browser, dashboard, look, options.out)
                browser.close()
        finally:
            train.end()
    return 0


def _finished_run(runs: Path, seed: int) -> None:
    train = Train(runs)
    train.run_dir = runs / f"seed-{seed}"
    train.start(
        "train", "CartPole-v1", "--algo", "ppo", "--local", "--steps", "30000", "--seed", str(seed),
        "--run-dir", str(train.run_dir), "--set", "evaluation.every=3000",
    )  # fmt: skip
    train.finish()


def _take(browser: Browser, dashboard: DashboardProcess, look: str, out: Path) -> None:
    context = browser.new_context(**LOOKS[look])  # type: ignore[arg-type]
    context.set_extra_http_headers({"authorization": f"Bearer {dashboard.token}"})
    page = context.new_page()
    for name, path in PAGES.items():
        page.goto(dashboard.address + path)
        page.wait_for_timeout(SETTLE_MILLISECONDS)
        out.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=out / f"{name}-{look}.png")
        sys.stdout.write(f"{out / f'{name}-{look}.png'}\n")
    context.close()


if __name__ == "__main__":
    sys.exit(main())
