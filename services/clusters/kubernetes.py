"""A cluster on Kubernetes: a RayCluster of the KubeRay operator, by our Helm chart.

Rendered by Helm and validated against Kubernetes' schemas; not run on a real Kubernetes here. The
secrets are put there by kubectl, through standard input: neither the release nor a file has them.

A RayJob is not used: KubeRay hands runs over to Ray's own dashboard, a server without our
certificates, which does not run here. With `train` the run is a second container of the head's pod.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import join
from typing import Any

from repertory.errors import RepertoryError, UsageError
from services.clusters.external_tool import ExternalTool, wait_until
from services.clusters.inventory import KubernetesInventory
from services.clusters.provider import MachineStatus, Operator, Say
from services.clusters.rendered import (
    Record,
    as_yaml,
    check_train_words,
    inventory_document,
    roll_back,
    secret_files,
    write_rendered,
)

HELM_SECONDS = 300.0
CHART = "chart"
RAY_CONTAINERS = ("ray-head", "ray-worker")
FATAL_REASONS = ("InvalidImageName", "CreateContainerConfigError")  # waiting does not help
_helm, _kubectl = map(ExternalTool, ("helm", "kubectl"))


def chart_folder() -> Path:
    """In the repository, or where the wheel has put it."""
    places = (
        Path(__file__).resolve().parents[2] / "deploy" / "helm" / "repertory",
        Path(sys.prefix) / "share" / "repertory" / "helm" / "repertory",
    )
    for place in places:
        if (place / "Chart.yaml").is_file():
            return place
    raise UsageError(f"the Helm chart is not at {places[0]}: install from the repository")


class KubernetesCluster:
    """Of one inventory. The release, and all that belongs to it, has the cluster's name."""

    def __init__(self, inventory: KubernetesInventory, source: Path) -> None:
        check_train_words(inventory.train)
        if inventory.code is not None:
            raise UsageError("code: put it into the image: pods have no other way to get it")
        self.inventory = inventory
        self._source = source
        self._operator = Operator(inventory.name)
        self._record = Record(self._operator, "kubernetes")
        place = [f"--namespace={inventory.namespace}"]
        context = inventory.context
        self._helm = ExternalTool(
            "helm", *place, *([f"--kube-context={context}"] if context else [])
        )
        self._kubectl_words = [*place, *([f"--context={context}"] if context else [])]
        self._kubectl = ExternalTool("kubectl", *self._kubectl_words)

    def render(self) -> Mapping[str, str]:
        chart = chart_folder()
        files = [*chart.glob("*.yaml"), *chart.glob("*.json"), *chart.glob("templates/*")]
        return {
            "values.yaml": as_yaml(self._values(self.inventory.workers)),
            **{f"{CHART}/{path.relative_to(chart)}": path.read_text() for path in sorted(files)},
        }

    def _values(self, workers: int) -> dict[str, Any]:
        inventory = self.inventory.model_copy(update={"workers": workers})
        return {
            "secretName": self._secret,
            "inventory": inventory_document(inventory),
            "train": list(inventory.train),
        }

    @property
    def _secret(self) -> str:
        return f"{self.inventory.name}-secrets"

    @property
    def _selector(self) -> str:
        return f"--selector=repertory-cluster={self.inventory.name}"

    def up(self, say: Say) -> None:
        _helm.require()
        _kubectl.require()
        before = self._helm.ask("status", self.inventory.name).exit_code == 0
        if before and self._record.read() is None:
            raise UsageError(
                f"a release {self.inventory.name} is in namespace {self.inventory.namespace} "
                "already, and was not made from here: choose another name"
            )
        write_rendered(self._operator.rendered, self.render())
        self._record.write({"release": self.inventory.name})
        try:
            self._bring_secrets()
            self._upgrade(self.inventory.workers)
            say(f"release {self.inventory.name} is installed")
            self._wait(self.inventory.workers)
        except BaseException:
            if before:
                say("the release that was there before is brought back")
                self._helm.ask("rollback", self.inventory.name, timeout_seconds=HELM_SECONDS)
            else:
                say(f"release {self.inventory.name} is removed again")
                roll_back(self._end, say)
            raise
        say(f"ready: a head and {self.inventory.workers} workers")

    def _bring_secrets(self) -> None:
        namespace = self.inventory.namespace
        if self._kubectl.ask("get", "namespace", namespace).exit_code != 0:
            self._kubectl.run("create", "namespace", namespace)
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {
                "name": self._secret,
                "labels": {"repertory-cluster": self.inventory.name},
            },
            "data": {
                name: base64.b64encode(path.read_bytes()).decode()
                for name, path in secret_files(self._operator, self.inventory).items()
            },
        }
        # By the server: kubectl's own way would keep a copy of it in an annotation.
        self._kubectl.run(
            *("apply", "--server-side", "--field-manager=repertory", "--filename=-"),
            stdin=json.dumps(manifest),
        )

    def _upgrade(self, workers: int) -> None:
        values = self._operator.rendered / "values.yaml"
        write_rendered(self._operator.rendered, {"values.yaml": as_yaml(self._values(workers))})
        self._helm.run(
            *("upgrade", "--install", self.inventory.name),
            str(self._operator.rendered / CHART),
            f"--values={values}",
            timeout_seconds=HELM_SECONDS,
        )

    def _wait(self, workers: int) -> None:
        wait_until(lambda: self._missing(workers), self.inventory.wait_minutes * 60)

    def _missing(self, workers: int) -> str:
        found = self.status()
        fatal = [one for one in found if one.reason.partition(":")[0] in FATAL_REASONS]
        if fatal:
            raise RepertoryError(f"{fatal[0].name} cannot start: {fatal[0].reason}")
        ready = [one.role for one in found if one.state == "ready"]
        if "head" in ready and ready.count("worker") == workers:
            return ""
        others = [one for one in found if one.state != "ready"]
        waiting = [f"{one.name}: {one.reason or one.state}" for one in others]
        return (
            f"{ready.count('head')} of 1 head and {ready.count('worker')} of {workers} workers are "
            f"ready; {'; '.join(waiting[:3]) or 'KubeRay has made no further pods'}"
        )

    def status(self) -> Sequence[MachineStatus]:
        if self._record.read() is None:
            return []
        pods = json.loads(self._kubectl.run("get", "pods", self._selector, "--output=json"))[
            "items"
        ]
        return sorted(map(_machine, pods), key=lambda one: (one.role != "head", one.name))

    def scale(self, workers: int, say: Say) -> None:
        if self._record.read() is None:
            raise UsageError(f"{self.inventory.name} is not up")
        self._upgrade(workers)
        self._wait(workers)
        say(f"{workers} workers; `up` goes back to the {self.inventory.workers} of {self._source}")

    def logs(self, *, host: str | None, lines: int, follow: bool) -> None:
        words = [f"--tail={lines}", "--all-containers", "--prefix"]
        words += ["--follow", "--max-log-requests=50"] if follow else []
        if host is None:
            words.append(self._selector)
        else:
            known = [one.name for one in self.status()]
            if host not in known:
                raise UsageError(f"there is no pod {host}: {', '.join(known) or 'none is up'}")
            words.append(host)
        self._kubectl.show("logs", *words, follow=follow)

    def down(self, say: Say) -> None:
        if self._record.read() is None:
            say(f"{self.inventory.name} is not up")
        else:
            self._end()
            say(f"release {self.inventory.name} is removed; volume {self._claim} keeps the runs")

    def _end(self) -> None:
        self._helm.run(
            "uninstall", self.inventory.name, "--ignore-not-found", timeout_seconds=HELM_SECONDS
        )
        self._kubectl.run("delete", "secret", self._secret, "--ignore-not-found")
        self._record.forget()

    @property
    def _claim(self) -> str:
        return f"{self.inventory.name}-runs"

    def details(self) -> Mapping[str, Any]:
        port = self.inventory.ports.dashboard
        heads = [one.name for one in self.status() if one.role == "head"]
        kubectl = join(["kubectl", *self._kubectl_words])
        head = heads[0] if heads else "HEAD"
        return {
            "dashboard": f"http://127.0.0.1:{port}",
            "tunnel": f"{kubectl} port-forward pod/{head} {port}:{port}",
            "submit": (
                f"{kubectl} exec {head} --container=ray-head -- "
                f"repertory train ... --address {self.inventory.name}"
            ),
            "runs": f"persistentvolumeclaim/{self._claim}",
        }


def _machine(pod: Mapping[str, Any]) -> MachineStatus:
    metadata, status = pod["metadata"], pod.get("status", {})
    containers = {one["name"]: one for one in status.get("containerStatuses", [])}
    rays = [containers[name] for name in RAY_CONTAINERS if name in containers]
    ray: Mapping[str, Any] = rays[0] if rays else {}
    state, reason = _state(status, ray)
    if "train" in containers and "terminated" in containers["train"].get("state", {}):
        code = containers["train"]["state"]["terminated"].get("exitCode")
        reason = reason or f"the run has ended with exit code {code}"
    return MachineStatus(
        name=metadata["name"],
        role=metadata.get("labels", {}).get("ray.io/node-type", "worker"),
        address=status.get("podIP", ""),
        state=state,
        reason=reason,
        restarts=ray.get("restartCount", 0),
    )


def _state(status: Mapping[str, Any], ray: Mapping[str, Any]) -> tuple[str, str]:
    """And why it is not ready."""
    if ray.get("ready"):
        return "ready", ""
    everything = [*status.get("initContainerStatuses", []), ray]
    for container in everything:
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            return "waiting", f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    if ended := ray.get("state", {}).get("terminated"):
        return "down", f"{ended.get('reason', '')}, exit code {ended.get('exitCode')}"
    for condition in status.get("conditions", []):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return "pending", f"{condition.get('reason')}: {condition.get('message', '')}"
    return ("starting" if status.get("phase") in ("Pending", "Running") else "down"), ""
