"""Asks the API server whether a user may do something (`authorization.k8s.io`). Stores nothing."""

from __future__ import annotations

from kubeapi.client import KubeClient
from kubeapi.json_types import Json

REVIEWS = "/apis/authorization.k8s.io/v1"


def is_allowed(
    client: KubeClient,
    group: str,
    resource: str,
    verb: str,
    namespace: str | None,
    *,
    name: str = "",
    account: str = "",
) -> bool:
    """Return whether the client's user may do this, or an `account` as `system:serviceaccount:NAMESPACE:NAME`.

    `resource` may have a subresource: `pods/log`. A namespace of None means all namespaces. Raises ApiError.
    """
    plural, _, subresource = resource.partition("/")
    attributes = {
        "group": group,
        "resource": plural,
        "subresource": subresource,
        "verb": verb,
        "namespace": namespace or "",
        "name": name,
    }
    spec: Json = {"resourceAttributes": attributes}
    kind = "SelfSubjectAccessReview"
    if account:
        kind = "SubjectAccessReview"
        _, _, of, _ = account.split(":")
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{of}", "system:authenticated"]
        spec = {**spec, "user": account, "groups": groups}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    answer = client.request("POST", f"{REVIEWS}/{kind.lower()}s", body=body)
    return bool((answer.get("status") or {}).get("allowed"))
