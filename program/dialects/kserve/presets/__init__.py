"""Presets of ours under the names of KServe's: what a service is made of unless it says otherwise.

Each `kserve-config-llm-*.yaml` beside this file is an LLMInferenceServiceConfig. What several have in common is a part:
`!part {file: NAME, key: value}` stands for that file with every `@key@` in it replaced, by a text in `.sh` files and by
JSON in `.yaml` files. `configuration` reads them, after configs of the same names in the cluster.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import Any

import yaml

from program.desired.base import JsonObject

PREFIX = "kserve-config-llm-"
"""What the names of presets start with."""

_PARAMETER = re.compile(r"@([a-z_]+)@")


class _Loader(yaml.SafeLoader):
    pass


def _part(loader: _Loader, node: yaml.Node) -> Any:
    assert isinstance(node, yaml.MappingNode)
    values = loader.construct_mapping(node, deep=True)
    name = values.pop("file")
    is_yaml = name.endswith(".yaml")
    text = _PARAMETER.sub(lambda match: json.dumps(values[match[1]]) if is_yaml else str(values[match[1]]), _read(name))
    return _load(text) if is_yaml else text


_Loader.add_constructor("!part", _part)


def _read(name: str) -> str:
    return (resources.files(__name__) / name).read_text(encoding="utf-8")


def _load(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)  # noqa: S506 (the loader is a safe one with one more tag)


@cache
def names() -> tuple[str, ...]:
    """List the presets."""
    files = (entry.name for entry in resources.files(__name__).iterdir())
    return tuple(sorted(name[:-5] for name in files if name.startswith(PREFIX) and name.endswith(".yaml")))


@cache
def preset(name: str) -> JsonObject | None:
    """Give a preset, which nobody may change; None for a name that is none of `names`."""
    if name not in names():
        return None
    document: JsonObject = _load(_read(f"{name}.yaml"))
    return document
