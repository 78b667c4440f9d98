"""The dashboard's JSON, over runs on disk; and everything it must refuse."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboard_runs import TOKEN, add_events, add_rows, make_run, make_site
from starlette.testclient import TestClient

from services.dashboard.guard import MAX_BODY_BYTES
from services.dashboard.routes import ENDPOINTS

SCRIPT = "<script>alert(1)</script>"
HERE = "http://127.0.0.1:8600"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    rows = [
        {
            "step": step,
            "rollout/ep_rew_mean": float(step),
            "learner/critic_loss": 1.0,
            "time/time_elapsed": step / 100,
        }
        for step in range(0, 1001, 100)
    ]
    finished = [
        {"event": "started", "env_steps": 0},
        {"event": "finished", "env_steps": 1000, "stopped_by": None},
    ]
    for seed in (1, 2):
        make_run(
            tmp_path / f"dqn-{seed}",
            seed=seed,
            rows=rows,
            events=finished,
            evaluations={0: [10.0, 20.0], 1000: [100.0 * seed, 200.0 * seed]},
        )
    make_run(tmp_path / "study" / SCRIPT.replace("/", "_"), env=SCRIPT)
    (tmp_path / "dqn-1" / "videos").mkdir()
    (tmp_path / "dqn-1" / "videos" / "dqn.gif").write_bytes(b"GIF89a")
    (tmp_path / "dqn-1" / "logs").mkdir()
    (tmp_path / "dqn-1" / "logs" / "worker-0.jsonl").write_text(
        '{"time": 1.0, "level": "INFO", "logger": "x", "message": "hello"}\nnot JSON\n'
    )
    (tmp_path / "secret.gif").write_text("secret")
    return tmp_path


@pytest.fixture
def client(runs: Path) -> Iterator[TestClient]:
    _, app = make_site(runs)
    with TestClient(app, base_url=HERE, headers={"authorization": f"Bearer {TOKEN}"}) as made:
        yield made


@pytest.fixture
def stranger(runs: Path) -> Iterator[TestClient]:
    _, app = make_site(runs)
    with TestClient(app, base_url=HERE, follow_redirects=False) as made:
        yield made


def get(client: TestClient, path: str) -> Any:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_runs_are_listed_with_how_they_ended(client: TestClient) -> None:
    found = {run["id"]: run for run in get(client, "/api/runs")["runs"]}
    assert len(found) == 3
    run = found["dqn-2"]
    assert (run["state"], run["env_steps"], run["seed"]) == ("finished", 1000, 2)
    assert (run["evaluation"], run["best_evaluation"], run["mean_return"]) == (300.0, 300.0, 1000.0)
    assert not run["steerable"]
    (other,) = (run for run in found.values() if run["env"] == SCRIPT)
    assert other["state"] == "lost"  # nobody holds its lock, and it said no word


def test_one_run_by_itself_is_a_library_too(runs: Path) -> None:
    _, app = make_site(runs / "dqn-1")
    with TestClient(app, base_url=HERE, headers={"authorization": f"Bearer {TOKEN}"}) as client:
        assert [run["id"] for run in get(client, "/api/runs")["runs"]] == ["dqn-1"]


def test_an_overview_says_what_holds_the_run_back(client: TestClient) -> None:
    overview = get(client, "/api/runs/dqn-1")
    assert overview["holdups"][0]["text"] == "This run has finished."
    assert overview["steps_per_second"] == 100.0
    assert [video["file"] for video in overview["videos"]] == ["dqn.gif"]


def test_series_are_thinned_and_on_the_axis_that_was_asked_for(client: TestClient) -> None:
    path = "/api/runs/dqn-1/series?names=rollout/ep_rew_mean&names=nothing&axis=time"
    found = get(client, path)
    assert list(found["series"]) == ["rollout/ep_rew_mean"]
    assert found["series"]["rollout/ep_rew_mean"]["x"][-1] == 10.0
    assert "learner/critic_loss" in get(client, "/api/runs/dqn-1/metrics")["names"]


def test_seeds_become_one_band(client: TestClient) -> None:
    bands = get(client, "/api/compare?runs=dqn-1&runs=dqn-2")["bands"]
    assert len(bands) == 1
    assert bands[0]["runs"] == ["dqn-1", "dqn-2"]
    assert (bands[0]["mean"][-1], bands[0]["low"][-1], bands[0]["high"][-1]) == (225, 150, 300)
    by_metric = get(client, "/api/compare?runs=dqn-1&metric=rollout/ep_rew_mean")
    assert by_metric["bands"][0]["mean"][-1] == 1000.0
    assert client.get("/api/compare?runs=dqn-1&runs=none").status_code == 404


def test_a_run_that_goes_on_is_read_on(client: TestClient, runs: Path) -> None:
    assert len(get(client, "/api/runs/dqn-1/events")["events"]) == 2
    add_rows(runs / "dqn-1", [{"step": 2000, "rollout/ep_rew_mean": 7.0}])
    add_events(runs / "dqn-1", [{"event": "restarting", "member": "worker-0", "reason": "died"}])
    assert get(client, "/api/runs/dqn-1")["run"]["mean_return"] == 7.0
    (event,) = get(client, "/api/runs/dqn-1/events?after=2")["events"]
    assert event["text"] == "worker-0 is started again: died"


def test_logs_and_settings(client: TestClient) -> None:
    system = get(client, "/api/runs/dqn-1/system")
    assert system["logs"] == ["worker-0"]
    assert "CartPole-v1" in system["config"]
    lines = get(client, "/api/runs/dqn-1/logs/worker-0")["lines"]
    assert [line["message"] for line in lines] == ["hello", "not JSON"]
    assert client.get("/api/runs/dqn-1/logs/worker-1").status_code == 404


def test_videos_are_served(client: TestClient) -> None:
    answer = client.get("/api/runs/dqn-1/videos/dqn.gif")
    assert (answer.content, answer.headers["content-type"]) == (b"GIF89a", "image/gif")


def test_a_run_that_has_ended_cannot_be_steered(client: TestClient) -> None:
    answer = client.post("/api/runs/dqn-1/commands", json={"name": "stop"})
    assert answer.status_code == 409
    assert "not a distributed run" in answer.json()["error"]


@pytest.mark.parametrize(
    ("order", "status"),
    [
        ({"name": "scale"}, 422),
        ({"name": "scale", "actors": -1}, 422),
        ({"name": "scale", "actors": "4"}, 422),
        ({"name": "stop", "actors": 4}, 422),
        ({"name": "limiter", "policy": "dqn", "updates_per_step": 0}, 422),
        ({"name": "format the disk"}, 422),
        ({"name": "stop", "more": 1}, 422),
        ([], 422),
    ],
)
def test_wrong_orders_are_refused(client: TestClient, order: object, status: int) -> None:
    answer = client.post("/api/runs/dqn-1/commands", json=order)
    assert answer.status_code == status
    assert answer.json()["error"]


def test_a_read_only_dashboard_steers_nothing(runs: Path) -> None:
    _, app = make_site(runs, read_only=True)
    with TestClient(app, base_url=HERE, headers={"authorization": f"Bearer {TOKEN}"}) as client:
        assert client.post("/api/runs/dqn-1/commands", json={"name": "stop"}).status_code == 403
        assert get(client, "/api/runs")["read_only"]


def test_prometheus_is_answered(client: TestClient) -> None:
    text = client.get("/metrics").text
    assert "repertory_env_steps" in text


# What must be refused


@pytest.mark.parametrize("path", ["/api/runs", "/metrics", "/api/openapi.json", "/api/runs/x/live"])
def test_without_the_token_there_is_no_data(
    stranger: TestClient, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": "repertory=1"}):
            answer = stranger.get(path, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
    assert len([line for line in caplog.messages if "refused with 401" in line]) == 3
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("path", ["/", "/compare", "/runs/dqn-1", "/runs/dqn-1/learners"])
def test_pages_send_strangers_to_the_login(stranger: TestClient, path: str) -> None:
    answer = stranger.get(path)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")


def test_the_token_opens_and_logging_out_closes(stranger: TestClient) -> None:
    wrong = stranger.post("/login", data={"token": "wrong"}, headers={"origin": HERE})
    assert wrong.headers["location"] == "/login?error=1"
    right = stranger.post("/login", data={"token": TOKEN}, headers={"origin": HERE})
    assert right.headers["location"] == "/"
    cookie = right.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie
    assert stranger.get("/api/runs").status_code == 200
    stranger.post("/logout", headers={"origin": HERE})
    assert stranger.get("/api/runs").status_code == 401


def test_a_link_opens_once(runs: Path) -> None:
    site, app = make_site(runs)
    code = site.sessions.link_code()
    for place, status in (("/", 200), ("/login?error=2", 401)):
        with TestClient(app, base_url=HERE, follow_redirects=False) as client:
            assert client.get(f"/enter?code={code}").headers["location"] == place
            assert client.get("/api/runs").status_code == status


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::2]", "0.0.0.0"])
def test_another_host_is_refused(client: TestClient, host: str) -> None:
    for path in ("/", "/login", "/api/runs", "/static/main.js"):
        assert client.get(path, headers={"host": host}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "https://127.0.0.1:8600"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_other_sites_pages_cannot_act(client: TestClient, headers: dict[str, str]) -> None:
    answer = client.post("/api/runs/dqn-1/commands", json={"name": "stop"}, headers=headers)
    assert answer.status_code == 403
    assert "another site" in answer.json()["error"]
    assert client.post("/login", data={"token": TOKEN}, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/../secret.gif",
        "/api/runs/..%2f..%2fetc%2fpasswd",
        "/api/runs/%2e%2e",
        "/api/runs/dqn-1%2f..%2fdqn-2",
        "/api/runs/dqn-1/videos/..%2f..%2fsecret.gif",
        "/api/runs/dqn-1/videos/%2e%2e",
        "/api/runs/dqn-1/logs/..%2f..%2fconfig",
        "/api/runs/dqn-1/logs/%2fetc%2fpasswd",
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2fetc%2fpasswd",
    ],
)
def test_paths_lead_nowhere_else(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "secret" not in answer.text


def test_large_bodies_are_refused_said_or_not(client: TestClient) -> None:
    body = b"x" * (MAX_BODY_BYTES + 1)
    path, kind = "/api/runs/dqn-1/commands", {"content-type": "application/json"}
    assert client.post(path, content=body, headers=kind).status_code == 413
    pieces = iter([body[: len(body) // 2], body[len(body) // 2 :]])  # without a length
    assert client.post(path, content=pieces, headers=kind).status_code == 413


def test_names_are_data_and_never_markup(client: TestClient) -> None:
    answer = client.get("/api/runs")
    assert SCRIPT in answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    page = client.get(f"/runs/{SCRIPT.replace('/', '_')}")
    assert SCRIPT not in page.text


def test_every_answer_has_the_policy(client: TestClient) -> None:
    for path in (
        "/",
        "/login",
        "/static/main.js",
        "/api/runs",
        "/api/none",
        "/static/plotly.min.js",
    ):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert headers["x-frame-options"] == "DENY"


def test_the_description_has_every_address(client: TestClient) -> None:
    paths = get(client, "/api/openapi.json")["paths"]
    assert {(one.path, one.method.lower()) for one in ENDPOINTS} == {
        (path, method) for path, methods in paths.items() for method in methods
    }
