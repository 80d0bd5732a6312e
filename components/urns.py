"""The URNs of a rendered service. They are known before a Pulumi run, because names and parents are fixed.

`program.fleet` and the components take logical names from this module; the engine takes its targets.
"""

from __future__ import annotations

from components import naming
from components.rendered import RenderedObject, RenderedService
from program.desired.keys import ServiceKey


def component_name(key: ServiceKey, *, at: str = "") -> str:
    """Return the logical name of all components of a service; their types differ."""
    return naming.logical_name(key, at=at)


def object_name(key: ServiceKey, obj: RenderedObject, *, at: str = "") -> str:
    """Return the logical name of one object of a service."""
    return naming.logical_name(key, obj.part, at=at)


def shared_component_name(obj: RenderedObject, *, at: str = "") -> str:
    """Return the logical name of a shared object's component, which contains the object's name and no service's."""
    return naming.cache_logical_name(obj.name, at=at)


def shared_object_name(obj: RenderedObject, *, at: str = "") -> str:
    """Return the logical name of a shared object."""
    return f"{naming.cache_logical_name(obj.name, at=at)}/{obj.part}"


def type_of(obj: RenderedObject) -> str:
    """Return the Pulumi type token of an object."""
    return naming.kubernetes_type(str(obj.manifest["apiVersion"]), obj.kind)


def id_of(obj: RenderedObject) -> str:
    """Return the Pulumi id of an object: `namespace/name`, or `name` for an object without a namespace."""
    namespace = str(obj.manifest["metadata"].get("namespace") or "")
    return f"{namespace}/{obj.name}" if namespace else obj.name


def own_urns(rendered: RenderedService, stack: str) -> frozenset[str]:
    """Return the URNs that belong to one service alone: those of its components and objects."""
    found: set[str] = set()
    for obj in rendered.objects:
        found.add(naming.urn(stack, obj.component, component_name(rendered.key)))
        found.add(object_urn(rendered.key, obj, stack))
    return frozenset(found)


def object_urn(key: ServiceKey, obj: RenderedObject, stack: str) -> str:
    """Return the URN of one object of a service."""
    return naming.urn(stack, f"{obj.component}${type_of(obj)}", object_name(key, obj))


def needed_by_last(rendered: RenderedService, stack: str) -> frozenset[str]:
    """Return the URNs of the objects that must exist before the last object of the service is made."""
    first = rendered.objects[:-1]
    return frozenset(object_urn(rendered.key, obj, stack) for obj in first if not obj.is_accessory)


def accessories(rendered: RenderedService, stack: str) -> dict[str, RenderedObject]:
    """Return the accessories of a service by URN. The service serves without them."""
    first = rendered.objects[:-1]
    return {object_urn(rendered.key, obj, stack): obj for obj in first if obj.is_accessory}


def shared_objects(rendered: RenderedService, stack: str) -> frozenset[str]:
    """Return the URNs of the objects that a service shares with others."""
    return frozenset(shared_object_urn(obj, stack) for obj in rendered.shared)


def shared_object_urn(obj: RenderedObject, stack: str) -> str:
    """Return the URN of a shared object."""
    return naming.urn(stack, f"{obj.component}${type_of(obj)}", shared_object_name(obj))


def shared_urns(obj: RenderedObject, stack: str) -> frozenset[str]:
    """Return the URNs of a shared object and of its component."""
    return frozenset(
        {
            naming.urn(stack, obj.component, shared_component_name(obj)),
            shared_object_urn(obj, stack),
        }
    )


def service_of_urn(urn: str, namespace: str) -> ServiceKey | None:
    """Return the service that a URN belongs to; None for shared objects and for the engine's own resources."""
    type_chain = urn.split("::", 3)[2] if urn.count("::") >= 3 else ""
    if type_chain.startswith("pulumi:"):
        return None
    return naming.service_of_logical_name(naming.logical_of_urn(urn), namespace)
