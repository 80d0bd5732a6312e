"""The parts of a pod template that stay unchanged when an upgrade changes the downloader or the shutdown of pods."""

from __future__ import annotations

import json
from typing import Any

from components.drain import drain_script
from components.drained_pods import as_in_hashes
from components.providers.kubernetes_templates import keeping_drain, keeping_script
from program.desired.service import DesiredService, RolloutPolicy
from tests.support.builders import service
from tests.unit.components.views import objects


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


def ending(desired: DesiredService, *, script: str = "", mark: str = "h1") -> dict[str, Any]:
    """Return a Deployment with the pods of a service; `script` replaces the drain script, as in another release."""
    template = objects(desired)["deployment"]["spec"]["template"]
    if script:
        template = json.loads(json.dumps(template).replace(json.dumps(drain_script()), json.dumps(script)))
    return {
        "metadata": {"annotations": {"llmkube.ai/desired-template-hash": mark}},
        "spec": {"template": template},
    }


def before_the_default(desired: DesiredService) -> dict[str, Any]:
    found = as_in_hashes(ending(desired))
    assert isinstance(found, dict)
    return found


def test_pods_without_a_drain_stay_so_while_the_template_means_the_same() -> None:
    old = before_the_default(service())
    assert "lifecycle" not in old["spec"]["template"]["spec"]["containers"][0]
    assert keeping_drain(ending(service()), old) == old


def test_pods_whose_service_asked_for_a_drain_keep_the_one_they_have() -> None:
    asked = service(rollout=RolloutPolicy(wait_for_idle=True))
    old = before_the_default(asked)
    assert keeping_drain(ending(asked), old) == old


def test_the_drain_of_another_release_keeps_its_text() -> None:
    assert keeping_drain(ending(service()), ending(service(), script="exit 0")) == ending(service(), script="exit 0")


def test_a_template_that_changes_takes_the_drain() -> None:
    new = ending(service(), mark="h2")
    assert keeping_drain(new, before_the_default(service())) == new


def test_a_drain_passes_objects_of_other_shapes_unchanged() -> None:
    for other in (deployment("new"), {"metadata": {}}, {"metadata": None, "spec": 3}):
        assert keeping_drain(other, deployment("old")) == other
        assert keeping_drain(deployment("old"), other) == deployment("old")
