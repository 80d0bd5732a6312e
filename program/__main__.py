"""Register the services of a static fleet: the program that `pulumi up` runs. The stack's config names the files.

There is no loop and no custom resource in the cluster. The files are the desired state, and the stack's state records
the objects. The loop uses the same dialects, renderers and components. Pulumi's language host runs this module.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Mapping
from pathlib import Path

import pulumi
from pulumi.runtime.config import CONFIG, get_config_env

from components.kubernetes_object import cluster_provider
from components.policies.in_force import FolderPolicies
from components.policies.policy import NoPolicies, PolicyUnreadable
from components.policies.reading import load_policies
from program.fleet import FleetIncomplete, static_fleet
from program.registration import exit_quietly, reduce_debug_data
from program.static.config import PROJECT, FleetConfig, read_config
from program.static.existing import find_existing
from program.static.outputs import output_name, stack_outputs
from program.static.plugin import KubernetesPlugin, missing_plugin_words
from program.static.reading import Fleet, Placed, is_in_cluster, read_fleet
from program.static.registering import FleetRegistrars

SKIP_CHECKPOINTS = "PULUMI_SKIP_CHECKPOINTS"
MANY_OBJECTS = 100


def register_fleet(root: Path) -> Awaitable[None]:
    """Read the fleet that the stack's config names, and return the coroutine that registers it.

    Paths are relative to `root`. Raises pulumi.RunError with all errors before anything is registered.
    """
    config = read_config(_values(), root)
    stack = f"{pulumi.get_project()}/{pulumi.get_stack()}"
    policies = _policies(config, root)
    try:
        fleet = read_fleet(config, root, stack=stack, policies=policies)
    finally:
        if isinstance(policies, FolderPolicies):
            policies.close()
    for note in fleet.notes:
        pulumi.log.warn(note)
    if why := checkpoint_hint(fleet, os.environ):
        pulumi.log.info(why)
    in_cluster = bool(fleet.resources) or any(is_in_cluster(placed, config) for placed in fleet.services)
    if in_cluster and config.plugin is KubernetesPlugin.HERDSMAN and (why := missing_plugin_words(os.environ)):
        pulumi.log.warn(why)
    if fleet.errors:
        raise pulumi.RunError("\n".join(fleet.errors))
    return _register(config, fleet)


def _values() -> dict[str, str]:
    """Return all values that the stack's config has for `herdsman`, also those with unknown keys."""
    names = {*CONFIG.get(), *get_config_env()}
    config = pulumi.Config(PROJECT)
    wanted = sorted(name.removeprefix(f"{PROJECT}:") for name in names if name.startswith(f"{PROJECT}:"))
    return {name: text for name in wanted if (text := config.get(name)) is not None}


def _policies(config: FleetConfig, root: Path) -> FolderPolicies | NoPolicies:
    try:
        return load_policies(root / config.policies if config.policies else None)
    except PolicyUnreadable as error:
        raise pulumi.RunError(f"{PROJECT}:policies: {error}") from None


def checkpoint_hint(fleet: Fleet, environment: Mapping[str, str]) -> str:
    """Return a hint if the fleet is large and the CLI writes the state after each object; else the empty string."""
    count = sum(len(placed.rendered.objects) for placed in fleet.services)
    if count <= MANY_OBJECTS or environment.get(SKIP_CHECKPOINTS, "").lower() in ("true", "1"):
        return ""
    return (
        f"The fleet has {count} objects, and Pulumi writes the whole state after each. With "
        f"{SKIP_CHECKPOINTS}=true Pulumi writes it once, at the end of a run; docs/how-to/static-fleets.md describes "
        f"the "
        "risk"
    )


async def _register(config: FleetConfig, fleet: Fleet) -> None:
    """Register the services and resources, and export the outputs of the stack.

    A cluster with a name gets a provider of that name; the cluster without a name gets the default provider. Raises
    pulumi.RunError before any service is registered if the installed plugin is not the one that the config names, or if
    objects of other owners are in the way; the error lists all of them.
    """
    providers: dict[str, pulumi.ProviderResource] = {}
    everything: tuple[Placed, ...] = (*fleet.services, *fleet.resources)
    for placed in everything:
        name = placed.cluster.name
        if name and name not in providers and is_in_cluster(placed, config):
            providers[name] = cluster_provider(
                name,
                context=placed.cluster.context,
                kubeconfig=placed.cluster.kubeconfig,
                version=config.plugin.version,
            )
    in_clusters = [placed for placed in everything if is_in_cluster(placed, config)]
    found = await find_existing(in_clusters, providers, config.plugin)
    registrars = await FleetRegistrars.of_run(config, providers=providers, existing=found)
    try:
        registered = await static_fleet((placed.rendered, registrars.of(placed)) for placed in everything)
    except FleetIncomplete as error:
        await registrars.finish()
        raise pulumi.RunError(f"not complete because of the errors above: {error}") from None
    await registrars.finish()
    processes = {
        output_name(placed): resource
        for placed, resource in zip(fleet.services, registered[: len(fleet.services)], strict=True)
        if resource is not None and not is_in_cluster(placed, config)
    }
    for name, value in stack_outputs(fleet.services, processes).items():
        pulumi.export(name, value)


if __name__ == "__main__":
    reduce_debug_data()
    exit_quietly()
    _fleet = register_fleet(Path(pulumi.get_root_directory()))
    pulumi.run(lambda: _fleet)
