"""YAML from users: aliases work, and no text can fill the memory or cause an unexpected exception."""

from __future__ import annotations

import ast
import json
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeapi.yaml_text import MOST_ALIASED, _Loader, _read_by_libyaml, load, load_all
from tests.support.packages import PACKAGES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
)
MERGES = "\n".join(
    ["a0: &a0 {x: 1, y: 2}"] + [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 10)]
)


def test_aliases_and_merges_of_a_usual_size_are_read() -> None:
    text = "base: &base {a: 1, b: [1, 2]}\none: *base\ntwo: {<<: *base, a: 3}\n---\nsecond: &base 1\nthird: *base"
    first, second = load_all(text)
    assert first == {"base": {"a": 1, "b": [1, 2]}, "one": {"a": 1, "b": [1, 2]}, "two": {"a": 3, "b": [1, 2]}}
    assert second == {"second": 1, "third": 1}
    assert load("a: 1") == {"a": 1}
    assert list(load_all("")) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOMB, "aliases expand to more than"),
        (MERGES, "aliases expand to more than"),
        ("---\n".join(["a: &a [1, 2]\nb: [" + "*a, " * 9000 + "]\n"] * 10), "aliases expand to more than"),
        ("a: &a [*a]", "an alias is inside"),
        ("a: &a {<<: *a}", "an alias is inside"),
        ("[" * 5000 + "]" * 5000, "nested more than"),
        ("{a: " * 5000, "nested more than"),
        ("- " * 5000, "nested more than"),
        ("? " * 5000, "nested more than"),
        ("a: *b", "undefined alias"),
        ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("day: !!timestamp 2024-13-45", "tag !!timestamp"),
        ("[" * 200_000, "nested more than"),
        ("a: \x00", "special characters"),
    ],
    ids=range(14),
)
def test_what_would_fill_the_memory_is_refused_at_once(text: str, why: str) -> None:
    began = time.process_time()
    with pytest.raises((yaml.YAMLError, ValueError), match=why):
        list(load_all(text))
    assert time.process_time() - began < 3


def test_what_is_just_allowed_is_read_at_once() -> None:
    text = "a: &a [" + "x, " * 98 + "]\nb: [" + "*a, " * (MOST_ALIASED // 100) + "]"
    began = time.process_time()
    assert len(load(text)["b"]) == MOST_ALIASED // 100
    assert time.process_time() - began < 3


def test_a_caller_may_refuse_all_aliases() -> None:
    with pytest.raises(yaml.YAMLError, match="has aliases") as caught:
        list(load_all("a: &a 1\nb: *a", aliases=False))
    assert caught.value.problem_mark.line == 1  # type: ignore[attr-defined]
    assert list(load_all("a: &a 1", aliases=False)) == [{"a": 1}]


def test_a_text_is_read_as_kubectl_reads_it() -> None:
    """Dates, times, `=` and all keys are read as strings, so the result can be written as JSON."""
    text = "day: 2024-01-01\nat: 2024-01-01T10:00:00Z\nimpossible: 2024-13-45\nports: 22:22\nlong: 1:30:00.5\nis: ="
    assert load(text) == {
        "day": "2024-01-01",
        "at": "2024-01-01T10:00:00Z",
        "impossible": "2024-13-45",
        "ports": "22:22",
        "long": "1:30:00.5",
        "is": "=",
    }
    assert load("{1: a, 0x10: b, true: c, 1.5: d, 2024-01-01: e, yes: f}") == {
        "1": "a",
        "16": "b",
        "true": "f",
        "1.5": "d",
        "2024-01-01": "e",
    }
    assert load("{a: &k 1, b: {*k : 2, <<: {3: 4}}}") == {"a": 1, "b": {"1": 2, "3": 4}}
    assert load("[0x_, 0b_, 0x, 08, ._]") == ["0x_", "0b_", "0x", "08", "._"]
    assert load("[0x1F, 0777, 1_000, -1, 1.5, yes, ~]") == [31, 511, 1000, -1, 1.5, True, None]


def test_a_character_that_json_writes_in_two_parts_is_one() -> None:
    assert load(json.dumps({"a\N{GRINNING FACE}": "\N{GRINNING FACE}"})) == {"a\N{GRINNING FACE}": "\N{GRINNING FACE}"}


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("a: 1\nb: !!binary aGk=", 2, "tag !!binary"),
        ("a: 1\nb: !!set {x, y}", 2, "tag !!set"),
        ("a: !!omap [x: 1]", 1, "tag !!omap"),
        ("a: !!pairs [x: 1]", 1, "tag !!pairs"),
        ("a: !!timestamp 2024-01-01", 1, "tag !!timestamp"),
        ("a: 1\n? [x]\n: 1", 2, "a key is a list"),
        ("a: 1\n? {x: 1}\n: 1", 2, "a key is an object"),
        ("a: 1\n~: 1", 2, "a key is null"),
        ("a:\n- .nan", 2, "not a number"),
        ("a: -.inf", 1, "not a number"),
        ("a: 1\nb: 18446744073709551616", 2, "64 bits"),
        ("{18446744073709551616: a}", 1, "64 bits"),
        ("a: 0x" + "f" * 9000, 1, "64 bits"),
        ("a: 1" + "0" * 9000, 1, "64 bits"),
        ('a: 1\nb: "\\ud800"', 2, "half of a character"),
        ('"\\ud800": 1', 1, "half of a character"),
        ('a: "\\U00110000"', 1, "not a character"),
        ("a: !!int x", 1, "whole number"),
        ("a: !!float x", 1, "number"),
        ("a: !!float 0x10", 1, "number"),
        ("a: !!int 1:30", 1, "whole number"),
        ("a: !!bool x", 1, "neither true nor false"),
        ("a: !!map x", 1, "mapping"),
        ("a: !!str [x]", 1, "scalar"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_line(text: str, line: int, why: str) -> None:
    with pytest.raises(yaml.YAMLError, match=why) as caught:
        list(load_all(text))
    assert caught.value.problem_mark.line + 1 == line  # type: ignore[attr-defined]


OWN_FILES = {
    "automation/local/edits.py": "finds the lines of a document by its nodes, and makes no values of them",
    "automation/install/blanks.py": "asks how YAML reads one of its own words",
    "kubeapi/yaml_text.py": "is the loader",
    "program/dialects/kserve/presets/__init__.py": "reads files of this package, with a tag of their own",
    "program/dialects/llmaz/parse/runtimes.py": "reads files of this package",
}
"""Modules that may call PyYAML's loaders, and the reason."""


def test_no_other_module_reads_yaml_without_bounds() -> None:
    found = {}
    for folder in PACKAGES:
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            # Most modules do not use PyYAML, and parsing is slow.
            for node in ast.walk(ast.parse(text)) if "yaml." in text else ():
                if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
                    continue
                if node.value.id == "yaml" and (
                    "load" in node.attr.lower() or node.attr in ("scan", "parse", "compose")
                ):
                    found[str(path.relative_to(ROOT))] = node.attr
    assert set(found) == set(OWN_FILES)


TOKENS = (
    *("a", "b:", "key: ", "- ", "? ", ": ", ":", "\n", "\n  ", "\n    ", " ", "[", "]", "{", "}", ", ", ","),
    *("#", " # c", "'", '"', "''", '\\"', "\\u00e9", "\\ud83d\\ude00", "\\x41", "\\/", "|\n  ", ">-\n  ", "|2\n"),
    *("&x ", "*x", "!!str ", "---\n", "...\n", "~", "null", "yes", "True", "0x1F", "0o7", "010", "1_0", "1.5", "1e3"),
    *("-.5", "22:22", "2024-01-01", "http://x:1/y?z#w", "a b", "é", "😀", "<<: ", "=", "@", "`", "%", "\t", "|"),
    *(">", "*", "&", "!", "--", "$(x)"),
)


@settings(max_examples=600, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=14).map("".join))
def test_libyaml_reads_what_pyyamls_parser_reads_or_leaves_it(text: str) -> None:
    quickly = _read_by_libyaml(text, aliases=True)
    if quickly is None:
        return
    loader = _Loader(text, aliases=True)
    slowly = []
    while loader.check_data():  # type: ignore[no-untyped-call]  # the stubs leave it out
        slowly.append(loader.get_data())
    assert repr(quickly) == repr(slowly)


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML was built without libyaml")
def test_libyaml_reads_the_manifests_of_the_examples() -> None:
    """The shell commands in pipelines of CI have a `?`, which PyYAML's parser reads."""
    paths = [path for path in sorted((ROOT / "examples").rglob("*.yaml")) if path.parent.name != "ci"]
    texts = [path.read_text() for path in paths]
    assert texts
    assert [text for text in texts if _read_by_libyaml(text, aliases=True) is None] == []


def test_without_libyaml_the_same_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a: &x [1, 0x1F, yes, 2024-01-01]\nb: *x\n---\n- {c: d}\n"
    quickly = list(load_all(text))
    monkeypatch.setattr(yaml, "__with_libyaml__", False)
    assert list(load_all(text)) == quickly
