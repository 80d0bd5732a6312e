"""Whether pod specs and routes are made of what they are made of. Pure.

The CRD lets them pass unread. What this package itself goes into is looked at first: a text where a list belongs must
end as an error with its path, and not as a crash. Then a pod spec may have no field that Kubernetes does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from program.desired.errors import SpecInvalid
from program.dialects.pod_fields import POD_SPEC, check_fields

_LISTS_OF_NAMED = ("containers", "initContainers", "volumes")
_OF_CONTAINER = {"env": "name", "volumeMounts": "mountPath", "ports": "containerPort"}
"""Lists of a container, with what each entry must have."""
_TEXTS = ("command", "args")


def check_pod_spec(spec: Any, *, field: str) -> None:
    """Raise SpecInvalid with the path of the first thing that is not of its kind."""
    _object(spec, field)
    for name in _LISTS_OF_NAMED:
        for index, entry in _listed(spec, name, field):
            path = f"{field}.{name}[{index}]"
            _object(entry, path)
            if not isinstance(entry.get("name"), str) or not entry["name"]:
                raise SpecInvalid(field=f"{path}.name", why="is missing, or is not a text")
            if name != "volumes":
                _container(entry, path)
    _text(spec, "serviceAccountName", field)
    check_fields(spec, POD_SPEC, field=field)


def check_route_spec(spec: Any, *, field: str) -> None:
    """The same for the spec of an HTTPRoute."""
    _object(spec, field)
    list(_objects(spec, "parentRefs", field))
    for rule, path in _objects(spec, "rules", field):
        list(_objects(rule, "backendRefs", path))
        for match, where in _objects(rule, "matches", path):
            list(_objects(match, "headers", where))
            if match.get("path") is not None:
                _object(match["path"], f"{where}.path")


def _objects(holder: Any, name: str, field: str) -> Iterator[tuple[Any, str]]:
    for index, entry in _listed(holder, name, field):
        _object(entry, f"{field}.{name}[{index}]")
        yield entry, f"{field}.{name}[{index}]"


def _container(container: Any, field: str) -> None:
    _text(container, "image", field)
    for name, needed in _OF_CONTAINER.items():
        for index, entry in _listed(container, name, field):
            _object(entry, f"{field}.{name}[{index}]")
            value = entry.get(needed)
            if value is None or isinstance(value, bool | list | dict):
                raise SpecInvalid(field=f"{field}.{name}[{index}].{needed}", why="is missing, or makes no sense")
            if name == "env" and entry.get("value") is not None and not isinstance(entry["value"], str):
                raise SpecInvalid(field=f"{field}.env[{index}].value", why="is not a text; put it into quotes")
            if needed == "containerPort" and not (isinstance(value, int) and 0 < value < 65536):
                raise SpecInvalid(field=f"{field}.{name}[{index}].{needed}", why="is not a port from 1 to 65535")
    for name in _TEXTS:
        for index, word in _listed(container, name, field):
            if not isinstance(word, str):
                raise SpecInvalid(field=f"{field}.{name}[{index}]", why="is not a text; put it into quotes")
    resources = container.get("resources")
    if resources is not None:
        _object(resources, f"{field}.resources")
        for name in ("requests", "limits"):
            if resources.get(name) is not None:
                _object(resources[name], f"{field}.resources.{name}")
        list(_listed(resources, "claims", f"{field}.resources"))
    if container.get("securityContext") is not None:
        _object(container["securityContext"], f"{field}.securityContext")


def _listed(holder: Any, name: str, field: str) -> Iterator[tuple[int, Any]]:
    value = holder.get(name)
    if value is None:
        return iter(())
    if not isinstance(value, list):
        raise SpecInvalid(field=f"{field}.{name}", why="is not a list")
    return enumerate(value)


def _object(value: Any, field: str) -> None:
    if not isinstance(value, dict):
        raise SpecInvalid(field=field, why="is not an object")


def _text(holder: Any, name: str, field: str) -> None:
    if holder.get(name) is not None and not isinstance(holder[name], str):
        raise SpecInvalid(field=f"{field}.{name}", why="is not a text")
