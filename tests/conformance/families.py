"""Compare what a dialect makes with what its peer made: KServe's and llmaz's vectors, in the notation of each.

Both sides are brought into one form first, and only what is in both forms counts:
- Defaults of the API server and of LeaderWorkerSet's webhook are stripped (`flattening`); lists of named things are
  compared as sets, env and ports too; labels, annotations and selectors under `herdsman.dev/` are left out.
- Whoever wrote a script does not matter: `<script …>` and `{sha256, …}` are matched by any script. What ours hands to
  vLLM is compared with the recorded `x-vllm-argv` (`start_scripts`). `--config-text` is compared as YAML.
- What every case would otherwise need a correction for is corrected once: `kserve_form` and `llmaz_form` say what.
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
    """Compare objects with recorded ones; an empty list means: the same.

    `right` holds the value for each path at which the peer is wrong, `ABSENT` for what must not be there.
    `prefix` (`step2:`) is put before each path where the vector's lenient defects are matched. The certificate's Secret
    is compared where the actual objects have one (see `kserve_form.certificate_secret`), since no renderer makes it.
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
    """Compare statuses by `Kind/name`: conditions by type, truth and (where recorded) reason, and the peer's fields.

    `played` are corrections on top of those, for a test whose world is not the recorded one.
    """
    wanted, found = _FORMS[family].flat_statuses(vector, expected, actual)
    return _compared(vector.defects, corrected(wanted, right), found, played or {}, prefix)


def uncorrected(family: str, defects: Sequence[Defect], right: Mapping[str, Any], *, prefix: str = "") -> list[Defect]:
    """List the defects that are neither lenient nor corrected, by a path of the defect or by the form of the family."""
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
