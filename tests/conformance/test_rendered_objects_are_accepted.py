"""All objects that the renderers make for LLMKube's vectors, applied to a real API server in a dry run.

The API server validates each object, merges it and sets defaults. The result must be equal to the peer's object.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeapi.client import KubeClient
from tests.conformance.comparison import as_text, compare_flat, flatten_all
from tests.conformance.llmkube_rules import corrections_of
from tests.conformance.test_rendering import render_all
from tests.conformance.vectors import Vector, all_vectors
from tests.support import controlplane


@pytest.fixture(scope="module")
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    yield client
    client.close()


@pytest.fixture(scope="module")
def shared_namespace(api: controlplane.Api) -> Iterator[str]:
    with api.namespace("conformance") as name:
        yield name


@pytest.mark.parametrize("vector", [v for v in all_vectors() if v.objects], ids=lambda vector: vector.name)
def test_the_api_server_makes_of_them_what_the_peer_had(
    vector: Vector, client: KubeClient, shared_namespace: str
) -> None:
    accepted = []
    for rendered in render_all(vector.input, shared_namespace, vector.status):
        kind = client.mapping(rendered["apiVersion"], rendered["kind"])
        accepted.append(client.apply(kind, shared_namespace, rendered, field_manager="herdsman", dry_run=True))
    expected, actual = flatten_all(vector.objects), flatten_all(accepted)
    differences = compare_flat(expected, actual, vector.defects, corrections_of(vector, expected))
    assert not differences, as_text(differences)
