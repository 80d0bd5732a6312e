"""Finds the objects of a fleet that already exist in its clusters, before anything is registered.

Called by `program.__main__`. The fleet's own providers answer, so the clusters are those of the run. One error lists
all objects that belong to other owners. Objects that belong to the fleet are imported instead of created.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import pulumi
from pulumi.runtime import invoke_async

from components import naming, urns
from components.rendered import RenderedObject
from program.static.plugin import KubernetesPlugin, other_plugin_words
from program.static.reading import Placed

Existing = frozenset[tuple[str, str]]


async def find_existing(
    services: Iterable[Placed],
    providers: Mapping[str, pulumi.ProviderResource],
    plugin: KubernetesPlugin = KubernetesPlugin.HERDSMAN,
) -> dict[str, Existing]:
    """Return type token and id of the existing objects that the fleet may import, by the cluster's name.

    `providers` are those of clusters with their own provider. Raises pulumi.RunError with all objects of other owners
    that are in the way. It is also raised if the fleet is for Herdsman's plugin, and another plugin or none answers.
    Pulumi's own plugin does not have this function, which is no error for a fleet of that plugin. Errors of the API
    server are not raised here, because the run reports them with more detail.
    """
    by_cluster: dict[str, dict[tuple[str, str], RenderedObject]] = {}
    for placed in services:
        objects = by_cluster.setdefault(placed.cluster.name, {})
        for obj in (*placed.rendered.shared, *placed.rendered.objects):
            objects[urns.type_of(obj), urns.id_of(obj)] = obj
    answers = await asyncio.gather(
        *(_asked(objects.values(), providers.get(name), plugin) for name, objects in by_cluster.items())
    )
    conflicts = [
        f"{name}: {conflict}" if name else conflict
        for name, answer in zip(by_cluster, answers, strict=True)
        for conflict in answer.get("conflicts") or ()
    ]
    if conflicts:
        raise pulumi.RunError("\n".join(conflicts))
    return {
        name: frozenset((str(each["type"]), str(each["id"])) for each in answer.get("standing") or ())
        for name, answer in zip(by_cluster, answers, strict=True)
    }


async def _asked(
    objects: Iterable[RenderedObject], provider: pulumi.ProviderResource | None, plugin: KubernetesPlugin
) -> dict[str, Any]:
    asked = [{"type": urns.type_of(obj), "metadata": obj.manifest["metadata"]} for obj in objects]
    options = pulumi.InvokeOptions(provider=provider, version=plugin.version)
    try:
        answer = await invoke_async(naming.STANDING_FUNCTION, {"objects": asked}, options)
    except Exception as error:
        if plugin is KubernetesPlugin.HERDSMAN:
            raise pulumi.RunError(other_plugin_words(str(error))) from None
        pulumi.log.debug(f"the provider did not return the existing objects: {error}")
        return {}
    return answer if isinstance(answer, dict) else {}
