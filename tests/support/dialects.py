"""The other dialects on a test's cluster: their CRDs, the loop's rights, and the other CRDs that their services
need.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.kinds import Kind
from program.dialects.crds.definitions import crd_documents
from tests.support import extensions, peer_crds
from tests.support.loop import eventually

INSTALL = Path(__file__).parents[2] / "docs" / "install"
KINDS: dict[str, tuple[Kind, ...]] = {
    "kserve": (kinds.LLM_SERVICES, kinds.LLM_CONFIGS),
    "llmaz": (kinds.OPEN_MODELS, kinds.BACKEND_RUNTIMES, kinds.PLAYGROUNDS, kinds.LLMAZ_SERVICES),
}
QUICK = {"HERDSMAN_API_CHECK_S": "1"}
"""Environment of a loop that notices new and removed CRDs at once."""


def install(client: KubeClient, family: str) -> None:
    """Apply a dialect's CRDs and wait until they are served; give the loop its rights."""
    for document in crd_documents(family):
        client.apply(kinds.CRDS, None, document, field_manager="tests", force=True)
    for kind in KINDS[family]:
        eventually(lambda kind=kind: extensions.is_served(client, kind), what=f"{kind.plural} to be served")  # type: ignore[misc]
    for document in yaml.safe_load_all((INSTALL / f"rbac-{family}.yaml").read_text()):
        kind = client.mapping(document["apiVersion"], document["kind"])
        namespace = document["metadata"].get("namespace")
        client.apply(kind, namespace, document, field_manager="tests", force=True)


def install_needed(client: KubeClient, wanted: Iterable[Kind] = (*peer_crds.ALL, kinds.SCALED_OBJECTS)) -> None:
    """Apply the CRDs of other projects that services of these dialects use. The real CRD is used where there is one.

    KEDA's is a small replacement that accepts the fields of the real one.
    """
    wanted = tuple(wanted)
    for kind in wanted:
        document = peer_crds.crd(kind) if kind in peer_crds.FILES else extensions.crd(kind)
        client.apply(kinds.CRDS, None, document, field_manager="tests", force=True)
    for kind in wanted:
        eventually(lambda kind=kind: extensions.is_served(client, kind), what=f"{kind.plural} to be served")  # type: ignore[misc]


@contextlib.contextmanager
def needed(client: KubeClient, wanted: Iterable[Kind] = (*peer_crds.ALL, kinds.SCALED_OBJECTS)) -> Iterator[None]:
    """Provide these CRDs while the block lasts, on a cluster that other tests use as well."""
    mine = tuple(wanted)
    install_needed(client, mine)
    try:
        yield
    finally:
        peer_crds.remove(client, mine)


def uninstall(client: KubeClient, family: str) -> None:
    """Delete a dialect's CRDs, and with them all objects of their kinds."""
    peer_crds.remove(client, KINDS[family])
