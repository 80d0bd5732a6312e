"""Herdsman's presets, under the names of KServe's. A service uses them unless its cluster has configs of these names.

Each `kserve-config-llm-*.yaml` beside this file is an LLMInferenceServiceConfig. `!part {file: NAME, key: value}`
includes a file that several presets share, with every `@key@` in it replaced: as text in `.sh` files, as JSON in
`.yaml` files. `!joined` joins lists.

Hashes are made of `NAME.counted.yaml` where there is one beside `NAME.yaml`, so that a change of a preset restarts no
pods (docs/adr/0042). The user's spec is merged into both.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import Any

import yaml

from kubeapi.json_types import Json

PREFIX = "kserve-config-llm-"
"""The prefix of the names of presets."""

_COUNTED = ".counted"
_PARAMETER = re.compile(r"@([a-z_]+)@")


class _Loader(yaml.CSafeLoader):
    counted = False


class _CountedLoader(_Loader):
    counted = True


def _part(loader: _Loader, node: yaml.Node) -> Any:
    assert isinstance(node, yaml.MappingNode)
    values = loader.construct_mapping(node, deep=True)
    name = values.pop("file")
    is_yaml, written = name.endswith(".yaml"), _read(name, counted=loader.counted)
    text = _PARAMETER.sub(lambda match: json.dumps(values[match[1]]) if is_yaml else str(values[match[1]]), written)
    return _load(text, counted=loader.counted) if is_yaml else text


def _joined(loader: _Loader, node: yaml.Node) -> list[Any]:
    assert isinstance(node, yaml.SequenceNode)
    return [each for part in loader.construct_sequence(node, deep=True) for each in part]


_Loader.add_constructor("!part", _part)
_Loader.add_constructor("!joined", _joined)


def _read(name: str, *, counted: bool) -> str:
    folder = resources.files(__name__)
    instead = folder / name.replace(".yaml", f"{_COUNTED}.yaml")
    return (instead if counted and instead.is_file() else folder / name).read_text(encoding="utf-8")


def _load(text: str, *, counted: bool) -> Any:
    return yaml.load(text, Loader=_CountedLoader if counted else _Loader)  # noqa: S506 (safe ones with two more tags)


@cache
def names() -> tuple[str, ...]:
    """List the presets."""
    files = (entry.name for entry in resources.files(__name__).iterdir())
    return tuple(sorted(name[:-5] for name in files if _is_preset(name)))


def _is_preset(file: str) -> bool:
    return file.startswith(PREFIX) and file.endswith(".yaml") and not file.endswith(f"{_COUNTED}.yaml")


@cache
def preset(name: str, *, counted: bool = False) -> Json | None:
    """Return a preset, or with `counted` the form that hashes count; None for an unknown name. Do not change it."""
    if name not in names():
        return None
    document: Json = _load(_read(f"{name}.yaml", counted=counted), counted=counted)
    return document


@cache
def is_counted_otherwise(name: str) -> bool:
    """Return whether hashes count something else than the preset."""
    return preset(name) != preset(name, counted=True)
