"""Reads the YAML examples of the guides, and finds the fields, settings and annotations that they name.

An example is a fenced block `yaml`. Its documents are custom resources, or parts of them: a document that has only
`metadata` or `spec` is completed. Its kind is the first of InferenceService, Model, Host, GPUQuota, ModelRouter,
ModelPool and LoRAAdapter that has all of its fields. `tests/unit/test_guides.py` calls this.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from automation.reference import crds
from automation.reference.field_samples import MODELS, models_of
from components.extensions import unsupported_by_cluster
from components.options import RenderOptions
from components.render import render
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.facts import Problem
from program.desired.model import DesiredModel
from program.dialects.crds.reading import read, unknown_fields, without_nulls
from program.dialects.crds.schema import CrdModel
from program.dialects.hosts.schema import HostSpec
from program.dialects.llmkube.parse.adapter import adapter_of
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.pool import pool_of
from program.dialects.llmkube.parse.router import router_of
from program.dialects.llmkube.parse.router import unsupported_fields as unsupported_by_gateway
from program.dialects.llmkube.parse.service import draft_reference, parse_service
from program.dialects.llmkube.schema.gpu_quota import GpuQuotaSpec
from program.dialects.llmkube.schema.lora_adapter import LoraAdapterSpec
from program.dialects.llmkube.schema.model import ModelSpec
from program.dialects.llmkube.schema.model_pool import ModelPoolSpec
from program.dialects.llmkube.schema.model_router import ModelRouterSpec
from program.dialects.llmkube.schema.service import ServiceSpec
from program.dialects.llmkube.unsupported.service import unsupported_fields

ROOT = Path(__file__).parents[2]
GUIDES = sorted(path for kind in ("tutorials", "how-to", "explanation") for path in (ROOT / "docs" / kind).glob("*.md"))
SCHEMAS: dict[str, type[CrdModel]] = {
    "InferenceService": ServiceSpec,
    "Model": ModelSpec,
    "Host": HostSpec,
    "GPUQuota": GpuQuotaSpec,
    "ModelRouter": ModelRouterSpec,
    "ModelPool": ModelPoolSpec,
    "LoRAAdapter": LoraAdapterSpec,
}
OPTIONS = RenderOptions(
    installed=frozenset(kind.full_name for kind in kinds.OPTIONAL),
    prometheus_url="http://prometheus.monitoring:9090",
    shared_gpu_selector={"gpu": "shared"},
)
"""A cluster with all extensions, so that only errors of an example are reported."""
_BLOCK = re.compile(r"^```ya?ml[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_PARTS = {"apiVersion", "kind", "metadata", "spec"}


class Example(NamedTuple):
    """One custom resource in a guide."""

    page: str
    line: int
    kind: str
    document: Json
    others: tuple[Json, ...]
    """All documents of the same block."""


class Unreadable(Exception):
    """A part of an object that is part of no kind."""


def blocks(text: str) -> Iterator[tuple[int, list[Any]]]:
    """Yield the line and the documents of each YAML block. Raises yaml.YAMLError."""
    for match in _BLOCK.finditer(text):
        line = text[: match.start()].count("\n") + 1
        yield line, [each for each in yaml.safe_load_all(match[1]) if each is not None]


def examples(page: Path) -> list[Example]:
    """Return the custom resources in a guide. Raises `Unreadable` for a part of one with a field of no kind."""
    found = []
    for line, documents in blocks(page.read_text("utf-8")):
        parts = [each for each in documents if isinstance(each, dict) and each and set(each) <= _PARTS]
        named = [(_kind_of(each, f"{page.name}:{line}"), each) for each in parts]
        found += [
            Example(page.name, line, kind, each, tuple(other for name, other in named if name == "Model"))
            for kind, each in named
            if kind in SCHEMAS
        ]
    return found


def _kind_of(document: Json, where: str) -> str:
    if "kind" in document:
        group = str(document.get("apiVersion", "")).partition("/")[0]
        return str(document["kind"]) if group in ("inference.llmkube.dev", "herdsman.dev") else ""
    spec = document.get("spec") or {}
    known = {kind: {str(info.alias or name) for name, info in of.model_fields.items()} for kind, of in SCHEMAS.items()}
    kind = next((kind for kind, names in known.items() if set(spec) <= names), None)
    if kind is None:
        raise Unreadable(f"{where}: no kind has all of the fields {', '.join(spec)}")
    return kind


def problems(example: Example) -> list[str]:
    """Return what is wrong with an example: unknown fields, and fields without effect. Raises SpecInvalid."""
    spec = read(SCHEMAS[example.kind], without_nulls(completed(example)["spec"]), field="spec")
    found = [f"{path} is not known" for path, _ in unknown_fields(spec, field="spec")]
    if example.kind == "Model":
        model_of(completed(example))
    if example.kind == "ModelPool":
        pool_of(completed(example))
    if example.kind == "LoRAAdapter":
        adapter_of(completed(example))
    if example.kind == "ModelRouter":
        router_of(completed(example))
        found += [f"{each.field} {each.message}" for each in unsupported_by_gateway(completed(example))]
    if example.kind == "InferenceService":
        found += [f"{each.field} {each.message}" for each in _of_service(example)]
    return found


def completed(example: Example) -> Json:
    """Return a whole object: a part of a service gets a Model, and an image where its runtime needs one."""
    metadata = {"name": "example", "namespace": "default", **(example.document.get("metadata") or {})}
    spec = dict(example.document.get("spec") or {})
    if example.kind == "InferenceService":
        spec.setdefault("modelRef", "example")
        if spec.get("runtime") in ("generic", "personaplex"):
            spec.setdefault("image", "registry.example/engine:1")
    if example.kind == "Model":
        spec.setdefault("source", "hf://example/model/model.gguf")
    return {"metadata": metadata, "spec": spec}


def _of_service(example: Example) -> tuple[Problem, ...]:
    cr = completed(example)
    spec = cr["spec"]
    model = _model(example, str(spec["modelRef"]))
    if model is None:
        name = models_of(str(spec.get("runtime", "llamacpp")))[0]
        model = model_of({"metadata": {"name": spec["modelRef"], "namespace": "default"}, "spec": MODELS[name]})
    draft = draft_reference(cr)
    found = _model(example, draft) if draft else None
    if draft and found is None:
        found = model_of(
            {"metadata": {"name": draft, "namespace": "default"}, "spec": {"source": "hf://example/draft"}}
        )
    desired = parse_service(cr, model, draft=found)
    if desired.host_placement is not None:
        names = {"host": "host-0", "others": tuple(f"host-{number}" for number in range(1, desired.replicas))}
        desired = desired.model_copy(update={"host_placement": desired.host_placement.model_copy(update=names)})
    assert render(desired, OPTIONS).objects or desired.suspended or not desired.replicas
    return (*unsupported_fields(cr, desired), *unsupported_by_cluster(desired, OPTIONS))


def _model(example: Example, name: str) -> DesiredModel | None:
    for document in example.others:
        if (document.get("metadata") or {}).get("name") == name:
            return model_of({"metadata": {"namespace": "default", **document["metadata"]}, "spec": document["spec"]})
    return None


# --- names in guides --------------------------------------------------------------------------------------------------


@functools.cache
def text() -> str:
    """Return all guides together."""
    return "\n".join(page.read_text("utf-8") for page in GUIDES)


@functools.cache
def code() -> frozenset[str]:
    """Return every word of code in the lines of the guides."""
    return frozenset(word for span in _CODE.findall(text()) for word in re.split(r"[\s,:=()]+", span))


@functools.cache
def written(kind: str) -> frozenset[str]:
    """Return the paths of all fields of a kind in the examples of the guides."""
    return frozenset(
        path
        for page in GUIDES
        for example in examples(page)
        if example.kind == kind
        for path in _paths(example.document.get("spec"), "spec")
    )


def _paths(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _paths(each, f"{path}[]")
    elif isinstance(value, dict):
        for name, each in value.items():
            yield f"{path}.{name}"
            yield from _paths(each, f"{path}.{name}")


def fields(kind: str) -> list[str]:
    """Return the paths of the fields of a kind's spec."""
    return [each.path for each in crds.fields(crds.kinds()[kind]) if each.path.startswith("spec.")]


def is_named(kind: str, path: str) -> bool:
    """Return whether a field is in an example, or named as code: by its path, or by its name if no other has it."""
    if path in written(kind):
        return True
    short = path.replace("[]", "").removeprefix("spec.")
    names = short.split(".")
    ends = {".".join(names[start:]) for start in range(len(names) - 1)} | {f"spec.{short}", short}
    if len(names) > 1 and sum(each.endswith(f".{names[-1]}") for each in fields(kind)) == 1:
        ends.add(names[-1])
    return bool(ends & code())
