"""The parts that `kserve_form` and `llmaz_form` share: one shape for recorded, rendered and live objects."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from kubeapi.json_types import Json
from tests.conformance.flattening import SCRIPT

_APPLIED_HASH = "llmkube.ai/desired-template-hash"
"""Herdsman's annotation of the serving workload, in every dialect."""


def plain(thing: Mapping[str, Any]) -> Json:
    """Copy an object without the fields that differ between API servers, and with some defaults of the API server."""
    copied: Json = copy.deepcopy({key: value for key, value in thing.items() if key not in ("status", "apiVersion")})
    copied.pop("kind")
    metadata = copied["metadata"]
    copied["metadata"] = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    if _APPLIED_HASH in (metadata.get("annotations") or {}):
        kept = {key: value for key, value in metadata["annotations"].items() if key != _APPLIED_HASH}
        copied["metadata"]["annotations"] = kept
    if owners := metadata.get("ownerReferences"):
        # `blockOwnerDeletion` has an effect only in foreground deletions.
        left_out = ("uid", "blockOwnerDeletion")
        copied["metadata"]["ownerReferences"] = [{k: v for k, v in one.items() if k not in left_out} for one in owners]
    if thing["kind"] == "Service":
        for port in copied.get("spec", {}).get("ports", ()):
            port.setdefault("targetPort", port["port"])
    if thing["kind"] == "HorizontalPodAutoscaler":
        _without_default_policies(copied["spec"].get("behavior") or {})
    for template in pod_templates(copied):
        for container in containers_of(template):
            _container(container)
    return copied


def pod_templates(thing: Mapping[str, Any]) -> list[Json]:
    """Return the pod templates of a Deployment or LeaderWorkerSet, that of the leaders first."""
    spec = thing.get("spec") or {}
    group = spec.get("leaderWorkerTemplate") or {}
    found = (spec.get("template"), group.get("leaderTemplate"), group.get("workerTemplate"))
    return [template for template in found if isinstance(template, dict) and isinstance(template.get("spec"), dict)]


def containers_of(template: Mapping[str, Any]) -> list[Json]:
    """Return all containers of a pod template, init containers first."""
    return [*(template["spec"].get("initContainers") or ()), *(template["spec"].get("containers") or ())]


def _container(container: Json) -> None:
    tag = container.get("image", "").rpartition("/")[2].partition("@")[0].partition(":")[2]
    unpinned = "@" not in container.get("image", "") and tag in ("", "latest")
    container.setdefault("imagePullPolicy", "Always" if unpinned else "IfNotPresent")
    for field in ("command", "args"):
        if field in container:
            container[field] = [_word(word) for word in container[field] or ()]
    hook = ((container.get("lifecycle") or {}).get("preStop") or {}).get("exec")
    if hook:
        hook["command"] = [_word(word) for word in hook["command"]]


def _word(word: Any) -> Any:
    recorded = isinstance(word, dict) and "first_line" in word
    return SCRIPT if recorded or (isinstance(word, str) and word.startswith("<script ")) else word


_UP = ({"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15})
_DOWN = ({"type": "Percent", "value": 100, "periodSeconds": 15},)


def _without_default_policies(behavior: Json) -> None:
    for direction, defaults in (("scaleUp", _UP), ("scaleDown", _DOWN)):
        rules = behavior.get(direction) or {}
        if rules.get("policies") == list(defaults):
            del rules["policies"]


def conditions(status: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return status and reason of the conditions by type."""
    return {one["type"]: (one["status"], one.get("reason", "")) for one in status.get("conditions") or ()}
