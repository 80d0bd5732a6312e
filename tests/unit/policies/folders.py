"""Short functions that write folders of policies and check services against them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from components.policies.in_force import FolderPolicies
from components.policies.policy import Violation
from components.policies.reading import load_policies
from components.render import RenderOptions, render
from kubeapi.json_types import Json
from program.desired.service import DesiredService
from tests.support.builders import service


def document(name: str = "p", **spec: Any) -> str:
    return yaml.safe_dump(
        {"apiVersion": "herdsman.dev/v1alpha1", "kind": "Policy", "metadata": {"name": name}, "spec": spec}
    )


def folder(path: Path, **files: str) -> Path:
    """Write files into a folder; `a_yaml` is `a.yaml`."""
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        stem, _, suffix = name.rpartition("_")
        (path / f"{stem}.{suffix}").write_text(text, encoding="utf-8")
    return path


def policies(path: Path, *, answer_timeout_s: float = 1.5, **files: str) -> FolderPolicies:
    loaded = load_policies(folder(path, **files), answer_timeout_s=answer_timeout_s)
    assert isinstance(loaded, FolderPolicies)
    return loaded


def check(
    given: FolderPolicies,
    desired: DesiredService | None = None,
    *,
    cr: Json | None = None,
    labels: Mapping[str, str] | None = None,
) -> tuple[Violation, ...]:
    desired = desired or service()
    metadata = {"name": desired.key.name, "namespace": desired.key.namespace}
    cr = cr or {"metadata": metadata, "spec": {"modelRef": "base", "replicas": desired.replicas}}
    rendered = render(desired, RenderOptions())
    return given.check(desired, rendered, cr=cr, namespace_labels=labels or {})
