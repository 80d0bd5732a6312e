"""Lists the files of a whole Hugging Face repository, for engines that read a directory of files.

Called by `download`. For a revision the Hub reports the commit, the size of each file and, for large files, the
SHA-256. So all files come from one commit and are verified. The list is stored beside the files, so that later starts
do not need the Hub.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from agent.contract import FilePlan
from agent.server.models import remote
from agent.server.models.model_store import write_whole
from agent.server.models.source_access import SourceAccess
from agent.sources.errors import PlanInvalid, SourceUnexpected
from agent.sources.source_policy import SourcePolicy

LIST_FILE = ".repository.json"
_LARGEST_LIST = 16 << 20
_NOT_WEIGHTS = (".gguf", ".h5", ".jpeg", ".jpg", ".md", ".mp4", ".msgpack", ".onnx", ".ot", ".pdf", ".png", ".gif")
_OTHER_WEIGHTS = (".bin", ".ckpt", ".pt", ".pth")
"""Omitted if the repository has safetensors files."""


@dataclass(frozen=True)
class Repository:
    """The name of a repository and one of its revisions."""

    name: str
    revision: str = "main"

    @classmethod
    def of(cls, source: str) -> Repository:
        """Parse `hf://org/name[@revision]`. Raises PlanInvalid."""
        name, _, revision = source.partition("://")[2].partition("@")
        parts = name.split("/")
        if len(parts) != 2 or not all(part and not part.startswith(".") for part in parts):
            raise PlanInvalid(f"`{source[:80]}` is not a repository `hf://org/name[@revision]`")
        return cls(name, revision or "main")


def listed(plan: FilePlan, directory: Path) -> tuple[FilePlan, ...] | None:
    """Return the stored list of files, or None if there is none for this source."""
    try:
        kept = json.loads((directory / LIST_FILE).read_bytes())
        if kept["source"] != plan.source:
            return None
        return tuple(FilePlan.model_validate(each) for each in kept["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def look_up(
    plan: FilePlan, *, access: SourceAccess, policy: SourcePolicy, timeout_s: float = 30.0
) -> tuple[FilePlan, ...]:
    """Request the list of files of a plan's repository from the Hub. Raises a FileError."""
    repository = Repository.of(plan.source)
    revision = quote(repository.revision, safe="")
    place = access.web_request(f"{access.hub.url}/api/models/{quote(repository.name)}/revision/{revision}?blobs=true")
    text, _ = remote.fetch_small(
        place.url, policy=policy, max_bytes=_LARGEST_LIST, timeout_s=timeout_s, signer=place.signer
    )
    try:
        told = json.loads(text)
        commit, siblings = str(told["sha"]), list(told["siblings"])
        base = f"{access.hub.url}/{quote(repository.name)}/resolve/{quote(commit, safe='')}/"
        found = [_file(plan, base, dict(sibling)) for sibling in siblings]
    except (ValueError, KeyError, TypeError):
        raise SourceUnexpected(f"{place.url.shown} does not list a repository's files") from None
    wanted = tuple(file for file in found if _is_wanted(file.file_name, {each.file_name for each in found}))
    if not wanted:
        raise PlanInvalid(f"`{plan.source}` has no file that an engine can read")
    return wanted


def keep(plan: FilePlan, files: tuple[FilePlan, ...], directory: Path) -> None:
    """Store the list after all files were downloaded. Raises StoreFailed, NoSpace."""
    written = [file.model_dump(mode="json", by_alias=True, exclude_none=True) for file in files]
    write_whole(directory / LIST_FILE, {"source": plan.source, "files": written})


def _file(plan: FilePlan, base: str, sibling: dict[str, Any]) -> FilePlan:
    name = str(sibling["rfilename"])
    large: dict[str, Any] = sibling.get("lfs") or {}
    return FilePlan(
        source=base + quote(name),
        cache_key=plan.cache_key,
        file_name=name,
        sha256=large.get("sha256"),
        size_bytes=large.get("size", sibling.get("size")),
    )


def _is_wanted(name: str, names: set[str]) -> bool:
    lower = name.lower()
    if any(part.startswith(".") for part in name.split("/")) or lower.endswith(_NOT_WEIGHTS):
        return False
    return not (lower.endswith(_OTHER_WEIGHTS) and any(each.endswith(".safetensors") for each in names))
