"""The slower tiers of a KV cache that does not fit the GPU: their volumes in the pods that serve. Pure.

vLLM itself is told of them by the start script (`--kv-transfer-config`), which names the same paths.
"""

from __future__ import annotations

from math import ceil

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.quantities import parse_quantity
from program.dialects.kserve.pod_draft import Container, PodDraft
from program.dialects.kserve.subject import value_at

_STORAGE = "ephemeral-storage"


def add_cache_tiers(draft: PodDraft, workload: Json, *, field: str) -> None:
    """Mount each secondary tier of a workload. Raises SpecInvalid for a size that is no quantity, or a path upwards."""
    sizes: list[str] = []
    for index, tier in enumerate(value_at(workload, "kvCacheOffloading", "secondary") or ()):
        files = value_at(tier, "fileSystem") or {}
        name = f"kv-cache-secondary-{index}"
        mount: Json = {"name": name, "mountPath": f"/mnt/kv-cache-{index}"}
        claim = files.get("pvc") or {}
        if claim.get("ref"):
            volume: Json = {"persistentVolumeClaim": {"claimName": str(claim["ref"].get("name") or "")}}
            path = str(claim["ref"].get("path") or "").strip("/")
            if ".." in path.split("/"):
                where = f"{field}.kvCacheOffloading.secondary[{index}].fileSystem.pvc.ref.path"
                raise SpecInvalid(field=where, why=f"`{path[:64]}` leaves the claim by `..`")
            if path:
                mount["subPath"] = path
        elif claim.get("spec"):
            volume = {"ephemeral": {"volumeClaimTemplate": {"spec": claim["spec"]}}}
        else:
            size = str(value_at(files, "emptyDir", "size") or "")
            volume = {"emptyDir": {"sizeLimit": size} if size else {}}
            if size:
                sizes.append(size)
        draft.add_volume({"name": name, **volume})
        draft.main.add_mount(mount)
    if sizes:
        _ask_for_storage(draft.main, sizes, f"{field}.kvCacheOffloading.secondary")


def _ask_for_storage(main: Container, sizes: list[str], field: str) -> None:
    """Raise what the container asks of its node's disk, so that the scheduler finds one that has it."""
    resources = main.get("resources") or {}
    requests = resources.get("requests") or {}
    amounts = [*sizes, str(requests[_STORAGE])] if _STORAGE in requests else sizes
    total = sum(parse_quantity(amount, field=field) for amount in amounts)
    text = amounts[0] if len(amounts) == 1 else str(ceil(total))
    main.set_within("resources", requests={**requests, _STORAGE: text})
