"""Where KServe's recorded output is wrong, or where we differ on purpose: what is right, path by path.

A key is a case (`034`, in all its stages) or one stage of it (`034:input:`, `034:step2:`). What every case would need
is in `kserve_form`. Each entry says why; tests check that every listed defect has one and that none is without effect.
"""

from __future__ import annotations

from tests.conformance.kserve_object_corrections import OBJECTS
from tests.conformance.kserve_status_corrections import STATUS

__all__ = ["ADMISSION", "ELSEWHERE", "OBJECTS", "STATUS"]

_UNSUPPORTED = ("gcs", "web", "bare", "modelscope")

ADMISSION: dict[str, dict[str, set[str]]] = {
    # The schema knows what an address looks like.
    "006": {f"LLMInferenceService/{name}": {"spec.model.uri"} for name in _UNSUPPORTED},
    # An absent key of a block is no key that is set.
    "101": {"LLMInferenceService/adv": set(), "LLMInferenceService/advp": set()},
    "102": {"LLMInferenceService/khpa": set()},
    "121": {f"LLMInferenceService/bad-{number}": {"spec.parallelism.data"} for number in ("10", "11")},
    "122": {"LLMInferenceService/bad-12": {"spec.model.lora.adapters[0].name"}},
    "124": {f"LLMInferenceService/bad-{number}": {"spec.model"} for number in ("01", "02", "05", "06")},
}
"""By case: `Kind/name` to the fields that our refusal names; an empty set for what we let in."""

ELSEWHERE: dict[str, str] = {}
"""Cases with a defect that is no field of an object or status: which test asserts the right answer."""
