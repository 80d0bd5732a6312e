"""The structural schemas that are made from pydantic models, and the CRDs in docs/crds."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, Literal

import pytest

from automation.cli.crds import ManifestFormat, OptionalDialect, crds
from program.dialects.crds.definitions import crd_files, main
from program.dialects.crds.schema import CrdModel, Int64, Time, optional, required, rule, structural_schema
from tests.support.fast_yaml import load, load_all

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[3] / "docs" / "crds"


class Inner(CrdModel):
    """An inner thing.

    Not for the schema.
    """

    port: int | str = required("Number or name.")


class Outer(CrdModel):
    snake_case: int | None = optional("Small.", ge=1)
    big: Int64 | None = optional("Big.", ge=2)
    at: Time | None = optional("When.")
    kind: Literal["a", "b"] = optional("Which.", "a")
    only: Literal["x"] | None = optional("One.")
    inner: Inner | None = optional("With a separate description.")
    plain: Inner = required("")
    names: dict[str, str] = optional("Map.", {})
    items: list[Inner] = optional("List.", [], x_kubernetes_list_type="atomic")
    off_by_null: str | None = optional("Null is not absence.", "on")


def test_a_model_becomes_a_structural_schema() -> None:
    port = {
        "description": "Number or name.",
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
    }
    inner = {"type": "object", "properties": {"port": port}, "required": ["port"]}
    assert structural_schema(Outer) == {
        "type": "object",
        "required": ["plain"],
        "properties": {
            "snakeCase": {"type": "integer", "format": "int32", "minimum": 1, "description": "Small."},
            "big": {"type": "integer", "format": "int64", "minimum": 2, "description": "Big."},
            "at": {"type": "string", "format": "date-time", "description": "When."},
            "kind": {"type": "string", "enum": ["a", "b"], "default": "a", "description": "Which."},
            "only": {"type": "string", "enum": ["x"], "description": "One."},
            "inner": {**inner, "description": "With a separate description."},
            "plain": {**inner, "description": "An inner thing."},
            "names": {"type": "object", "additionalProperties": {"type": "string"}, "description": "Map."},
            "items": {
                "type": "array",
                "items": {**inner, "description": "An inner thing."},
                "x-kubernetes-list-type": "atomic",
                "description": "List.",
            },
            "offByNull": {"type": "string", "nullable": True, "default": "on", "description": "Null is not absence."},
        },
    }


def test_a_rule_is_written_as_kubernetes_reads_it() -> None:
    assert rule("self.a < self.b", "a is too big") == {"rule": "self.a < self.b", "message": "a is too big"}
    assert rule("true", "", field=".a")["fieldPath"] == ".a"


def test_integers_take_the_format_that_is_asked_for() -> None:
    assert structural_schema(Outer, integers="int64")["properties"]["snakeCase"]["format"] == "int64"


def test_a_union_that_kubernetes_cannot_express_is_refused() -> None:
    class Odd(CrdModel):
        value: bool | list[str] = required("")

    with pytest.raises(TypeError, match="union"):
        structural_schema(Odd)


@functools.cache
def files() -> dict[str, str]:
    """The files of the CRDs. To write the YAML takes half a second of CPU time."""
    return dict(crd_files())


@functools.cache
def parsed() -> dict[str, Any]:
    """The content of each file."""
    return {name: load(text) for name, text in files().items()}


def test_nothing_but_the_openapi_of_kubernetes_is_left() -> None:
    for document in parsed().values():
        for node in _nodes(document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]):
            assert not {"$ref", "$defs", "title", "const", "prefixItems", "oneOf"} & set(node)
            assert not ("properties" in node and "additionalProperties" in node)


def _nodes(schema: dict[str, Any]) -> list[dict[str, Any]]:
    found = [schema]
    for member in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
        if member is not None:
            found += _nodes(member)
    return found


def test_the_files_in_docs_are_those_that_the_models_generate() -> None:
    """Run `make crds` after a change of a schema."""
    assert _written(DOCS) == files()


@pytest.mark.parametrize("dialect", [None, *OptionalDialect])
def test_the_command_prints_what_the_files_hold(
    dialect: OptionalDialect | None, capsys: pytest.CaptureFixture[str]
) -> None:
    crds(ManifestFormat.YAML, dialect)
    printed = [document for document in load_all(capsys.readouterr().out) if document]
    folder = "" if dialect is None else dialect.value
    assert printed == [document for name, document in parsed().items() if name.rpartition("/")[0] == folder]
    crds(ManifestFormat.JSON, dialect)
    assert json.loads(capsys.readouterr().out)["items"] == printed


def test_writing_the_files_removes_those_that_are_no_more(tmp_path: Path) -> None:
    for stale in ("stale.example.yaml", "llmaz/stale.example.yaml"):
        (tmp_path / stale).parent.mkdir(exist_ok=True)
        (tmp_path / stale).write_text("{}")
    main(str(tmp_path))
    assert _written(tmp_path) == files()


def _written(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.yaml")}
