"""The objects of examples/clients are valid by the CRDs of their projects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kubeapi.client import KubeClient
from kubeapi.errors import ApiError
from tests.support import peer_crds
from tools.localcluster import LocalCluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "clients" / "envoy-ai-gateway.yaml"
KINDS = (
    peer_crds.AI_GATEWAY_ROUTES,
    peer_crds.AI_SERVICE_BACKENDS,
    peer_crds.BACKEND_SECURITY_POLICIES,
    peer_crds.ENVOY_BACKENDS,
    peer_crds.BACKEND_TLS_POLICIES,
)


@pytest.fixture
def client(control_plane: LocalCluster) -> Iterator[KubeClient]:
    administrator = KubeClient.from_kubeconfig(str(control_plane.kubeconfig))
    yield administrator
    administrator.close()


def test_envoy_ai_gateway_accepts_the_objects_of_the_example(client: KubeClient, namespace: str) -> None:
    documents = list(yaml.safe_load_all(EXAMPLE.read_text()))
    strict = {"fieldValidation": "Strict"}
    with peer_crds.installed(client, KINDS):
        for document in documents:
            document["metadata"]["namespace"] = namespace
            kind = client.mapping(document["apiVersion"], document["kind"])
            made = client.request("POST", kind.path(namespace), body=document, query=strict)
            assert made["metadata"]["name"] == "herdsman"
        backend = next(each for each in documents if each["kind"] == "AIServiceBackend")
        backend |= {"metadata": {"name": "wrong"}, "spec": {**backend["spec"], "schema": {"name": "Herdsman"}}}
        with pytest.raises(ApiError, match="Unsupported value"):
            client.request("POST", peer_crds.AI_SERVICE_BACKENDS.path(namespace), body=backend, query=strict)
    assert {document["kind"] for document in documents} == {kind.kind for kind in KINDS}
