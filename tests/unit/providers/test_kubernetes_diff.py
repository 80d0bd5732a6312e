"""Differences by path, in Pulumi's notation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.providers.kubernetes_diff import (
    MISSING,
    Change,
    Kind,
    Path,
    changes,
    covers,
    expand,
    parse_path,
    path_text,
    replacing,
    value_at,
    with_value,
    without,
)
from components.providers.marshalling import UNKNOWN

values = st.recursive(
    st.booleans() | st.integers(-3, 3) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
steps = st.integers(0, 99) | st.text(min_size=1, max_size=6).filter(lambda key: key != "*")


def kinds(old: Any, new: Any) -> dict[str, str]:
    return {path_text(change.path): change.kind.value for change in changes(old, new)}


@given(values)
def test_equal_values_have_no_changes(value: Any) -> None:
    assert changes(value, value) == []


@given(values, values)
def test_different_values_have_changes_and_each_path_shows_one(old: Any, new: Any) -> None:
    found = changes(old, new)
    for change in found:
        before, after = value_at(old, change.path), value_at(new, change.path)
        assert (before is MISSING) == (change.kind is Kind.ADD)
        assert (after is MISSING) == (change.kind is Kind.DELETE)
    assert len({change.path for change in found}) == len(found)


@given(st.dictionaries(st.text(max_size=3), values, max_size=3), st.dictionaries(st.text(max_size=3), values))
def test_the_changes_made_to_the_old_value_give_the_new_one(old: dict[str, Any], new: dict[str, Any]) -> None:
    value = old
    found = changes(old, new)
    for change in [c for c in found if c.kind is not Kind.DELETE]:
        value = with_value(value, change.path, value_at(new, change.path))
    for change in reversed([c for c in found if c.kind is Kind.DELETE]):
        value = with_value(value, change.path, MISSING)
    assert changes(value, new) == []


@given(st.lists(steps, min_size=1, max_size=5))
def test_paths_survive_their_notation(path: list[Any]) -> None:
    # A key that looks like a position or a quoted key is written in quotes, so it comes back as a key.
    if isinstance(path[0], int):
        path = ["root", *path]
    assert parse_path(path_text(tuple(path))) == tuple(path)


def test_lists_are_compared_by_position() -> None:
    assert kinds({"a": [1, 2, 3]}, {"a": [1, 9]}) == {"a[1]": "update", "a[2]": "delete"}
    assert kinds({"a": []}, {"a": [{"b": 1}]}) == {"a[0]": "add"}


def test_truth_is_no_number() -> None:
    assert kinds({"a": 1}, {"a": True}) == {"a": "update"}
    assert kinds({"a": 1}, {"a": 1.0}) == {}


def test_a_change_of_shape_is_one_change() -> None:
    assert kinds({"a": {"b": 1}}, {"a": [1]}) == {"a": "update"}


def test_an_unknown_value_counts_as_changed() -> None:
    assert kinds({"a": {"b": 1}}, {"a": {"b": UNKNOWN}}) == {"a.b": "update"}
    assert kinds({"a": {"b": 1}}, {"a": UNKNOWN}) == {"a": "update"}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("spec", "ports", 0, "name"), "spec.ports[0].name"),
        (("metadata", "labels", "app.kubernetes.io/name"), 'metadata.labels["app.kubernetes.io/name"]'),
        (("data", 'a"b'), 'data["a\\"b"]'),
    ],
)
def test_paths_are_written_as_pulumi_does(path: Path, text: str) -> None:
    assert path_text(path) == text
    assert parse_path(text) == path


def test_a_star_stands_for_any_step() -> None:
    assert covers(parse_path("spec.ports[*].nodePort"), ("spec", "ports", 3, "nodePort"))
    assert not covers(parse_path("spec.ports[*].nodePort"), ("spec", "ports", 3))
    assert list(expand({"a": [{"b": 1}, {"b": 2}]}, parse_path("a[*].b"))) == [("a", 0, "b"), ("a", 1, "b")]


def test_ignored_paths_take_all_below_them_out() -> None:
    found = changes({"a": {"b": 1, "c": 1}}, {"a": {"b": 2, "c": 2}, "d": 1})
    assert [change.path for change in without(found, ["a.b", "d"])] == [("a", "c")]


def of(*paths: str) -> list[Change]:
    return [Change(parse_path(path), Kind.UPDATE) for path in paths]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["spec.selector"], {"spec.selector.matchLabels.app"}),
        (["spec"], {"spec.selector.matchLabels.app", "spec.clusterIP"}),
        (["spec.selector.matchLabels.app.x"], {"spec.selector.matchLabels.app"}),
        (["spec.clusterIPs[0]"], {"spec.selector.matchLabels.app", "spec.clusterIP"}),
        (["type"], {"spec.selector.matchLabels.app", "spec.clusterIP", "data.a"}),
        ([], set()),
    ],
)
def test_an_immutable_field_marks_the_changes_it_stands_for(fields: list[str], expected: set[str]) -> None:
    found = replacing(of("spec.selector.matchLabels.app", "spec.clusterIP", "data.a"), fields)
    assert {path_text(change.path) for change in found if change.replaces} == expected


def test_values_are_set_and_removed_without_touching_the_original() -> None:
    original = {"a": [{"b": 1}, {"b": 2}]}
    assert with_value(original, ("a", 1, "b"), 3) == {"a": [{"b": 1}, {"b": 3}]}
    assert with_value(original, ("a", 0), MISSING) == {"a": [{"b": 2}]}
    assert with_value(original, ("x", "y"), 1) == {**original, "x": {"y": 1}}
    assert with_value(original, ("x", "y"), MISSING) == original
    assert with_value(original, ("x", 0, "y"), 1) == original
    assert with_value(original, ("a", 7, "b"), 1) == original
    assert original == {"a": [{"b": 1}, {"b": 2}]}
