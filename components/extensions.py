"""What a service can have only where the cluster was extended: Gateway API, KEDA, Prometheus' operator, Pyrra. Pure.

Called by `components.render`; what a service asks for in vain stands in its status (`program.dialects`).
"""

from __future__ import annotations

from components.options import RenderOptions
from kubeapi import kinds
from kubeapi.kinds import Kind
from program.desired.service import Autoscaling


def is_installed(kind: Kind, options: RenderOptions) -> bool:
    """Tell whether the cluster serves an optional kind now."""
    return kind.full_name in options.installed


def keda_scales(scaling: Autoscaling, options: RenderOptions) -> bool:
    """Tell whether KEDA scales a service: only it can scale to nothing, and only with metrics to look at."""
    able = is_installed(kinds.SCALED_OBJECTS, options) and bool(options.prometheus_url)
    return able and scaling.min_replicas == 0
