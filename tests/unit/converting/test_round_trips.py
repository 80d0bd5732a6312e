"""A converted service parses in the other dialect, and a conversion back restores it or names the lost fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from program.desired.errors import DesiredError, SpecInvalid
from program.dialects.converting.convert import Converted, Target, describe, write
from program.dialects.converting.description import Description
from program.dialects.registry import DIALECTS
from program.manifests import Manifests
from program.runtimes.flags import flags_of

ROOT = Path(__file__).parents[3]
CONFORMANCE = ROOT / "tests" / "conformance"
_OF_THE_READING = {
    "document",
    "dialect",
    "origins",
    "losses",
    "served_name",
    "model_name",
    "model_format",
    "quantization",
}
"""Fields that are not compared: the origin of a description, names that dialects set, and facts about the weights."""
CANNOT = (
    "cannot fetch",
    "which pulls its weights itself",
    "brings no BackendRuntime for it",
    "only LLMKube has engine",
    "is not a valid name with",
    "presets start vLLM",
)
"""Texts of the reasons for which a service may have no counterpart in another dialect."""


def manifests_of(documents: Any) -> Manifests:
    found = Manifests("default")
    found.read_text("documents", json.dumps({"kind": "List", "items": list(documents)}))
    return found


def descriptions(manifests: Manifests) -> Iterator[Description]:
    for dialect in DIALECTS:
        for document in manifests.services_of(dialect):
            try:
                yield describe(dialect, document.cr, look=manifests)
            except DesiredError:
                continue  # many vectors contain invalid services


def vectors() -> list[Path]:
    llmkube = sorted(p for p in CONFORMANCE.rglob("*.json") if "fixtures" not in p.relative_to(CONFORMANCE).parts)
    return [path for path in llmkube if "input" in json.loads(path.read_text())]


def normal(name: str, value: Any) -> Any:
    """Return a form of a field's value that does not depend on the dialect."""
    if name == "args":
        return sorted("=".join(flag.words) for flag in flags_of(list(value)))
    if name in ("env", "volume_mounts"):
        return sorted(json.dumps(without_ports(each), sort_keys=True) for each in value)
    if name == "draft":
        return value.source
    if name == "worker":
        fields = ("engine", "image", "command", "args", "env", "volume_mounts")
        return [normal(each, getattr(value, each)) for each in fields]
    return value


def without_ports(probe: Any) -> Any:
    """Remove what each dialect sets differently: ports, and the prefix `own-` of volume names."""
    if isinstance(probe, dict):
        return {key: without_ports(member) for key, member in probe.items() if key != "port"}
    if isinstance(probe, list):
        return [without_ports(member) for member in probe]
    return probe.removeprefix("own-") if isinstance(probe, str) else probe


def check(before: Description, converted: Converted, target: Target) -> None:
    manifests = manifests_of(converted.documents)
    assert manifests.errors == []
    assert len(list(manifests.services())) == 1, manifests.errors
    after = next(descriptions(manifests))
    lost = {loss.field for loss in converted.losses}
    for each in fields(before):
        value, there = getattr(before, each.name), getattr(after, each.name)
        if each.name in _OF_THE_READING or value in (None, "", 0, (), {}):
            continue
        if each.name == "replicas" and after.scaling is not None:
            continue  # the autoscaler sets the number, and KServe has no other field for it
        if isinstance(value, dict):
            for member, amount in value.items():
                if not {before.origin(f"{each.name}.{member}"), before.origin(each.name)} & lost:
                    assert without_ports(there.get(member)) == without_ports(amount), (
                        f"{before.document} to {target}: {each.name}.{member}"
                    )
        elif before.origin(each.name) not in lost and not any(f.startswith(before.origin(each.name)) for f in lost):
            assert normal(each.name, there) == normal(each.name, value), f"{before.document} to {target}: {each.name}"


@pytest.mark.parametrize("path", vectors(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_service_of_a_vector_keeps_what_is_not_named_as_lost(path: Path) -> None:
    # The recording's file server is replaced by a repository, since no other dialect fetches from that server.
    text = path.read_text().replace("http://127.0.0.1:28080/", "https://huggingface.co/acme/tiny/resolve/main/")
    for before in descriptions(manifests_of(json.loads(text)["input"])):
        for target in get_args(Target):
            if before.dialect.startswith(target):
                continue
            try:
                converted = write(before, target)
            except SpecInvalid as error:
                why = str(error)
            else:
                check(before, converted, target)
                continue
            assert any(word in why for word in CANNOT), f"{before.document} to {target}: {why}"
