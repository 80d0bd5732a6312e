"""docs/how-to/from-llmkube.md names a test for each known defect of LLMKube, and each of these tests exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from components.options import RenderOptions
from components.render import render
from program.desired.model import DesiredModel
from program.dialects.llmkube.parse.service import parse_service
from program.dialects.llmkube.parse.source import parse_source
from tests.support.statuses import service

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "how-to" / "from-llmkube.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([AC]\d+) \| (.+?) \| (.+?) \| (.+?) \|$", GUIDE, re.MULTILINE)
NAMED = [(defect, test) for defect, _, _, shown in ROWS for test in re.findall(r"`([^`]+)`", shown)]


@cache
def functions(path: Path) -> frozenset[str]:
    """Return the names of the test functions at the top level of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = (node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return frozenset(node.name for node in found if node.name.startswith("test_"))


def test_every_defect_has_one_line() -> None:
    wanted = [*(f"C{number}" for number in range(1, 19)), *(f"A{number}" for number in range(1, 15))]
    assert [defect for defect, *_ in ROWS] == wanted
    assert {defect for defect, _ in NAMED} == {defect for defect, *_ in ROWS}, "a line that names no test"


@pytest.mark.parametrize(("defect", "test"), NAMED, ids=(f"{d}-{t.rpartition('::')[2]}" for d, t in NAMED))
def test_the_test_that_is_named_exists(defect: str, test: str) -> None:
    path, _, name = test.partition("::")
    assert path.startswith("tests/") and (ROOT / path).is_file(), f"{defect}: there is no {path}"
    assert name in functions(ROOT / path), f"{defect}: {path} has no {name}"


def test_what_the_guide_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", GUIDE):
        assert (ROOT / "docs" / "how-to" / target).is_file(), target


@pytest.mark.parametrize(
    ("accelerator", "resource", "image"),
    [
        (None, "nvidia.com/gpu", "server-cuda"),
        ("rocm", "amd.com/gpu", "server-rocm"),
        ("intel", "gpu.intel.com/i915", "server-intel"),
    ],
)
def test_c8_a_gpu_of_the_services_own_gets_an_image_for_it(accelerator: str | None, resource: str, image: str) -> None:
    model = DesiredModel(
        name="base",
        source=parse_source("https://example.com/m.gguf"),
        **({"accelerator": accelerator} if accelerator else {}),
    )
    rendered = render(parse_service(service(resources={"gpu": 1}), model), RenderOptions())
    [deployment] = [o.manifest for o in rendered.objects if o.kind == "Deployment"]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {resource: "1"}
    assert container["image"].rpartition(":")[2].startswith(image)
