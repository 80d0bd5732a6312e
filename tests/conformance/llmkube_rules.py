"""Differences that every case of LLMKube has. corrections.yaml lists these rules with class and reason."""

from __future__ import annotations

from typing import Any

from tests.conformance import corrections
from tests.conformance.comparison import Flat
from tests.conformance.vectors import Vector

ENGINES = {
    "llama-server": "slots",
    "vllm": "vllm:num_requests_running",
    "sglang": "sglang:num_running_reqs",
    "tgi": "tgi_batch_current_size",
    "tensorrt-llm": "",
    "ollama": "",
}
"""Engine containers that get the default drain, and how it sees running requests: `slots`, a metric, or nothing."""


def corrections_of(vector: Vector, expected: Flat, prefix: str = "") -> dict[str, Any]:
    """Return all corrections by path for a case with the recorded objects `expected`."""
    return {**corrections.objects(vector, prefix), **drains(expected), **owned(expected)}


def owned(expected: Flat) -> dict[str, Any]:
    """Expect `blockOwnerDeletion: true`, so that a foreground deletion waits for the service's objects."""
    return {path: True for path, value in expected.items() if path.endswith("/blockOwnerDeletion") and value is False}


def drains(expected: Flat) -> dict[str, Any]:
    """Expect the default drain: a preStop hook and grace periods. With the peer, a rolling update drops requests.

    llama-server and Ollama drop requests at SIGTERM, and so does vLLM without a shutdown timeout. The other engines
    refuse new requests before clients know that the pod is terminating.
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
        found |= {path: 25 for path in graces if path not in expected}  # a value that the user set is kept
    return found
