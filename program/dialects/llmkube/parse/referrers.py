"""The checks of ModelRouters, ModelPools and LoRAAdapters without a cluster. Pure.

Static fleets and `herdsman policy check` call it for documents of files.
"""

from __future__ import annotations

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.facts import Problem
from program.dialects.crds.reading import read, unknown_fields, without_nulls
from program.dialects.llmkube.parse.adapter import adapter_of
from program.dialects.llmkube.parse.pool import pool_of
from program.dialects.llmkube.schema.lora_adapter import LoraAdapterSpec
from program.dialects.llmkube.schema.model_pool import ModelPoolSpec


def check_referrer(cr: Json) -> tuple[Problem, ...]:
    """Check a resource as its controller does, and return the fields that have no effect.

    Raises SpecInvalid with the path of the first field that is not valid.
    """
    if cr["kind"] == kinds.MODEL_ROUTERS.kind:
        # Imported for the first router: its models take 1 MB of the loop's memory.
        from program.dialects.llmkube.parse.router import router_of, unsupported_fields

        router_of(cr)
        return unsupported_fields(cr)
    if cr["kind"] == kinds.MODEL_POOLS.kind:
        pool_of(cr)
    else:
        adapter_of(cr)
    model = ModelPoolSpec if cr["kind"] == kinds.MODEL_POOLS.kind else LoraAdapterSpec
    spec = read(model, without_nulls(cr.get("spec")), field="spec")
    return tuple(
        Problem(reason="NotHonoured", message="is not known", field=path, terminal=True)
        for path, _ in unknown_fields(spec, field="spec")
    )


def services_named_by(cr: Json) -> tuple[str, ...]:
    """Return the InferenceServices of its namespace that a resource names. Raises SpecInvalid."""
    if cr["kind"] == kinds.MODEL_ROUTERS.kind:
        from program.dialects.llmkube.parse.router import router_of

        return tuple(dict.fromkeys(each.service for each in router_of(cr).backends if each.service))
    return pool_of(cr).members if cr["kind"] == kinds.MODEL_POOLS.kind else (adapter_of(cr).service,)
