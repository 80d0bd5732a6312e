"""Flattens objects of any kind to `path -> value`, without the defaults of the API server and of webhooks.

KServe's vectors write an item of a list as `containers/main/image`, llmaz's as `containers[model-runner]/image`. The
patterns of their defects use the same notation. This module knows no other difference between the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kubeapi.json_types import Json

Flat = dict[str, Any]

SCRIPT = "<script>"
"""Replaces a shell script. Scripts are not compared as text; other tests run Herdsman's scripts."""
OURS = "herdsman.dev/"
"""Prefix of labels, annotations and selectors that users of the peers do not use."""


@dataclass(frozen=True)
class Notation:
    """How the vectors of a peer write an item of a list after the path of the list."""

    item: Callable[[str], str]


BRACKETS = Notation(lambda label: f"[{label}]")
SLASHES = Notation(lambda label: f"/{label}")


def flatten(thing: Mapping[str, Any], root: str, notation: Notation) -> Flat:
    """Flatten an object below the path `root`; the path `root` itself means that the object exists."""
    walk = _Walk(notation)
    for key, value in thing.items():
        walk.into(f"{root}/{key}", f"{root}/{key}", key, value)
    return {root: "present", **walk.flat}


class _Walk:
    def __init__(self, notation: Notation) -> None:
        self.flat: Flat = {}
        self._notation = notation

    def into(self, shown: str, plain: str, key: str, value: Any) -> None:
        """Flatten a value; `shown` is its path in the notation of the vectors, `plain` its path with slashes only."""
        if isinstance(value, dict) and value:
            for inner, nested in value.items():
                if not inner.startswith(OURS):
                    self.into(f"{shown}/{inner}", f"{plain}/{inner}", inner, nested)
        elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value) and key != "command":
            for label, entry in _labelled(key, value):
                item = f"/{label}" if label.isdigit() else self._notation.item(label)
                self.into(f"{shown}{item}", f"{plain}/{label}", "", entry)
        elif value == {} and key == "emptyDir":
            self.flat[shown] = {}
        elif value not in ({}, [], None) and not _is_default(plain, value):
            self.flat[shown] = _normal(plain, value)


def _labelled(key: str, entries: list[Json]) -> list[tuple[str, Json]]:
    """Return each item of a list with its name, so that the order does not matter, or else with its index."""
    names = [_label(key, entry) for entry in entries]
    if key == "addresses" or not all(names):
        return [(str(index), entry) for index, entry in enumerate(entries)]
    counts: dict[str, int] = {}
    labelled = []
    for name, entry in sorted(zip(names, entries, strict=True), key=lambda pair: (pair[0], str(pair[1]))):
        counts[name] = counts.get(name, 0) + 1
        labelled.append((name if counts[name] == 1 else f"{name}#{counts[name]}", entry))
    return labelled


def _label(key: str, entry: Json) -> str:
    if key == "conditions":
        return str(entry.get("type", ""))
    for field in ("name", "type", *(("containerPort", "port") if key == "ports" else ())):
        if field in entry:
            return str(entry[field])
    return ""


# --- Values -----------------------------------------------------------------------------------------------------------

_QUANTITIES = re.compile(r"/(resources/(limits|requests)|flavors/[^/]+/limits)/|/sizeLimit$|/storage$")


def _normal(path: str, value: Any) -> Any:
    return str(value) if _QUANTITIES.search(path) else value


def same(expected: Any, actual: Any) -> bool:
    """Return whether two values are equivalent; a recorded script matches any script."""
    if expected == SCRIPT and isinstance(actual, str):
        return actual == SCRIPT or " " in actual
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        return all(same(one, other) for one, other in zip(expected, actual, strict=True))
    return bool(expected == actual)


_POD = r"/(initContainers|containers)/[^/]+"
_DEFAULTS: tuple[tuple[re.Pattern[str], tuple[Any, ...]], ...] = tuple(
    (re.compile(pattern), values)
    for pattern, values in (
        (r"^(Deployment|LeaderWorkerSet)/[^/]+/spec/replicas$", (1,)),
        (r"^Deployment/[^/]+/spec/revisionHistoryLimit$", (10,)),
        (r"^Deployment/[^/]+/spec/progressDeadlineSeconds$", (600,)),
        (r"^Deployment/[^/]+/spec/strategy/type$", ("RollingUpdate",)),
        (r"^Deployment/[^/]+/spec/strategy/rollingUpdate/max(Surge|Unavailable)$", ("25%",)),
        (r"/spec/leaderWorkerTemplate/size$", (1,)),
        (r"/spec/leaderWorkerTemplate/restartPolicy$", ("RecreateGroupOnPodRestart",)),
        (r"^LeaderWorkerSet/[^/]+/spec/startupPolicy$", ("LeaderCreated",)),
        (r"^LeaderWorkerSet/[^/]+/spec/networkConfig/subdomainPolicy$", ("Shared",)),
        (r"/rolloutStrategy/type$", ("RollingUpdate",)),
        (r"/rolloutStrategy/rollingUpdateConfiguration/(maxUnavailable)$", (1,)),
        (r"/rolloutStrategy/rollingUpdateConfiguration/(maxSurge|partition)$", (0,)),
        (r"/metadata/creationTimestamp$", (None,)),
        (r"emplate/spec/restartPolicy$", ("Always",)),
        (r"emplate/spec/terminationGracePeriodSeconds$", (30,)),
        (r"emplate/spec/dnsPolicy$", ("ClusterFirst",)),
        (r"emplate/spec/schedulerName$", ("default-scheduler",)),
        (r"emplate/spec/serviceAccount$", None),  # the old name of serviceAccountName, which the API server also sets
        (r"/volumes/[^/]+/(configMap|secret|projected|downwardAPI)/defaultMode$", (420,)),
        (r"/volumes/[^/]+/hostPath/type$", ("",)),
        (r"/volumes/[^/]+/image/pullPolicy$", ("IfNotPresent",)),
        (r"/volumeClaimTemplate/spec/volumeMode$", ("Filesystem",)),
        (_POD + r"/terminationMessagePath$", ("/dev/termination-log",)),
        (_POD + r"/terminationMessagePolicy$", ("File",)),
        (_POD + r"/ports/[^/]+/protocol$", ("TCP",)),
        (r"Probe/successThreshold$", (1,)),
        (r"Probe/failureThreshold$", (3,)),
        (r"Probe/periodSeconds$", (10,)),
        (r"Probe/timeoutSeconds$", (1,)),
        (r"/httpGet/scheme$", ("HTTP",)),
        (r"Probe/grpc/service$", ("",)),
        (r"/fieldRef/apiVersion$", ("v1",)),
        (r"/resourceFieldRef/divisor$", ("0", 0)),
        (r"^Service/[^/]+/spec/type$", ("ClusterIP",)),
        (r"^Service/[^/]+/spec/sessionAffinity$", ("None",)),
        (r"^Service/[^/]+/spec/(ipFamilies|clusterIPs?|ipFamilyPolicy|internalTrafficPolicy)$", None),
        (r"^Service/[^/]+/spec/ports/[^/]+/protocol$", ("TCP",)),
        (r"^HorizontalPodAutoscaler/[^/]+/spec/minReplicas$", (1,)),
        (r"/behavior/scale(Up|Down)/selectPolicy$", ("Max",)),
        (r"/behavior/scaleUp/stabilizationWindowSeconds$", (0,)),
        (r"^HTTPRoute/.*/parentRefs/[^/]+/group$", ("gateway.networking.k8s.io",)),
        (r"^HTTPRoute/.*/parentRefs/[^/]+/kind$", ("Gateway",)),
        (r"^HTTPRoute/.*/backendRefs/[^/]+/group$", ("",)),
        (r"^HTTPRoute/.*/backendRefs/[^/]+/kind$", ("Service",)),
        (r"^HTTPRoute/.*/backendRefs/[^/]+/weight$", (1,)),
        (r"^HTTPRoute/.*/headers/[^/]+/type$", ("Exact",)),
        (r"^ScaledObject/.*/fallback/behavior$", ("static",)),
        (r"^InferencePool/[^/]+/spec/appProtocol$", ("http",)),
        (r"^InferencePool/[^/]+/spec/endpointPickerRef/group$", ("",)),
        (r"^InferencePool/[^/]+/spec/endpointPickerRef/kind$", ("Service",)),
        (r"^InferencePool/[^/]+/spec/endpointPickerRef/failureMode$", ("FailClose",)),
        (r"^ResourceClaimTemplate/.*/exactly/allocationMode$", ("ExactCount",)),
        (r"^ResourceClaimTemplate/.*/exactly/count$", (1,)),
        (r"^(Cluster)?RoleBinding/.*/(subjects/[^/]+|roleRef)/apiGroup$", ("", "rbac.authorization.k8s.io")),
    )
)
"""Values that are equivalent to a missing field. None: the API server alone sets the field."""


def _is_default(path: str, value: Any) -> bool:
    return any((values is None or value in values) for pattern, values in _DEFAULTS if pattern.search(path))
