"""The Kubernetes plugin of a static fleet: its version for the engine, and the errors for people.

`program.__main__` and `program.static.existing` use it. docs/adr/0044 explains the version.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from enum import StrEnum

from components.registrations import provider_version


class KubernetesPlugin(StrEnum):
    """A plugin of Pulumi's package `kubernetes`, by its name in the config."""

    HERDSMAN = "herdsman"
    PULUMI = "pulumi"

    @property
    def version(self) -> str:
        """The plugin version that the fleet's resources ask for.

        No plugin of Herdsman's version is published, so the engine finds none in its store and can download none. It
        uses one on PATH, or one that it is attached to.
        """
        version = provider_version()
        return f"{version}-herdsman" if self is KubernetesPlugin.HERDSMAN else version


_WHAT_TO_DO = (
    "put Herdsman's plugin first on PATH, in CI as well, and run again: "
    'export PATH="$(herdsman provider path):$PATH". '
    "To use Pulumi's plugin for this stack, set `herdsman:kubernetesPlugin: pulumi`; docs/how-to/static-fleets.md "
    "describes "
    "the differences"
)
_ATTACHED = "PULUMI_DEBUG_PROVIDERS"
_NOT_FROM_PATH = "PULUMI_IGNORE_AMBIENT_PLUGINS"


def missing_plugin_words(environment: Mapping[str, str]) -> str:
    """Return a warning if an engine with this environment finds no plugin to start or to attach to; else empty.

    The engine ends a program when it finds no plugin, so the program prints the warning first. It cannot see whether
    Pulumi.yaml names a plugin.
    """
    if "kubernetes:" in environment.get(_ATTACHED, ""):
        return ""
    found = shutil.which("pulumi-resource-kubernetes", path=environment.get("PATH", ""))
    if found is not None and not environment.get(_NOT_FROM_PATH):
        return ""
    return f"No Kubernetes plugin is on PATH. If the run finds no plugin, {_WHAT_TO_DO}"


def other_plugin_words(why: str) -> str:
    """Return the error that Herdsman's plugin does not answer, with its remedy. `why` is the engine's message."""
    return (
        f"Herdsman's Kubernetes plugin does not answer, so nothing was created or changed: {why.strip()}\n"
        f"If another plugin answered, {_WHAT_TO_DO}"
    )
