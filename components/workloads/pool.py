"""The InferencePool of a service. Called by `render` of this package."""

from __future__ import annotations

from components import naming
from components.rendered import RenderedObject
from components.workloads.parts import manifest, settled
from kubeapi import kinds
from program.desired.service import DesiredService
from program.desired.workloads import Pool


def inference_pool(desired: DesiredService, pool: Pool) -> RenderedObject:
    """Build the pool that gateways send requests to."""
    made = manifest(
        desired,
        kinds.INFERENCE_POOLS,
        pool.name,
        labels=pool.labels,
        annotations=pool.annotations,
        spec=settled(pool.spec),
    )
    return RenderedObject("pool", naming.TYPE_ROUTING, made)
