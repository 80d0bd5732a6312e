"""Where llmaz's recorded output is wrong, or where we differ on purpose: what is right, path by path.

A key is a case (`044`, in all its stages) or one stage of it (`044:input:`, `044:step2:`). What every case would need
is in `llmaz_form`. Each entry says why; tests check that every listed defect has one and that none is without effect.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.comparison import ABSENT

_WORKER, _LEADER = "workerTemplate", "leaderTemplate"


def _group(name: str) -> str:
    return f"LeaderWorkerSet/{name}/spec/leaderWorkerTemplate"


def _loader(name: str, told: dict[str, str]) -> dict[str, Any]:
    """The loader's variables that a source needs, and the keys to the store."""
    env = f"{_group(name)}/{_WORKER}/spec/initContainers[model-loader]/env"
    paths: dict[str, Any] = {}
    for variable, value in told.items():
        paths |= {f"{env}[{variable}]/name": variable, f"{env}[{variable}]/value": value}
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        reference = f"{env}[{variable}]/valueFrom/secretKeyRef"
        paths[f"{env}[{variable}]/name"] = variable
        paths |= {f"{reference}/key": variable, f"{reference}/name": "aws-access-secret", f"{reference}/optional": True}
    return paths


def _affinity(
    name: str, *values: str, key: str = "gpu.example/model", templates: tuple[str, ...] = (_WORKER,)
) -> dict[str, Any]:
    """Node affinity: the nodes of any of these flavors, and the earlier ones rather than the last."""
    paths: dict[str, Any] = {}
    for template in templates:
        node = f"{_group(name)}/{template}/spec/affinity/nodeAffinity"
        required = f"{node}/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms"
        preferred = f"{node}/preferredDuringSchedulingIgnoredDuringExecution"
        for index, value in enumerate(values):
            terms = [f"{required}/{index}"]
            if index < len(values) - 1:
                terms.append(f"{preferred}/{index}/preference")
                paths[f"{preferred}/{index}/weight"] = 64 >> index
            for term in terms:
                expression = f"{term}/matchExpressions/0"
                paths |= {f"{expression}/key": key, f"{expression}/operator": "In", f"{expression}/values": [value]}
    return paths


def _vllm(name: str, *, path: str) -> dict[str, Any]:
    """A Playground on the shipped vllm, with its front Service, but for what fetches the model."""
    spec = f"{_group(name)}/{_WORKER}/spec"
    runner = f"{spec}/containers[model-runner]"
    owned = {"apiVersion": "inference.llmaz.io/v1alpha1", "controller": True, "kind": "Playground", "name": name}
    made = (f"LeaderWorkerSet/{name}", f"Service/{name}-lb")
    paths: dict[str, Any] = dict.fromkeys(made, "present")
    for thing in made:
        paths |= {f"{thing}/metadata/ownerReferences[{name}]/{field}": value for field, value in owned.items()}
    for probe, timing in (
        ("livenessProbe", {"initialDelaySeconds": 15}),
        ("readinessProbe", {"initialDelaySeconds": 5, "periodSeconds": 5}),
        ("startupProbe", {"failureThreshold": 30}),
    ):
        asked = {"httpGet/path": "/health", "httpGet/port": 8080, **timing}
        paths |= {f"{runner}/{probe}/{field}": value for field, value in asked.items()}
    for amount in ("requests", "limits"):
        paths |= {f"{runner}/resources/{amount}/cpu": "4", f"{runner}/resources/{amount}/memory": "8Gi"}
    host, port = ["--host", "0.0.0.0"], ["--port", "8080"]
    return {
        **paths,
        f"{runner}/name": "model-runner",
        f"{runner}/image": "vllm/vllm-openai:v0.7.3",
        f"{runner}/imagePullPolicy": "IfNotPresent",
        f"{runner}/command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        f"{runner}/lifecycle/preStop/exec/command": ["/bin/sh", "-c", "<script>"],
        f"{runner}/ports[http]/containerPort": 8080,
        f"{runner}/ports[http]/name": "http",
        f"{runner}/volumeMounts[dshm]/mountPath": "/dev/shm",
        f"{runner}/volumeMounts[dshm]/name": "dshm",
        f"{spec}/terminationGracePeriodSeconds": 130,
        f"{spec}/volumes[dshm]/emptyDir/medium": "Memory",
        f"{spec}/volumes[dshm]/emptyDir/sizeLimit": "2Gi",
        f"{spec}/volumes[dshm]/name": "dshm",
        f"{runner}/args": ["--model", path, "--served-model-name", _MODEL_OF[path], *host, *port],
        f"{_group(name)}/{_WORKER}/metadata/labels/llmaz.io/model-family-name": "acme-lm",
        f"{_group(name)}/{_WORKER}/metadata/labels/llmaz.io/model-name": _MODEL_OF[path],
        f"Service/{name}-lb/metadata/annotations/activator.llmaz.io/model-name": _MODEL_OF[path],
        f"Service/{name}-lb/spec/ports[http]/name": "http",
        f"Service/{name}-lb/spec/ports[http]/port": 8080,
        f"Service/{name}-lb/spec/ports[http]/targetPort": 8080,
        f"Service/{name}-lb/spec/selector": f"<pods of {name}>",
    }


_MODEL_OF = {"/srv/weights/tiny-7b": "hostm", "/workspace/models/models--acme--m": "m"}


def _mounted(name: str, path: str, volume: dict[str, Any]) -> dict[str, Any]:
    spec = f"{_group(name)}/{_WORKER}/spec"
    mount = f"{spec}/containers[model-runner]/volumeMounts[model-volume]"
    told = {f"{spec}/volumes[model-volume]/{field}": value for field, value in volume.items()}
    return {
        f"{mount}/mountPath": path,
        f"{mount}/name": "model-volume",
        f"{mount}/readOnly": True,
        f"{spec}/volumes[model-volume]/name": "model-volume",
        **told,
    }


def _fetched_from_hub(name: str, model_id: str) -> dict[str, Any]:
    loader = f"{_group(name)}/{_WORKER}/spec/initContainers[model-loader]"
    told = {
        "MODEL_SOURCE_TYPE": "modelhub",
        "MODEL_ID": model_id,
        "MODEL_HUB_NAME": "Huggingface",
        "REVISION": "main",
    }
    paths: dict[str, Any] = {
        f"{loader}/name": "model-loader",
        f"{loader}/image": "inftyai/model-loader:v0.0.10",
        f"{loader}/imagePullPolicy": "IfNotPresent",
        f"{loader}/volumeMounts[model-volume]/mountPath": "/workspace/models/",
        f"{loader}/volumeMounts[model-volume]/name": "model-volume",
    }
    for variable, value in told.items():
        paths |= {f"{loader}/env[{variable}]/name": variable, f"{loader}/env[{variable}]/value": value}
    for variable in ("HUGGING_FACE_HUB_TOKEN", "HF_TOKEN"):
        reference = f"{loader}/env[{variable}]/valueFrom/secretKeyRef"
        paths[f"{loader}/env[{variable}]/name"] = variable
        paths |= {f"{reference}/key": "HF_TOKEN", f"{reference}/name": "modelhub-secret", f"{reference}/optional": True}
    return paths


_BOTH = (_LEADER, _WORKER)

OBJECTS: dict[str, dict[str, Any]] = {
    # The loader is told what to fetch, as it is of oss://.
    "007": _loader(
        "chat", {"MODEL_SOURCE_TYPE": "objstore", "PROVIDER": "S3", "BUCKET": "weights", "MODEL_PATH": "team/tiny-7b"}
    ),
    "008": _loader(
        "chat", {"MODEL_SOURCE_TYPE": "objstore", "PROVIDER": "GCS", "BUCKET": "weights", "MODEL_PATH": "team/tiny-7b"}
    ),
    # One volume with the node's directory, and no other of its name.
    "010": {
        **_vllm("chat", path="/srv/weights/tiny-7b"),
        **_mounted("chat", "/srv/weights/tiny-7b", {"hostPath/path": "/srv/weights/tiny-7b"}),
    },
    # Two sources cannot both be meant: nothing is made until one is dropped.
    "011": {"LeaderWorkerSet/chat": ABSENT, "Service/chat-lb": ABSENT},
    # Node selectors of flavors work without a scheduler of the peer's own.
    "013": _affinity("chat", "a10", "h100"),
    "014": _affinity("chat", "h100"),
    "015": _affinity("chat", "mi300", "a10"),
    # Without the accelerator that was asked for nothing is made; the status says so.
    "016": {"LeaderWorkerSet/unknown": ABSENT, "Service/unknown-lb": ABSENT},
    "021": _affinity("chat", "a10"),
    "022": _affinity("chat", "h100"),
    # The limit that the user set holds; the request that nobody set gives way.
    "027": {
        f"{_group('limit-under-request')}/{_WORKER}/spec/containers[model-runner]/resources/limits/memory": "4Gi",
        f"{_group('limit-under-request')}/{_WORKER}/spec/containers[model-runner]/resources/requests/memory": "4Gi",
    },
    # The trigger of the config that is named.
    "035": {
        "HorizontalPodAutoscaler/named/spec/behavior/scaleUp": ABSENT,
        "HorizontalPodAutoscaler/named/spec/metrics[Resource]/resource/target/averageUtilization": 82,
    },
    # What the name now stands for: the Service that had it before was the user's.
    "038:step1:": {
        "LeaderWorkerSet/chat/metadata/ownerReferences[chat]/kind": "Playground",
        "Service/chat-lb/metadata/ownerReferences[chat]/kind": "Playground",
    },
    # The front Service is brought up to date like everything else.
    "041:step1:": {"Service/chat-lb/metadata/annotations/activator.llmaz.io/model-name": "two"},
    # The autoscaler goes with what asked for it.
    "044:step2:": {"HorizontalPodAutoscaler/chat": ABSENT},
    "045:input:": _affinity("chat", "a10"),
    "045:step3:": _affinity("chat", "h100"),
    "046": _affinity("direct", "a10"),
    "047": _affinity("wide", "l40s", key="gpu", templates=_BOTH),
    # What the Service says of its group holds, and its workers carry the labels that its leader has.
    "048": {
        f"{_group('pol')}/restartPolicy": "None",
        f"{_group('pol')}/subGroupPolicy/subGroupPolicyType": "LeaderWorker",
        f"{_group('pol')}/subGroupPolicy/subGroupSize": 2,
        f"{_group('pol')}/{_WORKER}/metadata/labels/llmaz.io/model-family-name": "acme-lm",
        f"{_group('pol')}/{_WORKER}/metadata/labels/llmaz.io/model-name": "m",
    },
    "049": _affinity("spec", "l40s", key="gpu", templates=_BOTH),
    # A variable without a name is refused, and with it the Playground.
    "054": {"LeaderWorkerSet/env-noname": ABSENT, "Service/env-noname-lb": ABSENT},
    # Settings without the loader's image have a default.
    "059": {
        **_vllm("chat", path="/workspace/models/models--acme--m"),
        **_mounted("chat", "/workspace/models/", {"emptyDir": {}}),
        **_fetched_from_hub("chat", "acme/m"),
    },
}

_ABORTED = "False/AbortProcessing"


def _said(*services: str) -> dict[str, Any]:
    """A status that says why nothing is made."""
    return {f"{service}/status/conditions[Progressing]": _ABORTED for service in services}


_CHAT = "Playground/chat"
_USERS_CHAT = "Service.inference.llmaz.io/chat"
_UNDER_WAY = {f"{_CHAT}/status/replicas": 1, f"{_CHAT}/status/selector": "<pods of chat>"}

STATUS: dict[str, dict[str, Any]] = {
    "010": _UNDER_WAY,
    "011": {
        **_said(_CHAT),
        f"{_CHAT}/status/replicas": ABSENT,
        f"{_CHAT}/status/selector": ABSENT,
    },
    "023": _said(_CHAT),
    "031": _said(_CHAT),
    "032:input:": _said(_CHAT),
    "033": _said("Playground/unknown", "Playground/nodraft"),
    # The Playground needs no llmaz Service of the same name.
    "038:step1:": {f"{_USERS_CHAT}/status": ABSENT},
    # All is ready: nothing progresses any more.
    "047:step1:": {"Service.inference.llmaz.io/wide/status/conditions[Progressing]": "False/ServiceReady"},
    "051:input:": _said("Service.inference.llmaz.io/direct"),
    "059": _UNDER_WAY,
}

ADMISSION: dict[str, dict[str, set[str]]] = {
    "011": {"OpenModel/both": {"spec.source"}},
    "053": {
        "OpenModel/no-family": {"spec.familyName"},
        "OpenModel/flavor-noname": {"spec.inferenceConfig.flavors[0].name"},
        "OpenModel/bad-date": {"spec.createdAt"},
        "OpenModel/bad-qty": {"spec.inferenceConfig.flavors[0].limits"},
    },
    "054": {
        "Playground/env-noname": {"spec.backendRuntimeConfig.envs[0].name"},
        "Playground/min-above-max": {"spec.elasticConfig.minReplicas"},
        "Playground/trigger-empty": {"spec.elasticConfig.scaleTrigger"},
        "Playground/bad-shm": {"spec.backendRuntimeConfig.sharedMemorySize"},
        "Playground/replicas-text": {"spec.replicas"},
        # One replica is a number like any other.
        "Playground/max-one": set(),
    },
    "055": {
        "BackendRuntime/dup": {"spec.recommendedConfigs[1]"},
        "BackendRuntime/limits": {"spec.recommendedConfigs[0].resources"},
        "BackendRuntime/no-image": {"spec.image"},
        "BackendRuntime/no-version": {"spec.version"},
        "BackendRuntime/config-noname": {"spec.recommendedConfigs[0].name"},
    },
    "056": {"Service.inference.llmaz.io/no-template": {"spec.workloadTemplate"}},
    "058": {"step2:Playground/chat": set()},  # as 054, max-one
    "057": {f"Playground/{name}": {"metadata.name"} for name in ("7b-chat", "x" * 61, "y" * 63)},
}
"""By case: `Kind/name` to the fields that our refusal names; an empty set for what we let in."""

ELSEWHERE: dict[str, str] = {
    "012": "tests/unit/dialects/llmaz/test_shipped_runtimes.py runs the drain scripts against a server's metrics",
    "016": "the objects of the unknown flavor are not made at all, as OBJECTS says",
    "053": "ADMISSION; tests/apiserver/test_llmaz_crds.py",
    "054": "ADMISSION; tests/apiserver/test_llmaz_crds.py",
    "055": "ADMISSION; tests/apiserver/test_llmaz_crds.py",
    "057": "ADMISSION; tests/apiserver/test_llmaz_crds.py",
}
"""Cases with a defect that is no field of an object or status: which test asserts the right answer."""
