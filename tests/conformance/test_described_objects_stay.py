"""The API server keeps the rendered objects of KServe's and llmaz's services as they were applied.

Every rendered object of every vector is applied to a real API server, which has the CRDs that the projects of the
extensions publish. The object must be accepted, and no field may look changed afterwards: the loop would take such a
field for drift, and correct it again in every pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from components.options import RenderOptions
from components.providers.kubernetes_ownership import drift
from components.render import render
from components.rendered import RenderedObject
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError
from program.desired.errors import DesiredError
from program.dialects.registry import dialect_named, dialect_of
from tests.conformance.environment import file_lookup
from tests.conformance.vectors import all_vectors
from tests.support import controlplane, extensions, peer_crds

SCHEMA_ONLY = {"124-reject-schema"}
"""Cases whose specs the schema of the CRD refuses, so that the loop never reads them."""


@pytest.fixture(scope="module")
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    """A client of an API server that has the CRDs of all extensions that services may use."""
    made = KubeClient.from_kubeconfig(str(kubeconfig))
    with ExitStack() as stack:
        stack.callback(made.close)
        stack.enter_context(peer_crds.installed(made, set(peer_crds.ALL) - {kinds.GATEWAYS}))
        stack.enter_context(extensions.installed(made, [kinds.SCALED_OBJECTS]))
        yield made


def rendered(family: str) -> Iterator[tuple[str, RenderedObject]]:
    """Yield each rendered object of each stage of a family's vectors, with its origin; equal objects once."""
    known: set[str] = set()
    for vector in all_vectors(family):
        if vector.name in SCHEMA_ONLY:
            continue
        for number, stage in enumerate(vector.stages()):
            look = file_lookup(vector, number)
            for cr in stage.inputs:
                name = dialect_of(cr)
                if not name:
                    continue
                dialect = dialect_named(name)
                owned = look(dialect.kind, vector.namespace, cr["metadata"]["name"]) or cr
                try:
                    made = render(dialect.parse(owned, look).desired, RenderOptions())
                except DesiredError:  # other tests compare it with the peer's refusals
                    continue
                for obj in made.objects:
                    if str(obj.manifest) not in known:
                        known.add(str(obj.manifest))
                        yield f"{vector.name}, stage {number}: {obj.kind} {obj.name}", obj


@pytest.mark.soak
@pytest.mark.parametrize("family", ["kserve", "llmaz"])
def test_nothing_that_was_rendered_drifts(family: str, client: KubeClient, api: controlplane.Api) -> None:
    problems: list[str] = []
    count = 0
    with api.namespace(family) as namespace:
        for where, obj in rendered(family):
            count += 1
            manifest = {**obj.manifest, "metadata": dict(obj.manifest["metadata"])}
            metadata = manifest["metadata"]
            if "namespace" in metadata:
                metadata["namespace"] = namespace
            kind = client.mapping(manifest["apiVersion"], obj.kind)
            try:
                made = client.apply(
                    kind, metadata.get("namespace"), manifest, field_manager="herdsman", force=True, dry_run=True
                )
            except ApiError as error:
                problems.append(f"{where} is refused: {error}")
                continue
            problems += [f"{where} drifts at {each.path}: {each.live!r}" for each in drift(manifest, made, "herdsman")]
    assert not problems, "\n".join(problems)
    assert count > 50
