"""Short functions that make InferenceServices and Models for the tests of LLMKube's dialect."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.model import DesiredModel
from program.desired.service import DesiredService
from program.dialects.llmkube.parse.service import parse_service
from program.dialects.llmkube.parse.source import parse_source


def model(name: str = "base", source: str = "https://example.com/m.gguf", **fields: Any) -> DesiredModel:
    return DesiredModel(name=name, source=parse_source(source), **fields)


def service(*, name: str = "svc", annotations: Json | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": "ns", "uid": "u-1", "generation": 4, "annotations": annotations or {}},
        "spec": {"modelRef": "base", **spec},
    }


def parse(cr: Json, of: DesiredModel | None = None, **fields: Any) -> DesiredService:
    return parse_service(cr, of or model(), **fields)


def refused(cr: Json, of: DesiredModel | None = None, **fields: Any) -> SpecInvalid:
    with pytest.raises(SpecInvalid) as caught:
        parse(cr, of, **fields)
    return caught.value
