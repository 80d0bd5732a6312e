"""The component that keeps downloaded models. Used by `program.fleet`."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi

from components import naming, urns
from components.kubernetes_object import kubernetes_object
from components.rendered import RenderedObject


@dataclass(frozen=True)
class ModelCacheArgs:
    """The claim of the cache, rendered."""

    claim: RenderedObject
    at: str = ""
    """Where it is, as `naming.place_suffix` says it, in a stack of several namespaces."""
    standing: frozenset[tuple[str, str]] = frozenset()
    """As in `ServiceObjectsArgs`."""
    version: str = ""
    """As in `ServiceObjectsArgs`."""
    by_sdk: bool = False
    """As in `ServiceObjectsArgs`."""


class ModelCache(pulumi.ComponentResource):
    """Keep one namespace's model files on a claim that all its services share.

    The claim is never deleted by us: what it holds took hours to download, and other services may read it.
    """

    claim: pulumi.CustomResource

    def __init__(self, args: ModelCacheArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(naming.TYPE_CACHE, urns.shared_component_name(args.claim, at=args.at), None, opts)
        name = urns.shared_object_name(args.claim, at=args.at)
        self.claim = kubernetes_object(
            name,
            args.claim,
            parent=self,
            retain=True,
            standing=args.standing,
            version=args.version,
            by_sdk=args.by_sdk,
        )
        self.register_outputs({})
