"""Where the peer's recorded output is wrong: what is right, path by path. The tests assert these values.

`CORRECTIONS` answer the vectors' own list of defects (a test checks that none is left without an answer);
`FURTHER` are differences of ours that follow from a correction or add to it, each with its reason.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.comparison import ABSENT, Flat

ROCM = "ghcr.io/ggml-org/llama.cpp:server-rocm"
INTEL = "ghcr.io/ggml-org/llama.cpp:server-intel"
CUDA = "ghcr.io/ggml-org/llama.cpp:server-cuda-b10068"
CPU = "ghcr.io/ggml-org/llama.cpp:server"
CLAIM = "PersistentVolumeClaim/llmkube-model-cache"


def _llama(service: str, field: str) -> str:
    return f"Deployment/{service}/pod/containers[llama-server]/{field}"


CORRECTIONS: dict[str, dict[str, Any]] = {
    "006": {_llama("on", "image"): ROCM, _llama("off", "image"): ROCM},
    # gpu.enabled without a count means one GPU; enabled: false means none, whatever the count.
    "025": {
        "Deployment/s-disabled/pod/containers[llama-server]/resources/limits/nvidia.com/gpu": ABSENT,
    },
    "026": {_llama("g", "image"): CUDA},
    "027": {_llama("svc", "image"): ROCM},
    "028": {_llama("svc", "image"): INTEL},
    "029": {_llama("s-none", "args[--n-gpu-layers]"): ["0"]},
    "043": {CLAIM: ABSENT, "Service/svc/ports[http]/targetPort": 9000},
    "045": {"Deployment/svc/pod/initContainers/names": ["model-downloader"]},
    "052": {
        # One JSON flag: vLLM has no longer a flag of its own for the draft model and stops at the start.
        "Deployment/on/pod/containers[vllm]/args[--speculative-model]": ABSENT,
        "Service/on/ports[http]/targetPort": 8000,
        "Service/off/ports[http]/targetPort": 8000,
        "Service/nomodel/ports[http]/targetPort": 8000,
    },
    "054": {"Service/svc/ports[http]/targetPort": 8998},
    "059": {
        "Deployment/s-hf/pod/containers[vllm]/args[positional]": ["acme/tiny-1b"],
        "Service/s-hf/ports[http]/targetPort": 8000,
        "Service/s-bare/ports[http]/targetPort": 8000,
    },
    "063": {CLAIM: ABSENT},
    "067": {"Service/c/ports[http]/targetPort": 9090, "Service/ce/ports[http]/targetPort": 9090},
}

FURTHER: dict[str, dict[str, Any]] = {
    # The image is right as recorded; what is wrong is that no GPU comes with it.
    "025": {
        _llama("s-enabled", "args/order"): ["--model", "--port", "--host", "--n-gpu-layers", "--metrics"],
        _llama("s-zero", "args/order"): ["--model", "--port", "--host", "--n-gpu-layers", "--metrics"],
        _llama("s-enabled", "resources/limits/nvidia.com/gpu"): "1",
        _llama("s-zero", "resources/limits/nvidia.com/gpu"): "1",
    },
    # No container runs as root under runAsNonRoot: the preparing one is gone with all its fields.
    "045": {"Deployment/svc/pod/initContainers[model-cache-prep]": ABSENT},
    "052": {
        "Deployment/on/pod/containers[vllm]/args[--num-speculative-tokens]": ABSENT,
        "Deployment/on/pod/containers[vllm]/args[--speculative-config]": [
            '{"model": "acme/coder-1b", "num_speculative_tokens": 6}'
        ],
        "Deployment/on/pod/containers[vllm]/args/order": ["--port", "--host", "--speculative-config"],
    },
    # The revision is a flag of its own.
    "059": {
        "Deployment/s-hf/pod/containers[vllm]/args[--revision]": ["v2"],
        "Deployment/s-hf/pod/containers[vllm]/args/order": ["--port", "--host", "--revision"],
    },
    # The downloader checks the sum, so it must know it.
    "060": {
        "Deployment/s-good/pod/initContainers[model-downloader]/env/names": [
            *("MODEL_SOURCE", "CACHE_DIR", "MODEL_PATH", "MODEL_SHA256"),
        ],
        "Deployment/s-good/pod/initContainers[model-downloader]/env[MODEL_SHA256]/value": (
            "11c5722b7825b859de9ef88a6e86d6b8456f9aca3d48b0aa6ff52dee1a89464b"
        ),
    },
}


ENGINES = {
    "llama-server": "slots",
    "vllm": "vllm:num_requests_running",
    "sglang": "sglang:num_running_reqs",
    "tgi": "tgi_batch_current_size",
    "tensorrt-llm": "",
    "ollama": "",
}
"""Containers that lose the requests under way when they are told to stop, and what tells that one works."""


def corrections_of(number: str, expected: Flat) -> dict[str, Any]:
    """Return all that is expected otherwise in a case, whose recorded objects are `expected`."""
    return {**CORRECTIONS.get(number, {}), **FURTHER.get(number, {}), **_drains(expected), **_owned(expected)}


def _owned(expected: Flat) -> dict[str, Any]:
    """Expect owner references that block: a deletion in the foreground waits for what the service owns."""
    return {path: True for path, value in expected.items() if path.endswith("/blockOwnerDeletion") and value is False}


def _drains(expected: Flat) -> dict[str, Any]:
    """Expect pods that let their requests end: with the peer each rolling update loses those that are under way.

    llama-server and Ollama drop requests at SIGTERM, so does vLLM without a timeout of its own; the others stop taking
    new ones before clients have heard that the pod goes.
    """
    found: dict[str, Any] = {}
    for path, names in expected.items():
        pod, _, rest = path.rpartition("/containers/")
        engine = next((name for name in names if name in ENGINES), "") if rest == "names" else ""
        if not engine:
            continue
        container, what = f"{pod}/containers[{engine}]", ENGINES[engine]
        port = expected[f"{container}/ports[http]/containerPort"]
        question = {"slots": "/slots", "": ""}.get(what, "/metrics")
        bound = expected.get(f"{container}/args[--host]", ["::"])[-1]
        address = "127.0.0.1" if bound in ("::", "0.0.0.0") else bound
        url = f"http://{address}:{port}{question}"
        command = ["sh", "-c", "<script>", "drain-by-default", url, "300", str(port), what]
        found[f"{container}/lifecycle/preStop/exec/command"] = command
        found[f"{pod}/terminationGracePeriodSeconds"] = 330
        graces = (f"{container}/{probe}/terminationGracePeriodSeconds" for probe in ("livenessProbe", "startupProbe"))
        found |= {path: 25 for path in graces if path not in expected}  # a user's own stays
    return found


STATUS: dict[str, dict[str, Any]] = {
    # Conditions that an earlier phase left behind: no service failed here, and no copy is under way.
    "008": {"InferenceService/both/conditions[Degraded]": ABSENT},
    "037": {"InferenceService/svc/conditions[Degraded]": ABSENT},
    "056": {"Model/f/conditions[Progressing]": ABSENT, "Model/abs/conditions[Progressing]": ABSENT},
    # The file is not the one that the Model wants, so nothing that was read from it counts.
    "060": {
        "Model/bad/conditions[Available]": ABSENT,
        "Model/bad/conditions[Degraded]": "True/IntegrityCheckFailed",
        "Model/bad/acceleratorReady": ABSENT,
        "Model/bad/gguf": ABSENT,
        "Model/bad/size": ABSENT,
    },
    # It was never let in.
    "068": {"Model/bad-10": ABSENT},
    # minReplicas 0 and runtime ollama were let in; what is wrong with the services now is that they have no Model.
    "070": {
        "InferenceService/bad-03/phase": "Failed",
        "InferenceService/bad-03/effectivePriority": 10000,
        "InferenceService/bad-03/conditions[Degraded]": "True/Failed",
        "InferenceService/bad-07/phase": "Failed",
        "InferenceService/bad-07/effectivePriority": 10000,
        "InferenceService/bad-07/conditions[Degraded]": "True/Failed",
    },
    # Two pods are still there when the service is told to have none.
    "072:step2:": {"InferenceService/svc/replicas": 2},
    # Told to have one again, it has none yet, and no longer because somebody stopped it.
    "072:step4:": {
        "InferenceService/svc/replicas": ABSENT,
        "InferenceService/svc/conditions[Available]": "False/NoReadyReplicas",
    },
}
"""As FURTHER, for statuses; a key is a case, or a case and a step."""


def status_corrections_of(number: str, prefix: str = "") -> dict[str, Any]:
    """Return what is expected otherwise in the statuses of a case, after its input or after the step of `prefix`."""
    return {**STATUS.get(number, {}), **(STATUS.get(f"{number}:{prefix}", {}) if prefix else {})}
