"""docs/how-to/services.md names exactly the annotations that the code reads, and only settings that exist."""

from __future__ import annotations

import re
from pathlib import Path

from automation.settings import Settings
from program.desired import keys
from program.dialects.annotations import ANNOTATION_IDLE_ENDPOINT

GUIDE = (Path(__file__).parents[3] / "docs" / "how-to" / "services.md").read_text(encoding="utf-8")


def test_the_guide_names_all_annotations_and_no_other() -> None:
    known = {value for name, value in vars(keys).items() if name.startswith("ANNOTATION_")} | {ANNOTATION_IDLE_ENDPOINT}
    rows = set(re.findall(r"^\| `([a-z.]+/[a-z-]+)` \|", GUIDE, re.MULTILINE))
    assert rows == known


def test_the_guide_names_settings_that_exist() -> None:
    named = {name.lower() for name in re.findall(r"HERDSMAN_([A-Z_]+)", GUIDE)}
    assert named
    assert named <= set(Settings.model_fields)
