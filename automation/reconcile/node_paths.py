"""Which paths of nodes services may read models from. Pure.

Asked by `desire` for each service that runs in pods, whatever its dialect, before its pods are
rendered. LLMKube's Models are judged on their own too (`automation.models.model_controller`); this holds also
where somebody else wrote that a Model is Ready.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.sources.source_policy import SourcePolicy
from program.desired.errors import SpecInvalid


def check_node_paths(paths: Iterable[tuple[str, str]], roots: tuple[str, ...] | None) -> None:
    """Raise SpecInvalid for the first path below none of the roots; None for `roots` allows all.

    `paths` are pairs of the field and the path.
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
