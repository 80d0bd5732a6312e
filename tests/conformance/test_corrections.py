"""Each row of corrections.yaml names an existing case and a reason, and changes a recorded value."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import corrections, kserve_form, llmaz_form, llmkube_rules
from tests.conformance.comparison import corrected, flatten_all, flatten_status
from tests.conformance.corrections import Row
from tests.conformance.families import uncorrected
from tests.conformance.vectors import Recorded, Vector, all_vectors

ROOT = Path(__file__).parents[2]
FAMILIES = ("llmkube", "kserve", "llmaz")
VECTORS = {(vector.family, vector.number): vector for family in FAMILIES for vector in all_vectors(family)}
ROWS = [pytest.param(row, id=f"{number}-{row.case}-{row.of}") for number, row in enumerate(corrections.rows())]
ANY_SECRET = {"kind": "Secret", "metadata": {"name": "-"}, "x": 1}


def stages(row: Row) -> list[tuple[Vector, Recorded]]:
    vector = VECTORS[row.family, row.number]
    return [(vector, stage) for stage in vector.stages() if row.holds(vector, stage.prefix)]


def recorded(row: Row, vector: Vector, stage: Recorded) -> dict[str, Any]:
    """Return the peer's values at a stage, flattened."""
    if row.family == "llmkube":
        return flatten_all(stage.objects) if row.of == "objects" else flatten_status(stage.statuses)
    form: Any = kserve_form if row.family == "kserve" else llmaz_form
    if row.of == "objects":
        wanted: dict[str, Any] = form.flat_objects(vector, stage.objects, [ANY_SECRET] * (row.family == "kserve"))[0]
        return wanted
    told: dict[str, Any] = form.flat_statuses(vector, stage.statuses, {})[0]
    return told


def refused(vector: Vector, name: str) -> set[str] | None:
    """Return the fields that the peer's refusal names; None if the peer accepts the object."""
    step, _, plain = name.rpartition(":")
    for stage in vector.stages():
        if step and stage.prefix == f"{step}:" and stage.admission and stage.admission["object"] == plain:
            return {cause["field"] for cause in stage.admission.get("causes") or ()}
    entry = vector.rejected.get(name)
    return None if entry is None else {cause["field"] for cause in entry.get("causes") or ()}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_says_what_it_is_about_and_why(row: Row) -> None:
    assert row.cls in corrections.CLASSES and row.of in corrections.KINDS
    assert row.why.endswith(".") and len(row.why.split()) > 3
    filled = {"objects": row.paths or row.made, "statuses": row.paths, "refusals": row.fields}
    assert {**filled, "defects": row.defects and row.test, "rule": row.rule}[row.of]
    if row.of != "rule":
        assert stages(row), "no such case or stage"
    # Only a choice has a decision record.
    assert (row.adr is not None) == (row.cls == "choice")
    if row.adr is not None:
        assert list((ROOT / "docs" / "adr").glob(f"{row.adr:04}-*.md"))


@pytest.mark.parametrize("row", [each for each in ROWS if each.values[0].of in ("objects", "statuses")])
def test_a_row_that_corrects_nothing_is_an_error(row: Row) -> None:
    for vector, stage in stages(row):
        said = recorded(row, vector, stage)
        right = row.values(vector)
        assert corrected(said, right) != said  # raises for each path whose value equals the peer's


@pytest.mark.parametrize("row", [each for each in ROWS if each.values[0].of == "refusals"])
def test_a_refusal_that_is_the_peers_needs_no_row(row: Row) -> None:
    vector = VECTORS[row.family, row.number]
    for name, fields in row.fields.items():
        key = f"{row.stage}:{name}" if row.stage else name
        said = refused(vector, key)
        assert said is not None or fields, f"{name} is let in by the peer as well"
        assert said is None or said != set(fields), f"{name} is refused at the same fields"


@pytest.mark.parametrize("row", [each for each in ROWS if each.values[0].of == "defects"])
def test_a_defect_that_no_path_answers_is_listed_and_has_a_test(row: Row) -> None:
    listed = {entry["match"] for entry in VECTORS[row.family, row.number].raw["peer_defects"]}
    assert set(row.defects) <= listed
    assert (ROOT / row.test).is_file()


@pytest.mark.parametrize("row", [each for each in ROWS if each.values[0].of == "rule"])
def test_a_rule_names_its_function_and_answers_something(row: Row) -> None:
    assert inspect.isfunction(row.function())
    reasons = [
        defect.reason for (family, _), vector in VECTORS.items() if family == row.family for defect in vector.defects
    ]
    assert any(row.answers in reason for reason in reasons)


def test_the_rules_correct_something() -> None:
    kserve = [vector for (family, _), vector in VECTORS.items() if family == "kserve"]
    llmaz = [vector for (family, _), vector in VECTORS.items() if family == "llmaz"]
    flat = [flatten_all(vector.objects) for (family, _), vector in VECTORS.items() if family == "llmkube"]
    assert all(any(rule(each) for each in flat) for rule in (llmkube_rules.drains, llmkube_rules.owned))
    assert any(kserve_form.translated(vector.objects) != vector.objects for vector in kserve)
    assert any(kserve_form.translated_statuses(vector.status) != vector.status for vector in kserve)
    assert any(llmaz_form.translated(vector, vector.objects) != vector.objects for vector in llmaz)


@pytest.mark.parametrize("vector", VECTORS.values(), ids=lambda vector: f"{vector.family}-{vector.name}")
def test_every_defect_of_a_peer_has_a_right_answer(vector: Vector) -> None:
    paths = [f"admission/{name}/fields" for name in corrections.refusals(vector)]
    for stage in vector.stages():
        for path in (*corrections.objects(vector, stage.prefix), *corrections.statuses(vector, stage.prefix)):
            paths += [path, stage.prefix + path]
    left = uncorrected(vector.family, vector.defects, dict.fromkeys(paths))
    answered = corrections.answered(vector)
    assert {defect.pattern.pattern for defect in left} == answered, [defect.reason for defect in left]


def test_one_row_says_one_thing_once() -> None:
    seen = [(row.case, row.of, path) for row in corrections.rows() for path in (*row.paths, *row.fields)]
    assert len(seen) == len(set(seen))


def test_the_readme_lists_the_gaps() -> None:
    assert corrections.README.read_text(encoding="utf-8") == corrections.readme_with_gaps(), (
        "run `python -m tests.conformance.corrections`"
    )


def test_the_table_is_not_changed_by_those_who_read_it() -> None:
    before = copy.deepcopy(corrections.rows())
    for vector in VECTORS.values():
        corrections.objects(vector), corrections.statuses(vector), corrections.refusals(vector)
    assert corrections.rows() == before
