"""What is expected otherwise in every case of LLMKube. corrections.yaml lists these rules with class and reason."""

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
"""Containers that lose the requests under way when they are told to stop, and what tells that one works."""


def corrections_of(vector: Vector, expected: Flat, prefix: str = "") -> dict[str, Any]:
    """Return all that is expected otherwise in a case, whose recorded objects are `expected`."""
    return {**corrections.objects(vector, prefix), **drains(expected), **owned(expected)}


def owned(expected: Flat) -> dict[str, Any]:
    """Expect owner references that block: a deletion in the foreground waits for what the service owns."""
    return {path: True for path, value in expected.items() if path.endswith("/blockOwnerDeletion") and value is False}


def drains(expected: Flat) -> dict[str, Any]:
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
