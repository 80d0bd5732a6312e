"""A KServe object in the version that is not the storage version, converted by the loop's webhook."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from automation.webhook.registration import CRDS
from kubeapi.json_types import Json
from program.dialects.crds.definitions import crd_documents
from tests.support.controlplane import Api
from tests.support.definitions import established
from tests.support.loop import eventually

CONFIGS = "llminferenceserviceconfigs"


def write(api: Api, namespace: str, told: Callable[[], str]) -> str:
    """Wait until v1alpha1 is served, which needs a loop that converts, and create an object in it; return its path.

    `told` describes the operator for messages of failed tests.
    """
    path = f"/apis/serving.kserve.io/v1alpha1/namespaces/{namespace}/{CONFIGS}"
    config = {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "LLMInferenceServiceConfig",
        "metadata": {"name": "mine"},
        "spec": {"model": {"uri": "hf://acme/a", "criticality": "Critical"}},
    }
    answer: Json = {}

    def is_made() -> bool:
        # Until the node's proxy routes to a new port of the webhook's Service, conversions fail.
        nonlocal answer
        status, answer = api.request("POST", path, config)
        return status in (201, 409)

    # Until the leader writes the webhook's address into the CRD, the API server serves the storage version alone.
    try:
        eventually(lambda: api.request("GET", path)[0] == 200, what="v1alpha1 to be served", timeout_s=90)
        eventually(is_made, what="an object in v1alpha1 to be stored")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{answer}\n{told()}") from None
    return f"{path}/mine"


@contextlib.contextmanager
def written(api: Api, namespace: str, told: Callable[[], str]) -> Iterator[str]:
    """Provide KServe's CRDs and an object in v1alpha1 while the block lasts; yields the object's path, as
    `write` does.
    """
    with established(api, crd_documents("kserve")):
        yield write(api, namespace, told)


def is_converted(api: Api, path: str) -> bool:
    """Return whether the API server serves the object in both versions, each with the fields that only it has."""
    status, old = api.request("GET", path)
    new = api.get(path.replace("v1alpha1", "v1alpha2")) or {}
    assert "criticality" not in new["spec"]["model"]
    if status != 200:
        print(f"not converted: {status} {old}")
        return False
    return bool(old["spec"]["model"]["criticality"] == "Critical")


def clients_of(api: Api) -> list[Json]:
    """The client configuration of each CRD's conversion webhook."""
    found = [api.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}") or {} for name in CRDS]
    return [(each["spec"]["conversion"].get("webhook") or {}).get("clientConfig") or {} for each in found]
