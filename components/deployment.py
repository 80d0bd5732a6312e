"""The Deployment that runs a service's pods. Called by `components.render`."""

from __future__ import annotations

from components import naming
from components.object_metadata import object_metadata, selector_labels, workload_labels
from components.options import RenderOptions
from components.pod_template import pod_template
from components.rendered import RenderedObject, fingerprint_of
from program.desired.base import JsonObject
from program.desired.service import DesiredService


def deployment(desired: DesiredService, options: RenderOptions) -> RenderedObject:
    """Build the Deployment. While the service autoscales, the number of replicas is left to the autoscaler."""
    template = pod_template(desired, options)
    spec: JsonObject = {"selector": {"matchLabels": selector_labels(desired)}, "template": template}
    if desired.autoscaling is None:
        spec["replicas"] = desired.replicas
    if desired.gpu:
        # A rolling update starts the new pod first, and it would wait for the GPUs that the old one holds.
        spec["strategy"] = {"type": "Recreate"}
    metadata = object_metadata(
        desired,
        naming.deployment_name(desired.key.name),
        workload_labels(desired),
        {naming.ANNOTATION_TEMPLATE_HASH: fingerprint_of(template)},
    )
    manifest: JsonObject = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    return RenderedObject("deployment", naming.TYPE_SERVICE, manifest)
