"""An upgrade of Herdsman restarts nothing: what the vectors ask for has the same fingerprint as in the release before.

`fingerprints.json` was recorded from that release. With an equal fingerprint no engine runs, so no pod is touched.
Whoever has to change one on purpose says in the change log whose pods start anew, and records it here.
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
            with contextlib.suppress(SpecInvalid):  # its services are missing in the result, which a comparison shows
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
