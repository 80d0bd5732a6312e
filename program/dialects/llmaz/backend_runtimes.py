"""Find the BackendRuntime of a Playground and the way to start it. Pure; the shipped ones are data in `runtimes/`.

An object of the cluster goes before a shipped one of the same name, as users of the peer's chart have them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import NotYet, SpecInvalid
from program.dialects.conditions import Reason
from program.dialects.dialect import Lookup
from program.dialects.llmaz.merging import limit_below_request
from program.dialects.llmaz.runtime_schema import BackendRuntimeSpec
from program.dialects.pod_engine import engine_in
from program.dialects.pod_fields import check_fields
from program.dialects.reading import read, without_nulls

SHIPPED = ("llamacpp", "ollama", "sglang", "tensorrt-llm", "tgi", "vllm")
DEFAULT_CONFIG = "default"
SPECULATIVE_CONFIG = "speculative-decoding"
FIELD = "spec.backendRuntimeConfig.backendName"
CONFIG_FIELD = "spec.backendRuntimeConfig.configName"


@dataclass(frozen=True)
class Runtime:
    """A BackendRuntime, checked; pieces that pass through unread are as their author wrote them."""

    name: str
    spec: Json

    @property
    def engine(self) -> str:
        """The engine that it starts: `kind` of its settings; empty where nobody can tell."""
        return engine_in((*self.spec.get("command", ()), self.spec["image"])) or ("tgi" if self.name == "tgi" else "")

    def config(self, name: str, *, chosen: bool) -> Json:
        """Give a recommended config. Raises SpecInvalid where there is none; `chosen` says that the user named it."""
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
    """Read a BackendRuntime. Raises NotYet for one that does not exist, SpecInvalid for one that makes no sense."""
    found = look(kinds.BACKEND_RUNTIMES, None, name)
    if found is None:
        if name in SHIPPED:
            return shipped()[name]
        raise NotYet(
            reason=Reason.DEPENDENCY_MISSING,
            field=FIELD,
            why=f"there is no BackendRuntime `{name[:64]}` yet; without one there are {', '.join(SHIPPED)}",
        )
    raw: dict[str, Any] = without_nulls(found.get("spec") or {})
    try:
        _check(raw)
    except SpecInvalid as error:
        raise SpecInvalid(field=FIELD, why=f"BackendRuntime `{name}` is not valid: {error}") from None
    return Runtime(name, raw)


@functools.cache
def shipped() -> dict[str, Runtime]:
    """Give the runtimes that come with Herdsman, by name."""
    folder = resources.files("program.dialects.llmaz") / "runtimes"
    found = {}
    for name in SHIPPED:
        spec = yaml.load((folder / f"{name}.yaml").read_text(), Loader=yaml.CSafeLoader)
        _check(spec)
        found[name] = Runtime(name, spec)
    return found


def image_of(image: str, version: str) -> str:
    """Name the container's image: a version is its tag, or its digest."""
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
