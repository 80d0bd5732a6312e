"""The API server's managedFields of list items, with characters that Go escapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from automation.drift.field_drift import owned_text
from components import naming
from components.providers.kubernetes_ownership import drift, unowned, writer_of
from kubeapi import kinds
from kubeapi.client import KubeClient

PATHS = ("/data/R&D", "/data/<new>", "/data/ü/\U0001f999", "/data/line\u2028", '/data/"quoted"')


@pytest.fixture(scope="module")
def client(kubeconfig: Path) -> KubeClient:
    return KubeClient.from_kubeconfig(str(kubeconfig))


def workload(*, read_only: bool) -> dict[str, Any]:
    mounts = [{"name": "data", "mountPath": path, "readOnly": read_only} for path in PATHS]
    container = {"name": "main", "image": "registry.example/server:1", "volumeMounts": mounts}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "odd-paths"},
        "spec": {
            "selector": {"matchLabels": {"app": "odd"}},
            "template": {
                "metadata": {"labels": {"app": "odd"}, "finalizers": ["example.dev/one"]},
                "spec": {"containers": [container], "volumes": [{"name": "data", "emptyDir": {}}]},
            },
        },
    }


def test_paths_with_characters_that_go_escapes_are_compared(client: KubeClient, namespace: str) -> None:
    wanted = workload(read_only=True)
    live = client.apply(kinds.DEPLOYMENTS, namespace, wanted, field_manager=naming.FIELD_MANAGER)
    assert drift(wanted, live, naming.FIELD_MANAGER) == []
    assert owned_text(live)
    client.apply(kinds.DEPLOYMENTS, namespace, workload(read_only=False), field_manager="somebody", force=True)
    live = client.get(kinds.DEPLOYMENTS, namespace, "odd-paths")
    found = drift(wanted, live, naming.FIELD_MANAGER)
    mounts = ("spec", "template", "spec", "containers", 0, "volumeMounts")
    assert [each.path for each in found] == [(*mounts, at, "readOnly") for at in range(len(PATHS))]
    for each in found:
        writer = writer_of(live, wanted, each.path, naming.FIELD_MANAGER)
        assert writer is not None
        assert writer.manager == "somebody"
    fields = next(e for e in live["metadata"]["managedFields"] if e["manager"] == naming.FIELD_MANAGER)["fieldsV1"]
    assert {each.path for each in found} <= set(unowned(wanted, fields))
