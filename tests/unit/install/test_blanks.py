"""A tree with blanks can be filled in, or written as a template of Helm. Written YAML reads back as the same tree."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from automation.install.blanks import Each, Language, Remark, Value, When, as_yaml, filled

TREE: dict[str, Any] = {
    "name": Value("name"),
    "extra": When("more", {"count": Value("count")}),
    "items": [
        Remark("Why it is there.", {"one": [1, 2]}),
        When("more", {"two": ""}),
        Each("each", lambda k, v: {"key": k, "value": v}),
    ],
}
VALUES: dict[str, Any] = {"name": "x: y", "count": 3, "each": {"b": "2", "a": "1"}}
LANGUAGE = Language({"name": ".n | quote", "count": ".c", "each": ".e"}, {"more": ".m"})


def test_what_is_not_asked_for_leaves_no_trace() -> None:
    found = filled(TREE, VALUES, {"more": False})
    assert found == {"name": "x: y", "items": [{"one": [1, 2]}, {"key": "a", "value": "1"}, {"key": "b", "value": "2"}]}
    found = filled(TREE, VALUES, {"more": True})
    assert found["extra"] == {"count": 3} and {"two": ""} in found["items"]


def test_remarks_stay_for_who_wants_them() -> None:
    found = filled(TREE, VALUES, {"more": False}, remarks=True)
    text = as_yaml(found)
    assert "  # Why it is there.\n  - one: [1, 2]" in text
    assert yaml.safe_load(text) == filled(TREE, VALUES, {"more": False})


def test_a_template_has_the_conditions_around_whole_lines() -> None:
    lines = as_yaml(TREE, LANGUAGE).splitlines()
    assert lines[0] == "name: {{ .n | quote }}"
    assert lines[1:5] == ["{{- if .m }}", "extra:", "  count: {{ .c }}", "{{- end }}"]
    assert "{{- range $key, $value := .e }}" in lines


def test_a_name_that_nobody_knows_is_a_defect() -> None:
    with pytest.raises(KeyError):
        filled({"a": Value("nothing")}, {}, {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(min_size=1), JSON, min_size=1, max_size=4))
def test_whatever_is_written_reads_back_the_same(tree: dict[str, Any]) -> None:
    assert yaml.safe_load(as_yaml(tree)) == tree
