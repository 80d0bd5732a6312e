"""Where KServe's recorded output is wrong, or where we differ on purpose: what is right, path by path.

A key is a case (`034`, in all its stages) or one stage of it (`034:input:`, `034:step2:`). What every case would need
is in `kserve_form`. Each entry says why; tests check that every listed defect has one and that none is without effect.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.comparison import ABSENT  # noqa: F401 - the value of what we must not have
from tests.conformance.kserve_object_corrections import OBJECTS

__all__ = ["ADMISSION", "ELSEWHERE", "OBJECTS", "STATUS"]

STATUS: dict[str, dict[str, Any]] = {}

ADMISSION: dict[str, dict[str, set[str]]] = {}
"""By case: `Kind/name` to the fields that our refusal names; an empty set for what we let in."""

ELSEWHERE: dict[str, str] = {}
"""Cases with a defect that is no field of an object or status: which test asserts the right answer."""
