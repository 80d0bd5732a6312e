"""The guides name every field, setting and annotation that people write, and each of their YAML examples is valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from automation.settings import Settings
from program.desired import keys
from program.dialects.annotations import ANNOTATION_IDLE_ENDPOINT
from tests.support import guides
from tests.support.guides import GUIDES, SCHEMAS, Example

EXAMPLES = [example for page in GUIDES for example in guides.examples(page)]
OF_KUBERNETES = re.compile(
    r"^spec\.((affinity|extraVolume(Mount)?s|imagePullSecrets|probeOverrides|(podS|s)ecurityContext|tolerations"
    r"|topologySpreadConstraints|prefetchTolerations)(\[\])?\.(?!(liveness|readiness|startup)$)"
    r"|env\[\]\.valueFrom\.\w+\.|selector\.|allow\.namespaceSelector\.|.*\.hfTokenSecretRef\.)"
)
"""Fields within structures that Kubernetes defines and documents."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: f"{each.page}:{each.line}")
def test_an_example_is_valid_and_every_field_of_it_has_an_effect(example: Example) -> None:
    assert guides.problems(example) == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda path: path.name)
def test_the_yaml_of_a_guide_can_be_read(page: Path) -> None:
    assert all(documents for _, documents in guides.blocks(page.read_text("utf-8")))


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_field_is_in_a_guide(kind: str) -> None:
    wanted = [path for path in guides.fields(kind) if not OF_KUBERNETES.match(path)]
    assert wanted
    assert [path for path in wanted if not guides.is_named(kind, path)] == []


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_in_a_guide(name: str) -> None:
    assert re.search(rf"\bHERDSMAN_{name.upper()}\b|--set {name}=", guides.text())


def known_annotations() -> list[str]:
    return [value for name, value in vars(keys).items() if name.startswith("ANNOTATION_")] + [ANNOTATION_IDLE_ENDPOINT]


@pytest.mark.parametrize("name", known_annotations())
def test_every_annotation_is_in_a_guide(name: str) -> None:
    assert re.search(rf"{re.escape(name)}(?![\w-])", guides.text())


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"contextSise": 4096}, "spec.contextSise is not known"),
        ({"runtime": "vllm", "contextSize": 4096}, "spec.contextSize has no effect with runtime vllm"),
        ({"runtime": "vllm", "runtimeClassName": "nvidia"}, ""),
    ],
)
def test_an_example_with_a_wrong_field_is_refused(spec: dict[str, object], problem: str) -> None:
    found = guides.problems(Example("page.md", 1, "InferenceService", {"spec": spec}, ()))
    assert any(each.startswith(problem) for each in found) if problem else not found


def test_a_part_of_an_object_has_the_kind_with_all_of_its_fields(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```yaml\nspec: {storeSize: 1Gi}\n---\nspec: {source: a/b}\n---\nspec: {replicas: 2}\n```\n")
    assert [each.kind for each in guides.examples(page)] == ["Host", "Model", "InferenceService"]
    page.write_text("```yaml\nspec: {nothing: 1}\n```\n")
    with pytest.raises(guides.Unreadable, match="no kind has all of the fields nothing"):
        guides.examples(page)


def test_a_field_that_no_guide_writes_is_found() -> None:
    assert not guides.is_named("InferenceService", "spec.vllmConfig.noSuchField")
    assert guides.is_named("InferenceService", "spec.vllmConfig.dtype")
