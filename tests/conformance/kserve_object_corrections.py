"""Where KServe's recorded objects are wrong, or where we differ on purpose: what is right, path by path.

`corrections_kserve` takes these in. Whole objects that the peer did not make are described by those that it made for
another service of the same shape, with the names exchanged, so that every field of ours is compared there too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.conformance import kserve_form
from tests.conformance.comparison import ABSENT
from tests.conformance.vectors import all_vectors

Corrections = dict[str, Any]
_VECTORS = {vector.number: vector for vector in all_vectors("kserve")}

_UNDECIDED = ("x-vllm-argv",)
"""What is only compared where a recording has it."""


def _made_for(number: str, service: str, like: str, *kinds: str, of: str) -> Corrections:
    """Describe the objects that `service` of a case must have: those of `like` in case `of`, after its input."""
    vector, other = _VECTORS[number], _VECTORS[of]
    recorded = [
        thing
        for thing in other.objects
        if _belongs(thing, like) and (not kinds or f"{thing['kind']}/{thing['metadata']['name']}" in kinds)
    ]
    text = json.dumps(kserve_form.translated(recorded)).replace(other.namespace, vector.namespace)
    renamed = json.loads(re.sub(rf"(?<![a-z0-9]){re.escape(like)}(?![a-z0-9])", service, text))
    flat, _ = kserve_form.flat_objects(vector, renamed, [{"kind": "Secret", "metadata": {"name": "-"}, "x": 1}])
    return {path: value for path, value in flat.items() if not any(f"/{word}" in path for word in _UNDECIDED)}


def _belongs(thing: Mapping[str, Any], service: str) -> bool:
    labels = thing["metadata"].get("labels") or {}
    return bool(labels.get("app.kubernetes.io/name") == service)


def _template(workload: str, *path: str) -> str:
    return "/".join((workload, "spec/template/spec", *path))


def _main(workload: str, *path: str) -> str:
    return _template(workload, "containers/main", *path)


def _argv(workload: str) -> str:
    return _main(workload, "x-vllm-argv")


def _serve(name: str, namespace: str, *more: str, port: int = 8000) -> list[str]:
    """What vLLM is started with."""
    served = ["--served-model-name", name, f"publishers/{namespace}/models/{name}", "--port", str(port)]
    always = ["--disable-access-log-for-endpoints", "/health,/metrics,/ping", "--shutdown-timeout", "40"]
    return ["serve", "/mnt/models", *served, *always, *more]


def _modules(namespace: str, *names: str) -> list[str]:
    """The list of adapters as JSON, each word once: our start script evaluates nothing a second time."""
    return [
        json.dumps({"name": name, "path": f"/mnt/lora/{adapter}"}, separators=(",", ":"))
        for adapter in names
        for name in (adapter, f"publishers/{namespace}/models/{adapter}")
    ]


def _published_as(service: str, model: str) -> Corrections:
    """Route by the service's own model name, where the peer took that of a base config."""
    route = f"HTTPRoute/{service}-kserve-route/spec/rules"
    name = f"publishers/kv-063/models/{model}"
    header = "headers/X-Gateway-Model-Name/value"
    endpoints = ("completions", "chat/completions", "responses", "messages")
    return {
        f"{route}/v1-catch-all-model-routing/matches/0/{header}": name,
        f"{route}/v1-publisher-path-catch-all/matches/0/path/value": f"/{name}",
        **{f"{route}/v1-model-routing/matches/{index}/{header}": name for index in range(8)},
        **{
            f"{route}/v1-{endpoint.replace('/', '-')}-publisher-path/matches/0/path/value": f"/{name}/v1/{endpoint}"
            for endpoint in endpoints
        },
    }


def _both_members(member: str, other: str, weight: int) -> Corrections:
    """Keep the other member of a group in a route's shared rules."""
    shared = (
        *("completions-publisher-path", "chat-completions-publisher-path", "responses-publisher-path"),
        *("messages-publisher-path", "publisher-path-catch-all", "model-routing", "catch-all-model-routing"),
    )
    pool = f"{other}-inference-pool"
    backend = {
        "group": kserve_form.GROUP,
        "kind": "InferencePool",
        "name": pool,
        "port": 8000,
        "weight": weight,
    }
    return {
        f"HTTPRoute/{member}-kserve-route/spec/rules/v1-{rule}/backendRefs/{pool}/{field}": value
        for rule in shared
        for field, value in backend.items()
    }


def _but(corrections: Corrections, *paths: str) -> Corrections:
    """Leave paths out."""
    return {path: value for path, value in corrections.items() if path not in paths}


def _without(*paths: str) -> Corrections:
    return dict.fromkeys(paths, ABSENT)


_S3 = _template("Deployment/cred-kserve", "initContainers/storage-initializer/env")
_SELECTED = "spec/selector/matchLabels"
_NATIVE = "Deployment/native-kserve/spec/template/spec"
_DRA_LABELS = "ResourceClaimTemplate/dra-managed-dra/metadata/labels/app.kubernetes.io"
_POOL_OF_PPIPE = _template("Deployment/ppipe-kserve", "initContainers/llm-d-routing-sidecar/env/INFERENCE_POOL_NAME")
_OF_PREFILL = (
    "Deployment/mix-kserve",
    "LeaderWorkerSet/mix-kserve-mn-prefill",
    "Role/mix-kserve-role",
    "RoleBinding/mix-kserve-rb",
    "Secret/mix-kserve-self-signed-certs",
    "Service/mix-kserve-workload-svc",
    "ServiceAccount/mix-kserve",
    "ServiceAccount/mix-kserve-mn-prefill",
)
_PDR, _PICKER = "Deployment/pdr-kserve", "Deployment/pdr-kserve-router-scheduler"
_PREFILL_REMOVED: Corrections = {
    **_without(
        "Deployment/pdr-kserve-prefill",
        "Role/pdr-kserve-role",
        "RoleBinding/pdr-kserve-rb",
        *(f"{deployment}/{part}" for deployment in (_PDR, _PICKER) for part in ("metadata", "spec")),
    ),
    **_but(
        _made_for("132", "pdr", "rt", "Deployment/rt-kserve", "Deployment/rt-kserve-router-scheduler", of="020"),
        _PDR + "/spec/replicas",
        _PDR,
        _PICKER,
    ),
    _argv(_PDR): _serve("pdr", "kv-132"),
}

OBJECTS: dict[str, Corrections] = {
    # No value of a Secret is read, so which keys it holds is not known.
    "004": {
        f"{_S3}/AWS_ACCESS_KEY_ID/valueFrom/secretKeyRef/optional": True,
        f"{_S3}/AWS_SECRET_ACCESS_KEY/valueFrom/secretKeyRef/optional": True,
    },
    "005": {
        # The check of the image is in words of our own.
        _template("Deployment/car-kserve", "initContainers/modelcar-init/args"): [
            "sh",
            "-c",
            '[ -n "$$(ls -A /models 2>/dev/null)" ] || { echo "the image has no files in /models" >&2; exit 1; }',
        ],
        # The API server of the recording had the feature turned off, and dropped image volumes without a word.
        f"{_NATIVE}/volumes/kserve-oci-source/name": "kserve-oci-source",
        f"{_NATIVE}/volumes/kserve-oci-source/image/reference": "registry.example/acme/tiny:1",
        f"{_NATIVE}/containers/main/volumeMounts/kserve-oci-source/name": "kserve-oci-source",
        f"{_NATIVE}/containers/main/volumeMounts/kserve-oci-source/mountPath": "/mnt/models",
        f"{_NATIVE}/containers/main/volumeMounts/kserve-oci-source/readOnly": True,
        f"{_NATIVE}/containers/main/volumeMounts/kserve-oci-source/subPath": "models",
    },
    # A probe of another kind takes the place of the preset's.
    "011": {
        **_but(
            _made_for(
                "011", "handler", "alpha", "Deployment/alpha-kserve", "Service/alpha-kserve-workload-svc", of="001"
            ),
            _main("Deployment/handler-kserve", "readinessProbe/httpGet/path"),
            _main("Deployment/handler-kserve", "readinessProbe/httpGet/port"),
        ),
        _main("Deployment/handler-kserve", "readinessProbe/exec/command"): ["true"],
    },
    # So does a volume of another type.
    "012": {
        **_but(
            _made_for(
                "012", "voltype", "alpha", "Deployment/alpha-kserve", "Service/alpha-kserve-workload-svc", of="001"
            ),
            _template("Deployment/voltype-kserve", "volumes/model-cache/emptyDir"),
        ),
        _template("Deployment/voltype-kserve", "volumes/model-cache/persistentVolumeClaim/claimName"): "cache",
    },
    # Words stay as they were given.
    "013": {
        _argv("Deployment/dollar-kserve"): _serve("m$HOME;echo", "kv-013"),
        _argv("Deployment/spacy-kserve"): _serve("my model (v1)", "kv-013"),
        f"{_argv('Deployment/spacy-kserve')}/error": ABSENT,
        f"{_argv('Deployment/spacy-kserve')}/rc": ABSENT,
        _argv("Deployment/json-kserve"): _serve(
            "json",
            "kv-013",
            '--override-generation-config={"temperature": 0.5}',
            "--chat-template",
            "/tmpl/a b.jinja",
            '--allowed-origins=["*"]',
        ),
    },
    # What users label their pods with is no part of a selector, which can never change.
    "015": _without(
        *(f"Deployment/lab-kserve/{_SELECTED}/{label}" for label in ("kueue.x-k8s.io/queue-name", "team", "tier"))
    ),
    "015:step2:": {
        "Deployment/lab-kserve/metadata/labels/team": "infra",
        "Deployment/lab-kserve/metadata/annotations/prometheus.io/port": "9999",
        "Deployment/lab-kserve/spec/template/metadata/labels/team": "infra",
        "Deployment/lab-kserve/spec/template/metadata/annotations/prometheus.io/port": "9999",
        "Deployment/lab-kserve/spec/template/metadata/annotations/note": "changed",
        "Service/lab-kserve-workload-svc/metadata/labels/team": "infra",
        "Service/lab-kserve-workload-svc/metadata/annotations/note": "changed",
    },
    # A route may be there before its Gateway: left out, it would be taken away while a Gateway is replaced.
    "022": {
        **_but(
            _made_for("022", "lost", "both", "HTTPRoute/both-kserve-route", of="022"),
            *(
                f"HTTPRoute/lost-kserve-route/spec/parentRefs/{gateway}/{field}"
                for gateway in ("edge", "kserve-ingress-gateway")
                for field in ("name", "namespace", "group", "kind")
            ),
        ),
        "HTTPRoute/lost-kserve-route/spec/parentRefs/absent/name": "absent",
        "HTTPRoute/lost-kserve-route/spec/parentRefs/absent/namespace": "kv-022",
    },
    # The same holds for an endpoint picker whose route is the user's and not there yet,
    "023": _made_for(
        "023",
        "lostref",
        "rt",
        "ClusterRoleBinding/kv-020-rt-epp-auth-rb",
        "Deployment/rt-kserve-router-scheduler",
        "InferencePool/rt-inference-pool",
        "Role/rt-epp-role",
        "RoleBinding/rt-epp-rb",
        "Service/rt-epp-service",
        "ServiceAccount/rt-epp-sa",
        of="020",
    ),
    # Nor does a selector hold what users label the endpoint picker's pods with (all stages).
    "027": _without(f"Deployment/st-kserve-router-scheduler/{_SELECTED}/s"),
    # and for one whose account is the user's and not there yet: Kubernetes itself waits for it.
    "027:input:": {
        **_but(
            _made_for(
                "027",
                "nosa",
                "rt",
                "ClusterRoleBinding/kv-020-rt-epp-auth-rb",
                "Deployment/rt-kserve-router-scheduler",
                "InferencePool/rt-inference-pool",
                "Role/rt-epp-role",
                "RoleBinding/rt-epp-rb",
                "Service/rt-epp-service",
                of="020",
            ),
            *(
                f"{binding}/subjects/nosa-epp-sa/{field}"
                for binding in ("RoleBinding/nosa-epp-rb", "ClusterRoleBinding/kv-027-nosa-epp-auth-rb")
                for field in ("kind", "name", "namespace")
            ),
        ),
        **{
            f"{binding}/subjects/absent/{field}": value
            for binding in ("RoleBinding/nosa-epp-rb", "ClusterRoleBinding/kv-027-nosa-epp-auth-rb")
            for field, value in {"kind": "ServiceAccount", "name": "absent", "namespace": "kv-027"}.items()
        },
        _template("Deployment/nosa-kserve-router-scheduler", "serviceAccountName"): "absent",
    },
    # Nothing of ours holds a deletion up.
    "027:step1:": _without(
        "Deployment/nosa-kserve", "Secret/nosa-kserve-self-signed-certs", "Service/nosa-kserve-workload-svc"
    ),
    # `optional` means what it says: without the ConfigMap there is the configuration that is worked out.
    "029": _but(_made_for("029", "refo", "rt", of="020"), "Deployment/refo-kserve/spec/replicas"),
    # A weight is a number in a route, and no reason to take anybody out of it.
    "034:step2:": {**_both_members("canary", "stable", 90), **_both_members("stable", "canary", 50)},
    # Of a stopped service nothing stays but its certificate: nobody here may delete a Secret.
    "034:step4:": {
        **_without("ClusterRoleBinding/kv-034-canary-epp-auth-rb", "Role/canary-epp-role", "RoleBinding/canary-epp-rb"),
        **_made_for("034", "canary", "canary", "Secret/canary-kserve-self-signed-certs", of="034"),
    },
    "051": _without(f"Deployment/pdo-kserve-prefill/{_SELECTED}/p"),
    # The service's own name of its model wins; sizes of base configs count like all else in them.
    "063": {
        **_published_as("bm", "from-own"),
        **_published_as("bn", "bn"),
        _argv("Deployment/bm-kserve"): _serve("from-own", "kv-063", "--tensor-parallel-size", "8"),
        _argv("Deployment/bn-kserve"): _serve("bn", "kv-063", "--tensor-parallel-size", "8"),
    },
    # JSON is not quoted for a second shell, which there is not.
    "070": {
        _main("Deployment/lo-kserve", "args"): [
            *("--enable-lora", "--max-lora-rank=32", "--max-loras=4", "--max-cpu-loras=8", "--lora-modules"),
            *_modules("kv-070", "law", "sql"),
        ]
    },
    "081": {
        _main("Deployment/v1full-kserve", "args"): [
            *("--enable-lora", "--lora-modules"),
            *_modules("kv-081", "a", "b"),
            "--x",
        ],
        _main("Deployment/v1full-kserve-prefill", "args"): [
            *("--enable-lora", "--lora-modules"),
            *_modules("kv-081", "a", "b"),
        ],
    },
    # A write through the older version loses nothing.
    "082:step1:": {
        _argv("Deployment/down-kserve"): _serve(
            "down",
            "kv-082",
            "--kv-transfer-config",
            '{"kv_connector":"OffloadingConnector","kv_connector_extra_config":{"cpu_bytes_to_use":10737418240,'
            '"eviction_policy":"lru","spec_name":"TieringOffloadingSpec"},"kv_role":"kv_both"}',
            *("--otlp-traces-endpoint", "http://otel-collector:4317", "--collect-detailed-traces", "all"),
        )
    },
    # Groups that share a model's layers have presets here.
    "106": _but(
        _made_for("106", "ppipe", "mix", *_OF_PREFILL, of="053"),
        *(f"{_POOL_OF_PPIPE}/{field}" for field in ("name", "value")),
    ),
    "110": {_argv("Deployment/ku-kserve"): _serve("ku", "kv-110", '--kv-transfer-config={"kv_connector":"X"}')},
    # Ours are found by their labels.
    "113": {
        f"{_DRA_LABELS}/component": "llminferenceservice-workload",
        f"{_DRA_LABELS}/name": "dra",
        f"{_DRA_LABELS}/part-of": "llminferenceservice",
    },
    # The Deployment is replaced by one with the other selector, and what only prefill needed goes.
    "132:step2:": _PREFILL_REMOVED,
    "132:step3:": _PREFILL_REMOVED,
    "134:step2:": {
        **_without("ClusterRoleBinding/kv-134-stp-epp-auth-rb", "Role/stp-epp-role", "RoleBinding/stp-epp-rb"),
        **_made_for("134", "stp", "stp", "Secret/stp-kserve-self-signed-certs", of="134"),
    },
}
