"""Joins policies and modes for the controller: whether a service may be applied, and whether it may be changed now."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from automation.adoption.ownership import is_managed
from automation.approval.modes import Mode, Modes, approved, mode_of, read_namespace_annotations
from automation.approval.policy_checker import PolicyChecker
from automation.cache.cluster_cache import ClusterCache
from automation.cache.service_cache import SPREAD_S
from automation.engine.port import APPLY_FAILED, EngineFailed
from automation.preview.changes import ServicePreview
from automation.reconcile.plan import LiveObject
from components.render import RenderOptions
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, NotFound
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from program.dialects.llmkube.parse.adapter import claims_of
from program.dialects.registry import KINDS, key_of, kind_of


class Approval:
    """`policies` decides whether a service may be applied, `modes` whether a change may be made now."""

    def __init__(self, policies: PolicyChecker, modes: Modes) -> None:
        self.policies = policies
        self.modes = modes

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a deleted service."""
        self.policies.drop_service(key)
        self.modes.drop_service(key)


def modes_now(
    client: KubeClient, namespace: str, services: Mapping[ServiceKey, Json | None], *, controller_class: str = ""
) -> dict[ServiceKey, Mode | None]:
    """Return the mode of services of one namespace, read from the API server.

    None for a service that does not exist, is being deleted, has no valid mode, or belongs to another controller.

    Raises EngineFailed when the API server does not answer.
    """
    try:
        said = read_namespace_annotations(client, namespace)
    except ApiError as error:
        raise EngineFailed(APPLY_FAILED, f"the mode of namespace `{namespace}` cannot be read: {error}") from error
    return {key: _mode(cr, said, controller_class) for key, cr in services.items()}


def _mode(cr: Json | None, said_by_namespace: Mapping[str, str], controller_class: str) -> Mode | None:
    if cr is None or "deletionTimestamp" in cr["metadata"] or not is_managed(cr, said_by_namespace, controller_class):
        return None
    try:
        return mode_of(cr, said_by_namespace)
    except SpecInvalid:
        return None


def comparing(
    client: KubeClient, options: RenderOptions
) -> Callable[[DesiredService, RenderedService, Json, tuple[LiveObject, ...]], ServicePreview]:
    """Return a function that computes a change by dry runs. It checks no policies: the pass checked them before."""

    def compare(
        desired: DesiredService, rendered: RenderedService, cr: Json, live: tuple[LiveObject, ...]
    ) -> ServicePreview:
        # Imported for the first service in mode Preview: the modules take 1 MB.
        from automation.preview.previewer import Previewer

        previewer = Previewer(client, options=options)
        return previewer.preview_rendered(desired, rendered, cr=cr, live=live)

    return compare


def is_current(client: KubeClient, cr: Json) -> bool:
    """Return whether the spec and annotations of a service are still those of `cr`. Raises ApiError."""
    metadata = cr["metadata"]
    try:
        now = client.get(kind_of(cr), metadata["namespace"], metadata["name"])["metadata"]
    except NotFound:
        return False
    same = all(now.get(name) == metadata.get(name) for name in ("uid", "generation"))
    return same and approved({"metadata": now}) == approved(cr)


def every_service(cluster: ClusterCache, enqueue: Callable[[ServiceKey, float], None]) -> None:
    """Enqueue all services, spread over time so that a thousand of them make no burst."""
    for number, (_, service) in enumerate(cluster.list_services()):
        enqueue(key_of(service), number * SPREAD_S)


def services_with_adapters(cluster: ClusterCache, enqueue: Callable[[ServiceKey, float], None]) -> None:
    """Enqueue the services that LoRAAdapters name. Adapters that a policy denies are no part of them."""
    adapters = claims_of(cluster.llmkube.listed(kinds.LORA_ADAPTERS)).values()
    for key in sorted({ServiceKey(each.dialect, each.namespace, each.service) for each in adapters}):
        if cluster.caches[key.dialect].get(KINDS[key.dialect], key.namespace, key.name) is not None:
            enqueue(key, 0.0)
