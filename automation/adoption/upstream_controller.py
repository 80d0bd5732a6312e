"""Finds out whether the upstream controller of a dialect runs: LLMKube's, KServe's or llmaz's own.

An upstream controller cannot leave out single services: where it runs, it works on all of them, and two controllers
must not work on the same objects. Called by `herdsman adopt` and `herdsman doctor`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from automation.adoption.ownership import LLMKUBE
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden
from kubeapi.json_types import Json
from kubeapi.kinds import Kind

LEASE = "882d6afe.llmkube.dev"
"""The id of the leader election of LLMKube's controller, which its chart switches on."""
NAMESPACE = "llmkube-system"
"""The namespace in which its chart installs it."""
_GRACE_S = 5.0
"""Seconds by which the clocks of two machines may differ."""
_WEBHOOKS = (
    Kind("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False),
    Kind("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", False),
)


@dataclass(frozen=True)
class UpstreamController:
    """The controller of the project that defined a dialect, as its manifests install it."""

    name: str
    """The name in messages."""
    released_to: str
    """The value of `herdsman.dev/controller` for services that were given back. No loop manages them."""
    lease: str
    namespace: str
    deployment: str = ""
    """The Deployment of the controller, where other Deployments run in the namespace as well."""
    checked: tuple[Kind, ...] = ()
    """Kinds that its webhooks check. While the controller is stopped, the API server refuses every write of these."""

    @property
    def stop(self) -> str:
        """The command that stops it."""
        which = self.deployment or "--all"
        return f"kubectl -n {self.namespace} scale deployment {which} --replicas 0"


_LLMAZ = UpstreamController(
    "llmaz",
    "llmaz",
    lease="fbb36db9.llmaz.io",
    namespace="llmaz-system",
    deployment="llmaz-controller-manager",
    checked=(kinds.PLAYGROUNDS, kinds.LLMAZ_SERVICES),
)
UPSTREAM_CONTROLLERS = {
    "llmkube": UpstreamController("LLMKube", LLMKUBE, lease=LEASE, namespace=NAMESPACE),
    "kserve": UpstreamController(
        "KServe",
        "kserve",
        lease="llminferenceservice-kserve-controller-manager",
        namespace="kserve",
        deployment="llmisvc-controller-manager",
        checked=(kinds.LLM_SERVICES,),
    ),
    "llmaz": _LLMAZ,
    "llmaz-service": _LLMAZ,
}


def upstream_of(dialect: str) -> UpstreamController:
    """Return the upstream controller of a dialect. ModelRouters, ModelPools and LoRAAdapters are LLMKube's."""
    return UPSTREAM_CONTROLLERS.get(dialect, UPSTREAM_CONTROLLERS["llmkube"])


def running_controllers(client: KubeClient, upstream: UpstreamController, *, now: datetime) -> list[str]:
    """List the signs that an upstream controller runs, one phrase each; empty where it is stopped. Raises ApiError."""
    return [*_leases(client, upstream, now), *_deployments(client, upstream)]


def webhooks_in_the_way(client: KubeClient, upstream: UpstreamController) -> list[str]:
    """Return the webhook configurations by which the upstream checks its objects, as `kind/name`.

    While the controller is stopped, they refuse the annotations that an adoption writes. Raises ApiError.
    """
    found = []
    for kind in _WEBHOOKS if upstream.checked else ():
        try:
            configurations = client.list(kind)["items"]
        except Forbidden:
            continue
        names = (each["metadata"]["name"] for each in configurations if blocks_writes(each, upstream))
        found += [f"{kind.kind.lower()}/{name}" for name in names]
    return found


def blocks_writes(configuration: Json, upstream: UpstreamController) -> bool:
    """Return whether a webhook refuses writes of the upstream's kinds while the upstream does not answer. Pure."""
    for webhook in configuration.get("webhooks") or ():
        service = (webhook.get("clientConfig") or {}).get("service") or {}
        if webhook.get("failurePolicy", "Fail") != "Fail" or service.get("namespace") != upstream.namespace:
            continue
        for rule in webhook.get("rules") or ():
            groups, plurals = set(rule.get("apiGroups") or ()), set(rule.get("resources") or ())
            if any({kind.group, "*"} & groups and {kind.plural, "*"} & plurals for kind in upstream.checked):
                return True
    return False


def _leases(client: KubeClient, upstream: UpstreamController, now: datetime) -> Iterable[str]:
    try:
        found = client.list(kinds.LEASES, field_selector=f"metadata.name={upstream.lease}")["items"]
    except Forbidden:
        found = []
    for lease in found:
        if holder := held_by(lease, now):
            yield f"Lease {lease['metadata']['namespace']}/{upstream.lease} is held by {holder}"


def _deployments(client: KubeClient, upstream: UpstreamController) -> Iterable[str]:
    try:
        found = client.list(kinds.DEPLOYMENTS, upstream.namespace)["items"]
    except Forbidden:
        found = []
    for deployment in found:
        name, replicas = deployment["metadata"]["name"], (deployment.get("spec") or {}).get("replicas", 1)
        if replicas and upstream.deployment in ("", name):
            yield f"Deployment {upstream.namespace}/{name} has {replicas} replicas"


def held_by(lease: Json, now: datetime) -> str:
    """Return the holder of a Lease; empty when there is none, or the Lease has expired. Pure."""
    spec = lease.get("spec") or {}
    holder, renewed = str(spec.get("holderIdentity") or ""), spec.get("renewTime")
    if not holder or not renewed:
        return ""
    lasts = timedelta(seconds=float(spec.get("leaseDurationSeconds") or 0) + _GRACE_S)
    return holder if now <= datetime.fromisoformat(str(renewed)) + lasts else ""
