"""The PriorityClasses that services name, generated from the table of priorities.

`herdsman cluster up` and the demo apply them. docs/install/priority-classes.yaml is a copy for other installations.
`make crds` writes it (`python -m components.priority_classes docs/install/priority-classes.yaml`), and a test compares
it.
"""

from __future__ import annotations

import pathlib
import sys

import yaml

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.priorities import NEVER_PREEMPTS, PRIORITIES, class_name


def priority_classes() -> list[Json]:
    """Return the classes as manifests, the highest first. They are those of LLMKube, whose own classes stay valid."""
    return [_document(priority, value) for priority, value in PRIORITIES.items()]


def _document(priority: str, value: int) -> Json:
    waits = priority in NEVER_PREEMPTS
    return {
        "apiVersion": kinds.PRIORITY_CLASSES.api_version,
        "kind": kinds.PRIORITY_CLASSES.kind,
        "metadata": {"name": class_name(priority), "labels": {"app.kubernetes.io/part-of": "herdsman"}},
        "value": value,
        "preemptionPolicy": "Never" if waits else "PreemptLowerPriority",
        "description": f"Inference services of priority `{priority}`"
        + (", which wait for free resources and preempt no other pods." if waits else "."),
    }


def as_yaml() -> str:
    """Return all classes as one YAML text."""
    texts = [yaml.safe_dump(document, sort_keys=False, width=120) for document in priority_classes()]
    return "# Generated from program/desired/priorities.py by `make crds`.\n" + "---\n".join(texts)


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_text(as_yaml(), encoding="utf-8")
