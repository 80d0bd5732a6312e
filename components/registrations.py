"""Lists the resources that a component registers with the engine, as plain data. Pure.

`components.component_resources` registers them by Pulumi's SDK, `program.monitor_registrar` by the engine's protocol.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from components import naming, urns
from components.providers.host_schema import AUTO, TYPE
from components.rendered import RenderedObject
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.host_context import PENDING


@functools.cache
def provider_version() -> str:
    """Return the version of the `kubernetes` package that the program is written for: that of the installed SDK."""
    return importlib.metadata.version("pulumi-kubernetes")


def known(token: str) -> str:
    """Return the type token of a service's component. Raises ValueError for one that no component has."""
    if token not in naming.SERVICE_COMPONENT_TYPES:
        raise ValueError(f"no component is registered for `{token}`")
    return token


@dataclass(frozen=True)
class Place:
    """The part of a fleet's target that its registrations depend on. The defaults are those of the loop."""

    at: str = ""
    """Suffix of logical names in a stack of several namespaces or clusters (`naming.place_suffix`)."""
    transports: Mapping[str, Json] = field(default_factory=dict)
    """By host name, the inputs by which a HostProcess of package `herdsman` reaches the host without a cluster."""
    existing: frozenset[tuple[str, str]] = frozenset()
    """Type token and id of the objects that the cluster has. An object in this set is imported if the state lacks
    it."""
    version: str = ""
    """Version of the Kubernetes plugin; empty: the SDK's."""
    provider_reference: str = ""
    """The provider of the Kubernetes objects as `urn::id`; empty: the default provider. The SDK does not read it."""


@dataclass(frozen=True)
class Registration:
    """One resource. Its parent and the resources that it depends on are given when it is registered."""

    type: str
    """Type token."""
    name: str
    """Logical name."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """JSON. Inputs that are None are not sent."""
    custom: bool = True
    """Whether a provider makes it. A component is not custom."""
    version: str = ""
    """Version of the provider's plugin; empty: any."""
    ignore_changes: tuple[str, ...] = ()
    """Paths of the inputs whose changes the engine ignores."""
    retain_on_delete: bool = False
    """Whether the object stays in the cluster when the program no longer contains it."""
    import_id: str = ""
    """Id of the object to import if the state lacks it; empty: none."""


def component(token: str, key: ServiceKey, place: Place) -> Registration:
    """Return the component that groups some objects of a service."""
    return Registration(token, urns.component_name(key, at=place.at), custom=False)


def child(token: str, key: ServiceKey, obj: RenderedObject, place: Place) -> Registration:
    """Return one object of a service, a child of the component with type `token`.

    A HostProcess for a host in `Place.transports` is made by the plugin `herdsman`, which sends its plan to the host;
    the cluster gets no object. The objects of `naming.TYPE_FOUNDATION` are never deleted.
    """
    name = urns.object_name(key, obj, at=place.at)
    if token == naming.TYPE_HOST_PROCESS:
        transport = place.transports.get(str(obj.manifest["spec"]["host"]))
        if transport is not None:
            return Registration(TYPE, name, _host_process(key, obj, transport))
    return kubernetes_object(name, obj, place, retain=token == naming.TYPE_FOUNDATION)


def cache(claim: RenderedObject, place: Place) -> Registration:
    """Return the component of a namespace's model cache."""
    return Registration(naming.TYPE_CACHE, urns.shared_component_name(claim, at=place.at), custom=False)


def cache_claim(claim: RenderedObject, place: Place) -> Registration:
    """Return the claim of a namespace's model cache. It is never deleted: its files took hours to download."""
    return kubernetes_object(urns.shared_object_name(claim, at=place.at), claim, place, retain=True)


def kubernetes_object(name: str, obj: RenderedObject, place: Place, *, retain: bool = False) -> Registration:
    """Return the registration of one manifest, whose inputs are the manifest without changes."""
    token, resource_id = urns.type_of(obj), urns.id_of(obj)
    return Registration(
        token,
        name,
        obj.manifest,
        version=place.version or provider_version(),
        ignore_changes=tuple(obj.ignore),
        retain_on_delete=retain,
        import_id=resource_id if (token, resource_id) in place.existing else "",
    )


def _host_process(key: ServiceKey, obj: RenderedObject, transport: Json) -> dict[str, Any]:
    annotations = obj.manifest["metadata"].get("annotations") or {}
    takes_default = annotations.get(naming.ANNOTATION_DEFAULT_CONTEXT) == PENDING.chosen
    return {
        **transport,
        "namespace": key.namespace,
        "name": obj.name,
        "plan": obj.manifest["spec"],
        "defaultContext": AUTO if takes_default else None,
        # The SDK returns outputs only to programs that name them among the inputs.
        "address": None,
        "port": None,
    }
