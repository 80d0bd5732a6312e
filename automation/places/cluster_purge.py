"""Deletes the cached files of Models whose service was deleted, as `herdsman cache prune` does. Used by `cluster`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from automation.models.cache_inventory import (
    CacheUnreachable,
    InventoryBroken,
    Usage,
    check_bound,
    find_node,
    is_cache,
    model_keys_of,
    parse_directories,
    parse_outcomes,
    plan_prune,
    run_pod,
)
from automation.preview.loop_options import options_of_loop
from components.model_cache import inspector_pod, pruning_pod
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
    namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
    check_bound(claim)
    node = find_node(claim, client.list(kinds.PODS, namespace)["items"])
    build = partial(inspector_pod, namespace=namespace, claim=name, options=options, node=node)
    found = parse_directories(run_pod(client, build, namespace=namespace))
    # Read now: another service may use the files since the deletion.
    usage = Usage(
        client.list(kinds.MODELS, namespace)["items"], client.list(kinds.INFERENCE_SERVICES, namespace)["items"]
    )
    chosen, refused = plan_prune(usage.entries(namespace, name, found), model_keys=keys)
    told = [f"not {why}" for why in refused]
    if not chosen:
        return told
    names = [entry.directory.key for entry in chosen]
    prune = partial(pruning_pod, namespace=namespace, claim=name, keys=names, options=options, node=node)
    ended = parse_outcomes(run_pod(client, prune, namespace=namespace))
    for entry in chosen:
        if ended.get(entry.directory.key) in ("deleted", "gone"):
            told.append(f"{human_size(entry.directory.size_bytes)} of files")
        else:
            told.append(f"not {entry.directory.key} on claim `{name}`: {ended.get(entry.directory.key, 'failed')}")
    return told
