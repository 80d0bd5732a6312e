"""`herdsman preview -f` of ModelRouters, ModelPools and LoRAAdapters on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from automation.cli.main import invoke
from automation.preview.live import Live
from automation.preview.lookup import PreviewLookup
from automation.preview.rendering import Subject, render_subject
from components.render import RenderOptions
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support import controlplane, previews
from tests.support.definitions import install_crds
from tools.localcluster import LocalCluster


@pytest.fixture(scope="module")
def plane() -> Iterator[LocalCluster]:
    """An API server without controllers."""
    with controlplane.running(("etcd", "kube-apiserver")) as cluster:
        install_crds(controlplane.Api(cluster))
        yield cluster


def resource(kind: str, resource_name: str, /, **spec: Any) -> Json:
    return {
        "apiVersion": kinds.MODEL_ROUTERS.api_version,
        "kind": kind,
        "metadata": {"name": resource_name},
        "spec": spec,
    }


def router(model: str, **spec: Any) -> Json:
    backend = {"provider": "openai", "model": model, "credentialsSecretRef": {"name": "openai"}}
    backends = [{"name": "cloud", "displayName": "smart", "external": backend}]
    return resource("ModelRouter", "front", backends=backends, **{"defaultRoute": "cloud", **spec})


POOL = resource("ModelPool", "gpu", members=[{"inferenceServiceRef": {"name": name}} for name in ("a", "b")])
ADAPTER = resource("LoRAAdapter", "sql", inferenceServiceRef={"name": "a"}, name="sql", path="/adapters/sql")


def test_resources_are_validated_compared_and_explained(
    plane: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = KubeClient.from_kubeconfig(str(plane.kubeconfig))
    with controlplane.Api(plane).namespace() as namespace:

        def show(*documents: Json) -> tuple[int, Json]:
            (tmp_path / "files.yaml").write_text(yaml.safe_dump_all(documents))
            words = ["-f", str(tmp_path / "files.yaml"), "-n", namespace, f"--kubeconfig={plane.kubeconfig}"]
            code = invoke(["preview", *words, "-o", "json"])
            return code, json.loads(capsys.readouterr().out)

        code, found = show(router("gpt-4o"), POOL, ADAPTER)
        assert code == 2
        assert (found["errors"], found["summary"]["create"]) == ([], 3)
        by_kind = {each["kind"]: each for each in found["resources"]}
        assert {each["op"] for each in by_kind.values()} == {"create"}
        assert f"/routers/{namespace}/front/v1" in by_kind["ModelRouter"]["effects"][0]
        assert "there is no Secret `openai`" in by_kind["ModelRouter"]["warnings"][0]
        assert "there is no InferenceService `b`" in " ".join(by_kind["ModelPool"]["warnings"])
        assert "there is no InferenceService `a`" in by_kind["LoRAAdapter"]["warnings"][0]
        assert client.list(kinds.MODEL_ROUTERS, namespace)["items"] == []

        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "openai"}, "stringData": {"k": "hunter2"}}
        client.create(kinds.SECRETS, namespace, secret)
        for kind, document in ((kinds.MODEL_ROUTERS, router("gpt-4o")), (kinds.MODEL_POOLS, POOL)):
            client.apply(kind, namespace, document, field_manager="kubectl")
        code, found = show(router("gpt-4o"), POOL)
        assert (code, [each["op"] for each in found["resources"]]) == (0, ["same", "same"])
        code, found = show(router("gpt-5"))
        [changed] = found["resources"]
        assert (code, changed["op"], changed["warnings"]) == (2, "update", [])
        assert changed["fields"] == ["backends[cloud].external.model gpt-4o -> gpt-5"]
        assert changed["notes"] == []

        held = router("gpt-5")
        held["metadata"]["annotations"] = {"herdsman.dev/mode": "Preview"}
        until = "mode {}: the version in use stays in use until {}"
        approve = f"`herdsman approve modelrouter/front -n {namespace}`"
        assert show(held)[1]["resources"][0]["notes"] == [until.format("Preview", approve)]
        paused = {"metadata": {"annotations": {"herdsman.dev/mode": "Paused"}}}
        client.patch(kinds.NAMESPACES, None, namespace, paused)
        shown = {each["kind"]: each["notes"] for each in show(router("gpt-5"), POOL)[1]["resources"]}
        assert shown == {"ModelRouter": [until.format("Paused", "the mode is changed")], "ModelPool": []}
        held["metadata"]["annotations"] = {"herdsman.dev/mode": "Preveiw"}
        code, found = show(held)
        assert code == 1
        assert "Preveiw" in found["resources"][0]["problem"]["message"]
        client.patch(kinds.NAMESPACES, None, namespace, {"metadata": {"annotations": {"herdsman.dev/mode": None}}})

        code, found = show(router("gpt-4o", defaultRoute="none"))
        assert code == 1
        assert found["resources"][0]["problem"]["field"] == "spec.defaultRoute"
        code, found = show(resource("ModelPool", "gpu", members=[]), router("gpt-4o", unknown=1))
        assert code == 1
        assert any("ModelPool `gpu`" in error and "spec.members" in error for error in found["errors"])
        assert any("unknown" in error for error in found["errors"])


def test_a_file_is_deployed_after_a_dry_run(
    plane: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = KubeClient.from_kubeconfig(str(plane.kubeconfig))
    with controlplane.Api(plane).namespace() as namespace:
        file = tmp_path / "front.yaml"
        file.write_text(yaml.safe_dump_all([router("gpt-4o"), POOL]))
        words = ["deploy", str(file), "-n", namespace, f"--kubeconfig={plane.kubeconfig}"]
        assert invoke([*words, "--dry-run"]) == 2
        shown = capsys.readouterr().out
        assert f"ModelRouter {namespace}/front  1 to create" in shown
        assert "2 resources would change (2 to create)" in shown
        assert invoke([*words, "-o", "yaml"]) == 0
        printed = yaml.safe_load_all(capsys.readouterr().out)
        assert [each["kind"] for each in printed] == ["ModelRouter", "ModelPool"]
        assert client.list(kinds.MODEL_ROUTERS, namespace)["items"] == []
        assert invoke(words) == 0
        assert invoke([*words, "--dry-run"]) == 0
        assert invoke([*words, "--dry-run", "--replicas", "2"]) != 0
        file.write_text(yaml.safe_dump(router("gpt-4o", defaultRoute="none")))
        assert invoke(words) == 1
        assert "ModelRouter `front`: spec.defaultRoute" in capsys.readouterr().err
        file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}))
        capsys.readouterr()
        assert invoke(words) == 1
        assert "ConfigMap `other`" in capsys.readouterr().err


def test_a_service_is_shown_without_adapters_that_a_policy_denies_or_that_wait_for_an_approval(
    plane: LocalCluster,
) -> None:
    client = KubeClient.from_kubeconfig(str(plane.kubeconfig))
    with controlplane.Api(plane).namespace() as namespace:
        previews.apply_model(client, namespace, previews.model_cr())
        service = previews.service_cr(runtime="vllm", image="vllm:1", resources={"gpu": 1})
        service["metadata"]["namespace"] = namespace
        spec = {"inferenceServiceRef": {"name": service["metadata"]["name"]}, "name": "sql"}
        adapter = resource("LoRAAdapter", "sql", **spec, source="hf://org/sql-lora")
        made = client.apply(kinds.LORA_ADAPTERS, namespace, adapter, field_manager="kubectl")

        def said(kind: str, reason: str, status: str = "False") -> Json:
            at = {"lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": made["metadata"]["generation"]}
            return {"type": kind, "status": status, "reason": reason, "message": "", **at}

        def shown(status: Json) -> tuple[bool, tuple[str, ...]]:
            client.patch(kinds.LORA_ADAPTERS, namespace, "sql", {"status": status}, subresource="status")
            subject = Subject(service, PreviewLookup(client))
            found = render_subject(subject, Live(client, map), options=RenderOptions())
            assert found.rendered is not None, found
            return "sql-lora" in json.dumps([each.manifest for each in found.rendered.objects]), found.notes

        assert shown({"conditions": []})[0]
        has_it, notes = shown({"conditions": [said("PolicyCompliant", "PolicyViolated")]})
        assert not has_it and "LoRAAdapter `sql` is left out, because a policy denies it" in notes
        assert not shown({"conditions": [said("ChangePending", "AwaitingApproval", "True")]})[0]


def test_changes_that_wait_for_an_approval_are_shown(plane: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    client = KubeClient.from_kubeconfig(str(plane.kubeconfig))
    with controlplane.Api(plane).namespace() as namespace:
        where = ["-n", namespace, f"--kubeconfig={plane.kubeconfig}"]
        for kind, document in ((kinds.MODEL_POOLS, POOL), (kinds.LORA_ADAPTERS, ADAPTER)):
            client.apply(kind, namespace, document, field_manager="kubectl")

        def show(*words: str) -> tuple[int, Json]:
            code = invoke(["preview", *words, *where, "-o", "json"])
            return code, json.loads(capsys.readouterr().out)

        code, found = show("--live", "modelpool/gpu", "--live", "loraadapter/sql")
        assert (code, [each["op"] for each in found["resources"]]) == (0, ["same", "same"])
        pending = {"type": "ChangePending", "status": "True", "reason": "AwaitingApproval", "message": "approve it"}
        held = [{**pending, "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}]
        accepted = {"generation": 1, "spec": {**ADAPTER["spec"], "path": "/adapters/old"}}
        status = {"conditions": held, "acceptedVersion": accepted, "pendingChange": {"digest": "abc123"}}
        client.patch(kinds.LORA_ADAPTERS, namespace, "sql", {"status": status}, subresource="status")
        body = {"status": {"conditions": held, "pendingChange": {"digest": "def456"}}}
        client.patch(kinds.MODEL_POOLS, namespace, "gpu", body, subresource="status")
        code, found = show("--all")
        assert code == 2
        assert {each["kind"]: (each["op"], each["digest"], each["fields"]) for each in found["resources"]} == {
            "LoRAAdapter": ("update", "abc123", ["path /adapters/old -> /adapters/sql"]),
            "ModelPool": ("create", "def456", []),
        }
        assert f"LoRAAdapter {namespace}/sql: approve it" in found["notes"]
        words = ["approve", "loraadapter/sql", "--digest", "abc123", "--timeout", "1", *where]
        assert invoke(words) == 1, "no loop runs"
        told = capsys.readouterr().err
        assert "AwaitingApproval: approve it" in told and "`herdsman preview --live loraadapter/sql`" in told
        code, found = show("--live", "modelrouter/none")
        assert (code, found["errors"]) == (1, [f"no ModelRouter `none` in namespace `{namespace}`"])
