"""The CustomResourceDefinitions of llmaz's kinds, for clusters without llmaz's own."""

from __future__ import annotations

from kubeapi.json_types import Json
from program.dialects.crds.document import AGE, Column, Version, crd_document
from program.dialects.crds.schema import structural_schema
from program.dialects.llmaz.schema.common import DNS_LABEL, LONGEST_SERVICE, SERVICE_LABEL, BareStatus, Status, named
from program.dialects.llmaz.schema.model import OpenModelSpec
from program.dialects.llmaz.schema.playground import BackendRuntimeSpec, PlaygroundSpec
from program.dialects.llmaz.schema.service import ServiceSpec

_INFERENCE = "inference.llmaz.io"
_REPLICAS = Column("Replicas", ".status.replicas", "integer")
_STATUS = Column("Status", ".status.conditions[?(@.type=='Available')].reason")
_READY = Column("Ready", ".status.conditions[?(@.type=='Ready')].status", wide=True)


def documents() -> list[Json]:
    """Return the CRDs of OpenModel, BackendRuntime, Playground and Service."""
    return [
        crd_document(
            group="llmaz.io",
            kind="OpenModel",
            plural="openmodels",
            short_names=("om",),
            description="A model: the source of its weights, and the hardware for it.",
            namespaced=False,
            versions=(
                Version(
                    spec=structural_schema(OpenModelSpec),
                    status=structural_schema(BareStatus),
                    metadata=named(DNS_LABEL, 63),
                    columns=(
                        Column("OwnedBy", ".spec.ownedBy"),
                        AGE,
                        Column("ModelHub", ".spec.source.modelHub.name"),
                        Column("ModelID", ".spec.source.modelHub.modelID"),
                        Column("URI", ".spec.source.uri"),
                    ),
                ),
            ),
        ),
        crd_document(
            group=_INFERENCE,
            kind="BackendRuntime",
            plural="backendruntimes",
            short_names=("br",),
            description="An inference engine, and configurations to start it with.",
            namespaced=False,
            versions=(
                Version(
                    spec=structural_schema(BackendRuntimeSpec),
                    status=structural_schema(BareStatus),
                    columns=(Column("Image", ".spec.image"), Column("Version", ".spec.version"), AGE),
                ),
            ),
        ),
        crd_document(
            group=_INFERENCE,
            kind="Playground",
            plural="playgrounds",
            short_names=("pl",),
            description="A model that an inference engine serves.",
            versions=(
                Version(
                    spec=structural_schema(PlaygroundSpec),
                    status=structural_schema(Status),
                    metadata=named(SERVICE_LABEL, LONGEST_SERVICE),
                    scale=True,
                    columns=(Column("Model", ".spec.modelClaim.modelName"), _REPLICAS, _STATUS, _READY, AGE),
                ),
            ),
        ),
        crd_document(
            group=_INFERENCE,
            kind="Service",
            plural="services",
            short_names=("isvc",),
            description="Pods that the user describes, with models that Herdsman downloads for them.",
            versions=(
                Version(
                    spec=structural_schema(ServiceSpec),
                    status=structural_schema(Status),
                    metadata=named(SERVICE_LABEL, LONGEST_SERVICE),
                    scale=True,
                    columns=(_REPLICAS, _STATUS, _READY, AGE),
                ),
            ),
        ),
    ]
