"""Shared memory of a pod: llmaz has a field for its size; elsewhere it is a volume in memory at /dev/shm. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kubeapi.json_types import Json
from program.dialects.converting.described import Written

PATH = "/dev/shm"  # noqa: S108 - the engines' own
_NAME = "dshm"


@dataclass(frozen=True)
class Volumes:
    """What a pod mounts, but for its shared memory, and the size of that."""

    volumes: tuple[Json, ...]
    mounts: tuple[Json, ...]
    size: str = ""


def taken_out(volumes: Any, mounts: Any) -> Volumes:
    """Recognise shared memory of a given size among a pod's volumes; what is mounted in another way stays."""
    every, places = tuple(volumes or ()), tuple(mounts or ())
    at = next((each for each in places if str(each.get("mountPath", "")).rstrip("/") == PATH), None)
    if at is None or set(at) - {"name", "mountPath"} or sum(each.get("name") == at["name"] for each in places) > 1:
        return Volumes(every, places)
    volume: Json = next((each for each in every if each.get("name") == at["name"]), {})
    told = volume.get("emptyDir")
    if not isinstance(told, dict) or told.get("medium") != "Memory" or not told.get("sizeLimit"):
        return Volumes(every, places)
    return Volumes(
        tuple(each for each in every if each is not volume),
        tuple(each for each in places if each is not at),
        str(told["sizeLimit"]),
    )


def put_in(written: Written, volumes: Iterable[Json], mounts: Iterable[Json]) -> Volumes:
    """Add shared memory of the described size to what a pod mounts, and leave out mounts of volumes that it has not."""
    every, places = tuple(volumes), tuple(mounts)
    names = {each.get("name") for each in every}
    if strange := sorted({str(each.get("name")) for each in places if each.get("name") not in names}):
        written.lose("volume_mounts", f"`{strange[0]}` is a volume that only pods of the service's own dialect have")
        places = tuple(each for each in places if each.get("name") in names)
    size = written.take("shared_memory")
    if not size:
        return Volumes(every, places)
    if any(str(each.get("mountPath", "")).rstrip("/") == PATH for each in places):
        written.lose("shared_memory", f"another volume is mounted at {PATH}")
        return Volumes(every, places)
    name = next(each for each in (_NAME, *(f"{_NAME}-{n}" for n in range(len(names) + 1))) if each not in names)
    made: Json = {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    return Volumes((*every, made), (*places, {"name": name, "mountPath": PATH}), size)
