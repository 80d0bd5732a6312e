"""Reads corrections.yaml, the table of values in which Herdsman differs from the vectors of the three peers.

`families` and `llmkube_rules` look up the corrections of a case here. `python -m tests.conformance.corrections`
rewrites the list of gaps in README.md.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.conformance import kserve_form
from tests.conformance.comparison import ABSENT
from tests.conformance.vectors import Vector, all_vectors

TABLE = Path(__file__).with_name("corrections.yaml")
README = Path(__file__).with_name("README.md")
CLASSES = ("peer bug", "artefact", "choice", "gap")
KINDS = ("objects", "statuses", "refusals", "defects", "rule")
_BEGIN, _END = "<!-- gaps: begin -->", "<!-- gaps: end -->"


@dataclass(frozen=True)
class Made:
    """Whole objects that the peer did not make for a service, but made for a similar service of another case."""

    service: str
    like: str
    """The case and the service whose objects are copied, such as `020 rt`."""
    objects: tuple[str, ...] = ()
    """`Kind/name` of the objects to copy; empty: all objects of that service."""
    without: tuple[str, ...] = ()
    """Paths that are not copied."""


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    case: str
    """`kserve/015`, `kserve/015:step2` or `kserve/015:input` for one stage, `kserve/*` for a rule."""
    of: str
    """One of KINDS."""
    cls: str
    """One of CLASSES."""
    why: str
    adr: int | None = None
    """The number of the decision record that explains a choice."""
    made: tuple[Made, ...] = ()
    paths: Mapping[str, Any] = field(default_factory=dict)
    """By object and path: the correct value, or None if the path must not exist."""
    fields: Mapping[str, list[str]] = field(default_factory=dict)
    """For refusals: by `Kind/name` the fields that the refusal names; no field if the object is accepted."""
    defects: tuple[str, ...] = ()
    """Patterns of defects that match no path of an object or status; `test` checks these defects."""
    test: str = ""
    rule: str = ""
    """`module.function` that corrects every case of the peer."""
    answers: str = ""
    """A text in the reason of each defect that the rule corrects."""

    @property
    def family(self) -> str:
        return self.case.partition("/")[0]

    @property
    def number(self) -> str:
        return self.case.partition("/")[2].partition(":")[0]

    @property
    def stage(self) -> str:
        """`input` or `step2`; empty for all stages."""
        return self.case.partition(":")[2]

    def holds(self, vector: Vector, prefix: str) -> bool:
        """Return whether the row applies to a case, after its input or after the step of `prefix`."""
        at = prefix.rstrip(":") or "input"
        return (self.family, self.number) == (vector.family, vector.number) and self.stage in ("", at)

    def values(self, vector: Vector) -> dict[str, Any]:
        """Return the correct values by path, in this order: paths that must not exist, whole objects, single paths."""
        flat = dict(_flat(self.paths))
        made: dict[str, Any] = {}
        for each in self.made:
            made |= {path: value for path, value in _like(vector, each).items() if path not in each.without}
        gone = {path: value for path, value in flat.items() if value is ABSENT}
        return {**gone, **made, **{path: value for path, value in flat.items() if value is not ABSENT}}

    def function(self) -> Callable[..., Any]:
        """Import the function of a rule."""
        module, _, name = self.rule.rpartition(".")
        found: Callable[..., Any] = getattr(importlib.import_module(f"tests.conformance.{module}"), name)
        return found


@functools.cache
def rows() -> tuple[Row, ...]:
    """Return all rows of corrections.yaml."""
    found = []
    for entry in yaml.load(TABLE.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader):
        made = tuple(
            Made(each["service"], each["like"], tuple(each.get("objects", ())), tuple(each.get("without", ())))
            for each in entry.pop("made", ())
        )
        defects = tuple(entry.pop("defects", ()))
        found.append(Row(cls=entry.pop("class"), made=made, defects=defects, **entry))
    return tuple(found)


def objects(vector: Vector, prefix: str = "") -> dict[str, Any]:
    """Return the corrections for a case's objects by path, after its input or after the step of `prefix`."""
    return _values(vector, "objects", prefix)


def statuses(vector: Vector, prefix: str = "") -> dict[str, Any]:
    """Return the corrections for a case's statuses, as `objects` does for its objects."""
    return _values(vector, "statuses", prefix)


def refusals(vector: Vector) -> dict[str, set[str]]:
    """Return the fields that a refusal must name, by `Kind/name` (`step2:Kind/name` for a step).

    The set is empty if the object must be accepted.
    """
    found: dict[str, set[str]] = {}
    for row in rows():
        if row.of == "refusals" and (row.family, row.number) == (vector.family, vector.number):
            step = f"{row.stage}:" if row.stage.startswith("step") else ""
            found |= {step + name: set(fields) for name, fields in row.fields.items()}
    return found


def answered(vector: Vector) -> set[str]:
    """Return the patterns of the defects of a case that the test of a row checks, instead of a path."""
    return {pattern for row in rows() if row.of == "defects" and row.holds(vector, "") for pattern in row.defects}


def answered_always(family: str) -> tuple[str, ...]:
    """Return the texts that identify, by its reason, a defect that a rule corrects in every case."""
    return tuple(row.answers for row in rows() if row.family == family and row.answers)


def gaps() -> list[str]:
    """Return the rows of class `gap` as lines of a Markdown list."""
    return [f"- {row.case}: {row.why}" for row in rows() if row.cls == "gap"]


def readme_with_gaps() -> str:
    """Return the text of README.md with the current list of gaps."""
    before, _, rest = README.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return "\n".join([f"{before}{_BEGIN}", *gaps(), f"{_END}{after}"])


def _values(vector: Vector, of: str, prefix: str) -> dict[str, Any]:
    mine = [row for row in rows() if row.of == of and row.holds(vector, prefix)]
    found: dict[str, Any] = {}
    for row in sorted(mine, key=lambda row: bool(row.stage)):  # rows of one stage take precedence
        found |= row.values(vector)
    return found


def _flat(paths: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for root, told in paths.items():
        if told is None:
            yield root, ABSENT
            continue
        for path, value in told.items():
            yield root if path == "." else f"{root}/{path}", ABSENT if value is None else value


def _like(vector: Vector, made: Made) -> dict[str, Any]:
    number, _, like = made.like.partition(" ")
    other = _kserve()[number]
    recorded = [
        thing
        for thing in other.objects
        if (thing["metadata"].get("labels") or {}).get("app.kubernetes.io/name") == like
        and (not made.objects or f"{thing['kind']}/{thing['metadata']['name']}" in made.objects)
    ]
    text = json.dumps(kserve_form.translated(recorded)).replace(other.namespace, vector.namespace)
    renamed = json.loads(re.sub(rf"(?<![a-z0-9]){re.escape(like)}(?![a-z0-9])", made.service, text))
    flat, _ = kserve_form.flat_objects(vector, renamed, [{"kind": "Secret", "metadata": {"name": "-"}, "x": 1}])
    # The arguments that a start script passes to vLLM are compared only where a recording has them.
    return {path: value for path, value in flat.items() if "/x-vllm-argv" not in path}


@functools.cache
def _kserve() -> dict[str, Vector]:
    return {vector.number: vector for vector in all_vectors("kserve")}


if __name__ == "__main__":
    README.write_text(readme_with_gaps(), encoding="utf-8")
