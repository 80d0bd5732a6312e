"""Reads the header of a plan's model before the model is downloaded: from the store, from a path, or by ranges.

Called by `automation.local` and `program.static` for the default context. Calls `header_probe` and `remote`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent.contract import FilePlan
from agent.server.models import remote
from agent.server.models.download import local_path
from agent.server.models.gguf_header import read_header
from agent.server.models.header_probe import probe_header
from agent.server.models.model_store import Slot
from agent.server.models.source_access import SourceAccess
from agent.sources.deadline import Deadline
from agent.sources.errors import FileError, GgufInvalid, NeedMoreBytes, SourceNotFound, StoreFailed
from agent.sources.source_policy import SourcePolicy
from program.desired.model import GgufFacts

TIMEOUT_S = 15.0
"""For all requests of one model together."""


def read_plan_header(
    files: Sequence[FilePlan], *, store: Path | None, access: SourceAccess, policy: SourcePolicy
) -> GgufFacts:
    """Return the facts of a model; its weights are the size of all files if it has several.

    `files` begins with the file that the engine opens. `store` is the directory of an agent on this machine, None
    without one. Raises FileError if a file is no GGUF file or cannot be read now.
    """
    deadline = Deadline(TIMEOUT_S)
    facts, size = _first(files[0], store, access, policy, deadline)
    if len(files) == 1:
        return facts if facts.weights_bytes else facts.model_copy(update={"weights_bytes": size})
    sizes = [size, *(_size(each, store, access, policy, deadline) for each in files[1:])]
    return facts.model_copy(update={"weights_bytes": None if None in sizes else sum(each or 0 for each in sizes)})


def _first(
    plan: FilePlan, store: Path | None, access: SourceAccess, policy: SourcePolicy, deadline: Deadline
) -> tuple[GgufFacts, int | None]:
    path = _path(plan, store, policy)
    if path is None:
        url, signer = access.request_for(plan.source)
        found = probe_header(url, policy=policy, timeout_s=deadline.left_s(url.shown), signer=signer)
        return found.facts, found.size_bytes
    try:
        with path.open("rb") as opened:
            return read_header(opened), path.stat().st_size
    except FileNotFoundError:
        raise SourceNotFound(f"`{path}` does not exist") from None
    except OSError as error:
        raise StoreFailed(f"`{path}` cannot be read: {error.strerror or error}") from None
    except NeedMoreBytes:
        raise GgufInvalid(f"`{path}` ends inside its GGUF header") from None


def _size(
    plan: FilePlan, store: Path | None, access: SourceAccess, policy: SourcePolicy, deadline: Deadline
) -> int | None:
    path = _path(plan, store, policy)
    if path is None:
        url, signer = access.request_for(plan.source)
        return remote.stat(url, policy=policy, timeout_s=deadline.left_s(url.shown), signer=signer).size_bytes
    try:
        return path.stat().st_size
    except OSError as error:
        raise StoreFailed(f"`{path}` cannot be read: {error.strerror or error}") from None


def _path(plan: FilePlan, store: Path | None, policy: SourcePolicy) -> Path | None:
    """Return the place of a file on this machine: the path in its plan, or the store; None if it is elsewhere."""
    own = local_path(plan.source)
    if own is not None:
        path = policy.allowed_path(own)
        if path.exists() and not path.is_file():
            # Opening a named pipe would wait for its writer.
            raise StoreFailed(f"`{path}` is not a regular file")
        return path
    if store is None:
        return None
    try:
        found = Slot.of(store, plan).final
    except FileError:
        return None
    return found if found.is_file() else None
