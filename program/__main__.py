"""What `pulumi up` runs: a static fleet, the services of the files that the stack's config names.

No loop and no custom resource in the cluster: the files are the desired state, and the stack's state remembers what
was made of them. The same dialect, renderers and components as in the loop. Called by Pulumi's language host.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Mapping
from pathlib import Path

import pulumi
from pulumi.runtime.config import CONFIG, get_config_env

from components.kubernetes_object import cluster_provider
from components.policies.in_force import FolderPolicies
from components.policies.policy import NoPolicies
from components.policies.reading import PolicyUnreadable, load_policies
from program.fleet import FleetTarget, static_fleet
from program.registration import end_quietly, say_less
from program.static.config import PROJECT, FleetConfig, read_config
from program.static.existing import find_existing
from program.static.outputs import output_name, stack_outputs
from program.static.plugin import KubernetesPlugin, missing_plugin_words
from program.static.reading import Fleet, PlacedService, read_fleet

SKIP_CHECKPOINTS = "PULUMI_SKIP_CHECKPOINTS"
MANY_OBJECTS = 100


def fleet_of(root: Path) -> Awaitable[None]:
    """Read the fleet that the stack's config names, and give what registers it; paths start at `root`.

    All or nothing: raises pulumi.RunError, with everything that is wrong, before anything is registered.
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
    if why := written_often(fleet, os.environ):
        pulumi.log.info(why)
    in_cluster = any(is_in_cluster(placed, config) for placed in fleet.services)
    if in_cluster and config.plugin is KubernetesPlugin.HERDSMAN and (why := missing_plugin_words(os.environ)):
        pulumi.log.warn(why)
    if fleet.errors:
        raise pulumi.RunError("\n".join(fleet.errors))
    return _registered(config, fleet)


def _values() -> dict[str, str]:
    """Give all that the stack's config says of `herdsman`, also under keys that nobody asks for."""
    names = {*CONFIG.get(), *get_config_env()}
    config = pulumi.Config(PROJECT)
    wanted = sorted(name.removeprefix(f"{PROJECT}:") for name in names if name.startswith(f"{PROJECT}:"))
    return {name: text for name in wanted if (text := config.get(name)) is not None}


def _policies(config: FleetConfig, root: Path) -> FolderPolicies | NoPolicies:
    try:
        return load_policies(root / config.policies if config.policies else None)
    except PolicyUnreadable as error:
        raise pulumi.RunError(f"{PROJECT}:policies: {error}") from None


def written_often(fleet: Fleet, environment: Mapping[str, str]) -> str:
    """Say that the state of a large fleet is written after each object, where the CLI was not told otherwise."""
    count = sum(len(placed.rendered.objects) for placed in fleet.services)
    if count <= MANY_OBJECTS or environment.get(SKIP_CHECKPOINTS, "").lower() in ("true", "1"):
        return ""
    return (
        f"The fleet has {count} objects, and Pulumi writes the whole state after each. {SKIP_CHECKPOINTS}=true writes "
        "it once, at the end of a run; docs/static-fleets.md says what that gives up"
    )


async def _registered(config: FleetConfig, fleet: Fleet) -> None:
    """Register the services and export what the stack tells of them.

    A cluster with a name has a provider of that name, the other one the default. Raises pulumi.RunError, before any
    service is registered, where another plugin than the config's answers, and with all objects of others that are in
    the way.
    """
    providers: dict[str, pulumi.ProviderResource] = {}
    for placed in fleet.services:
        name = placed.cluster.name
        if name and name not in providers and is_in_cluster(placed, config):
            providers[name] = cluster_provider(
                name,
                context=placed.cluster.context,
                kubeconfig=placed.cluster.kubeconfig,
                version=config.plugin.version,
            )
    in_clusters = [placed for placed in fleet.services if is_in_cluster(placed, config)]
    found = await find_existing(in_clusters, providers, config.plugin)
    places = (
        FleetTarget(placed.at, providers.get(name), config.hosts, found.get(name, frozenset()), config.plugin.version)
        for placed in fleet.services
        for name in (placed.cluster.name,)
    )
    registered = await static_fleet(zip((placed.rendered for placed in fleet.services), places, strict=True))
    processes = {
        output_name(placed): resource
        for placed, resource in zip(fleet.services, registered, strict=True)
        if resource is not None and not is_in_cluster(placed, config)
    }
    for name, value in stack_outputs(fleet.services, processes).items():
        pulumi.export(name, value)


def is_in_cluster(placed: PlacedService, config: FleetConfig) -> bool:
    """Tell whether anything of a service is made in a cluster, and not only on hosts of the config."""
    objects = placed.rendered.objects
    # Accounts and roles have no spec.
    return any((obj.manifest.get("spec") or {}).get("host") not in config.hosts for obj in objects)


if __name__ == "__main__":
    say_less()
    end_quietly()
    _fleet = fleet_of(Path(pulumi.get_root_directory()))
    pulumi.run(lambda: _fleet)
