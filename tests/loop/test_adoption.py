"""`herdsman adopt` on services that LLMKube created: taken over one by one and given back, without a pod restart.

The objects are LLMKube's recorded output; Deployments get real ReplicaSets and pods. Loop, engine and command are real.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from automation.adoption.kept_templates import digest_of
from automation.cli.main import invoke
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.conformance.vectors import FIXTURES
from tests.support import llmkube
from tests.support.kubelet import pods_of
from tests.support.loop import arguments, condition, edit, eventually, http_folder, loop_process, status

pytestmark = pytest.mark.soak

ADOPTED = ("a", "b", "scaled")
LEFT = "c"
ALL = (*ADOPTED, LEFT)


class Cluster:
    """The state that the test compares, by service."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    def deployment(self, name: str) -> Json:
        return self.client.get(kinds.DEPLOYMENTS, self.namespace, name)

    def template(self, name: str) -> str:
        return digest_of(self.deployment(name)["spec"]["template"])

    def pods(self, name: str) -> set[str]:
        return {pod["metadata"]["uid"] for pod in pods_of(self.client, self.namespace, name)}

    def running(self) -> dict[str, tuple[str, str, set[str]]]:
        """The Deployment, its template and its pods; a difference shows a restart."""
        return {name: (self.deployment(name)["metadata"]["uid"], self.template(name), self.pods(name)) for name in ALL}

    def is_rolled_out(self, name: str) -> bool:
        """Return whether the Deployment's controller has created all pods and has written its last status."""
        deployment = self.deployment(name)
        said, wanted = deployment.get("status") or {}, deployment["spec"]["replicas"]
        seen = said.get("observedGeneration") == deployment["metadata"]["generation"]
        return bool(seen and said.get("updatedReplicas") == said.get("unavailableReplicas") == wanted)

    def versions(self, name: str) -> tuple[str, ...]:
        """The versions of a service and of its objects; a difference shows a write."""
        found = [self.client.get(kinds.INFERENCE_SERVICES, self.namespace, name), self.deployment(name)]
        found.append(self.client.get(kinds.SERVICES, self.namespace, name))
        return tuple(each["metadata"]["resourceVersion"] for each in found)


def adopt(kubeconfig: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = invoke(["adopt", f"--kubeconfig={kubeconfig}", "-o", "json", *arguments])
    out = capsys.readouterr().out
    return code, json.loads(out) if out.strip() else None


def states(answer: Any) -> dict[str, str]:
    return {each["name"]: each["state"] for each in answer["services"]}


def test_services_of_llmkube_are_adopted_one_by_one_and_given_back(
    client: KubeClient,
    kubeconfig: Path,
    loop_kubeconfig: Path,
    pulumi_cli: Path,
    namespace: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with http_folder(FIXTURES) as url:
        llmkube.make(client, namespace, [llmkube.vector("031")], url=url)
        llmkube.make(client, namespace, [llmkube.vector("037")], url=url, rename={"svc": "scaled"})
        cluster = Cluster(client, namespace)
        eventually(lambda: all(map(cluster.is_rolled_out, ALL)), what="pods of all services")
        with loop_process(loop_kubeconfig, tmp_path, "--controller-class=herdsman") as loop:
            check_the_way_there(cluster, kubeconfig, capsys)
            check_changes_of_the_adopted(cluster)
            check_the_way_back(cluster, kubeconfig, capsys)
            check_the_word_of_the_namespace(cluster)
            check_the_rest(cluster, kubeconfig, capsys)
            assert not [line for line in loop.lines() if line.get("level") == "error"]


def check_the_way_there(cluster: Cluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = f"--namespace={cluster.namespace}"
    before = cluster.running()
    untouched = cluster.versions(LEFT)

    with llmkube.leading(cluster.client, cluster.namespace):
        code, _ = adopt(kubeconfig, capsys, *ADOPTED, here, "--yes")
    assert code == 1, "LLMKube's controller seems to run"

    code, preview = adopt(kubeconfig, capsys, "--all", here, "--dry-run")
    assert code == 0
    assert [each["name"] for each in preview["services"]] == sorted(ALL)
    assert not any(each.get("restarts") for each in preview["services"]), preview
    assert cluster.running() == before

    code, answer = adopt(kubeconfig, capsys, *ADOPTED, here, "--yes", "--timeout=60")
    assert (code, states(answer)) == (0, dict.fromkeys(ADOPTED, "adopted"))
    assert cluster.running() == before, "no Deployment was made anew, no template changed, no pod restarted"
    for name in ADOPTED:
        kept = condition(cluster.client, cluster.namespace, name, "TemplateKept")
        assert kept["status"] == "True" and f"--refresh {name}" in kept["message"]
    assert cluster.versions(LEFT) == untouched, "a service that names no controller is not the loop's"

    code, answer = adopt(kubeconfig, capsys, "a", here, "--yes")
    assert (code, states(answer)) == (0, {"a": "skipped"})


def check_changes_of_the_adopted(cluster: Cluster) -> None:
    client, namespace = cluster.client, cluster.namespace
    template, pods = cluster.template("a"), cluster.pods("a")
    edit(client, namespace, "a", replicas=2)
    eventually(lambda: cluster.deployment("a")["spec"]["replicas"] == 2, what="more replicas")
    assert cluster.template("a") == template
    eventually(lambda: len(cluster.pods("a")) == 2, what="a second pod")
    assert pods < cluster.pods("a")

    edit(client, namespace, "a", contextSize=4096)
    eventually(lambda: "--ctx-size 4096" in arguments(cluster.deployment("a")), what="the first change of the pods")
    init = cluster.deployment("a")["spec"]["template"]["spec"]["initContainers"]
    assert not any("<script" in str(each["command"]) for each in init), "with it comes Herdsman's own template"
    eventually(lambda: not condition(client, namespace, "a", "TemplateKept"), what="no kept template")
    # The next step compares all pods. The rollout adds one, for which there is no node.
    eventually(lambda: len(cluster.pods("a")) == 3, what="the pod of the new template")


def check_the_way_back(cluster: Cluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client, namespace, here = cluster.client, cluster.namespace, f"--namespace={cluster.namespace}"
    before = cluster.running()
    code, answer = adopt(kubeconfig, capsys, "b", here, "--release", "--yes", "--timeout=60")
    assert (code, states(answer)) == (0, {"b": "released"})
    assert cluster.running() == before
    assert "herdsman.dev/" not in json.dumps(cluster.deployment("b")["metadata"]["annotations"])
    conditions = {each["type"] for each in status(client, namespace, "b")["conditions"]}
    assert not conditions & {"Ready", "Reconciling", "TemplateKept"}

    # After the release LLMKube's updates stay, and the loop does not act on an edit of the service.
    client.patch(kinds.DEPLOYMENTS, namespace, "b", {"spec": {"replicas": 3}}, field_manager=llmkube.MANAGER)
    edit(client, namespace, "b", contextSize=8192)

    code, answer = adopt(kubeconfig, capsys, "scaled", here, "--refresh", "--yes", "--timeout=60")
    assert (code, states(answer)) == (0, {"scaled": "refreshed"})
    assert cluster.template("scaled") != before["scaled"][1]

    assert cluster.deployment("b")["spec"]["replicas"] == 3
    assert cluster.template("b") == before["b"][1]

    edit(client, namespace, "b", contextSize=None, replicas=3)
    eventually(lambda: len(cluster.pods("b")) == 3, what="LLMKube's replicas")
    again = cluster.running()["b"]
    code, answer = adopt(kubeconfig, capsys, "b", here, "--yes", "--timeout=60")
    assert (code, states(answer)) == (0, {"b": "adopted"}), answer
    assert cluster.running()["b"] == again


def check_the_word_of_the_namespace(cluster: Cluster) -> None:
    client, namespace = cluster.client, cluster.namespace

    def say(controller: str | None) -> None:
        body = {"metadata": {"annotations": {"herdsman.dev/controller": controller}}}
        client.patch(kinds.NAMESPACES, None, namespace, body)

    say("herdsman")
    eventually(lambda: condition(client, namespace, LEFT, "Ready"), what="a service that its namespace gives away")
    eventually(lambda: "herdsman.dev/applied-hash" in notes(cluster, LEFT), what="its objects to be applied")
    say(None)
    eventually(lambda: not condition(client, namespace, LEFT, "Ready"), what="the loop to release the service")
    assert "herdsman.dev/applied-hash" in notes(cluster, LEFT), "what was made stays as it is"
    assert condition(client, namespace, "a", "Ready"), "a service's own word wins"


def check_the_rest(cluster: Cluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = adopt(kubeconfig, capsys, "--all", f"--namespace={cluster.namespace}", "--yes", "--timeout=60")
    assert (code, states(answer)) == (0, {**dict.fromkeys(ADOPTED, "skipped"), LEFT: "adopted"})


def notes(cluster: Cluster, name: str) -> Json:
    return dict(cluster.deployment(name)["metadata"].get("annotations") or {})
