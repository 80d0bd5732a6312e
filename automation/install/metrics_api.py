"""The APIService of external metrics, of which a cluster has one: whether another adapter has it.

Called by `installer` and `inspection`. The APIService of another adapter, such as KEDA's, is never changed or deleted.
"""

from __future__ import annotations

from automation.console.check import Check
from automation.external_metrics.registration import API_SERVICE, find, service_of
from automation.install.comparison import MANAGER
from automation.install.operator import CONTAINER, METRICS_API
from kubeapi import kinds
from kubeapi.client import JSON_PATCH, KubeClient
from kubeapi.json_types import Json


def other_adapter(client: KubeClient, namespace: str) -> str:
    """Return `namespace/name` of the Service of another adapter; empty if there is none. Raises ApiError."""
    found = find(client)
    return "" if found is None or service_of(found) == (namespace, METRICS_API) else _words(found)


def release(client: KubeClient, namespace: str) -> None:
    """Give up the APIService if Herdsman installed it and another adapter took it over. Raises ApiError.

    Otherwise the next change of the installation would delete it.
    """
    found = find(client)
    if found is None or service_of(found) == (namespace, METRICS_API):
        return
    metadata = found["metadata"]
    entries = metadata.get("managedFields") or []
    kept = [each for each in entries if each.get("manager") != MANAGER]
    if len(kept) == len(entries):
        return
    # An empty list would reset all entries, so one without fields stays.
    patch = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
        {"op": "replace", "path": "/metadata/managedFields", "value": kept or [{}]},
    ]
    client.patch(kinds.API_SERVICES, None, API_SERVICE, patch, content_type=JSON_PATCH)


def is_wanted(deployment: Json) -> bool:
    """Return whether an operator shall serve the cluster's external metrics. Pure."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    variables = (
        each for container in containers if container["name"] == CONTAINER for each in container.get("env", ())
    )
    return any(each["name"] == "HERDSMAN_EXTERNAL_METRICS_PORT" for each in variables)


def inspect(client: KubeClient, namespace: str) -> Check:
    """Check that the cluster's external metrics are those of the operator in a namespace. Raises ApiError."""
    return judge(find(client), namespace)


def judge(api_service: Json | None, namespace: str) -> Check:
    """Judge the APIService for an operator in a namespace that serves external metrics. Pure."""
    name = "external metrics"
    if api_service is None:
        return Check(name, "missing", f"APIService {API_SERVICE} is missing", "`herdsman install --external-metrics`")
    if service_of(api_service) != (namespace, METRICS_API):
        detail = (
            f"APIService {API_SERVICE} leads to Service {_words(api_service)}: another adapter serves the cluster's "
            "external metrics, so the loop scales services by requests itself"
        )
        return Check(name, "warning", detail, "install without --external-metrics, or remove that adapter")
    conditions = (api_service.get("status") or {}).get("conditions") or ()
    available: Json = next((each for each in conditions if each.get("type") == "Available"), {})
    if available.get("status") != "True":
        detail = f"are not available: {available.get('reason', 'Unknown')}: {available.get('message', '')}"
        return Check(name, "warning", detail, "see the log of the operator; the API server must reach its pod")
    return Check(name, "ok", f"served by Service {_words(api_service)}")


def _words(api_service: Json) -> str:
    return "/".join(service_of(api_service)) if any(service_of(api_service)) else "of the API server itself"
