"""What of a pod template stays as it is when an upgrade brings another downloader."""

from __future__ import annotations

from typing import Any

from components.providers.kubernetes_templates import keeping_script


def deployment(
    script: str, *, mark: str | None = "h1", name: str = "model-downloader", image: str = "i"
) -> dict[str, Any]:
    return {
        "metadata": {"annotations": {"llmkube.ai/desired-template-hash": mark} if mark else {}},
        "spec": {
            "template": {
                "spec": {
                    "initContainers": [
                        {"name": "prep", "command": ["sh", "-c", "chown"]},
                        {"name": name, "image": image, "command": ["sh", "-c", script]},
                    ]
                }
            }
        },
    }


def test_the_script_that_runs_stays_while_the_template_means_the_same() -> None:
    assert keeping_script(deployment("new"), deployment("old")) == deployment("old")


def test_only_the_command_is_taken_over() -> None:
    kept = keeping_script(deployment("new", image="b"), deployment("old", image="a"))
    assert kept == deployment("old", image="b")


def test_a_template_that_changes_takes_the_new_script() -> None:
    assert keeping_script(deployment("new", mark="h2"), deployment("old")) == deployment("new", mark="h2")


def test_without_a_hash_nothing_is_taken_over() -> None:
    assert keeping_script(deployment("new", mark=None), deployment("old", mark=None)) == deployment("new", mark=None)


def test_a_container_that_was_not_there_keeps_its_command() -> None:
    new = deployment("new", name="draft-model-downloader")
    assert keeping_script(new, deployment("old")) == new


def test_objects_of_other_shapes_pass_unchanged() -> None:
    marked: dict[str, Any] = {"metadata": {"annotations": {"llmkube.ai/desired-template-hash": "h1"}}, "spec": {}}
    for before in ({}, marked, deployment("old"), {"metadata": None}):
        assert keeping_script(marked, before) == marked
