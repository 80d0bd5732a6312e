"""Checks which paths of nodes a service may read models from. Pure.

`desire` calls it for each service in pods, in every dialect, before its pods are rendered. `models.model_controller`
checks LLMKube's Models as well; this check also covers a Model that another client marked as Ready.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.sources.source_policy import SourcePolicy
from program.desired.errors import SpecInvalid


def check_node_paths(paths: Iterable[tuple[str, str]], roots: tuple[str, ...] | None) -> None:
    """Raise SpecInvalid for the first path that is under none of the roots. None as `roots` allows all paths.

    `paths` are pairs of field and path.
    """
    if roots is None:
        return
    policy = SourcePolicy(allowed_host_path_roots=roots)
    for field, path in paths:
        if not policy.path_is_allowed(path):
            raise SpecInvalid(
                field=field,
                reason="SourceNotAllowed",
                why=f"`{path[:256]}` on nodes lies below no directory that --allowed-host-path-roots names",
            )
