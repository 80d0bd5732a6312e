"""How many GPUs an engine's ranks need. Pure; the engines' settings call it."""

from __future__ import annotations

from program.desired.errors import SpecInvalid
from program.desired.model import Gpu


def check_ranks(ranks: int, gpu: Gpu | None, *, field: str) -> None:
    """Raise SpecInvalid at `field` when a replica has fewer GPUs than ranks.

    What a resource claim holds only its driver knows, so that nothing is said where claims bring the GPUs.
    """
    gpus = gpu.count if gpu else 0
    if ranks <= max(gpus, 1) or (gpu is not None and gpu.claims):
        return
    raise SpecInvalid(
        field=field,
        why=f"{ranks} ranks need as many GPUs, and a replica has {gpus}; set spec.resources.gpu or the Model's "
        "spec.hardware.gpu.count",
    )
