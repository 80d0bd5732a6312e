"""Reads the options with which the loop of a cluster renders, so that a preview outside of the loop renders the same.

Called by `herdsman preview` and other commands that preview. The options are in the environment of the loop's
Deployment. A `HERDSMAN_…` variable of the caller goes before them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from components import naming
from components.render import RenderOptions
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden, Unauthorized, Unreachable
from kubeapi.json_types import Json

if TYPE_CHECKING:
    from automation.preview.previewer import Previewer
    from components.policies.policy import Policies


PREFIX = "HERDSMAN_"
DEPLOYMENT = "herdsman"
RENDERED_BY = frozenset(
    {
        "MODEL_CACHE_SIZE",
        "MODEL_CACHE_STORAGE_CLASS",
        "MODEL_CACHE_ACCESS_MODE",
        "MODEL_CACHE_MODE",
        "DEFAULT_FSGROUP",
        "INIT_CONTAINER_IMAGE",
        "CA_CERT_CONFIGMAP",
        "HUB_URL",
        "PROMETHEUS_URL",
        "SHARED_GPU_SELECTOR",
        "DRI_RENDER_GID",
        "RUNTIME_IMAGES",
        "POD_MONITORS",
        "EXTERNAL_METRICS_SERVICE",
    }
)
"""Settings that change rendered objects (`startup.options.render_options`)."""


def options_of_loop(
    client: KubeClient,
    environment: Mapping[str, str] | None = None,
    *,
    on_note: Callable[[str], None] = lambda _: None,
) -> RenderOptions:
    """Return the options of the cluster's loop; the defaults where there is none, or its Deployment may not be read.

    `on_note` is called where it may not be read, since the loop may then render other objects. Raises ValueError for an
    invalid setting, and Unreachable and Unauthorized.
    """
    environment = os.environ if environment is None else environment
    namespace = environment.get(f"{PREFIX}LEASE_NAMESPACE") or naming.SYSTEM_NAMESPACE
    try:
        found = settings_of(client.get(kinds.DEPLOYMENTS, namespace, DEPLOYMENT))
        # The kubelet resolves this variable in the value.
        found = {name: value.replace("$(POD_NAMESPACE)", namespace) for name, value in found.items()}
    except (Unreachable, Unauthorized):
        raise
    except Forbidden:
        found = {}
        on_note(
            f"may not read the settings of the loop, so the preview uses the defaults: bind Role `herdsman-preview` of "
            f"namespace {namespace}"
        )
    except ApiError:
        found = {}
    own = {name.removeprefix(PREFIX): value for name, value in environment.items() if name.startswith(PREFIX)}
    asked = {name: value for name, value in {**found, **own}.items() if name in RENDERED_BY}
    if not asked:
        return RenderOptions()
    from automation.settings import Settings
    from automation.startup.options import render_options

    given: dict[str, Any] = {name.lower(): value for name, value in asked.items()}
    return render_options(Settings(**given))


@contextmanager
def previewer_of_loop(client: KubeClient, *, policies: Policies | None = None, threads: int = 1) -> Iterator[Previewer]:
    """A previewer that renders as the cluster's loop does, closed at the end. Raises as `options_of_loop`."""
    from automation.preview.previewer import Previewer

    notes: list[str] = []
    options = options_of_loop(client, on_note=notes.append)
    previewer = Previewer(client, options=options, policies=policies, threads=threads, notes=notes)
    try:
        yield previewer
    finally:
        previewer.close()


def settings_of(deployment: Json) -> dict[str, str]:
    """Read the settings off a loop's Deployment: the literal variables of its containers. Pure."""
    containers = ((deployment.get("spec") or {}).get("template") or {}).get("spec", {}).get("containers") or ()
    return {
        str(entry["name"]).removeprefix(PREFIX): str(entry["value"])
        for container in containers
        for entry in container.get("env") or ()
        if str(entry.get("name", "")).startswith(PREFIX) and "value" in entry
    }
