"""Reads the config of a static fleet's stack (`herdsman:…`). All errors are collected, by key. Pure.

Called by `program.__main__`. docs/how-to/static-fleets.md documents the keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from components.options import RenderOptions
from components.providers.host_schema import AGENT_TLS, SSH, TYPE, input_faults
from kubeapi.json_types import Json
from program.desired.hub import Hub
from program.desired.keys import is_dns_label, is_label_value
from program.desired.web_address import AddressInvalid
from program.static.plugin import KubernetesPlugin

PROJECT = "herdsman"
"""Namespace of the keys."""
KEYS = ("manifests", "namespace", "clusters", "hosts", "policies", "extensions", "options", "kubernetesPlugin")
_PATHS = ("identityFile", "knownHosts", "tokenFile", "caFile")
_ANY_PLAN = {"host": "h", "service": "s", "serviceName": "s", "argv": ["a"]}

_Model = TypeVar("_Model", bound=BaseModel)


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, frozen=True, strict=True)


class _Cluster(_Config):
    manifests: str | list[str]
    context: str = ""
    kubeconfig: str = ""
    namespace: str = "default"
    extensions: list[str] | None = None


class _Options(_Config):
    """The fields of `herdsman:options`: the operator's choices, with the names of RenderOptions."""

    cache_size: str | None = None
    cache_storage_class: str | None = None
    cache_access_mode: str | None = None
    default_fs_group: int | None = None
    init_image: str | None = None
    ca_configmap: str | None = None
    hub_url: str | None = None
    prometheus_url: str | None = None
    shared_gpu_selector: dict[str, str] | None = None
    claim_mode: str | None = None
    render_group: int | None = None
    runtime_images: dict[str, str] | None = None
    monitors: bool | None = None

    @field_validator("hub_url")
    @classmethod
    def _hub_is_an_address(cls, value: str | None) -> str | None:
        try:
            Hub.at(value or "")
        except AddressInvalid as error:
            raise ValueError(str(error)) from None
        return value


@dataclass(frozen=True)
class Cluster:
    """One cluster of the stack, and its manifests."""

    manifests: tuple[str, ...]
    namespace: str = "default"
    """The namespace of documents that name none."""
    name: str = ""
    """Empty: the cluster of Pulumi's own config for package `kubernetes`, by default the current context."""
    context: str = ""
    kubeconfig: str = ""
    """Path; empty uses the provider's default."""
    options: RenderOptions = field(default_factory=RenderOptions)


@dataclass
class FleetConfig:
    """The config, with all of its errors."""

    clusters: tuple[Cluster, ...] = ()
    namespace: str = "default"
    """Services in this namespace, in the cluster without a name, have logical names without a suffix."""
    hosts: dict[str, Json] = field(default_factory=dict)
    """The connections to hosts without a cluster: inputs of a HostProcess, by the host's name."""
    policies: str = ""
    """Folder of policies; empty for none."""
    plugin: KubernetesPlugin = KubernetesPlugin.HERDSMAN
    """The plugin that creates the objects. A run that finds another plugin ends before it creates anything."""
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_config(values: Mapping[str, str], root: Path) -> FleetConfig:
    """Read `herdsman:…` in Pulumi's format: text, or JSON for a list or an object in the stack's file.

    Relative paths of kubeconfigs, keys and tokens start at `root`, the project's folder.
    """
    found = FleetConfig()
    given = {name: _value(text) for name, text in values.items()}
    found.notes += [f"{PROJECT}:{name}: is not known to this version of Herdsman" for name in given if name not in KEYS]
    found.namespace = _namespace(given.get("namespace") or "default", "namespace", found.errors)
    options = _options(given.get("options"), found.errors)
    clusters: list[Cluster] = []
    if given.get("manifests") is not None or not given.get("clusters"):
        manifests = _manifests(given.get("manifests"), "manifests", found.errors)
        extended = _extended(options, given.get("extensions"), "extensions", found.errors)
        clusters.append(Cluster(manifests, found.namespace, options=extended))
    for name, value in _objects(given.get("clusters"), "clusters", found.errors):
        clusters += _cluster(name, value, root, options, found.errors)
    found.clusters = tuple(clusters)
    for name, value in _objects(given.get("hosts"), "hosts", found.errors):
        inputs = _host_inputs(name, value, root, found.errors)
        if inputs is not None:
            found.hosts[name] = inputs
    policies = given.get("policies") or ""
    if not isinstance(policies, str):
        found.errors.append(f"{PROJECT}:policies: is not the path of a folder")
    else:
        found.policies = policies
    found.plugin = _plugin(given.get("kubernetesPlugin"), found.errors)
    return found


def _value(text: str) -> Any:
    stripped = text.strip()
    if stripped[:1] in ("[", "{"):
        try:
            return json.loads(stripped)
        except ValueError:
            return text  # a pattern such as [ab].yaml
    return text


def _plugin(value: Any, errors: list[str]) -> KubernetesPlugin:
    if value in (None, ""):
        return KubernetesPlugin.HERDSMAN
    try:
        return KubernetesPlugin(value)
    except ValueError:
        errors.append(f"{PROJECT}:kubernetesPlugin: `{str(value)[:64]}` is neither `herdsman` nor `pulumi`")
        return KubernetesPlugin.HERDSMAN


def _namespace(value: Any, key: str, errors: list[str]) -> str:
    if isinstance(value, str) and is_dns_label(value):
        return value
    errors.append(f"{PROJECT}:{key}: `{str(value)[:64]}` is not the name of a namespace")
    return "default"


def _manifests(value: Any, key: str, errors: list[str]) -> tuple[str, ...]:
    paths = [value] if isinstance(value, str) and value.strip() else value
    if not isinstance(paths, list) or not paths:
        errors.append(f"{PROJECT}:{key}: names no file; give a path, or a list of paths, relative to Pulumi.yaml")
        return ()
    wrong = [n for n, path in enumerate(paths) if not isinstance(path, str) or not path.strip()]
    errors += [f"{PROJECT}:{key}[{n}]: is not a path" for n in wrong]
    return tuple(path for n, path in enumerate(paths) if n not in wrong)


def _objects(value: Any, key: str, errors: list[str]) -> list[tuple[str, Json]]:
    """Return the entries of an object of objects, without those whose names are invalid."""
    if value is None or value == "":
        return []
    if not isinstance(value, dict):
        errors.append(f"{PROJECT}:{key}: is not an object with a name and an object in each entry")
        return []
    entries = []
    for name, entry in value.items():
        if not is_label_value(name) or "@" in name:
            errors.append(f"{PROJECT}:{key}: `{name[:64]}` is not a name of letters, digits, `-`, `_` and `.`")
        elif not isinstance(entry, dict):
            errors.append(f"{PROJECT}:{key}.{name}: is not an object")
        else:
            entries.append((name, entry))
    return entries


def _cluster(name: str, value: Json, root: Path, options: RenderOptions, errors: list[str]) -> list[Cluster]:
    key = f"clusters.{name}"
    given = _model(_Cluster, value, key, errors)
    if given is None:
        return []
    return [
        Cluster(
            manifests=_manifests(given.manifests, f"{key}.manifests", errors),
            namespace=_namespace(given.namespace, f"{key}.namespace", errors),
            name=name,
            context=given.context,
            kubeconfig=_path(given.kubeconfig, root),
            options=_extended(options, given.extensions, f"{key}.extensions", errors),
        )
    ]


def _extended(options: RenderOptions, value: Any, key: str, errors: list[str]) -> RenderOptions:
    """Add a cluster's extensions of Kubernetes, as `group/version/Kind`. An empty list means none."""
    if value in (None, ""):
        return options
    if not isinstance(value, list) or not all(isinstance(kind, str) and kind.count("/") == 2 for kind in value):
        errors.append(f"{PROJECT}:{key}: is not a list of kinds such as `monitoring.coreos.com/v1/PodMonitor`")
        return options
    return options.model_copy(update={"installed": frozenset(value)})


def _options(value: Any, errors: list[str]) -> RenderOptions:
    if value in (None, ""):
        return RenderOptions()
    if not isinstance(value, dict):
        errors.append(f"{PROJECT}:options: is not an object")
        return RenderOptions()
    given = _model(_Options, value, "options", errors)
    if given is None:
        return RenderOptions()
    try:
        return RenderOptions(**given.model_dump(exclude_none=True))
    except ValidationError as error:
        errors += _faults(error, "options", alias=to_camel)
        return RenderOptions()


def _host_inputs(name: str, value: Json, root: Path, errors: list[str]) -> Json | None:
    """Return a host of the config as inputs of its processes, checked by the plugin's rules."""
    key = f"{PROJECT}:hosts.{name}"
    transport = value.get("transport") or ("agent" if value.get("endpoint") else "ssh")
    given = {k: v for k, v in value.items() if k != "transport"}
    for file in _PATHS:
        if isinstance(given.get(file), str):
            given[file] = _path(given[file], root)
    bastion = given.get("bastion")
    if isinstance(bastion, dict) and isinstance(bastion.get("knownHosts"), str):
        given["bastion"] = {**bastion, "knownHosts": _path(bastion["knownHosts"], root)}
    inputs: Json = {"transport": transport, **({"ssh": given} if transport == "ssh" else given)}
    whole = {**inputs, "namespace": "n", "name": "n", "plan": _ANY_PLAN}
    faults = input_faults(TYPE, whole)
    for where, why in faults:
        errors.append(f"{key}.{where.removeprefix('ssh.')}: {why}")
    if transport == "agent" and not faults:
        strange = [k for k in given if k in SSH]
        errors += [f"{key}.{k}: is a setting of transport `ssh`; this host has transport `agent`" for k in strange]
        if str(given["endpoint"]).startswith("http://") and any(given.get(k) for k in AGENT_TLS):
            errors.append(f"{key}.endpoint: is http, which checks no certificate; write https")
    return None if faults else inputs


def _path(path: str, root: Path) -> str:
    """Make a relative path absolute. `~` is kept, so that the state does not depend on one machine."""
    if not path or path.startswith(("~", "/")):
        return path
    return str(root / path)


def _model(kind: type[_Model], value: Json, key: str, errors: list[str]) -> _Model | None:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        errors += _faults(error, key)
        return None


def _faults(error: ValidationError, key: str, *, alias: Any = str) -> list[str]:
    """Report each field once. For a union, the error of the first type is used."""
    found: dict[str, str] = {}
    for fault in error.errors(include_url=False):
        name = alias(str(fault["loc"][0])) if fault["loc"] else ""
        known = {"extra_forbidden": "is not a property of it", "missing": "is required"}
        why = known.get(fault["type"], fault["msg"][:1].lower() + fault["msg"][1:])
        found.setdefault(f"{PROJECT}:{key}.{name}", why)
    return [f"{where}: {why}" for where, why in found.items()]
