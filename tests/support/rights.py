"""Waits until rights that a test has just given to a user are in force."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from kubeapi.client import KubeClient
from tests.support.controlplane import eventually

_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def await_rights(admin: KubeClient, user: str, namespace: str, *rules: Mapping[str, Any]) -> None:
    """Wait until the API server allows `user` the first verb of each rule of an RBAC role.

    The API server reads roles and their bindings from a cache, which follows the writes a moment later.
    """
    for rule in rules:
        resource, _, subresource = rule["resources"][0].partition("/")
        wanted = {
            "namespace": namespace,
            "verb": rule["verbs"][0],
            "group": rule["apiGroups"][0],
            "resource": resource,
            "subresource": subresource,
            "name": next(iter(rule.get("resourceNames") or ()), ""),
        }
        eventually(partial(_allows, admin, user, wanted), what=f"{user} to have the right {wanted}")


def _allows(admin: KubeClient, user: str, wanted: Mapping[str, str]) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": dict(wanted)},
    }
    return bool(admin.request("POST", _REVIEWS, body=review)["status"]["allowed"])
