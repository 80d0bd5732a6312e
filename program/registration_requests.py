"""The requests of the engine's resource monitor for a registration. Pure. Called by `program.monitor_registrar`.

Pulumi's SDK sends the same requests for a registration, with Python stacks in addition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from google.protobuf.struct_pb2 import Struct
from pulumi.runtime.proto.resource_pb2 import RegisterResourceOutputsRequest, RegisterResourceRequest

from components.registrations import Registration


def register_request(
    what: Registration, *, parent: str, after: Collection[str] = (), provider: str = ""
) -> RegisterResourceRequest:
    """Return the request for a resource below `parent`, to be made after the resources in `after` (both URNs).

    `provider` refers to the provider of Kubernetes objects as `urn::id`; empty: the default provider.
    """
    makes_it = provider and what.custom and what.type.startswith(_KUBERNETES)
    inputs = {name: value for name, value in what.inputs.items() if value is not None}
    return RegisterResourceRequest(
        type=what.type,
        name=what.name,
        parent=parent,
        custom=what.custom,
        object=_struct(inputs),
        dependencies=sorted(after),
        propertyDependencies=dict.fromkeys(inputs, _NO_DEPENDENCIES),
        version=what.version,
        provider=provider if makes_it else "",
        # The engine keeps the providers of a component for its children.
        providers={_KUBERNETES.rstrip(":"): provider} if provider and not what.custom else {},
        ignoreChanges=what.ignore_changes,
        importId=what.import_id,
        retainOnDelete=what.retain_on_delete or None,
        acceptSecrets=True,
        acceptResources=True,
        supportsPartialValues=True,
        supportsResultReporting=True,
    )


def outputs_request(urn: str) -> RegisterResourceOutputsRequest:
    """Return the request that ends the registration of a component, which has no outputs."""
    return RegisterResourceOutputsRequest(urn=urn, outputs=Struct())


_KUBERNETES = "kubernetes:"
_NO_DEPENDENCIES = RegisterResourceRequest.PropertyDependencies()


def _struct(value: Mapping[str, Any]) -> Struct:
    struct = Struct()
    struct.update(value)
    return struct
