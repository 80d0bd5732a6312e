"""The description of a change in an Event, and the values that it never contains."""

from __future__ import annotations

from typing import Any

import pytest

from automation.engine.differences import differences
from components.render import RenderOptions, render
from kubeapi.json_types import Json
from program.desired.engines import LlamaCpp
from tests.support.builders import service


def deployment(**fields: Any) -> Json:
    return dict(render(service(**fields), RenderOptions()).objects[-1].manifest)


def of_engine(before: LlamaCpp, after: LlamaCpp) -> tuple[str, ...]:
    return differences(deployment(engine=before), deployment(engine=after))


def container(**fields: Any) -> Json:
    return {"spec": {"template": {"spec": {"containers": [{"name": "llama-server", **fields}]}}}}


def test_a_changed_flag_is_told_with_both_values() -> None:
    assert of_engine(LlamaCpp(context_size=4096), LlamaCpp(context_size=8192)) == (
        "containers[llama-server].args --ctx-size 4096 -> 8192",
    )


def test_flags_that_came_and_went_do_not_disturb_the_others() -> None:
    assert of_engine(LlamaCpp(jinja=True), LlamaCpp(parallel_slots=2)) == (
        "containers[llama-server].args added --parallel 2",
        "containers[llama-server].args removed --jinja",
    )


def test_replicas_images_and_resources_are_told() -> None:
    assert differences(deployment(replicas=1), deployment(replicas=3)) == ("replicas 1 -> 3",)
    assert differences(deployment(image="a:1"), deployment(image="a:2")) == (
        "containers[llama-server].image a:1 -> a:2",
    )
    assert differences({"spec": {"replicas": 1.0}}, {"spec": {"replicas": 2.0}}) == ("replicas 1 -> 2",)


def test_the_hashes_that_change_with_everything_are_not_told() -> None:
    assert differences(deployment(), deployment()) == ()
    found = " ".join(differences(deployment(image="a:1"), deployment(image="a:2")))
    assert "hash" not in found


def test_values_of_variables_are_never_told() -> None:
    old = container(env=[{"name": "A", "value": "secret-1"}, {"name": "B", "value": "secret-2"}, {"name": "S"}])
    new = container(env=[{"name": "A", "value": "secret-3"}, {"name": "C", "value": "secret-4"}, {"name": "S"}])
    assert differences(old, new) == (
        "containers[llama-server].env A changed",
        "containers[llama-server].env C added",
        "containers[llama-server].env B removed",
    )
    assert differences(container(), container(env=[{"name": "A", "value": "secret-1"}])) == (
        "containers[llama-server].env added",
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["--api-key", "secret-1"], ["--api-key", "secret-2"]),
        (["--api-key=secret-1"], ["--api-key=secret-2"]),
        ([], ["--hf-token", "secret-1"]),
        (["--from", "https://user:secret-1@host/x"], ["--from", "https://host/x"]),
        (["--from", "https://host/x"], ["--from", "https://host/x?signature=secret-1"]),
        (["--header", "x"], ["--header", "Authorization: Bearer secret-1"]),
    ],
)
def test_secrets_in_arguments_are_not_told(old: list[str], new: list[str]) -> None:
    found = differences(container(args=old), container(args=new))
    assert found and "secret-" not in " ".join(found)


def test_long_values_and_scripts_are_only_said_to_have_changed() -> None:
    assert differences(container(command=["sh", "-c", "a" * 500]), container(command=["sh", "-c", "b" * 500])) == (
        "containers[llama-server].command -c changed",
    )
    assert differences({"data": "x" * 100}, {"data": "y"}) == ("data changed",)


def test_other_lists_and_types_do_not_break_it() -> None:
    assert differences({"a": [1, 2]}, {"a": [2, 1]}) == ("a changed",)
    assert differences({"a": 1}, {"a": {"b": 1}}) == ("a changed",)
    assert differences({"args": ["--a", "--b"]}, {"args": ["--b", "--a"]}) == ("args in another order",)
    assert differences({"volumes": [{"name": "a", "x": 1}]}, {"volumes": [{"name": "a", "x": 2}, {"name": "b"}]}) == (
        "volumes[a].x 1 -> 2",
        "volumes[b] added",
    )
