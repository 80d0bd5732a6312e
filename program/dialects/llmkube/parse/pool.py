"""ModelPool → `program.desired.pool.Pool`. Pure. The loop calls it."""

from __future__ import annotations

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.pool import Pool
from program.dialects.crds.reading import check_shape, read, without_nulls
from program.dialects.llmkube.parse.durations import seconds
from program.dialects.llmkube.schema.model_pool import ModelPoolSpec

LONGEST_S = 24 * 3600.0
"""The upper bound of both times."""


def pool_of(cr: Json) -> Pool:
    """Parse a ModelPool. Raises SpecInvalid with the path of the first field that is not valid."""
    check_shape(cr)
    spec = read(ModelPoolSpec, without_nulls(cr.get("spec")), field="spec")
    members = tuple(dict.fromkeys(each.inference_service_ref.name for each in spec.members))
    return Pool(
        namespace=cr["metadata"]["namespace"],
        name=cr["metadata"]["name"],
        members=members,
        default=spec.default or "",
        min_turn_s=_time(spec.min_turn, "spec.minTurn"),
        hold_s=_time(spec.swap_budget, "spec.swapBudget"),
        gpus=spec.gpu,
        node_labels=spec.node_selector,
    )


def _time(text: str, field: str) -> float:
    found = seconds(text, field)
    if found > LONGEST_S:
        raise SpecInvalid(field=field, why=f"`{text}` is longer than 24h")
    return found
