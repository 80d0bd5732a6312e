"""A ModelRouter with policies and a history: real control plane, loop and gateway."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from automation.cli.main import invoke
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support.gateways import completion, gateway_process
from tests.support.loop import LoopProcess, gateway_loop
from tests.support.loop import eventually as eventually_within
from tests.unit.policies.folders import document, folder
from tools.localcluster import LocalCluster

eventually = functools.partial(eventually_within, timeout_s=90.0)


@pytest.fixture(scope="module")
def loop(
    loop_kubeconfig: Path, pulumi_cli: Path, gateway: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoopProcess]:
    """A loop with the rights of a loop only, with policies, which is also a gateway."""
    policies = folder(tmp_path_factory.mktemp("policies"), p_yaml=document("local", routers={"providers": ["litellm"]}))
    words = ("--policies", str(policies))
    with gateway_loop(loop_kubeconfig, tmp_path_factory.mktemp("loop"), gateway, *words) as running:
        yield running


def router(provider: str, shown: str) -> Json:
    external: Json = {"provider": provider, "model": "m", "url": "https://models.example.com/v1"}
    external["credentialsSecretRef"] = {"name": "key"}
    backends = [{"name": "cloud", "displayName": shown, "external": external}]
    spec = {"backends": backends, "defaultRoute": "cloud", "defaultRouteStrategy": "BackendNameMatch"}
    version = kinds.MODEL_ROUTERS.api_version
    return {"apiVersion": version, "kind": "ModelRouter", "metadata": {"name": "front"}, "spec": spec}


@pytest.mark.usefixtures("loop")
def test_a_router_has_versions_and_a_denied_one_is_not_served(
    client: KubeClient, namespace: str, control_plane: LocalCluster, gateway: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def apply(cr: Json) -> None:
        client.apply(kinds.MODEL_ROUTERS, namespace, cr, field_manager="kubectl", force=True)

    def condition() -> tuple[int, str]:
        live = client.get(kinds.MODEL_ROUTERS, namespace, "front")
        found = (live.get("status") or {}).get("conditions") or ()
        said: Json = next((each for each in found if each["type"] == "PolicyCompliant"), {})
        return said.get("observedGeneration", 0), said.get("reason", "")

    def models() -> list[str]:
        try:
            with urlopen(f"{gateway}/routers/{namespace}/front/v1/models", timeout=30) as answer:
                return [each["id"] for each in json.load(answer)["data"]]
        except URLError:
            return []

    def revisions() -> list[Any]:
        words = ["history", "modelrouter/front", "-n", namespace, f"--kubeconfig={control_plane.kubeconfig}"]
        invoke([*words, "-o", "json"])
        return list(json.loads(capsys.readouterr().out or "[]"))

    apply(router("litellm", "smart"))
    eventually(lambda: condition() == (1, "PoliciesMet"), what="the policies to be checked")
    eventually(lambda: models() == ["smart", "front"], what="the router at the gateway")
    apply(router("litellm", "smarter"))
    eventually(lambda: models() == ["smarter", "front"], what="the second version at the gateway")
    apply(router("openai", "cloudy"))
    eventually(lambda: condition() == (3, "PolicyViolated"), what="the third version to be denied")
    found = eventually(lambda: len(told := revisions()) == 3 and told, what="three revisions")
    assert [(each["number"], each["result"] == "Applied", each["current"]) for each in found] == [
        (3, False, True),
        (2, True, False),
        (1, True, False),
    ]
    assert "policy `local`" in found[0]["result"]
    assert found[1]["changes"] == ("Updated ModelRouter front: backends[cloud].displayName smart -> smarter")
    assert models() == ["smarter", "front"]

    words = ["rollback", "modelrouter/front", "-n", namespace, f"--kubeconfig={control_plane.kubeconfig}"]
    assert invoke([*words, "--dry-run"]) == 2
    assert "ModelRouter " in (shown := capsys.readouterr().out) and "clients do not find any more: `cloudy`" in shown
    assert invoke([*words, "--yes"]) == 0
    assert "Wrote revision 2" in capsys.readouterr().out
    eventually(lambda: condition() == (4, "PoliciesMet"), what="the restored version to be checked")
    assert client.get(kinds.MODEL_ROUTERS, namespace, "front")["spec"]["backends"][0]["displayName"] == "smarter"
    assert completion(gateway, "cloudy")[0] == 404
    client.delete(kinds.MODEL_ROUTERS, namespace, "front")


@pytest.mark.usefixtures("loop")
def test_a_new_gateway_goes_on_with_the_accepted_version_and_a_change_waits_for_its_approval(
    client: KubeClient,
    namespace: str,
    control_plane: LocalCluster,
    gateway: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = ("-n", namespace, f"--kubeconfig={control_plane.kubeconfig}")

    def apply(cr: Json, **annotations: str) -> None:
        written = {f"herdsman.dev/{name}": value for name, value in annotations.items()}
        named = {**cr, "metadata": {**cr["metadata"], "annotations": written}}
        client.apply(kinds.MODEL_ROUTERS, namespace, named, field_manager="kubectl", force=True)

    def status() -> Json:
        return client.get(kinds.MODEL_ROUTERS, namespace, "front").get("status") or {}

    def condition(kind: str) -> tuple[int, str]:
        said: Json = next((each for each in status().get("conditions") or () if each["type"] == kind), {})
        return said.get("observedGeneration", 0), said.get("reason", "")

    def reasons() -> set[str]:
        found = client.list(kinds.EVENTS, namespace)["items"]
        return {each["reason"] for each in found if each["involvedObject"]["kind"] == "ModelRouter"}

    def models(address: str) -> list[str]:
        try:
            with urlopen(f"{address}/routers/{namespace}/front/v1/models", timeout=30) as answer:
                return [each["id"] for each in json.load(answer)["data"]]
        except OSError:
            return []

    apply(router("litellm", "smart"))
    eventually(lambda: models(gateway) == ["smart", "front"], what="the router at the gateway")
    apply(router("openai", "cloudy"))
    eventually(lambda: condition("PolicyCompliant") == (2, "PolicyViolated"), what="the second version to be denied")
    with gateway_process(control_plane.kubeconfig, tmp_path / "gateway.log", f"--namespace={namespace}") as started:
        eventually(lambda: models(started) == ["smart", "front"], what="the first version at a new gateway")
        apply(router("litellm", "smarter"), mode="Preview")
        pending = eventually(lambda: status().get("pendingChange"), what="a pending change")
        assert condition("ChangePending") == (3, "AwaitingApproval")
        capsys.readouterr()
        assert invoke(["preview", "--live", "modelrouter/front", *where, "-o", "json"]) == 2
        [shown] = json.loads(capsys.readouterr().out)["resources"]
        assert (shown["digest"], shown["op"]) == (pending["digest"], "update")
        assert models(gateway) == models(started) == ["smart", "front"]
        assert invoke(["approve", "modelrouter/front", "--digest", pending["digest"], "--timeout", "90", *where]) == 0
        for address in (gateway, started):
            eventually(lambda at=address: models(at) == ["smarter", "front"], what="the approved version")
        eventually(lambda: {"PolicyViolated", "ChangePending", "Applied"} <= reasons(), what="the Events")
        capsys.readouterr()
        assert invoke(["preview", "--live", "modelrouter/front", *where]) == 0
        assert invoke(["approve", "modelrouter/front", "--yes", *where]) == 2, "nothing is pending"
        apply(router("litellm", "smartest"), mode="Preview")
        eventually(lambda: status().get("pendingChange"), what="another pending change")
        assert invoke(["rollback", "modelrouter/front", "--yes", *where]) == 0
        eventually(lambda: condition("ChangePending") == (5, "NothingPending"), what="the change to be rejected")
        assert client.get(kinds.MODEL_ROUTERS, namespace, "front")["spec"]["backends"][0]["displayName"] == "smarter"
    client.delete(kinds.MODEL_ROUTERS, namespace, "front")


@pytest.mark.usefixtures("loop")
def test_a_router_of_llmkube_is_taken_over_and_given_back(
    client: KubeClient, namespace: str, control_plane: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def conditions() -> set[str]:
        live = client.get(kinds.MODEL_ROUTERS, namespace, "front")
        return {each["type"] for each in (live.get("status") or {}).get("conditions") or ()}

    def adopt(*words: str) -> tuple[int, str]:
        where = ("-n", namespace, f"--kubeconfig={control_plane.kubeconfig}", "--force")
        code = invoke(["adopt", "modelrouter/front", *where, *words])
        return code, capsys.readouterr().out

    annotated = router("litellm", "smart")
    # Herdsman writes no status while an annotation names LLMKube.
    annotated["metadata"]["annotations"] = {"herdsman.dev/controller": "llmkube"}
    client.create(kinds.MODEL_ROUTERS, namespace, annotated)
    said = {"type": "Available", "status": "True", "reason": "DeploymentReady", "message": "", "observedGeneration": 1}
    status = {"phase": "Ready", "conditions": [{**said, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    client.patch(kinds.MODEL_ROUTERS, namespace, "front", {"status": status}, subresource="status")
    unmark = {"metadata": {"annotations": {"herdsman.dev/controller": None}}}
    client.patch(kinds.MODEL_ROUTERS, namespace, "front", unmark)
    labels = {"inference.llmkube.dev/model-router": "front"}
    proxy = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "front-router-proxy", "labels": labels}}
    client.create(kinds.SERVICES, namespace, {**proxy, "spec": {"ports": [{"port": 8080}]}})

    code, shown = adopt("--dry-run")
    assert code == 0
    assert "annotations.herdsman.dev/controller added (herdsman)" in shown
    assert "LLMKube's proxy of the router stays and answers its clients: Service front-router-proxy" in shown
    assert conditions() == {"Available"}
    assert adopt("--yes")[0] == 0
    assert {"SpecHonoured", "PolicyCompliant"} <= conditions()
    assert "a loop of class `herdsman` manages it" in adopt("--dry-run")[1]
    assert adopt("--release", "--yes")[0] == 0
    assert not {"SpecHonoured", "PolicyCompliant"} & conditions()
    client.get(kinds.SERVICES, namespace, "front-router-proxy")
