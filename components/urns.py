"""The URNs that a rendered service gets, known before any engine runs, because names and parents are fixed.

`program.fleet` and the components take logical names from here, and the engine its targets.
"""

from __future__ import annotations

from components import naming
from components.rendered import RenderedObject, RenderedService
from program.desired.keys import ServiceKey


def component_name(key: ServiceKey, *, at: str = "") -> str:
    """Name every component of a service; their types tell them apart."""
    return naming.logical_name(key, at=at)


def object_name(key: ServiceKey, obj: RenderedObject, *, at: str = "") -> str:
    """Name one object of a service."""
    return naming.logical_name(key, obj.part, at=at)


def shared_component_name(obj: RenderedObject, *, at: str = "") -> str:
    """Name the component around a shared object: after the object, since no service owns it."""
    return naming.cache_logical_name(obj.name, at=at)


def shared_object_name(obj: RenderedObject, *, at: str = "") -> str:
    """Name a shared object."""
    return f"{naming.cache_logical_name(obj.name, at=at)}/{obj.part}"


def type_of(obj: RenderedObject) -> str:
    """The Pulumi type token of an object."""
    return naming.kubernetes_type(str(obj.manifest["apiVersion"]), obj.kind)


def id_of(obj: RenderedObject) -> str:
    """Give the id that the provider gives an object: `namespace/name`, or `name` where it has no namespace."""
    namespace = str(obj.manifest["metadata"].get("namespace") or "")
    return f"{namespace}/{obj.name}" if namespace else obj.name


def own_urns(rendered: RenderedService, stack: str) -> frozenset[str]:
    """All URNs of a service that belong to it alone: its components and its objects."""
    found: set[str] = set()
    for obj in rendered.objects:
        found.add(naming.urn(stack, obj.component, component_name(rendered.key)))
        found.add(object_urn(rendered.key, obj, stack))
    return frozenset(found)


def object_urn(key: ServiceKey, obj: RenderedObject, stack: str) -> str:
    """The URN of one object of a service."""
    return naming.urn(stack, f"{obj.component}${type_of(obj)}", object_name(key, obj))


def needed_by_last(rendered: RenderedService, stack: str) -> frozenset[str]:
    """The URNs of the objects without which the last of a service must not be made."""
    first = rendered.objects[:-1]
    return frozenset(object_urn(rendered.key, obj, stack) for obj in first if not obj.is_accessory)


def accessories(rendered: RenderedService, stack: str) -> dict[str, RenderedObject]:
    """The objects that a service serves without, by URN."""
    first = rendered.objects[:-1]
    return {object_urn(rendered.key, obj, stack): obj for obj in first if obj.is_accessory}


def shared_objects(rendered: RenderedService, stack: str) -> frozenset[str]:
    """The URNs of the objects that a service shares with others."""
    return frozenset(shared_object_urn(obj, stack) for obj in rendered.shared)


def shared_object_urn(obj: RenderedObject, stack: str) -> str:
    """The URN of a shared object."""
    return naming.urn(stack, f"{obj.component}${type_of(obj)}", shared_object_name(obj))


def shared_urns(obj: RenderedObject, stack: str) -> frozenset[str]:
    """The URNs of a shared object and of the component around it."""
    return frozenset(
        {
            naming.urn(stack, obj.component, shared_component_name(obj)),
            shared_object_urn(obj, stack),
        }
    )


def service_of_urn(urn: str, namespace: str) -> ServiceKey | None:
    """Tell which service a URN belongs to. None for what is shared, and for the engine's own resources."""
    type_chain = urn.split("::", 3)[2] if urn.count("::") >= 3 else ""
    if type_chain.startswith("pulumi:"):
        return None
    return naming.service_of_logical_name(naming.logical_of_urn(urn), namespace)
