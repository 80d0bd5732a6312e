"""Compares objects with those of a conformance vector, field by field.

Both sides are flattened to `path -> value` in the notation of the vectors
(`Deployment/x/pod/containers[c]/args[--flag]`). Defaults of the API server are removed from both sides. So one
comparison serves objects that are rendered offline and objects that a real API server returns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubeapi.json_types import Json

Flat = dict[str, Any]


class _Absent:
    def __repr__(self) -> str:
        return "<absent>"


ABSENT = _Absent()
"""The value of a path that does not exist. As a correction: the peer has the path, and Herdsman must not."""


@dataclass(frozen=True)
class Difference:
    """One path where two sides differ."""

    path: str
    expected: Any
    actual: Any

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected!r}, got {self.actual!r}"


@dataclass(frozen=True)
class Defect:
    """Paths at which the peer's recorded output is wrong. If the defect is `lenient`, any value is accepted there."""

    pattern: re.Pattern[str]
    reason: str
    lenient: bool

    @staticmethod
    def of(entry: Json) -> Defect:
        return Defect(re.compile(entry["match"]), entry["reason"], bool(entry.get("lenient")))


def compare(
    expected: Iterable[Json],
    actual: Iterable[Json],
    defects: Sequence[Defect] = (),
    corrections: Mapping[str, Any] | None = None,
    *,
    prefix: str = "",
) -> list[Difference]:
    """Compare two sets of objects; an empty list means that they are equal.

    `corrections` hold the correct value for each path at which the peer is wrong. `prefix` (`step2:`) is put before
    each path that is matched with a defect.
    """
    return compare_flat(flatten_all(expected), flatten_all(actual), defects, corrections, prefix=prefix)


def compare_flat(
    expected: Flat,
    actual: Flat,
    defects: Sequence[Defect] = (),
    corrections: Mapping[str, Any] | None = None,
    *,
    prefix: str = "",
) -> list[Difference]:
    """Compare two flattened sides, as `compare` does."""
    wanted = corrected(expected, corrections or {})
    lenient = [defect.pattern for defect in defects if defect.lenient]
    differences = []
    for path in sorted({*wanted, *actual}):
        left, right = wanted.get(path, ABSENT), actual.get(path, ABSENT)
        if left == right or any(pattern.search(prefix + path) for pattern in lenient):
            continue
        differences.append(Difference(path, left, right))
    return _without_details_of_missing(differences)


def corrected(expected: Flat, corrections: Mapping[str, Any]) -> Flat:
    """Return the expected output: the peer's output with the corrections applied.

    A correction to ABSENT removes the path and all paths below it. A correction to a dict adds its paths and values
    below the path. Raises ValueError for a correction that changes nothing, since it would check nothing.
    """
    wanted = dict(expected)
    for path, value in corrections.items():
        left = {
            known: kept
            for known, kept in wanted.items()
            if known != path and not known.startswith((f"{path}/", f"{path}["))
        }
        if isinstance(value, dict) and value:
            changed = {**left, **{f"{path}/{below}": one for below, one in value.items()}}
        else:
            changed = left if value is ABSENT else {**wanted, path: value}
        if changed == wanted:
            raise ValueError(f"the correction of {path} says what the peer says")
        wanted = changed
    return wanted


def uncorrected(defects: Sequence[Defect], corrections: Mapping[str, Any], *, prefix: str = "") -> list[Defect]:
    """List the defects that are not lenient and whose paths no correction corrects."""
    return [
        defect
        for defect in defects
        if not defect.lenient and not any(defect.pattern.search(prefix + path) for path in corrections)
    ]


def _without_details_of_missing(differences: list[Difference]) -> list[Difference]:
    missing = {d.path for d in differences if d.path.count("/") == 1 and ABSENT in (d.expected, d.actual)}
    return [d for d in differences if d.path in missing or not any(d.path.startswith(f"{path}/") for path in missing)]


# --- Objects ----------------------------------------------------------------------------------------------------------


def flatten_all(objects: Iterable[Json]) -> Flat:
    """Flatten objects into one map; the path `Kind/name` means that the object exists."""
    flat: Flat = {}
    for thing in objects:
        flat.update(flatten(thing))
    return flat


def flatten(thing: Json) -> Flat:
    """Flatten one object; its values are normalised and the API server's defaults are left out."""
    kind, metadata = thing["kind"], thing["metadata"]
    root = f"{kind}/{metadata['name']}"
    flat: Flat = {root: "present"}
    _walk(flat, f"{root}/labels", _foreign_to_us(metadata.get("labels")))
    _walk(flat, f"{root}/annotations", _foreign_to_us(metadata.get("annotations")))
    owners = [{k: v for k, v in owner.items() if k != "uid"} for owner in metadata.get("ownerReferences", ())]
    _walk(flat, f"{root}/ownerReferences", owners)
    spec = dict(thing.get("spec") or {})
    if kind == "Deployment":
        template = spec.pop("template")
        for part in ("labels", "annotations"):
            _walk(flat, f"{root}/template/{part}", _foreign_to_us(template["metadata"].get(part)))
        pod = dict(template["spec"])
        for group in ("initContainers", "containers"):
            _containers(flat, f"{root}/pod/{group}", pod.pop(group, []))
        _walk(flat, f"{root}/pod", pod)
    _walk(flat, root, spec)
    return {path: _normal(path, value) for path, value in flat.items() if not _is_default(path, value)}


def _foreign_to_us(entries: Mapping[str, str] | None) -> dict[str, str]:
    """Drop the labels and annotations under `herdsman.dev/`, which users of the peer do not use."""
    return {key: value for key, value in (entries or {}).items() if not key.startswith("herdsman.dev/")}


def _containers(flat: Flat, path: str, containers: list[Json]) -> None:
    if not containers:
        return
    flat[f"{path}/names"] = [container["name"] for container in containers]
    for container in containers:
        root = f"{path}[{container['name']}]"
        rest = dict(container)
        arguments, env = rest.pop("args", None), rest.pop("env", None)
        if arguments is not None:
            _arguments(flat, f"{root}/args", arguments)
        if env is not None:
            flat[f"{root}/env/names"] = [entry["name"] for entry in env]
            for entry in env:
                _walk(flat, f"{root}/env[{entry['name']}]", {k: v for k, v in entry.items() if k != "name"})
        _walk(flat, root, rest)


def _arguments(flat: Flat, path: str, arguments: list[str]) -> None:
    """Map each flag to its values, and record the order of the flags at a separate path."""
    flag, order = "positional", []
    for argument in arguments:
        if argument.startswith("--"):
            flag, equals, value = argument.partition("=")
            order.append(flag)
            flat.setdefault(f"{path}[{flag}]", []).extend([f"={value}"] if equals else [])
        else:
            flat.setdefault(f"{path}[{flag}]", []).append(argument)
            # A flag takes one value; a further value belongs to no flag.
            flag = flag if flag == "positional" else "positional"
    flat[f"{path}/order"] = order


def _walk(flat: Flat, path: str, value: Any) -> None:
    """Flatten dicts by key, and lists of named items by name; any other list is one value."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            _walk(flat, f"{path}/{key}", inner)
    elif isinstance(value, list) and value and all(isinstance(entry, dict) and "name" in entry for entry in value):
        counts: dict[str, int] = {}
        for entry in value:
            name = entry["name"] if path.rpartition("/")[2] != "volumeMounts" else entry["mountPath"]
            counts[name] = counts.get(name, 0) + 1
            label = name if counts[name] == 1 else f"{name}#{counts[name]}"
            _walk(flat, f"{path}[{label}]", entry)
    elif value not in ({}, [], None):
        flat[path] = value


# --- Normalisation and defaults ---------------------------------------------------------------------------------------

_HASH = re.compile(r"[0-9a-f]{16}|<hash>")
_SCRIPT = re.compile(r"<script \d+ chars sha256:[0-9a-f]+>")


def _normal(path: str, value: Any) -> Any:
    if path.endswith("/annotations/llmkube.ai/desired-template-hash"):
        return "<hash>" if _HASH.fullmatch(str(value)) else value
    if path.endswith("/nodePort"):
        return "<allocated>"
    if path.endswith("initContainers[model-downloader]/command"):
        # Scripts are not compared as text. Other tests run Herdsman's scripts.
        *shell, script = value
        return [*shell, "<script>" if _SCRIPT.fullmatch(script) or len(script) > 200 else script]
    if path.endswith("/lifecycle/preStop/exec/command"):
        # Other tests run the script.
        return ["<script>" if len(part) > 200 else part for part in value]
    return value


_DEFAULTS: tuple[tuple[re.Pattern[str], tuple[Any, ...]], ...] = tuple(
    (re.compile(pattern), values)
    for pattern, values in (
        (r"^Deployment/[^/]+/replicas$", (1,)),
        (r"^Deployment/[^/]+/revisionHistoryLimit$", (10,)),
        (r"^Deployment/[^/]+/progressDeadlineSeconds$", (600,)),
        (r"^Deployment/[^/]+/strategy/type$", ("RollingUpdate",)),
        (r"^Deployment/[^/]+/strategy/rollingUpdate/max(Surge|Unavailable)$", ("25%",)),
        (r"/pod/restartPolicy$", ("Always",)),
        (r"/pod/terminationGracePeriodSeconds$", (30,)),
        (r"/pod/dnsPolicy$", ("ClusterFirst",)),
        (r"/pod/schedulerName$", ("default-scheduler",)),
        (r"/pod/volumes\[[^]]+\]/configMap/defaultMode$", (420,)),
        (r"ontainers\[[^]]+\]/terminationMessagePath$", ("/dev/termination-log",)),
        (r"ontainers\[[^]]+\]/imagePullPolicy$", ("IfNotPresent",)),
        (r"/ports\[[^]]+\]/protocol$", ("TCP",)),
        (r"Probe/successThreshold$", (1,)),
        (r"Probe/failureThreshold$", (3,)),
        (r"Probe/periodSeconds$", (10,)),
        (r"Probe/timeoutSeconds$", (1,)),
        (r"Probe/httpGet/scheme$", ("HTTP",)),
        (r"Probe/grpc/service$", ("",)),
        (r"/fieldRef/apiVersion$", ("v1",)),
        (r"/resourceFieldRef/divisor$", ("0",)),
        (r"^Service/[^/]+/type$", ("ClusterIP",)),
        (r"^Service/[^/]+/sessionAffinity$", ("None",)),
        (r"^Service/[^/]+/ipFamilies$", (["IPv4"], ["IPv6"])),
        (r"^Service/[^/]+/ipFamilyPolicy$", ("SingleStack",)),
        (r"^Service/[^/]+/(internal|external)TrafficPolicy$", ("Cluster",)),
        (r"^Service/[^/]+/allocateLoadBalancerNodePorts$", (True,)),
        (r"^PersistentVolumeClaim/[^/]+/volumeMode$", ("Filesystem",)),
    )
)
_ALLOCATED = re.compile(r"^Service/[^/]+/(clusterIPs?|ports\[[^]]+\]/nodePort|healthCheckNodePort)$")


def _is_default(path: str, value: Any) -> bool:
    """Return whether the API server would set this value as a default."""
    if _ALLOCATED.search(path):
        return True
    return any(value in values for pattern, values in _DEFAULTS if pattern.search(path))


# --- Status -----------------------------------------------------------------------------------------------------------

_STATUS_FIELDS = {
    "Model": ("phase", "cacheKey", "acceleratorReady", "size", "gguf"),
    "InferenceService": (
        *("phase", "endpoint", "modelReady", "desiredReplicas", "replicas", "readyReplicas", "effectivePriority"),
        *("schedulingStatus", "waitingFor"),
    ),
}
_HEADER = (
    *("architecture", "modelName", "quantization", "license", "fileVersion", "tensorCount"),
    *("contextLength", "embeddingSize", "layerCount", "headCount"),
)
"""The fields about a GGUF header that the peer's status has. Herdsman's status has more."""
_CONDITIONS = ("Available", "Progressing", "Degraded", "GPUAvailable")
"""The condition types that are compared. Messages and other types are not compared, since they depend on timing."""


def flatten_status(statuses: Mapping[str, Json]) -> Flat:
    """Flatten `{"Kind/name": status}`: phases, endpoints, counts, and status and reason of the peer's conditions."""
    flat: Flat = {}
    for name, status in statuses.items():
        for field in _STATUS_FIELDS[name.partition("/")[0]]:
            value = status.get(field)
            if field == "gguf" and value:
                value = {key: value[key] for key in _HEADER if key in value}
            if value not in (None, "", 0, False, {}):
                _walk(flat, f"{name}/{field}", value)
        for condition in status.get("conditions", ()):
            if condition["type"] in _CONDITIONS:
                flat[f"{name}/conditions[{condition['type']}]"] = f"{condition['status']}/{condition['reason']}"
    return flat


def as_text(differences: Iterable[Difference]) -> str:
    """Return the differences as text, one on each line, for the message of an assertion."""
    return "\n".join(str(difference) for difference in differences) or json.dumps([])
