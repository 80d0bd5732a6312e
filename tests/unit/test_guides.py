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
WITHOUT_GUIDE: dict[str, str] = {}
"""Fields, settings and annotations that need no guide, with the reason."""


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
    assert [path for path in wanted if not guides.is_named(kind, path) and f"{kind} {path}" not in WITHOUT_GUIDE] == []


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_in_a_guide(name: str) -> None:
    named = re.search(rf"\bHERDSMAN_{name.upper()}\b|--set {name}=", guides.text())
    assert named or name in WITHOUT_GUIDE


def known_annotations() -> list[str]:
    return [value for name, value in vars(keys).items() if name.startswith("ANNOTATION_")] + [ANNOTATION_IDLE_ENDPOINT]


@pytest.mark.parametrize("name", known_annotations())
def test_every_annotation_is_in_a_guide(name: str) -> None:
    assert re.search(rf"{re.escape(name)}(?![\w-])", guides.text()) or name in WITHOUT_GUIDE


def test_what_needs_no_guide_exists_and_is_in_none() -> None:
    known = {f"{kind} {path}" for kind in SCHEMAS for path in guides.fields(kind)}
    assert set(WITHOUT_GUIDE) <= known | set(Settings.model_fields) | set(known_annotations())
