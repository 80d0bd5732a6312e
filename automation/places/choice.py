"""Chooses the place of an everyday command: a cluster, or this machine where no cluster is configured.

Called by the commands through `automation.cli.place_options`.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from automation.places.cluster import ClusterPlace
from automation.places.place import NoAccess, Place
from kubeapi.client import KubeClient
from kubeapi.config import configured_context, default_access
from kubeapi.dry_run import DryRunClient
from kubeapi.errors import KubeError, NotConfigured

LocalPlace = Callable[[], Place | None]


def no_local_place() -> Place | None:
    """Return no place: this machine is not set up to serve models without a cluster."""
    return None


def choose_place(
    *,
    kubeconfig: str | None = None,
    context: str | None = None,
    local: LocalPlace = no_local_place,
    colour: bool = False,
    dry_run: list[str] | None = None,
) -> Place:
    """Return the cluster of a kubeconfig and context, else the local place.

    `colour`: plans have colours for a terminal. A kubeconfig or context that is named, by option or `$KUBECONFIG`,
    always means a cluster. `dry_run`: the cluster stores nothing, and each change is added to this list.

    Raises NoAccess.
    """
    is_named = bool(kubeconfig or context or os.environ.get("KUBECONFIG"))
    try:
        return _cluster(kubeconfig, context, colour=colour, dry_run=dry_run)
    except NotConfigured as error:
        if not is_named and (place := local()) is not None:
            return place
        raise NoAccess(
            str(error),
            hint="name a cluster with --kubeconfig or $KUBECONFIG, or serve models here with `herdsman local up`",
        ) from error
    except KubeError as error:
        raise NoAccess(str(error)) from error


def _cluster(kubeconfig: str | None, context: str | None, *, colour: bool, dry_run: list[str] | None) -> Place:
    access = default_access(kubeconfig, context=context)
    found = configured_context(kubeconfig, context)
    title = f"cluster {found.name}" if found.name else f"cluster {access.server}"
    client = KubeClient(access)
    if dry_run is not None:
        client = DryRunClient(access)
        client.changes = dry_run
    return ClusterPlace(client, title=title, default_namespace=found.namespace or "default", colour=colour)
