"""Compares the objects and statuses of Herdsman with those in the vectors of KServe and llmaz.

Both sides are first converted to one form:
- Defaults of the API server and of LeaderWorkerSet's webhook are removed (`flattening`). Lists of named items, env and
  ports are compared as sets. Labels, annotations and selectors under `herdsman.dev/` are left out.
- Any script matches a recorded script (`<script …>` or `{sha256, …}`). The arguments that Herdsman's script passes to
  vLLM are compared with the recorded `x-vllm-argv` (`start_scripts`). `--config-text` is compared as YAML.
- `kserve_form` and `llmaz_form` apply the corrections that every case needs; their docstrings list them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kubeapi.json_types import Json
from tests.conformance import corrections, kserve_form, llmaz_form
from tests.conformance.comparison import ABSENT, Defect, Difference, as_text, corrected
from tests.conformance.flattening import Flat, same
from tests.conformance.vectors import Vector

__all__ = ["ABSENT", "as_text", "compare", "compare_status", "corrections_of", "status_corrections_of", "uncorrected"]


_FORMS = {"kserve": kserve_form, "llmaz": llmaz_form}
corrections_of, status_corrections_of = corrections.objects, corrections.statuses


def compare(
    family: str,
    vector: Vector,
    expected_objects: Iterable[Json],
    actual_objects: Iterable[Json],
    right: Mapping[str, Any],
    prefix: str = "",
) -> list[Difference]:
    """Compare objects with the recorded ones; an empty list means that they are equal.

    `right` holds the correct value for each path at which the peer is wrong, `ABSENT` for a path that must not exist.
    `prefix` (`step2:`) is put before each path that is matched with the vector's lenient defects. The Secret of a
    certificate is compared only if the actual objects contain a Secret (see `kserve_form.certificate_secret`), since no
    renderer makes it.
    """
    form = _FORMS[family]
    expected, actual = form.flat_objects(vector, list(expected_objects), list(actual_objects))
    return _compared(vector.defects, expected, actual, right, prefix)


def compare_status(
    family: str,
    vector: Vector,
    expected: Mapping[str, Json],
    actual: Mapping[str, Json],
    right: Mapping[str, Any],
    prefix: str = "",
    *,
    played: Mapping[str, Any] | None = None,
) -> list[Difference]:
    """Compare statuses by `Kind/name`: conditions by type, status and (where recorded) reason, and the peer's fields.

    `played` holds further corrections, for a test in which other pods are ready than in the recording.
    """
    wanted, found = _FORMS[family].flat_statuses(vector, expected, actual)
    return _compared(vector.defects, corrected(wanted, right), found, played or {}, prefix)


def uncorrected(family: str, defects: Sequence[Defect], right: Mapping[str, Any], *, prefix: str = "") -> list[Defect]:
    """List the defects that are not lenient and that neither a path of `right` nor the form of the family corrects."""
    always = corrections.answered_always(family)
    return [
        defect
        for defect in defects
        if not defect.lenient
        and not any(defect.pattern.search(prefix + path) for path in right)
        and not any(reason in defect.reason for reason in always)
    ]


def _compared(
    defects: Sequence[Defect], expected: Flat, actual: Flat, right: Mapping[str, Any], prefix: str
) -> list[Difference]:
    wanted = corrected(expected, right)
    lenient = [defect.pattern for defect in defects if defect.lenient]
    differences = []
    for path in sorted({*wanted, *actual}):
        left, right = wanted.get(path, ABSENT), actual.get(path, ABSENT)
        if not same(left, right) and not any(pattern.search(prefix + path) for pattern in lenient):
            differences.append(Difference(path, left, right))
    missing = {d.path for d in differences if "present" in (d.expected, d.actual)}
    return [d for d in differences if d.path in missing or not any(d.path.startswith(f"{path}/") for path in missing)]
