"""Converts KServe's objects, recorded and actual, to one form for the comparison.

Differences that every case would otherwise need a correction for are handled here once:
- Herdsman makes only InferencePools of v1. The recorded pools of the older group are left out, the older group in
  recorded routes is replaced by v1, and the peer's annotation about its migration to v1 is left out.
- The endpoint picker and the routing sidecar get no empty arguments. The peer passes some where TLS is off.
- The address of a service without a route has a port. The recorded address has none, so it gets `:8000`.
- The routing sidecar always has a seccompProfile. The peer sets it only in groups, not in single decoding pods.
- The peer's annotation about the renewal of a certificate is left out, since Herdsman uses another one.
- The names of pinned presets in `status.annotations` are left out; the peer needs them for upgrades of its presets.
- The reason of a condition is compared where the recording has one. Its message is never compared.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from kubeapi.json_types import Json
from program.desired.workloads import Certificate
from tests.conformance.flattening import SLASHES, Flat, flatten
from tests.conformance.forms import conditions, containers_of, plain, pod_templates
from tests.conformance.start_scripts import vllm_arguments
from tests.conformance.vectors import Vector

OLD_GROUP, GROUP = "inference.networking.x-k8s.io", "inference.networking.k8s.io"
_MIGRATED = "serving.kserve.io/inference-pool-migrated"
_EXPIRY = "certificates.kserve.io/expiration"
_ARGV = "x-vllm-argv"
_ROUTERS = ("/app/epp", "/app/pd-sidecar")
_WORKLOAD_ADDRESS = re.compile(r"^https?://[^/]+-workload-svc\.[^/:]+$")

_CONDITIONS = frozenset(
    (
        *("Ready", "PresetsCombined", "WorkloadsReady", "RouterReady"),
        *("MainWorkloadReady", "WorkerWorkloadReady", "PrefillWorkloadReady", "PrefillWorkerWorkloadReady"),
        *("ScalingReady", "PrefillScalingReady", "GatewaysReady", "HTTPRoutesReady", "InferencePoolReady"),
        *("SchedulerWorkloadReady", "TokenizerReady", "GroupReady", "GroupDegraded", "ConfigInUse"),
    )
)
_FIELDS = ("url", "addresses", "router", "workloads", "appliedConfigs")


def certificate_secret(certificate: Certificate, owner: Mapping[str, Any]) -> Json:
    """Return the Secret that the loop makes for a certificate, in the form of the vectors, for offline comparisons."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": certificate.secret,
            "labels": certificate.labels,
            "ownerReferences": [dict(owner)],
        },
        "type": "kubernetes.io/tls",
        "dataKeys": ["ca.crt", "tls.crt", "tls.key"],
    }


def flat_objects(vector: Vector, expected: list[Json], actual: list[Json]) -> tuple[Flat, Flat]:
    """Convert recorded and actual objects to the form of this module, and flatten both."""
    secrets = any(thing["kind"] == "Secret" for thing in actual)
    wanted: Flat = {}
    argued: dict[str, bool] = {}
    for thing in translated(expected):
        if thing["kind"] == "Secret" and not secrets:
            continue
        form = _form(thing)
        argued[_root(thing)] = any(_ARGV in container for container in _containers(form))
        wanted.update(flatten(form, _root(thing), SLASHES))
    found: Flat = {}
    for thing in actual:
        form = _form(thing)
        if argued.get(_root(thing)):
            for container in _containers(form):
                if (handed := vllm_arguments(container)) is not None:
                    container[_ARGV] = handed
        found.update(flatten(form, _root(thing), SLASHES))
    return wanted, found


def _root(thing: Mapping[str, Any]) -> str:
    return f"{thing['kind']}/{thing['metadata']['name']}"


def _containers(form: Json) -> list[Json]:
    return [container for template in pod_templates(form) for container in containers_of(template)]


def _form(thing: Json) -> Json:
    form = plain(thing)
    annotations = form["metadata"].get("annotations") or {}
    for remembered in (_MIGRATED, _EXPIRY):
        annotations.pop(remembered, None)
    if thing["kind"] == "Secret":
        form["dataKeys"] = sorted(thing.get("dataKeys") or form.pop("data", {}))
    for container in _containers(form):
        container.update({field: _parsed(container[field]) for field in ("args", "command") if field in container})
    return form


def _parsed(words: list[Any]) -> list[Any]:
    """Parse the endpoint picker's configuration: the YAML in the argument after `--config-text`."""
    after = words.index("--config-text") + 1 if "--config-text" in words else len(words)
    if after >= len(words):
        return words
    text = words[after]
    said = text["yaml"] if isinstance(text, dict) else yaml.safe_load(text)
    return [*words[:after], said, *words[after + 1 :]]


def translated(things: Iterable[Json]) -> list[Json]:
    """Return the recorded objects without pools of the older group, and corrected as the module's docstring lists."""
    return [_translated(thing) for thing in things if not thing["apiVersion"].startswith(OLD_GROUP)]


def _translated(thing: Json) -> Json:
    thing = copy.deepcopy(thing)
    if thing["kind"] == "HTTPRoute":
        for rule in thing["spec"].get("rules", ()):
            for backend in rule.get("backendRefs", ()):
                if backend.get("group") == OLD_GROUP:
                    backend["group"] = GROUP
    for container in _containers(thing):
        if container.get("name") == "llm-d-routing-sidecar":
            container["securityContext"].setdefault("seccompProfile", {"type": "RuntimeDefault"})
        if container.get("command") and container["command"][0] in _ROUTERS:
            # The sidecar forwards requests only to pods of the pool that it watches, and Herdsman makes only v1 pools.
            words = (word.replace(OLD_GROUP, GROUP) for word in container["command"])
            container["command"] = [word for word in words if word != ""]
    return thing


def translated_statuses(statuses: Mapping[str, Json]) -> dict[str, Json]:
    """Return the recorded statuses with the port added to the addresses of Services."""
    corrected = copy.deepcopy(dict(statuses))
    for status in corrected.values():
        for address in status.get("addresses") or ():
            if _WORKLOAD_ADDRESS.match(address.get("url", "")):
                address["url"] += ":8000"
    return corrected


def flat_statuses(vector: Vector, expected: Mapping[str, Json], actual: Mapping[str, Json]) -> tuple[Flat, Flat]:
    """Flatten recorded and actual statuses: the fields in `_FIELDS`, and the conditions that the peer has."""
    wanted, found = _statuses(translated_statuses(expected)), _statuses(actual)
    for path, value in list(wanted.items()):
        if path.endswith("/reason") and not value:
            # In the recordings most True conditions have no reason. Herdsman's have one, as Kubernetes requires.
            del wanted[path]
            found.pop(path, None)
    return wanted, {path: value for path, value in found.items() if not path.endswith("/reason") or path in wanted}


def _statuses(statuses: Mapping[str, Json]) -> Flat:
    flat: Flat = {}
    for name, status in statuses.items():
        root = f"{name}/status"
        told = {field: status[field] for field in _FIELDS if status.get(field)}
        flat.update({path: value for path, value in flatten(told, root, SLASHES).items() if path != root})
        for type_, (truth, reason) in conditions(status).items():
            if type_ in _CONDITIONS:
                flat[f"{root}/conditions/{type_}/status"] = truth
                flat[f"{root}/conditions/{type_}/reason"] = reason
    return flat
