"""The loop reports on KServe's base configs whether they are valid and who uses them, and releases unused ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists, NotFound
from tests.support import dialects
from tests.support.loop import LoopProcess, eventually, find

pytestmark = pytest.mark.soak

FINALIZER = "serving.kserve.io/llmisvcconfig-finalizer"
TOLD = {"herdsman.dev/controller": "herdsman"}
REST_S = 3.0
"""Seconds after which the loop has written all statuses that it still had to write."""


@pytest.fixture(scope="module")
def cluster(
    client: KubeClient, loop_kubeconfig: Path, pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KubeClient]:
    dialects.install(client, "kserve")
    process = LoopProcess(loop_kubeconfig, tmp_path_factory.mktemp("loop"), environment=dialects.QUICK)
    try:
        process.start()
        yield client
    finally:
        if process.poll() is None:
            process.stop()
        for each in client.list(kinds.LLM_CONFIGS)["items"]:
            where, name = each["metadata"]["namespace"], each["metadata"]["name"]
            with suppress(NotFound):  # the namespaces of the tests are being deleted
                client.patch(kinds.LLM_CONFIGS, where, name, {"metadata": {"finalizers": []}})
        dialects.uninstall(client, "kserve")


def config(client: KubeClient, namespace: str, name: str, *args: str, **metadata: Any) -> None:
    body = {
        "apiVersion": kinds.LLM_CONFIGS.api_version,
        "kind": "LLMInferenceServiceConfig",
        "metadata": {"name": name, **metadata},
        "spec": {"template": {"containers": [{"name": "main", "args": list(args)}]}},
    }
    client.create(kinds.LLM_CONFIGS, namespace, body)


def service(client: KubeClient, namespace: str, name: str, *configs: str) -> None:
    """Create a stopped service: its objects are created from its configs, but no pod runs."""
    body = {
        "apiVersion": kinds.LLM_SERVICES.api_version,
        "kind": "LLMInferenceService",
        "metadata": {"name": name, "annotations": {"serving.kserve.io/stop": "true"}},
        "spec": {"model": {"uri": "hf://acme/tiny"}, "baseRefs": [{"name": each} for each in configs]},
    }
    client.create(kinds.LLM_SERVICES, namespace, body)


def refer(client: KubeClient, namespace: str, name: str, *configs: str) -> None:
    client.patch(kinds.LLM_SERVICES, namespace, name, {"spec": {"baseRefs": [{"name": each} for each in configs]}})


def reasons(client: KubeClient, namespace: str, name: str) -> dict[str, str]:
    found = (client.get(kinds.LLM_CONFIGS, namespace, name).get("status") or {}).get("conditions") or ()
    return {each["type"]: each.get("reason", "") for each in found}


def users(client: KubeClient, namespace: str, name: str) -> list[str]:
    status = client.get(kinds.LLM_CONFIGS, namespace, name).get("status") or {}
    return [f"{each['namespace']}/{each['name']}" for each in status.get("referencedBy") or ()]


def await_reasons(client: KubeClient, namespace: str, name: str, ready: str, in_use: str) -> None:
    def look() -> bool:
        told = reasons(client, namespace, name)
        return (told.get("Ready"), told.get("ConfigInUse")) == (ready, in_use)

    try:
        eventually(look, what=f"{name} to be {ready}, {in_use}", timeout_s=60)
    except AssertionError as error:
        raise AssertionError(f"{error}: {client.get(kinds.LLM_CONFIGS, namespace, name)}") from None


def await_gone(client: KubeClient, namespace: str, name: str) -> None:
    gone = lambda: find(client, kinds.LLM_CONFIGS, namespace, name) is None  # noqa: E731
    eventually(gone, what=f"{name} to be gone", timeout_s=60)


def versions(client: KubeClient, namespace: str) -> dict[str, str]:
    found = client.list(kinds.LLM_CONFIGS, namespace)["items"]
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in found}


def test_configs_say_who_uses_them(cluster: KubeClient, namespace: str) -> None:
    client = cluster
    config(client, namespace, "used", "--x={{ .Spec.Model.Name }}")
    config(client, namespace, "unused")
    config(client, namespace, "wrong", "{{ .NoSuchThing }}")
    config(client, namespace, "theirs", finalizers=[FINALIZER])
    service(client, namespace, "one", "used", "theirs")
    service(client, namespace, "two", "used")
    await_reasons(client, namespace, "used", "ConfigValid", "InUse")
    await_reasons(client, namespace, "unused", "ConfigValid", "NotInUse")
    await_reasons(client, namespace, "wrong", "InvalidRenderedConfig", "NotInUse")
    eventually(
        lambda: users(client, namespace, "used") == [f"{namespace}/one", f"{namespace}/two"], what="both services"
    )

    time.sleep(REST_S)
    before = versions(client, namespace)
    # A change of a service that leaves its references alone does not touch its configs.
    client.patch(kinds.LLM_SERVICES, namespace, "one", {"metadata": {"labels": {"a": "b"}}, "spec": {"replicas": 2}})
    time.sleep(REST_S)
    assert versions(client, namespace) == before
    assert "status" not in client.get(kinds.LLM_CONFIGS, namespace, "theirs"), "no annotation asks the loop to adopt it"

    fixed = {"spec": {"template": {"containers": [{"name": "main", "args": []}]}}}
    client.patch(kinds.LLM_CONFIGS, namespace, "wrong", fixed)
    refer(client, namespace, "two", "wrong")
    await_reasons(client, namespace, "wrong", "ConfigValid", "InUse")
    eventually(lambda: users(client, namespace, "used") == [f"{namespace}/one"], what="the other to be forgotten")
    client.delete(kinds.LLM_SERVICES, namespace, "one")
    await_reasons(client, namespace, "used", "ConfigValid", "NotInUse")
    assert users(client, namespace, "used") == []

    # With this annotation on the namespace, the loop takes over the config of KServe's controller.
    client.patch(kinds.NAMESPACES, None, namespace, {"metadata": {"annotations": TOLD}})
    await_reasons(client, namespace, "theirs", "ConfigValid", "NotInUse")
    client.delete(kinds.LLM_CONFIGS, namespace, "theirs")
    await_gone(client, namespace, "theirs")


def test_a_config_that_kserve_held_goes_once_nobody_uses_it(cluster: KubeClient, namespace: str) -> None:
    client = cluster
    config(client, namespace, "told", finalizers=[FINALIZER], annotations=TOLD)
    config(client, namespace, "held", finalizers=[FINALIZER])
    service(client, namespace, "one", "told")
    theirs = {"type": "ConfigInUse", "status": "True", "reason": "InUse", "message": "x", "severity": "Info"}
    status = {"status": {"conditions": [theirs, {"type": "Ready", "status": "True"}]}}
    client.patch(kinds.LLM_CONFIGS, namespace, "told", status, subresource="status")
    for name in ("told", "held"):
        client.delete(kinds.LLM_CONFIGS, namespace, name)
    await_reasons(client, namespace, "told", "ConfigValid", "DeletionBlocked")
    told = client.get(kinds.LLM_CONFIGS, namespace, "told")["status"]["conditions"]
    assert f"{namespace}/one" in next(each["message"] for each in told if each["type"] == "ConfigInUse")

    refer(client, namespace, "one")
    await_gone(client, namespace, "told")
    held = client.get(kinds.LLM_CONFIGS, namespace, "held")
    assert held["metadata"]["finalizers"] == [FINALIZER]
    assert "status" not in held
    client.patch(kinds.LLM_CONFIGS, namespace, "held", {"metadata": {"finalizers": []}})


def test_a_config_goes_before_one_of_the_same_name_in_kserve(cluster: KubeClient, namespace: str) -> None:
    client, name = cluster, f"shared-{namespace}"
    with suppress(AlreadyExists):
        kserve = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kserve"}}
        client.create(kinds.NAMESPACES, None, kserve)
    service(client, namespace, "one", name)
    config(client, "kserve", name)
    eventually(lambda: users(client, "kserve", name) == [f"{namespace}/one"], what="the common one to be in use")
    config(client, namespace, name)
    await_reasons(client, "kserve", name, "ConfigValid", "NotInUse")
    eventually(lambda: users(client, namespace, name) == [f"{namespace}/one"], what="its own to be in use")
    client.delete(kinds.LLM_CONFIGS, namespace, name)
    await_reasons(client, "kserve", name, "ConfigValid", "InUse")
    client.delete(kinds.LLM_CONFIGS, "kserve", name)
