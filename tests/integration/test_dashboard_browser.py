"""The dashboard in a real browser: over runs that go on, that ended, large ones, hostile ones."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_setup import chromium
from dashboard_runs import DashboardProcess, make_run
from distributed_runs import Train
from playwright.sync_api import Browser, Page, expect, sync_playwright

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        chromium() is None,
        reason="NO CHROMIUM: the dashboard is not tested in a browser; run tests/browser_setup.py",
    ),
]
MILLISECONDS = 1000
SLOW = 60 * MILLISECONDS  # a busy machine
KNOWN_NOISE = (
    "Applying inline style violates",  # plotly measures text so; it works without
    "Failed to load resource: net::ERR_",  # the dashboard was ended before the page
)
expect.set_options(timeout=SLOW)
SCRIPT = "<script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """What its console says is an error of the page."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(SLOW)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("response", lambda one: one.status < 400 or said.append(f"{one.status} {one.url}"))
    yield page
    context.close()
    assert [text for text in said if not text.startswith(KNOWN_NOISE)] == []


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Train]:
    made = Train(tmp_path)
    yield made
    made.end()


POINTS = """key => {
    const inside = `[data-testid="${key}"] .js-plotly-plot`;
    const itself = `.js-plotly-plot[data-testid="${key}"]`;
    const traces = document.querySelector(`${inside}, ${itself}`)?.data ?? [];
    return traces.reduce((sum, trace) => sum + (trace.x?.length ?? 0), 0);
}"""


def points_of(page: Page, chart: str) -> int:
    """That it shows, of all its lines."""
    return int(page.evaluate(POINTS, chart))


def await_points(page: Page, chart: str, more_than: int) -> int:
    page.wait_for_function(f"([key, count]) => ({POINTS})(key) > count", arg=[chart, more_than])
    return points_of(page, chart)


def confirm(page: Page) -> None:
    page.get_by_test_id("confirm-yes").click()
    expect(page.get_by_test_id("confirm")).to_be_hidden()


def test_a_run_from_its_first_steps_to_its_end(page: Page, train: Train, tmp_path: Path) -> None:
    train.start(
        "train", "CartPole-v1", "--algo", "dqn,ppo", "--steps", "1000000", "--actors", "2",
        "--shards", "2", "--run-dir", str(train.run_dir), "--set", "log.every=200",
        "--set", "evaluation.every=2000", "--set", "evaluation.episodes=2",
        "--set", "evaluation.video=true",
    )  # fmt: skip
    train.until(lambda: train.env_steps() > 500)
    with DashboardProcess(tmp_path) as dashboard:
        page.goto(dashboard.link)
        page.get_by_test_id("run-row").get_by_role("link").first.click()

        # The page fills, and moves.
        expect(page.get_by_test_id("state")).to_have_text(re.compile("running", re.IGNORECASE))
        points = await_points(page, "chart-return", 2)
        steps = page.get_by_test_id("env-steps").inner_text()
        await_points(page, "chart-return", points)
        expect(page.get_by_test_id("env-steps")).not_to_have_text(steps)
        expect(page.get_by_test_id("holdups")).to_contain_text(re.compile(r"\w+"))
        expect(page.get_by_test_id("video").first).to_be_attached()

        # A person pins a policy, and the director obeys.
        page.get_by_test_id("tab-director").click()
        await_points(page, "chart-acting-share", 2)
        page.get_by_test_id("pin-dqn").click()
        confirm(page)
        candidate = page.get_by_test_id("candidate-row").filter(has_text="dqn")
        expect(candidate).to_contain_text(re.compile("pinned", re.IGNORECASE))
        train.until(lambda: any(e["name"] == "pin" for e in train.events("command")))

        # And wants another actor, which comes.
        page.get_by_test_id("tab-actors").click()
        expect(page.get_by_test_id("actor-row")).to_have_count(2)
        page.get_by_test_id("scale").click()
        page.get_by_test_id("scale-actors").fill("3")
        confirm(page)
        expect(page.get_by_test_id("actor-row")).to_have_count(3)

        # One is killed, which is in the event log within seconds.
        page.get_by_test_id("tab-system").click()
        expect(page.get_by_test_id("event-line").filter(has_text="scale to 3")).to_be_visible()
        os.kill(train.members()["worker-0"].process_id, signal.SIGKILL)
        killed = page.get_by_test_id("event-line").filter(has_text="worker-0 is started again")
        expect(killed.first).to_be_visible(timeout=15 * MILLISECONDS)

        # It is stopped here, ends, and can be read on.
        page.get_by_test_id("stop").click()
        confirm(page)
        train.finish()
        expect(page.get_by_test_id("state")).to_have_text(re.compile("stopped", re.IGNORECASE))
        page.get_by_test_id("tab-overview").click()
        page.reload()
        expect(page.get_by_test_id("state")).to_have_text(re.compile("stopped", re.IGNORECASE))
        await_points(page, "chart-return", points)
        expect(page.get_by_test_id("pause")).to_have_count(0)
    train.assert_nothing_left()


def test_the_dashboard_that_a_run_starts(page: Page, train: Train) -> None:
    train.start(
        "train", "CartPole-v1", "--algo", "dqn", "--steps", "1000000", "--actors", "1",
        "--run-dir", str(train.run_dir), "--set", "log.dashboard_port=0", dashboard=True,
    )  # fmt: skip
    assert train.process.stdout is not None
    line = next(line for line in train.process.stdout if line.startswith("dashboard: "))
    page.goto(line.removeprefix("dashboard: ").strip())
    expect(page.get_by_test_id("run-row")).to_have_count(1)
    train.until(lambda: train.env_steps() > 0)
    train.process.send_signal(signal.SIGINT)
    train.finish()
    train.assert_nothing_left()  # nor the dashboard


@pytest.fixture
def ended_run(tmp_path: Path) -> Path:
    """A million points: 50,000 rows of twenty metrics."""
    path = make_run(
        tmp_path / "runs" / "long",
        events=[
            {"event": "started", "env_steps": 0},
            {"event": "finished", "env_steps": 3_200_000, "stopped_by": None},
        ],
        evaluations={step: [1.0] for step in range(0, 3_200_000, 64_000)},
    )
    others = {f"learner/metric_{number}": 0.1234567 * number for number in range(18)}
    with (path / "metrics.jsonl").open("w") as file:
        for row in range(50_000):
            spike = 1e6 if row == 31_415 else row % 97
            values = {"rollout/ep_rew_mean": spike, **others, "time/time_elapsed": row / 10}
            file.write(json.dumps({"step": 64 * row, **values}) + "\n")
    return path


def test_a_million_points_are_drawn_with_their_extremes(page: Page, ended_run: Path) -> None:
    """How long that takes is measured by `make bench-dashboard`."""
    with DashboardProcess(ended_run.parent) as dashboard:
        page.goto(dashboard.link)
        page.get_by_test_id("run-row").wait_for()
        page.goto(f"{dashboard.address}/runs/long")
        await_points(page, "chart-return", 100)
        highest = page.evaluate(
            """() => Math.max(...[...document.querySelectorAll('.js-plotly-plot')]
                .flatMap(plot => plot.data.flatMap(trace => [...trace.y])))"""
        )
        assert highest == 1e6
        assert points_of(page, "chart-return") < 10_000


def test_names_that_are_markup_are_shown_as_they_are(page: Page, tmp_path: Path) -> None:
    name = SCRIPT.replace("/", "_")
    make_run(tmp_path / name, env=SCRIPT, learners={"<b>dqn</b>": "<i>dqn</i>"})
    with DashboardProcess(tmp_path) as dashboard:
        page.goto(dashboard.link)
        expect(page.get_by_test_id("run-row")).to_contain_text(SCRIPT)
        page.get_by_test_id("run-row").get_by_role("link").first.click()
        for tab in ("overview", "learners", "replay", "actors", "system"):
            page.get_by_test_id(f"tab-{tab}").click()
            expect(page.get_by_role("heading").first).to_be_visible()
        assert page.title() != "owned"
        assert page.locator("b, i").filter(has_text="dqn").count() == 0


def test_whoever_is_not_logged_in_comes_to_the_login(page: Page, tmp_path: Path) -> None:
    make_run(tmp_path / "one")
    with DashboardProcess(tmp_path) as dashboard:
        page.goto(f"{dashboard.address}/runs/one")
        page.get_by_label("token", exact=False).first.fill("wrong")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("error=1"))
        page.get_by_label("token", exact=False).first.fill(dashboard.token)
        page.keyboard.press("Enter")
        expect(page.get_by_test_id("run-row")).to_have_count(1)
        cookies = page.context.cookies()
        assert [(one["httpOnly"], one["sameSite"]) for one in cookies] == [(True, "Strict")]


def test_runs_are_compared(page: Page, tmp_path: Path) -> None:
    for seed in (1, 2):
        make_run(
            tmp_path / f"seed-{seed}",
            seed=seed,
            events=[{"event": "started"}, {"event": "finished", "env_steps": 1000}],
            evaluations={0: [1.0], 500: [5.0 * seed], 1000: [9.0 * seed]},
        )
    with DashboardProcess(tmp_path) as dashboard:
        page.goto(dashboard.link)
        expect(page.get_by_test_id("run-row")).to_have_count(2)
        for box in page.get_by_test_id("choose").all():
            box.check()
        page.get_by_test_id("compare").click()
        expect(page.get_by_test_id("group")).to_have_count(1)
        await_points(page, "chart-compare", 2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_scrolls_only_downwards(
    browser: Browser, ended_run: Path, scheme: str
) -> None:
    with DashboardProcess(ended_run.parent) as dashboard:
        context = browser.new_context(
            viewport={"width": 360, "height": 740},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        page = context.new_page()
        page.goto(dashboard.link)
        page.get_by_test_id("run-row").wait_for()
        for place in ("", "/learners", "/director", "/replay", "/actors", "/system"):
            page.goto(f"{dashboard.address}/runs/long{place}")
            page.get_by_test_id("state").wait_for()
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= 360, (place, width)
        context.close()


def test_options_in_force_are_shown_over_time(page: Page, tmp_path: Path) -> None:
    rows = [
        {"step": step, "learner/option_share_1": 0.25, "learner/option_share_2": 0.75}
        for step in range(0, 1000, 100)
    ]
    make_run(tmp_path / "run", learners={"option_critic": "option_critic"}, rows=rows)
    with DashboardProcess(tmp_path) as dashboard:
        page.goto(dashboard.link)
        page.goto(f"{dashboard.address}/runs/run/learners")
        expect(page.get_by_role("heading", name="Options in force")).to_be_visible()
        await_points(page, "chart-options of option_critic", 19)
