"""The PriorityClasses: the file that users apply agrees with the table in the code."""

from __future__ import annotations

from pathlib import Path

import yaml

from components.priority_classes import as_yaml, priority_classes
from program.desired.service import PodSettings

INSTALLED = Path(__file__).parents[3] / "docs" / "install" / "priority-classes.yaml"


def test_the_file_to_install_is_generated() -> None:
    assert INSTALLED.read_text(encoding="utf-8") == as_yaml(), "run `make crds`"
    assert list(yaml.safe_load_all(as_yaml())) == priority_classes()


def test_the_classes_are_those_that_the_peer_installs() -> None:
    assert {one["metadata"]["name"]: (one["value"], one["preemptionPolicy"]) for one in priority_classes()} == {
        "llmkube-critical": (1_000_000, "PreemptLowerPriority"),
        "llmkube-high": (100_000, "PreemptLowerPriority"),
        "llmkube-normal": (10_000, "PreemptLowerPriority"),
        "llmkube-low": (1_000, "PreemptLowerPriority"),
        "llmkube-batch": (100, "Never"),
    }


def test_pods_name_a_class_that_is_installed() -> None:
    assert PodSettings().priority_class_name in {one["metadata"]["name"] for one in priority_classes()}
