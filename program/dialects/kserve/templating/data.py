"""The data for the templates of a config: the service, its merged spec and the settings, with KServe's names. Pure.

The spec is the merged one. KServe uses the service's own spec, so values of a base config do not reach presets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubeapi.json_types import Json
from program.dialects.kserve import naming
from program.dialects.kserve.settings import Settings
from program.dialects.kserve.templating.values import ANY, LEAF, LIST, MAP, TEXT, Shape, Struct

_MODEL: Mapping[str, Any] = {"uri": TEXT, "name": TEXT, "criticality": LEAF}
_SCALING: Mapping[str, Any] = {"minReplicas": LEAF, "maxReplicas": LEAF, "wva": ANY, "keda": ANY}
_WORKLOAD: Mapping[str, Any] = {
    "replicas": LEAF,
    "scaling": _SCALING,
    "parallelism": {
        "tensor": LEAF,
        "pipeline": LEAF,
        "data": LEAF,
        "dataLocal": LEAF,
        "dataRPCPort": LEAF,
        "expert": LEAF,
    },
    "labels": MAP,
    "annotations": MAP,
    "template": ANY,
    "worker": ANY,
    "kvCacheOffloading": {"cpu": LEAF, "evictionPolicy": TEXT, "secondary": ANY},
    "rolloutStrategy": {"maxUnavailable": LEAF, "maxSurge": LEAF},
    # In Go these fields are embedded, so the name of their struct works too.
    "workloadSpec": "self",
}
_SPEC: Mapping[str, Any] = {
    **_WORKLOAD,
    "model": {
        **_MODEL,
        "lora": {
            "adapters": {LIST: _MODEL},
            "maxRank": LEAF,
            "maxAdapters": LEAF,
            "maxCpuAdapters": LEAF,
        },
        "confidential": {"enabled": LEAF, "resourceId": TEXT},
    },
    "storageInitializer": {"enabled": LEAF},
    "prefill": _WORKLOAD,
    "router": {
        "route": {"http": {"refs": ANY, "spec": ANY}, "group": TEXT, "weight": LEAF},
        "gateway": {"refs": ANY},
        "ingress": {"refs": ANY},
        "scheduler": {
            "pool": {"spec": ANY, "ref": ANY},
            "labels": MAP,
            "annotations": MAP,
            "template": ANY,
            "config": {"inline": ANY, "ref": ANY},
            "replicas": LEAF,
            "tokenizer": {"template": ANY},
        },
    },
    "tracing": {"exporterEndpoint": TEXT, "sampler": TEXT, "samplerArg": TEXT, "exporter": TEXT},
    "baseRefs": {LIST: {"name": TEXT}},
}
_META: Mapping[str, Any] = {
    "name": TEXT,
    "namespace": TEXT,
    "labels": MAP,
    "annotations": MAP,
    "generation": LEAF,
    "uid": TEXT,
}
_ROOT: Shape = {
    "objectMeta": _META,
    "spec": _SPEC,
    "globalConfig": {
        "systemNamespace": TEXT,
        "ingressGatewayName": TEXT,
        "ingressGatewayNamespace": TEXT,
        "enableTLS": LEAF,
        "modelBasedRoutingHeaderName": TEXT,
        "inferencePoolNamespacedName": TEXT,
    },
    "name": TEXT,
    "namespace": TEXT,
    "labels": MAP,
    "annotations": MAP,
}


def template_data(metadata: Json, spec: Json, settings: Settings) -> Struct:
    """Return the root of all expressions."""
    name, namespace = str(metadata.get("name", "")), str(metadata.get("namespace", ""))
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    promoted = {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations}
    return Struct(
        {
            **promoted,
            "objectMeta": {**promoted, "generation": metadata.get("generation", 0), "uid": metadata.get("uid", "")},
            "spec": spec,
            "globalConfig": {
                "systemNamespace": naming.SYSTEM_NAMESPACE,
                "ingressGatewayName": settings.gateway_name,
                "ingressGatewayNamespace": settings.gateway_namespace,
                "enableTLS": settings.tls,
                "modelBasedRoutingHeaderName": settings.model_header,
                "inferencePoolNamespacedName": f"{namespace}/{pool_name(name, spec)}",
            },
        },
        _ROOT,
    )


def spec_data(spec: Json) -> Struct:
    """Return `.Spec` alone."""
    return Struct(spec, _SPEC)


def pool_name(service: str, spec: Json) -> str:
    """Return the name of the pool for a service's requests: the one that it refers to, else that of Herdsman."""
    value: Any = spec
    for part in ("router", "scheduler", "pool", "ref", "name"):
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, str) and value else naming.pool(service)
