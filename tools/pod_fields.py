"""Writes the fields of Kubernetes' PodSpec, according to the models of the package `kubernetes`.

Run by `make crds`. `program.dialects.pods.fields` checks pod specs against the result. So it needs no import of the
package, which takes a second.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

_MODEL = re.compile(r"\b(?:[A-Z]\w*)?V\d\w*")
_SIMPLE = {"Dict": "dict", "List": "list"}


def pod_fields() -> dict[str, dict[str, str]]:
    """Return the fields of PodSpec and of all types in it: by type and field name, the type of the value."""
    from kubernetes.client import models

    found: dict[str, dict[str, str]] = {}
    waiting = ["V1PodSpec"]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        model: Any = getattr(models, name)
        found[name] = {
            model.attribute_map[attribute]: re.sub(r"\b(?:Dict|List)\b", lambda m: _SIMPLE[m[0]], kind)
            for attribute, kind in model.openapi_types.items()
        }
        waiting += [each for kind in found[name].values() for each in _MODEL.findall(kind)]
    return {name: dict(sorted(found[name].items())) for name in sorted(found)}


def as_json() -> str:
    """Return the fields as JSON with one type on each line, for readable differences."""
    lines = [f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in pod_fields().items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(as_json(), encoding="utf-8")
