"""Decides which environment variables of a service a process on a host gets. Pure.

A value from a Secret is passed as a reference. The host reads the Secret when it starts the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.facts import Problem, unsupported_field
from program.dialects.annotation_values import is_name, is_secret_key

SHARED_ENGINES = frozenset({"ollama", "omlx"})
"""Engines whose process serves all services of a host. Therefore it gets no Secret of one namespace."""
_ONLY_SECRETS = "cannot be resolved on a host, which supports only secretKeyRef in valueFrom"


def hosted_env(variables: Iterable[Json], *, field: str) -> tuple[Json, ...]:
    """Return the variables that a host can have: those with a value, and those from a Secret.

    Raises SpecInvalid for a reference that cannot name a key of a Secret. `field` is the path of the list.
    """
    taken = []
    for index, variable in enumerate(variables):
        if "valueFrom" in variable:
            if not _is_from_secret(variable):
                continue
            _check(variable["valueFrom"]["secretKeyRef"], f"{field}[{index}].valueFrom.secretKeyRef")
        taken.append(variable)
    return tuple(taken)


def lost_env(variables: Sequence[Json], *, field: str, engine: str) -> Iterator[Problem]:
    """Yield the variables that a process of `engine` on a host cannot have."""
    for index, variable in enumerate(variables):
        if "valueFrom" not in variable:
            continue
        why = "" if _is_from_secret(variable) else _ONLY_SECRETS
        if not why and engine in SHARED_ENGINES:
            why = f"has no effect on {engine}, because all services of a host share one {engine} process"
        if why:
            yield unsupported_field(f"{field}[{index}].valueFrom", why)


def _is_from_secret(variable: Json) -> bool:
    source = variable["valueFrom"]
    return isinstance(source, dict) and source.get("secretKeyRef") is not None


def _check(reference: object, field: str) -> None:
    if not isinstance(reference, dict):
        raise SpecInvalid(field=field, why="is not an object with the name of a Secret and a key")
    name, key, optional = reference.get("name"), reference.get("key"), reference.get("optional")
    if not isinstance(name, str) or not is_name(name):
        raise SpecInvalid(field=f"{field}.name", why="is not the name of a Secret")
    if not isinstance(key, str) or not is_secret_key(key):
        raise SpecInvalid(field=f"{field}.key", why="is not a key of a Secret: letters, digits, `-`, `_` and `.`")
    if optional is not None and not isinstance(optional, bool):
        raise SpecInvalid(field=f"{field}.optional", why="is not true or false")
