"""Strategic merge of JSON: a service's spec over its base configs, and these over presets. Pure.

Objects are merged by field, and lists of named things by name; other lists are replaced. A merge erases nothing: null,
an empty text, list or object, and a zero that KServe's types do not distinguish from an absent field have no effect.
The arguments are not changed; results share parts with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid

_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "ports": ("containerPort", "protocol"),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
}
"""Lists of a pod that merge, by the fields that identify their members. The first field is required."""
_DEFAULTS = {"protocol": "TCP"}

_MAPS = frozenset({"labels", "annotations", "nodeSelector", "matchLabels", "limits", "requests"})
"""Objects whose keys users choose. In these, an empty text is a value."""
_WHOLE = frozenset({"inline", "endpointPickerRef"})
"""Objects that are replaced: documents of other programs, and references, whose defaults depend on their kind."""

_ZERO_SAYS_NOTHING = frozenset(
    {
        "failureThreshold",
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "initialDelaySeconds",
        "periodSeconds",
        "readOnly",
        "stdin",
        "stdinOnce",
        "successThreshold",
        "timeoutSeconds",
        "tty",
    }
)
"""Fields whose 0 or false means the same as an absent field."""

_PROBE = frozenset({"exec", "httpGet", "tcpSocket", "grpc"})
_HOOK = frozenset({"exec", "httpGet", "tcpSocket", "sleep"})
_ONE_OF: Mapping[str, tuple[frozenset[str], ...]] = {
    "livenessProbe": (_PROBE,),
    "readinessProbe": (_PROBE,),
    "startupProbe": (_PROBE,),
    "preStop": (_HOOK,),
    "postStart": (_HOOK,),
    "valueFrom": (frozenset({"fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"}),),
    "env[]": (frozenset({"value", "valueFrom"}),),
    "http": (frozenset({"refs", "spec"}),),
    "pool": (frozenset({"ref", "spec"}),),
    "config": (frozenset({"inline", "ref"}),),
    "scaling": (frozenset({"wva", "keda"}),),
    "wva": (frozenset({"hpa", "keda"}),),
    "prefill": (frozenset({"replicas", "scaling"}),),
    "": (frozenset({"replicas", "scaling"}),),
}
"""Groups of fields of which an object has one: another one replaces it. By the object's field; empty for the spec."""

_DEEPEST = 64


def merged(base: Json, over: Json, *, field: str = "spec") -> Json:
    """Merge `over` into `base`, both specs of a service, and return the result. `field` names `over` in errors.

    Raises SpecInvalid with reason CombineBaseError if a list that merges by name has members without one.
    """
    return _objects(base, over, "", field, _DEEPEST)


def _objects(base: Json, over: Json, name: str, field: str, deeper: int) -> Json:
    if not deeper:
        raise _wrong(field, f"is nested more than {_DEEPEST} levels deep")
    if name in _MAPS:
        return {**base, **{key: value for key, value in over.items() if value is not None}}
    said = {key: value for key, value in over.items() if not _says_nothing(key, value)}
    if not said:
        return base
    result = dict(base)
    for group in _one_of(name, base, said):
        if group & said.keys():
            for other in group - said.keys():
                result.pop(other, None)
    for key, value in said.items():
        under = result.get(key)
        if isinstance(value, dict) and key not in _WHOLE:
            below = under if isinstance(under, dict) else {}
            result[key] = _objects(below, value, key, f"{field}.{key}", deeper - 1)
        elif isinstance(value, list) and key in _KEYS:
            below_list = under if isinstance(under, list) else []
            result[key] = _lists(below_list, value, key, f"{field}.{key}", deeper - 1)
        else:
            result[key] = value
    return result


def _lists(base: list[Any], over: list[Any], name: str, field: str, deeper: int) -> list[Any]:
    """Merge by name. Members that only `over` has come first, in its order; then those of `base` in its order."""
    wanted = _by_name(over, _KEYS[name], field)
    known = _by_name(base, _KEYS[name], field)

    def laid(member: Json, named: tuple[str, ...]) -> Json:
        at, upper = wanted[named]
        return _objects(member, upper, f"{name}[]", f"{field}[{at}]", deeper)

    first = [laid({}, named) for named in wanted if named not in known]
    return first + [laid(member, named) if named in wanted else member for named, (_, member) in known.items()]


def _by_name(members: list[Any], keys: tuple[str, ...], field: str) -> dict[tuple[str, ...], tuple[int, Json]]:
    """Return members by name, with their index. The last one of a name counts, as in a pod's env."""
    found: dict[tuple[str, ...], tuple[int, Json]] = {}
    for at, member in enumerate(members):
        if not isinstance(member, dict):
            raise _wrong(f"{field}[{at}]", "is not an object")
        if not isinstance(member.get(keys[0]), str | int) or member[keys[0]] == "":
            raise _wrong(f"{field}[{at}]", f"has no `{keys[0]}`, the key by which entries are merged")
        found[tuple(str(member.get(key) or _DEFAULTS.get(key, "")) for key in keys)] = (at, member)
    return found


def _says_nothing(key: str, value: Any) -> bool:
    if value is None or value == "" or value == []:
        return True
    # An empty object is a value if it selects a kind: emptyDir, route, gateway, scheduler.
    return key in _ZERO_SAYS_NOTHING and isinstance(value, int) and not value


def _one_of(name: str, base: Json, said: Json) -> tuple[frozenset[str], ...]:
    if name == "volumes[]":
        # Every field of a volume except its name is a kind of volume.
        return (frozenset(base.keys() | said.keys()) - {"name"},)
    return _ONE_OF.get(name, ())


def _wrong(field: str, why: str) -> SpecInvalid:
    return SpecInvalid(field=field, why=why, reason="CombineBaseError")
