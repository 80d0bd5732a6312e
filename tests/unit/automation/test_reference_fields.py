"""The pages of fields, metrics and conditions in docs/reference agree with the code and are complete."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.contract import ProcessReason
from agent.sources import errors
from automation.reference import condition_texts, conditions, crds, field_units, metrics
from automation.reference.docstrings import attribute_docstrings
from automation.reference.reason_texts import MEANINGS
from kubeapi.json_types import Json
from program.dialects.kserve.status import conditions as kserve
from program.dialects.llmkube.status import model
from program.dialects.status.conditions import Reason, Type
from program.dialects.status.service_conditions import COMMON

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PROMETHEUS = re.compile(r"(Counter|Gauge|Histogram)(MetricFamily)?$")
WORD = re.compile(r"[A-Z][A-Za-z]+")


@functools.cache
def generated() -> dict[str, str]:
    return {metrics.PAGE: metrics.page(), conditions.PAGE: conditions.page(), **crds.pages()}


def test_the_committed_pages_are_the_generated_ones() -> None:
    committed = {path: (ROOT / path).read_text("utf-8") for path in generated()}
    assert committed == generated(), "run `make reference`"


def test_no_page_of_a_kind_is_left_behind() -> None:
    there = {str(path.relative_to(ROOT)) for path in (ROOT / crds.FOLDER).iterdir()}
    assert there == {path for path in generated() if path.startswith(crds.FOLDER)}


# --- fields -----------------------------------------------------------------------------------------------------------


def paths_in(schema: Json, path: str) -> Iterator[str]:
    """Every path of a schema, found without the generator."""
    for name, member in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from paths_in(member, f"{path}.{name}")
        yield from paths_in(member.get("items", {}), f"{path}.{name}[]")
        more = member.get("additionalProperties")
        yield from paths_in(more if isinstance(more, dict) else {}, f"{path}.{name}.<key>")


@pytest.mark.parametrize("kind", crds.kinds())
def test_every_field_is_on_the_page_of_its_kind_with_a_description(kind: str) -> None:
    document = crds.kinds()[kind]
    parts = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    expected = [path for part in ("spec", "status") for path in paths_in(parts[part], part)]
    found = crds.fields(document)
    assert [field.path for field in found] == expected
    assert [field.path for field in found if not field.description] == []
    text = generated()[f"{crds.FOLDER}/{kind.lower()}.md"]
    assert [path for path in expected if not re.search(rf"^\| \[?`{re.escape(path)}`", text, re.MULTILINE)] == []


def test_every_documented_field_without_a_schema_description_exists() -> None:
    known = {field.path for field in crds.fields(crds.kinds()["HostProcess"])}
    assert set(crds._PLAIN) - known == set()


def field(kind: str, path: str) -> crds.Field:
    return next(each for each in crds.fields(crds.kinds()[kind]) if each.path == path)


@pytest.mark.parametrize(
    ("kind", "path", "unit"),
    [
        ("InferenceService", "spec.contextSize", "tokens"),
        ("InferenceService", "spec.maxPodLifetimeSeconds", "seconds"),
        ("InferenceService", "spec.resources.hostMemory", "quantity"),
        ("InferenceService", "spec.resources.gpuSharing.memoryLimitGiB", "GiB"),
        ("InferenceService", "spec.vllmConfig.gpuMemoryUtilization", "share of 1"),
        ("InferenceService", "spec.tensorRTLLMConfig.maxBatchSize", ""),
        ("InferenceService", "spec.replicas", ""),
        ("InferenceService", "status.lastUpdated", "RFC 3339"),
        ("GPUQuota", "spec.vramBytes", "bytes"),
        ("HostProcess", "spec.stopGraceS", "seconds"),
        ("Host", "status.processes[].tokensPerSecond", "tokens per second"),
    ],
)
def test_units_are_read_from_names_and_formats(kind: str, path: str, unit: str) -> None:
    assert crds.unit_of(field(kind, path)) == unit


@pytest.mark.parametrize("unit", [unit for unit, _ in field_units.UNITS])
def test_every_unit_is_that_of_a_field(unit: str) -> None:
    every = [each for document in crds.kinds().values() for each in crds.fields(document)]
    assert unit in {crds.unit_of(each) for each in every}


@pytest.mark.parametrize("kind", crds.kinds())
def test_a_description_with_a_unit_belongs_to_a_field_with_one(kind: str) -> None:
    says = re.compile(r"\b(in (seconds|bytes|tokens|percent|GB|GiB)|a quantity)\b")
    every = [each for each in crds.fields(crds.kinds()[kind]) if each.schema.get("type") not in ("object", "array")]
    assert [each.path for each in every if says.search(each.description) and not crds.unit_of(each)] == []


def test_constraints_are_those_of_the_schema() -> None:
    assert crds.constraints_of(field("InferenceService", "spec.containerPort")) == "1 to 65535"
    assert crds.constraints_of(field("InferenceService", "spec.modelRef")) == "required"
    assert "one of `linear`, `yarn`, `longrope`" in crds.constraints_of(
        field("InferenceService", "spec.ropeScaling.type")
    )
    assert crds.type_of(field("InferenceService", "spec.extraArgs").schema) == "list of string"


# --- metrics ----------------------------------------------------------------------------------------------------------


def registered() -> Iterator[str]:
    """The names of the metrics that the code creates; of composed names, the constant part."""
    for folder in ("agent", "automation"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text("utf-8")
            if "prometheus_client" in text and "reference" not in path.relative_to(ROOT).parts:
                yield from names_in(ast.parse(text))


def names_in(tree: ast.AST) -> Iterator[str]:
    helpers = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(each, ast.Call) and PROMETHEUS.search(ast.unparse(each.func)) for each in ast.walk(node))
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
            continue
        name = ast.unparse(node.func)
        if (PROMETHEUS.search(name) or name in helpers) and isinstance(node.args[0].value, str):
            yield node.args[0].value


def test_every_metric_that_the_code_makes_is_on_the_page() -> None:
    on_page = re.findall(r"^\| `(herdsman_\w+)`", generated()[metrics.PAGE], re.MULTILINE)
    bare = {name.removesuffix("_total") for name in on_page}
    made = set(registered())
    assert {"herdsman_queue_depth", "herdsman_agent_info", "host_alive", "herdsman_proxy_sleeps"} <= made
    assert {name for name in made if name not in bare and not any(each.endswith(f"_{name}") for each in bare)} == set()


def test_labels_and_types_are_those_of_the_code() -> None:
    found = {each.name: each for each in (*metrics.of_loop(), *metrics.of_agent())}
    assert found["herdsman_api_requests_total"].labels == ("verb", "status")
    assert found["herdsman_service_info"].labels == ("namespace", "name", "model", "runtime")
    assert found["herdsman_proxy_wake_seconds"].kind == "histogram"
    assert found["herdsman_agent_process_phase"].labels == ("namespace", "name", "phase")
    assert found["herdsman_host_store_limit_bytes"].kind == "gauge"
    assert all(each.text for each in found.values())


# --- conditions -------------------------------------------------------------------------------------------------------


def test_every_reason_has_a_meaning_and_an_action() -> None:
    text = generated()[conditions.PAGE]
    for reason in Reason:
        row = re.search(rf"^\| `{reason}` \| (.+) \| (.+) \|$", text, re.MULTILINE)
        assert row, reason
        assert row[1].strip(), reason
        assert row[2].strip(), reason


@pytest.mark.parametrize("reason", [*ProcessReason, *errors.Reason])
def test_every_reason_of_a_process_has_a_meaning(reason: str) -> None:
    assert re.search(rf"^\| `{reason}` \| \S.* \|$", generated()[conditions.PAGE], re.MULTILINE)


def test_a_meaning_is_written_only_where_no_docstring_has_one() -> None:
    described = attribute_docstrings(Reason)
    assert {reason for reason in MEANINGS if reason.name in described} == set()


def types_of(kind: str) -> set[str]:
    return {str(each.name) for each in condition_texts.KINDS[kind]}


def test_the_types_of_each_kind_are_those_of_its_dialect() -> None:
    common = {str(each) for each in COMMON}
    assert types_of("InferenceService") == {str(each) for each in Type}
    assert types_of("Model") == set(model._OURS)
    assert types_of(condition_texts.EVERY_SERVICE) == common
    assert types_of("LLMInferenceService (KServe)") == {*kserve.TYPES} - {"Ready"}
    assert types_of("Playground (llmaz)") == types_of("Service (llmaz)") == {"Available", "Progressing"}
    assert set(condition_texts.NOTES) <= set(condition_texts.KINDS)
    assert all(each for kind in condition_texts.KINDS.values() for each in map(conditions._meaning, kind))


def literals(words: set[str]) -> set[str]:
    """Return those of the words that are string literals of the code."""
    found: set[str] = set()
    for folder in ("agent", "automation", "components", "program"):
        for path in (ROOT / folder).rglob("*.py"):
            if "reference" not in path.relative_to(ROOT).parts:
                text = path.read_text("utf-8")
                # Parsing is slow, so skip modules that contain none of the words that are left to find.
                if (words - found).isdisjoint(WORD.findall(text)):
                    continue
                constants = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
                found |= {value for value in constants if isinstance(value, str)} & words
    return found


def test_every_reason_of_a_condition_is_written_somewhere() -> None:
    named = {each for kind in condition_texts.KINDS.values() for one in kind for each in one.reasons}
    words = {each for each in named if WORD.fullmatch(each)}
    assert len(words) > 80
    assert words - literals(words) == set()
