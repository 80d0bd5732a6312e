"""Deletes the cached files of Models whose service was deleted, as `herdsman cache prune` does. Used by `cluster`."""

from __future__ import annotations

from collections.abc import Sequence

from automation.models.cache_claim import CacheClaim
from automation.models.cache_inventory import (
    CacheUnreachable,
    InventoryBroken,
    Usage,
    is_cache,
    model_keys_of,
    plan_prune,
)
from automation.preview.loop_options import options_of_loop
from components.options import RenderOptions
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError
from kubeapi.json_types import Json
from program.dialects.llmkube.status.model import human_size


def purge_models(client: KubeClient, namespace: str, models: Sequence[Json]) -> list[str]:
    """Delete the files of Models from the caches of their namespace.

    Returns a phrase for each directory, also for one that stays. Files on hosts stay: agents delete unused files when
    they need the space. Raises KubeError when the claims cannot be listed.
    """
    keys = frozenset(key for model in models for key in model_keys_of(model))
    if not keys:
        return []
    claims = [claim for claim in client.list(kinds.CLAIMS, namespace)["items"] if is_cache(claim)]
    options = options_of_loop(client)
    told: list[str] = []
    for claim in claims:
        name = claim["metadata"]["name"]
        try:
            told += _purge_claim(client, claim, keys, options)
        except (CacheUnreachable, InventoryBroken, KubeError) as error:
            told.append(f"not the files on claim `{name}`: {error}")
    return told


def _purge_claim(client: KubeClient, claim: Json, keys: frozenset[str], options: RenderOptions) -> list[str]:
    cache = CacheClaim(client, claim, options)
    found = cache.directories()
    # Read now: another service may use the files since the deletion.
    usage = Usage(
        client.list(kinds.MODELS, cache.namespace)["items"],
        client.list(kinds.INFERENCE_SERVICES, cache.namespace)["items"],
    )
    chosen, refused = plan_prune(usage.entries(cache.namespace, cache.name, found), model_keys=keys)
    told = [f"not {why}" for why in refused]
    if not chosen:
        return told
    ended = cache.delete([entry.directory.key for entry in chosen])
    for entry in chosen:
        outcome = ended[entry.directory.key]
        if outcome in ("deleted", "gone"):
            told.append(f"{human_size(entry.directory.size_bytes)} of files")
        else:
            told.append(f"not {entry.directory.key} on claim `{cache.name}`: {outcome}")
    return told
