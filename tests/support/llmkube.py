"""Services as LLMKube's controller created them, built from recordings (tests/conformance).

All objects are written with updates by the field manager `llmkube`, as a Go controller does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from automation.adoption.upstream_controller import LEASE
from components.priority_classes import priority_classes
from components.rendered import fingerprint_of
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists
from kubeapi.json_types import Json
from program.dialects.llmkube.parse.source import cache_key
from tests.conformance.vectors import FOLDER, Vector

MANAGER = "llmkube"
RECORDED = "http://127.0.0.1:28080/gguf"
"""The base URL of the Models in the vectors."""
FILE = "plain-7b.Q4_K_M.gguf"
_MADE = (kinds.CLAIMS, kinds.SERVICES, kinds.AUTOSCALERS, kinds.DEPLOYMENTS)


def vector(number: str) -> Vector:
    return Vector(next(FOLDER.glob(f"{number}-*.json")))


def make(
    client: KubeClient, namespace: str, recorded: Iterable[Vector], *, url: str, rename: dict[str, str] | None = None
) -> list[str]:
    """Create everything that vectors recorded in one namespace, with their Models at another URL; return the services'
    names.
    """
    for document in priority_classes():
        client.apply(kinds.PRIORITY_CLASSES, None, document, field_manager="tests", force=True)
    names: list[str] = []
    for each in recorded:
        text = json.dumps(each.raw).replace(cache_key(f"{RECORDED}/{FILE}"), cache_key(f"{url}/{FILE}"))
        text = text.replace(RECORDED, url).replace(each.namespace, namespace)
        for before, after in (rename or {}).items():
            text = text.replace(json.dumps(before), json.dumps(after))
            text = text.replace(f"//{before}.", f"//{after}.").replace(f"Service/{before}", f"Service/{after}")
        names += _make(client, namespace, json.loads(text))
    return names


def _make(client: KubeClient, namespace: str, raw: Json) -> list[str]:
    uids = {}
    for thing in raw["input"]:
        kind = kinds.MODELS if thing["kind"] == "Model" else kinds.INFERENCE_SERVICES
        name = thing["metadata"]["name"]
        with suppress(AlreadyExists):
            client.create(kind, namespace, thing, field_manager="kubectl-create")
        status = raw["output"]["status"][f"{kind.kind}/{name}"]
        for condition in status["conditions"]:
            condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        made = client.patch(kind, namespace, name, {"status": status}, subresource="status", field_manager=MANAGER)
        if kind is kinds.INFERENCE_SERVICES:
            uids[name] = made["metadata"]["uid"]
    for kind in _MADE:
        for thing in raw["output"]["objects"]:
            if thing["kind"] == kind.kind:
                with suppress(AlreadyExists):
                    client.create(kind, namespace, _object(thing, uids), field_manager=MANAGER)
    return list(uids)


def _object(thing: Json, uids: dict[str, str]) -> Json:
    """Add what the recording leaves out: uids, the hash, times."""
    made: Json = json.loads(json.dumps(thing))
    for owner in made["metadata"].get("ownerReferences", ()):
        owner["uid"] = uids[owner["name"]]
    if made["kind"] == "Deployment":
        notes = made["metadata"]["annotations"]
        notes["llmkube.ai/desired-template-hash"] = fingerprint_of(["theirs", made["spec"]["template"]])
    return made


@contextmanager
def leading(client: KubeClient, namespace: str) -> Iterator[None]:
    """Hold the Lease of LLMKube's controller, as if it ran in this cluster."""
    renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "llmkube-0", "leaseDurationSeconds": 60, "renewTime": renewed}
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}, "spec": spec}
    client.create(kinds.LEASES, namespace, body)
    yield
    client.delete(kinds.LEASES, namespace, LEASE)
