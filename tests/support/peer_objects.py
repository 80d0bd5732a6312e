"""Services as the controllers of KServe and llmaz created them, built from recordings (tests/conformance).

The controllers do not run: objects are created with their owners by updates of the controllers' field manager, and
statuses are written. Scripts and times that a recording leaves out are made up.
"""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from tests.conformance.vectors import HERE, Vector

MANAGER = "manager"
"""The field manager of controllers built with kubebuilder."""
_WHEN = "2026-01-01T00:00:00Z"
_LATER = "2036-01-01T00:00:00Z"
_INPUTS = (
    *(kinds.OPEN_MODELS, kinds.BACKEND_RUNTIMES, kinds.LLM_CONFIGS, kinds.LLM_SERVICES),
    *(kinds.PLAYGROUNDS, kinds.LLMAZ_SERVICES),
)
_COMMANDS = frozenset({"command", "args"})
_NOT_KEPT = frozenset({"x-vllm-argv", "dataKeys"})
_OLD_POOLS = "inference.networking.x-k8s.io/v1alpha2"
"""The peer's second InferencePool; these tests have no CRD for it."""


def vector(family: str, number: str) -> Vector:
    """Find a recording by its number."""
    return Vector(next((HERE / family).glob(f"{number}-*.json")))


def make(client: KubeClient, namespace: str, recorded: Vector) -> list[Json]:
    """Create everything that a vector recorded in a namespace; return the custom resources."""
    raw = json.loads(json.dumps(recorded.raw).replace(recorded.namespace, namespace).replace("<hash>", "recorded"))
    uids: dict[tuple[str, str, str], str] = {}
    made = []
    if recorded.family == "llmaz":
        for runtime in _runtimes():
            with suppress(AlreadyExists):
                client.create(kinds.BACKEND_RUNTIMES, None, runtime)
    for thing in raw["input"]:
        kind = next(each for each in _INPUTS if (each.group, each.kind) == _group_kind(thing))
        where = namespace if kind.namespaced else None
        try:
            obj = client.create(kind, where, thing, field_manager="kubectl-create")
        except AlreadyExists:
            obj = client.get(kind, where, thing["metadata"]["name"])
        _note(uids, obj)
        made.append(obj)
    waiting = [thing for thing in raw["output"]["objects"] if thing["apiVersion"] != _OLD_POOLS]
    while waiting:
        later = [thing for thing in waiting if not _owners(thing) <= uids.keys()]
        assert len(later) < len(waiting), f"nobody owns {later}"
        for thing in waiting:
            if thing not in later:
                _note(uids, _create(client, namespace, thing, uids))
        waiting = later
    return [_with_status(client, each, raw["output"].get("status") or {}) for each in made]


def _create(client: KubeClient, namespace: str, thing: Json, uids: dict[tuple[str, str, str], str]) -> Json:
    obj: Json = _settled(thing)
    for owner in obj["metadata"].get("ownerReferences", ()):
        owner["uid"] = uids[_identity(owner["apiVersion"], owner["kind"], owner["name"])]
    if obj["kind"] == kinds.SECRETS.kind:
        obj["data"] = {key: base64.b64encode(b"recorded").decode() for key in thing["dataKeys"]}
        obj["metadata"]["annotations"] = {"certificates.kserve.io/expiration": _LATER}
    kind: Kind = client.mapping(obj["apiVersion"], obj["kind"])
    where = namespace if kind.namespaced else None
    try:
        return client.create(kind, where, obj, field_manager=MANAGER)
    except AlreadyExists:
        return client.get(kind, where, obj["metadata"]["name"])


def _with_status(client: KubeClient, obj: Json, statuses: dict[str, Json]) -> Json:
    group, kind = _group_kind(obj)
    known = next(each for each in _INPUTS if (each.group, each.kind) == (group, kind))
    told = statuses.get(f"{kind}/{obj['metadata']['name']}") or statuses.get(
        f"{kind}.{group}/{obj['metadata']['name']}"
    )
    if told is None:
        return obj
    status = {key: value for key, value in told.items() if key != "annotations"}
    for condition in status.get("conditions", ()):
        condition["lastTransitionTime"] = _WHEN
    where = obj["metadata"].get("namespace")
    body = {"status": status}
    return client.patch(known, where, obj["metadata"]["name"], body, subresource="status", field_manager=MANAGER)


def _settled(value: Any, field: str = "") -> Any:
    """Add what a recording leaves out; it abbreviates scripts and configurations."""
    if isinstance(value, dict):
        return {key: _settled(each, key) for key, each in value.items() if key not in _NOT_KEPT}
    if isinstance(value, list):
        return [json.dumps(each) if field in _COMMANDS and isinstance(each, dict) else _settled(each) for each in value]
    return value


def _runtimes() -> list[Json]:
    loaded = json.loads((HERE / "llmaz" / "fixtures" / "backendruntimes.json").read_text())
    found: list[Json] = loaded if isinstance(loaded, list) else loaded["items"]
    return found


def _owners(thing: Json) -> set[tuple[str, str, str]]:
    references = thing["metadata"].get("ownerReferences", ())
    return {_identity(each["apiVersion"], each["kind"], each["name"]) for each in references}


def _note(uids: dict[tuple[str, str, str], str], obj: Json) -> None:
    uids[_identity(obj["apiVersion"], obj["kind"], obj["metadata"]["name"])] = obj["metadata"]["uid"]


def _identity(api_version: str, kind: str, name: str) -> tuple[str, str, str]:
    return api_version.rpartition("/")[0], kind, name


def _group_kind(obj: Json) -> tuple[str, str]:
    return str(obj["apiVersion"]).rpartition("/")[0], str(obj["kind"])
