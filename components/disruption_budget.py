"""The PodDisruptionBudget of a service that says how many pods may be away. Called by `components.render`."""

from __future__ import annotations

from components import naming
from components.deployment import count_or_share
from components.object_metadata import object_metadata, selector_labels
from components.rendered import RenderedObject
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.service import DesiredService


def disruption_budget(desired: DesiredService) -> RenderedObject:
    """Build the budget: node drains and the loop's own evictions respect it."""
    labels = selector_labels(desired)
    manifest: Json = {
        "apiVersion": kinds.DISRUPTION_BUDGETS.api_version,
        "kind": kinds.DISRUPTION_BUDGETS.kind,
        "metadata": object_metadata(desired, naming.deployment_name(desired.key.name), labels),
        "spec": {
            "maxUnavailable": count_or_share(desired.disruption.max_unavailable),
            "selector": {"matchLabels": labels},
            # A pod that does not serve holds up no drain: without this a crash loop keeps its node for ever.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
    return RenderedObject("budget", naming.TYPE_SERVICE, manifest)
