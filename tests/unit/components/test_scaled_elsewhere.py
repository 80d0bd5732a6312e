"""A Deployment that another client scaled: `replicas` is left out, and the requested number is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from components import naming
from components.options import RenderOptions
from components.render import render
from program.desired.engines import Generic
from program.desired.keys import ServiceKey
from program.desired.model import DesiredModel, ModelSource, SourceKind
from program.desired.service import DesiredService


@pytest.mark.parametrize(
    ("scaled_elsewhere", "changes", "replicas", "asked"),
    [
        (False, {}, 2, None),
        (True, {}, None, "2"),
        # A suspended service has no replicas, also if another client scaled it.
        (True, {"suspended": True}, 0, "2"),
    ],
)
def test_replicas_are_left_to_whoever_set_them(
    scaled_elsewhere: bool, changes: dict[str, Any], replicas: int | None, asked: str | None
) -> None:
    desired = DesiredService(
        key=ServiceKey("llmkube", "prod", "a"),
        owner=None,
        model=DesiredModel(name="m", source=ModelSource(kind=SourceKind.REPOSITORY, address="o/r")),
        engine=Generic(),
        image="engine:1",
        replicas=2,
    ).model_copy(update=changes)
    manifest = render(desired, RenderOptions(scaled_elsewhere=scaled_elsewhere)).objects[-1].manifest
    assert manifest["spec"].get("replicas") == replicas
    assert manifest["metadata"]["annotations"].get(naming.ANNOTATION_ASKED_REPLICAS) == asked
