"""The BackendRuntime of a Playground: finds it, merges environment and resources into it, replaces its variables. Pure.

A BackendRuntime of the cluster has precedence over a shipped one (`runtimes/*.yaml`) of the same name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from typing import Any

import yaml

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import NotYet, SpecInvalid
from program.desired.facts import Problem, unsupported_field
from program.desired.quantities import parse_quantity
from program.dialects.crds.reading import read, without_nulls
from program.dialects.dialect import Lookup
from program.dialects.llmaz.parse.models import Model
from program.dialects.llmaz.schema.playground import BackendRuntimeSpec
from program.dialects.pods.engine import engine_in
from program.dialects.pods.fields import check_fields
from program.dialects.status.conditions import Reason

SHIPPED = ("llamacpp", "ollama", "sglang", "tensorrt-llm", "tgi", "vllm")
DEFAULT_CONFIG = "default"
SPECULATIVE_CONFIG = "speculative-decoding"
FIELD = "spec.backendRuntimeConfig.backendName"
CONFIG_FIELD = "spec.backendRuntimeConfig.configName"


@dataclass(frozen=True)
class Runtime:
    """A checked BackendRuntime. Its Kubernetes structures are as its author wrote them."""

    name: str
    spec: Json

    @property
    def engine(self) -> str:
        """The engine that it starts, as the `kind` of its settings; empty if it is unknown."""
        return engine_in((*self.spec.get("command", ()), self.spec["image"])) or ("tgi" if self.name == "tgi" else "")

    def config(self, name: str, *, chosen: bool) -> Json:
        """Return a recommended config. Raises SpecInvalid if there is none. `chosen` is True if the user named it."""
        configs: list[Json] = self.spec.get("recommendedConfigs", [])
        found = next((config for config in configs if config["name"] == name), None)
        if found is not None:
            return found
        names = ", ".join(config["name"] for config in configs)
        has = f"it has {names}" if names else "it has none"
        raise SpecInvalid(
            field=CONFIG_FIELD if chosen else FIELD,
            why=f"BackendRuntime `{self.name}` has no recommended config `{name[:64]}`; {has}",
        )


def find_runtime(name: str, look: Lookup) -> Runtime:
    """Read a BackendRuntime. Raises NotYet for one that does not exist, SpecInvalid for an invalid one."""
    found = look(kinds.BACKEND_RUNTIMES, None, name)
    if found is None:
        if name in SHIPPED:
            return shipped()[name]
        raise NotYet(
            reason=Reason.DEPENDENCY_MISSING,
            field=FIELD,
            why=f"there is no BackendRuntime `{name[:64]}` yet; create it, or use one that Herdsman has: "
            f"{', '.join(SHIPPED)}",
        )
    raw: dict[str, Any] = without_nulls(found.get("spec") or {})
    try:
        _check(raw)
    except SpecInvalid as error:
        raise SpecInvalid(field=FIELD, why=f"BackendRuntime `{name}` is not valid: {error}") from None
    return Runtime(name, raw)


@functools.cache
def shipped() -> dict[str, Runtime]:
    """Return the runtimes that Herdsman ships, by name."""
    folder = resources.files("program.dialects.llmaz") / "runtimes"
    found = {}
    for name in SHIPPED:
        spec = yaml.load((folder / f"{name}.yaml").read_text(), Loader=yaml.CSafeLoader)
        _check(spec)
        found[name] = Runtime(name, spec)
    return found


def image_of(image: str, version: str) -> str:
    """Return the container's image. A version is its tag, or its digest."""
    return f"{image}{'@' if version.startswith('sha256:') else ':'}{version}"


def _check(raw: dict[str, Any]) -> None:
    spec = read(BackendRuntimeSpec, raw, field="spec")
    for name in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
        check_fields(raw.get(name), "V1Lifecycle" if name == "lifecycle" else "V1Probe", field=f"spec.{name}")
    names = [config.name for config in spec.recommended_configs]
    for index, config in enumerate(raw.get("recommendedConfigs") or ()):
        where = f"spec.recommendedConfigs[{index}]"
        if config["name"] in names[:index]:
            raise SpecInvalid(field=f"{where}.name", why=f"`{config['name'][:64]}` is the name of another config too")
        short = limit_below_request(config.get("resources") or {})
        if short:
            raise SpecInvalid(field=f"{where}.resources.limits.{short}", why="the limit is less than the request")


def merged_env(*lists: Iterable[Json]) -> list[Json]:
    """Join lists of variables by name.

    The later value replaces the earlier one in its place, so that the order is stable.
    """
    merged: dict[str, Json] = {}
    for variables in lists:
        for variable in variables:
            merged[str(variable["name"])] = dict(variable)
    return list(merged.values())


def merged_resources(own: Mapping[str, Any], recommended: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Join requests and limits by resource. The Playground's values have precedence.

    If a request would be larger than the limit, the one that is not from the Playground is adapted.
    """
    requests = {**_texts(recommended.get("requests")), **_texts(own.get("requests"))}
    limits = {**_texts(recommended.get("limits")), **_texts(own.get("limits"))}
    for name in requests.keys() & limits.keys():
        if _amount(limits[name]) >= _amount(requests[name]):
            continue
        if name in (own.get("limits") or {}):
            requests[name] = limits[name]
        else:
            limits[name] = requests[name]
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def with_limits(resources: Mapping[str, Any], limits: Mapping[str, str]) -> dict[str, Any]:
    """Return a container's resources with a flavor's limits, each as request and as limit."""
    if not limits:
        return dict(resources)
    return {
        **resources,
        "requests": {**_texts(resources.get("requests")), **limits},
        "limits": {**_texts(resources.get("limits")), **limits},
    }


def limit_below_request(resources: Mapping[str, Any]) -> str:
    """Return a resource whose limit is less than its request; empty if there is none."""
    requests, limits = _texts(resources.get("requests")), _texts(resources.get("limits"))
    return next((name for name in limits if name in requests and _amount(limits[name]) < _amount(requests[name])), "")


def _amount(text: str) -> Decimal:
    return parse_quantity(text, field="resources")


def _texts(amounts: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (amounts or {}).items()}


_VARIABLE = re.compile(r"\{\{\s*\.(?P<name>[A-Za-z_][-\w]*)\s*\}\}", re.ASCII)


def variables_of(models: Sequence[Model], params: Mapping[str, str], *, fetched: bool) -> dict[str, str]:
    """Return the variables of a service: those of its models, the main one first, and the parameters of its flavor."""
    main = models[0]
    variables = {
        **params,
        "ModelPath": main.source.path if fetched else main.source.remote,
        "ModelName": main.served_as,
    }
    if len(models) > 1:
        variables["DraftModelPath"] = models[1].source.path if fetched else models[1].source.remote
    return variables


def unfilled(arguments: Sequence[str], variables: Mapping[str, str], *, field: str) -> Iterator[Problem]:
    """Yield variables in a Playground's own arguments, which llmaz passes on unchanged."""
    for index, argument in enumerate(arguments):
        names = [found["name"] for found in _VARIABLE.finditer(argument) if found["name"] in variables]
        if names:
            yield unsupported_field(
                f"{field}[{index}]",
                f"`{{{{ .{names[0]} }}}}` is passed to the engine unchanged: only the arguments of a BackendRuntime "
                f"may have variables; write the value here, or add a recommended config to the BackendRuntime",
            )


def fill(arguments: Sequence[str], variables: Mapping[str, str], *, field: str) -> list[str]:
    """Return the arguments with their variables replaced. Raises SpecInvalid at `field` for one without a value."""

    def value(found: re.Match[str]) -> str:
        name = found["name"]
        if not variables.get(name):
            known = ", ".join(sorted(key for key, text in variables.items() if text))
            raise SpecInvalid(field=field, why=f"`{found[0]}` has no value here; the variables are {known}")
        return variables[name]

    return [_VARIABLE.sub(value, argument) for argument in arguments]
