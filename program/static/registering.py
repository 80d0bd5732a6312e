"""The registrars of a static fleet's run. Services in clusters are registered by the engine's protocol (ADR 60).

Called by `program.__main__` inside a program that Pulumi's SDK runs. The SDK registers the stack, the providers of
clusters and the processes on hosts of the config, whose outputs are outputs of the stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi.runtime import settings
from pulumi.runtime.rpc import UNKNOWN

from components.component_resources import FleetTarget
from components.registrations import Place
from program.monitor import EngineEnded, Monitor, RequestFailed
from program.monitor_registrar import MonitorRegistrar
from program.registrar import Registrar
from program.registrars import SdkRegistrar
from program.static.config import FleetConfig
from program.static.existing import Existing
from program.static.reading import Placed, is_in_cluster


class FleetRegistrars:
    """One registrar for each place of a fleet. Used in one event loop."""

    def __init__(
        self,
        config: FleetConfig,
        *,
        root: str,
        providers: Mapping[str, pulumi.ProviderResource],
        references: Mapping[str, str],
        existing: Mapping[str, Existing],
    ) -> None:
        self._config = config
        self._root = root
        self._providers = providers
        self._references = references
        self._existing = existing
        self._monitor = Monitor(settings.get_monitor())  # type: ignore[arg-type]  # None only without an engine
        self._by_sdk: dict[str, SdkRegistrar] = {}
        self._by_monitor: dict[str, MonitorRegistrar] = {}

    @classmethod
    async def of_run(
        cls,
        config: FleetConfig,
        *,
        providers: Mapping[str, pulumi.ProviderResource],
        existing: Mapping[str, Existing],
    ) -> FleetRegistrars:
        """Return the registrars of the run that the SDK has started. `providers` and `existing` are by cluster."""
        stack = settings.get_root_resource()
        assert stack is not None, "the SDK runs a program in a stack"
        root = await stack.urn.future()
        references = {name: await _reference(provider) for name, provider in providers.items()}
        return cls(config, root=str(root), providers=providers, references=references, existing=existing)

    def of(self, placed: Placed) -> Registrar[Any, Any]:
        """Return the registrar of a service or resource. Those of one place have the same."""
        name, at = placed.cluster.name, placed.at
        hosts, existing = self._config.hosts, self._existing.get(name, frozenset())
        version = self._config.plugin.version
        if not is_in_cluster(placed, self._config):
            if at not in self._by_sdk:
                target = FleetTarget(at, hosts, existing, version, provider=self._providers.get(name))
                self._by_sdk[at] = SdkRegistrar(target)
            return self._by_sdk[at]
        if at not in self._by_monitor:
            place = Place(at, hosts, existing, version, self._references.get(name, ""))
            self._by_monitor[at] = MonitorRegistrar(
                self._monitor, project=pulumi.get_project(), stack=pulumi.get_stack(), place=place, root=self._root
            )
        return self._by_monitor[at]

    async def finish(self) -> None:
        """Wait for all registrations. Raises pulumi.RunError if the engine ended or refused a request."""
        for registrar in self._by_monitor.values():
            try:
                await registrar.finish()
            except EngineEnded:
                raise pulumi.RunError("the engine has ended the run") from None
            except RequestFailed as error:
                raise pulumi.RunError(str(error)) from None


async def _reference(provider: pulumi.ProviderResource) -> str:
    """Return the provider's reference in requests. Its id is not known in the preview of a provider that is new."""
    return f"{await provider.urn.future()}::{await provider.id.future() or UNKNOWN}"
