"""Registers manifests with Pulumi as they are, and the base of the components that group them.

Called by the components of this package. The SDK's typed classes would cost twice the CPU for the same request, so
the objects are plain custom resources under the same type tokens; any provider of the `kubernetes` package serves them.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pulumi

from components import urns
from components.rendered import RenderedObject
from program.desired.keys import ServiceKey


@functools.cache
def provider_version() -> str:
    """The version of the `kubernetes` package that the program is written for, as the locked SDK tells it."""
    return importlib.metadata.version("pulumi-kubernetes")


def kubernetes_object(
    name: str,
    obj: RenderedObject,
    *,
    parent: pulumi.Resource,
    after: Sequence[pulumi.Resource] = (),
    retain: bool = False,
) -> pulumi.CustomResource:
    """Register one manifest. It is made after `after`; with `retain` it outlives its place in the program."""
    options = pulumi.ResourceOptions(
        parent=parent,
        version=provider_version(),
        depends_on=list(after) if after else None,
        retain_on_delete=True if retain else None,
    )
    return pulumi.CustomResource(urns.type_of(obj), name, obj.manifest, options)


@dataclass(frozen=True)
class ServiceObjectsArgs:
    """Some objects of one service, to be registered under one component. None of them waits for another."""

    key: ServiceKey
    objects: tuple[RenderedObject, ...]


class ServiceObjects(pulumi.ComponentResource):
    """The base of the components: children by part, none of them changed by the component."""

    objects: dict[str, pulumi.CustomResource]
    """The children, by the part of the service that they are."""

    def __init__(self, token: str, args: ServiceObjectsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(token, urns.component_name(args.key), None, opts)
        self._key = args.key
        self.objects = {}
        for obj in args.objects:
            self.objects[obj.part] = kubernetes_object(urns.object_name(args.key, obj), obj, parent=self)
        self.register_outputs({})

    def complete(self, obj: RenderedObject, *, after: Sequence[pulumi.Resource]) -> pulumi.CustomResource:
        """Register the last object of the service, which carries the applied hash, after all others.

        The hash must stand only when everything else does.
        """
        last = kubernetes_object(urns.object_name(self._key, obj), obj, parent=self, after=after)
        self.objects[obj.part] = last
        return last


ServiceComponent = Callable[[ServiceObjectsArgs, pulumi.ResourceOptions | None], ServiceObjects]
