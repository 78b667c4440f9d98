"""A cluster on Kubernetes: the chart as Helm renders it, and what `up` and `down` do."""

from __future__ import annotations

import base64
import copy
import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from rendered_clusters import Tools, assert_no_secret, secrets_of

from repertory.errors import RepertoryError, UsageError
from services.clusters import external_tool
from services.clusters.inventory import KubernetesInventory, read_inventory
from services.clusters.kubernetes import KubernetesCluster, chart_folder
from services.clusters.node import home as home_folder

ROOT = Path(__file__).parents[2]
BESIDE = Path(sys.executable).with_name("helm")  # of the wheel that brings Helm along
HELM = str(BESIDE) if BESIDE.exists() else shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason="helm is not installed: nothing is rendered")
VERSIONS = ("1.25", "1.32")  # of Kubernetes: the oldest that the chart allows, and a recent one

# From KubeRay's definition of a RayCluster, ray.io/v1: what it requires, and the keys we use.
POD_TEMPLATE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["metadata", "spec"],
    "properties": {"metadata": {"type": "object"}, "spec": {"type": "object"}},
}
WORDS = {"type": "object", "additionalProperties": {"type": "string"}}
COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
RAY_CLUSTER = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayCluster"},
        "metadata": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "labels": WORDS, "annotations": WORDS},
        },
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["headGroupSpec"],
            "properties": {
                "headGroupSpec": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["rayStartParams", "template"],
                    "properties": {
                        "headService": {"type": "object"},
                        "rayStartParams": WORDS,
                        "template": POD_TEMPLATE,
                    },
                },
                "workerGroupSpecs": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": [
                            "groupName",
                            "minReplicas",
                            "maxReplicas",
                            "rayStartParams",
                            "template",
                        ],
                        "properties": {
                            "groupName": {"type": "string"},
                            "replicas": COUNT,
                            "minReplicas": COUNT,
                            "maxReplicas": COUNT,
                            "rayStartParams": WORDS,
                            "template": POD_TEMPLATE,
                        },
                    },
                },
            },
        },
    },
}


def cluster(**changes: Any) -> KubernetesCluster:
    document = {
        "name": "lab",
        "provider": "kubernetes",
        "image": "repertory:1",
        "namespace": "rl",
        "wait_minutes": 0.2,
        **changes,
    }
    return KubernetesCluster(KubernetesInventory.model_validate(document), Path("lab.yaml"))


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run([HELM, *words], capture_output=True, text=True, timeout=120, check=False)


def template(folder: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        path = folder / "rendered" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    chart, values = folder / "rendered" / "chart", folder / "rendered" / "values.yaml"
    return helm("template", "lab", str(chart), "--namespace=rl", f"--values={values}")


def manifests(folder: Path, **changes: Any) -> dict[str, dict[str, Any]]:
    done = template(folder, dict(cluster(**changes).render()))
    assert done.returncode == 0, done.stderr
    return {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}


def check(found: dict[str, dict[str, Any]]) -> None:
    """Against the schemas of Kubernetes itself, pods and the head's service included."""
    core = [one for kind, one in found.items() if kind != "RayCluster"]
    ray = found["RayCluster"]
    jsonschema.validate(ray, RAY_CLUSTER)
    head = ray["spec"]["headGroupSpec"]
    for group in (head, *ray["spec"]["workerGroupSpecs"]):
        pod = group["template"]
        core.append({"apiVersion": "v1", "kind": "Pod"} | pod)
    core.append({"apiVersion": "v1", "kind": "Service"} | head["headService"])
    for version in VERSIONS:
        for document in core:
            kubernetes_validate.validate(document, version, strict=True)


def containers(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    spec = found["RayCluster"]["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    pods = [group["template"]["spec"] for group in groups]
    return {
        one["name"]: one
        for pod in pods
        for one in (*pod.get("initContainers", []), *pod["containers"])
    }


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPERTORY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(external_tool, "LOOK_SECONDS", 0.02)
    return tmp_path / "home"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    tools = Tools(tmp_path / "tools", "helm", "kubectl")
    monkeypatch.setenv("PATH", f"{tools.folder}:{os.environ['PATH']}")
    return tools


@needs_helm
def test_helm_has_nothing_to_say_about_the_chart() -> None:
    done = helm("lint", "--strict", str(chart_folder()))
    assert done.returncode == 0, done.stdout + done.stderr


@needs_helm
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"workers": 0, "storage_class": "fast"},
        {"train": ["CartPole-v1", "--algo", "dqn,ppo", "--set", "a b", "yes"]},
        {"spot": True, "worker": {"gpus": 2, "memory_gb": 1.5, "object_store_mb": 2**20}},
    ],
)
def test_what_helm_renders_is_what_kubernetes_takes(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    check(manifests(tmp_path, **changes))


@needs_helm
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("runAsNonRoot: true", "runAsNonRot: true"),
        ("defaultMode: 256", "defaultMode: lots"),
        ("groupName: workers", "group: workers"),
        ("minAvailable: 1", "minAvailable: {}"),
        ("policyTypes: [Ingress, Egress]", "policyTypes: all"),
        ("publishNotReadyAddresses: true", "publishAll: true"),
    ],
)
def test_the_validators_refuse_a_broken_template(tmp_path: Path, old: str, new: str) -> None:
    files = dict(cluster().render())
    broken = {name: text.replace(old, new) for name, text in files.items()}
    assert broken != files
    done = template(tmp_path, broken)
    assert done.returncode == 0, done.stderr
    found = {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        check(found)


@needs_helm
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("inventory", "workers"), -1),
        (("inventory", "workers"), "many"),
        (("inventory", "ports", "ray"), 80),
        (("inventory", "name"), "Lab; reboot"),
        (("inventory", "head", "no_such_key"), 1),
        (("train",), ["$(reboot)"]),
        (("no_such_key",), 1),
    ],
)
def test_the_charts_schema_refuses_wrong_values(
    tmp_path: Path, place: tuple[str, ...], value: Any
) -> None:
    files = dict(cluster().render())
    values = yaml.safe_load(files["values.yaml"])
    functools.reduce(lambda inner, key: inner[key], place[:-1], values)[place[-1]] = value
    done = template(tmp_path, files | {"values.yaml": yaml.safe_dump(values)})
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr


@needs_helm
def test_what_the_inventory_says_is_where_it_belongs(tmp_path: Path) -> None:
    found = manifests(
        tmp_path,
        image="rl:2",
        workers=7,
        storage_gb=33,
        storage_class="fast",
        ports={"ray": 7777, "control": 7778},
        head={"cores": 4, "memory_gb": 6.5, "object_store_mb": 512},
        worker={"cores": 3, "gpus": 2},
    )
    by_name = containers(found)
    head, worker = by_name["ray-head"], by_name["ray-worker"]
    assert {one["image"] for one in by_name.values()} == {"rl:2"}
    for kind in ("requests", "limits"):
        assert head["resources"][kind] == {"cpu": "4", "memory": "6656Mi"}
        assert worker["resources"][kind] == {"cpu": "3", "memory": "4096Mi", "nvidia.com/gpu": "2"}
    assert [port["containerPort"] for port in head["ports"]] == [7777, 7778]
    spec = found["RayCluster"]["spec"]
    assert spec["headGroupSpec"]["rayStartParams"] == {"port": "7777"}
    assert spec["workerGroupSpecs"][0]["replicas"] == 7
    volumes = {one["name"]: one for one in spec["headGroupSpec"]["template"]["spec"]["volumes"]}
    assert volumes["shared-memory"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "768Mi"}
    assert volumes["secrets"]["secret"] == {"secretName": "lab-secrets", "defaultMode": 0o400}
    claim = found["PersistentVolumeClaim"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "33Gi"
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    path = tmp_path / "again.yaml"
    path.write_text(found["ConfigMap"]["data"]["inventory.yaml"])
    again = read_inventory(path)
    assert (again.ports.ray, again.head.cores, again.worker.gpus) == (7777, 4, 2)


@needs_helm
def test_workers_know_the_head_by_the_name_that_is_in_its_certificate(tmp_path: Path) -> None:
    found = manifests(tmp_path)
    by_name = containers(found)
    head, worker = by_name["ray-head"]["command"], by_name["ray-worker"]["command"]
    name = "lab-head-svc.rl.svc.cluster.local"  # as KubeRay's own check of the head calls it
    assert worker[worker.index("--head-address") + 1] == name
    assert head[head.index("--also-known-as") + 1] == name
    assert by_name["certificate"]["command"] == [*worker, "--prepare-only"]
    assert by_name["certificate"]["volumeMounts"] == by_name["ray-worker"]["volumeMounts"]
    annotations = found["RayCluster"]["metadata"]["annotations"]
    assert annotations == {"ray.io/overwrite-container-cmd": "true"}
    for one in (by_name["ray-head"], by_name["ray-worker"]):
        assert one["livenessProbe"]["exec"]["command"][-1] == "--alive"
        assert one["readinessProbe"]["exec"]["command"][-1] == "/node"


@needs_helm
def test_pods_can_do_little_and_nobody_else_reaches_them(tmp_path: Path) -> None:
    found = manifests(tmp_path, train=["CartPole-v1"])
    for one in containers(found).values():
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    spec = found["RayCluster"]["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert group["template"]["metadata"]["labels"] == {"repertory-cluster": "lab"}
    policy = found["NetworkPolicy"]["spec"]
    ours = {"podSelector": {"matchLabels": {"repertory-cluster": "lab"}}}
    assert policy["podSelector"] == ours["podSelector"]
    assert policy["ingress"] == [{"from": [ours]}]
    assert {port["port"] for rule in policy["egress"] for port in rule.get("ports", [])} == {53}


@needs_helm
def test_a_run_is_a_container_beside_the_head_with_its_words_as_they_are(tmp_path: Path) -> None:
    words = ["CartPole-v1", "--set", "a b", "yes", "1e3", "0o17", "0x1f", "+1.", "#no comment"]
    found = manifests(tmp_path, train=words)
    train = containers(found)["train"]
    shell, option, script, zero, *given = train["command"]
    assert (shell, option, zero, given) == ("/bin/sh", "-c", "train", words)
    pod = found["RayCluster"]["spec"]["headGroupSpec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    program = tmp_path / "repertory"
    program.write_text('#!/bin/sh\n[ "$1" = cluster ] || printf "%s\\n" "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        [shell, option, script, zero, *given],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    place = ["--address", "lab", "--run-dir", "/node/runs/train", "--resume", "auto"]
    assert done.stdout.splitlines() == ["train", *words, *place]
    assert "train" not in containers(manifests(tmp_path))


@needs_helm
def test_spot_workers_may_go_where_the_head_must_not(tmp_path: Path) -> None:
    spec = manifests(tmp_path, spot=True)["RayCluster"]["spec"]
    head = spec["headGroupSpec"]["template"]["spec"]
    worker = spec["workerGroupSpecs"][0]["template"]["spec"]
    assert "tolerations" not in head
    assert {one["key"] for one in worker["tolerations"]} == {
        "cloud.google.com/gke-spot",
        "kubernetes.azure.com/scalesetpriority",
    }
    required = head["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    rules = required["nodeSelectorTerms"][0]["matchExpressions"]
    assert {rule["operator"] for rule in rules} == {"NotIn"}
    assert (
        "affinity"
        not in manifests(tmp_path)["RayCluster"]["spec"]["headGroupSpec"]["template"]["spec"]
    )


def test_the_charts_schema_takes_its_own_values_and_those_of_the_inventory() -> None:
    schema = json.loads((chart_folder() / "values.schema.json").read_text())
    defaults = yaml.safe_load((chart_folder() / "values.yaml").read_text())
    jsonschema.validate(defaults, schema)
    given = yaml.safe_load(cluster(context="gke", storage_class="fast").render()["values.yaml"])
    jsonschema.validate(defaults | given, schema)
    assert set(given) <= set(defaults)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "a: b"),
        ("namespace", "-x"),
        ("image", "a$(reboot)"),
        ("image", "a\nb"),
        ("context", 'a"b'),
        ("train", ["$(POD_IP)"]),
        ("workers", -1),
    ],
)
def test_hostile_values_are_refused(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "lab.yaml"
    document = {"name": "lab", "provider": "kubernetes", "image": "repertory:1"}
    path.write_text(yaml.safe_dump(document | {field: value}))
    with pytest.raises(UsageError):
        read_inventory(path)


def test_what_a_pod_cannot_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--run-dir"):
        cluster(train=["CartPole-v1", "--run-dir", "/elsewhere"])
    with pytest.raises(UsageError, match="image"):
        cluster(code=tmp_path)


def pod(name: str, role: str, **status: Any) -> dict[str, Any]:
    ready = {"name": f"ray-{role}", "ready": True, "restartCount": 2, "state": {"running": {}}}
    return {
        "metadata": {"name": name, "labels": {"ray.io/node-type": role}},
        "status": {"phase": "Running", "podIP": "10.0.0.9", "containerStatuses": [ready], **status},
    }


def pods(*found: dict[str, Any]) -> str:
    return json.dumps({"items": list(found)})


UNSCHEDULED = {
    "phase": "Pending",
    "containerStatuses": [],
    "conditions": [
        {"type": "PodScheduled", "status": "False"}
        | {"reason": "Unschedulable", "message": "0/3 nodes have enough cpu"}
    ],
}


def test_up_brings_the_secrets_on_standard_input_and_waits_for_all_pods(
    home: Path, tools: Tools
) -> None:
    said: list[str] = []
    lab = cluster(workers=1, context="gke")
    tools.answer("^helm.* status ", ("", "Error: release: not found", 1))
    tools.answer("^kubectl.* get namespace", ("", "NotFound", 1))
    tools.answer(
        "^kubectl.* get pods",
        pods(),
        pods(pod("lab-head", "head")),
        pods(pod("lab-head", "head"), pod("lab-w1", "worker", **UNSCHEDULED)),
        pods(pod("lab-w1", "worker"), pod("lab-head", "head")),
    )
    lab.up(said.append)
    place, context = "--namespace=rl", "--context=gke"
    rendered = home / "clusters" / "lab" / "rendered"
    files = [str(rendered / "chart"), f"--values={rendered / 'values.yaml'}"]
    assert [call.words for call in tools.calls("helm")] == [
        [place, "--kube-context=gke", "status", "lab"],
        [place, "--kube-context=gke", "upgrade", "--install", "lab", *files],
    ]
    kubectl = tools.calls("kubectl")
    assert [call.words[:4] for call in kubectl[:3]] == [
        [place, context, "get", "namespace"],
        [place, context, "create", "namespace"],
        [place, context, "apply", "--server-side"],
    ]
    secret = json.loads(kubectl[2].stdin)
    kubernetes_validate.validate(secret, "1.32", strict=True)
    token = (home / "clusters" / "lab" / "secrets" / "token").read_bytes()
    assert base64.b64decode(secret["data"]["token"]) == token
    assert set(secret["data"]) == {"authority.pem", "authority.key", "token"}
    hidden = secrets_of(home, "lab")
    hidden += [base64.b64encode(one.encode()).decode() for one in hidden]
    shown = [path.read_text() for path in rendered.rglob("*") if path.is_file()]
    assert_no_secret([*shown, *(call.line for call in tools.calls()), *said], hidden)

    status = lab.status()
    assert [(one.name, one.role, one.address, one.state, one.restarts) for one in status] == [
        ("lab-head", "head", "10.0.0.9", "ready", 2),
        ("lab-w1", "worker", "10.0.0.9", "ready", 2),
    ]
    details = lab.details()
    assert details["tunnel"] == (
        "kubectl --namespace=rl --context=gke port-forward pod/lab-head 8600:8600"
    )

    tools.answer("^helm.* status ", "STATUS: deployed")
    lab.up(said.append)  # the same again
    lab.down(said.append)
    assert tools.calls("helm")[-1].words[2:4] == ["uninstall", "lab"]
    assert tools.calls("kubectl")[-1].words[2:5] == ["delete", "secret", "lab-secrets"]
    assert not any("pvc" in call.line or "claim" in call.line for call in tools.calls())
    before = len(tools.calls())
    lab.down(said.append)
    assert len(tools.calls()) == before
    assert lab.status() == []


@pytest.mark.parametrize(
    ("pattern", "reply", "message"),
    [
        (
            "^helm.* upgrade ",
            ("", "Error: no matches for kind RayCluster", 1),
            "no matches for kind",
        ),
        ("^kubectl.* apply ", ("", "forbidden", 1), "forbidden"),
        ("^kubectl.* get pods", (pods(pod("w", "worker", **UNSCHEDULED)), "", 0), "enough cpu"),
    ],
)
def test_where_up_fails_everything_is_removed_again(
    home: Path, tools: Tools, pattern: str, reply: tuple[str, str, int], message: str
) -> None:
    tools.answer("^helm.* status ", ("", "Error: release: not found", 1))
    tools.answer(pattern, reply)
    with pytest.raises(RepertoryError, match=message):
        cluster(wait_minutes=0.005).up([].append)
    assert tools.calls("helm")[-1].words[1:3] == ["uninstall", "lab"]
    assert tools.calls("kubectl")[-1].words[1:4] == ["delete", "secret", "lab-secrets"]
    assert not (home / "clusters" / "lab" / "kubernetes.json").exists()


def test_what_could_not_be_removed_does_not_hide_why_up_failed(home: Path, tools: Tools) -> None:
    said: list[str] = []
    tools.answer("^helm.* status ", ("", "Error: release: not found", 1))
    tools.answer("^helm.* upgrade ", ("", "Error: no matches for kind RayCluster", 1))
    tools.answer("^helm.* uninstall ", ("", "Error: connection refused", 1))
    with pytest.raises(RepertoryError, match="no matches for kind"):
        cluster().up(said.append)
    assert "connection refused" in said[-1]
    assert (home / "clusters" / "lab" / "kubernetes.json").exists()  # for `down`


def test_a_pod_that_can_never_start_is_not_waited_for(home: Path, tools: Tools) -> None:
    bad = {"name": "ray-head", "ready": False, "state": {"waiting": {"reason": "InvalidImageName"}}}
    tools.answer("^helm.* status ", ("", "Error: release: not found", 1))
    tools.answer("get pods", pods(pod("lab-head", "head", containerStatuses=[bad])))
    with pytest.raises(RepertoryError, match="lab-head cannot start: InvalidImageName"):
        cluster(wait_minutes=60).up([].append)


def test_a_release_of_somebody_else_is_left_alone(home: Path, tools: Tools) -> None:
    tools.answer("^helm.* status ", "STATUS: deployed")
    with pytest.raises(UsageError, match="was not made from here"):
        cluster().up([].append)
    assert [call.words[1] for call in tools.calls()] == ["status"]


def test_a_release_that_was_up_before_is_brought_back(home: Path, tools: Tools) -> None:
    tools.answer("^helm.* status ", ("", "Error: release: not found", 1), "STATUS: deployed")
    tools.answer("get pods", pods(pod("h", "head"), pod("w", "worker")))
    cluster().up([].append)
    tools.answer("^helm.* upgrade ", ("", "Error: timed out", 1))
    with pytest.raises(RepertoryError, match="timed out"):
        cluster().up([].append)
    assert tools.calls("helm")[-1].words[1:] == ["rollback", "lab"]
    assert not any("uninstall" in call.words for call in tools.calls())


def test_scale_upgrades_the_release_and_logs_name_a_pod(home: Path, tools: Tools) -> None:
    lab = cluster()
    with pytest.raises(UsageError, match="is not up"):
        lab.scale(2, [].append)
    tools.answer("^helm.* status ", ("", "Error: release: not found", 1))
    tools.answer("get pods", pods(pod("h", "head"), pod("w", "worker")))
    lab.up([].append)
    tools.answer("get pods", pods(pod("h", "head"), pod("w", "worker"), pod("v", "worker")))
    lab.scale(2, [].append)
    values = yaml.safe_load((home_folder() / "clusters/lab/rendered/values.yaml").read_text())
    assert values["inventory"]["workers"] == 2
    assert tools.calls("helm")[-1].words[1] == "upgrade"
    lab.logs(host="v", lines=5, follow=True)
    words = tools.calls("kubectl")[-1].words
    assert words[1:3] == ["logs", "--tail=5"]
    assert (words[-1], "--follow" in words) == ("v", True)
    with pytest.raises(UsageError, match="no pod"):
        lab.logs(host="--all", lines=5, follow=False)


def test_a_run_that_has_ended_is_seen_and_the_head_is_still_ready(tools: Tools) -> None:
    lab = cluster()
    tools.answer("^helm.* status ", ("", "Error: release: not found", 1))
    head = pod("h", "head")
    ended = copy.deepcopy(head)
    ended["status"]["containerStatuses"].append(
        {"name": "train", "ready": False, "state": {"terminated": {"exitCode": 3}}}
    )
    tools.answer("get pods", pods(ended, pod("w", "worker")))
    lab.up([].append)
    one = lab.status()[0]
    assert (one.state, one.reason) == ("ready", "the run has ended with exit code 3")


@pytest.mark.parametrize("missing", ["helm", "kubectl"])
def test_a_missing_tool_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    other = {"helm": "kubectl", "kubectl": "helm"}[missing]
    monkeypatch.setenv("PATH", str(Tools(tmp_path / "tools", other).folder))
    with pytest.raises(UsageError, match=rf"{missing} is not on PATH.*--render-only"):
        cluster().up([].append)


def test_the_example_is_an_inventory_of_its_provider() -> None:
    example = ROOT / "deploy" / "examples" / "kubernetes.yaml"
    found = read_inventory(example)
    assert isinstance(found, KubernetesInventory)
    assert "chart/templates/raycluster.yaml" in KubernetesCluster(found, example).render()
