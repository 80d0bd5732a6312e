"""An upgrade of Herdsman restarts no pods of LLMKube's services: fingerprints are those of the previous release.

`fingerprints.json` was recorded from that release. While the fingerprint of a service is unchanged, the loop runs no
engine for it, so no pod changes. If you change a fingerprint on purpose, record it in that file, and name in the change
log the services whose pods restart.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from components.render import RenderOptions, render
from program.desired.errors import SpecInvalid
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.service import parse_service
from tests.conformance.vectors import Vector, all_vectors

RECORDED: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "fingerprints.json").read_text())


def fingerprints(vector: Vector) -> dict[str, str]:
    models = {}
    for cr in vector.input:
        name = cr["metadata"]["name"]
        status = vector.status.get(f"Model/{name}", {})
        if cr["kind"] == "Model" and status.get("phase") == "Ready":
            with contextlib.suppress(SpecInvalid):  # its services are missing in the result, so the test fails
                models[name] = model_of({**cr, "status": status})
    found = {}
    for cr in vector.input:
        name = cr["metadata"]["name"]
        model = models.get(cr["spec"].get("modelRef"))
        if cr["kind"] != "InferenceService" or model is None or f"InferenceService/{name}" in vector.rejected:
            continue
        owned = {**cr, "metadata": {**cr["metadata"], "namespace": vector.namespace, "uid": "uid-of-a-test"}}
        draft = (cr["spec"].get("vllmConfig") or {}).get("speculative", {}).get("model")
        desired = parse_service(owned, model, draft=models.get(draft))
        found[name] = render(desired, RenderOptions()).fingerprint
    return found


@pytest.mark.parametrize("vector", all_vectors(), ids=lambda vector: vector.name)
def test_a_service_of_the_release_before_is_left_alone(vector: Vector) -> None:
    assert fingerprints(vector) == RECORDED.get(vector.name, {})
