"""The CustomResourceDefinitions of KServe's kinds, for clusters without KServe's own.

The versions differ, so the API server needs `automation.webhook` for objects of v1alpha1. Until the loop has registered
the webhook, only v1alpha2 is served.
"""

from __future__ import annotations

from kubeapi.json_types import Json
from program.dialects.crds.document import AGE, Column, Version, crd_document
from program.dialects.crds.schema import rule, structural_schema
from program.dialects.kserve.schema import service, status, v1alpha1

_READY = (
    Column("Ready", ".status.conditions[?(@.type=='Ready')].status"),
    Column("Reason", ".status.conditions[?(@.type=='Ready')].reason"),
)
_SERVICE_COLUMNS = (
    Column("URL", ".status.url"),
    *_READY,
    AGE,
    Column("URLs", ".status.addresses[*].url", wide=True),
)
_OWN_NAME = rule(
    "has(self.spec.model) && has(self.spec.model.name) && self.spec.model.name != '' || !has(self.spec.model)"
    " || !has(self.spec.model.lora) || !has(self.spec.model.lora.adapters)"
    " || self.spec.model.lora.adapters.all(a, a.name != self.metadata.name)",
    "an adapter must not have the model's name, which here is the service's name",
    field=".spec.model.lora.adapters",
)


def documents() -> list[Json]:
    """Return the CRDs of services and configs, each with both versions."""
    found = _documents()
    for document in found:
        for version in document["spec"]["versions"]:
            version["served"] = version["storage"]
    return found


def _documents() -> list[Json]:
    specs = {
        "v1alpha1": structural_schema(v1alpha1.ServiceSpec),
        "v1alpha2": structural_schema(service.ServiceSpec),
    }
    service_status = structural_schema(status.ServiceStatus)
    config_status = structural_schema(status.ConfigStatus)
    return [
        crd_document(
            group="serving.kserve.io",
            kind="LLMInferenceService",
            plural="llminferenceservices",
            short_names=("llmisvc",),
            description="A language model that pods serve, with its router. Presets describe the pods and the router.",
            versions=tuple(
                Version(spec, service_status, _SERVICE_COLUMNS, name, storage=name == "v1alpha2", rules=(_OWN_NAME,))
                for name, spec in specs.items()
            ),
        ),
        crd_document(
            group="serving.kserve.io",
            kind="LLMInferenceServiceConfig",
            plural="llminferenceserviceconfigs",
            short_names=(),
            description="Part of a service's spec. Services that refer to it override its fields.",
            versions=tuple(
                Version(
                    service.config_spec(spec),
                    config_status,
                    (*_READY, AGE),
                    name,
                    storage=name == "v1alpha2",
                    spec_required=False,
                )
                for name, spec in specs.items()
            ),
        ),
    ]
