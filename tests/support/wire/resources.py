"""Resources of a stack, what a program asks for, and the texts in which a state is kept between runs.

Called by `deployment`, `monitor` and `stack` of this folder. The keys of a state are those of `pulumi stack export`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from pulumi.runtime.proto import resource_pb2
from pulumi.runtime.proto.alias_pb2 import Alias

from tests.support.wire.values import Properties, Vault, from_wire, secret

STACK_TYPE = "pulumi:pulumi:Stack"
PROVIDER_PREFIX = "pulumi:providers:"
_UNSUPPORTED = frozenset(
    {"replaceOnChanges", "replace_with", "replacement_trigger", "transforms", "hooks", "hideDiffs", "packageRef"}
)
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


@dataclass
class Resource:
    """One resource in a state."""

    urn: str
    type: str
    custom: bool = True
    id: str = ""
    inputs: Properties = field(default_factory=dict)
    outputs: Properties = field(default_factory=dict)
    parent: str = ""
    provider: str = ""
    dependencies: list[str] = field(default_factory=list)
    propertyDependencies: dict[str, list[str]] = field(default_factory=dict)  # noqa: N815 - a key of the state
    additionalSecretOutputs: list[str] = field(default_factory=list)  # noqa: N815
    ignoreChanges: list[str] = field(default_factory=list)  # noqa: N815
    customTimeouts: dict[str, float] = field(default_factory=dict)  # noqa: N815
    importID: str = ""  # noqa: N815
    deletedWith: str = ""  # noqa: N815
    protect: bool = False
    external: bool = False
    retainOnDelete: bool = False  # noqa: N815
    delete: bool = False
    """A newer object has taken its place, and it is deleted at the end of the run, or in the next one."""
    pendingReplacement: bool = False  # noqa: N815
    """It was deleted, and its replacement was not created yet."""

    @property
    def name(self) -> str:
        return self.urn.rpartition("::")[2]

    @property
    def is_provider(self) -> bool:
        return self.type.startswith(PROVIDER_PREFIX)

    @property
    def reference(self) -> str:
        """The reference of a provider in the resources that it serves."""
        return f"{self.urn}::{self.id}"

    def settle(self, outputs: Properties) -> None:
        """Take over the outputs that the provider returned."""
        marked = {key: secret(outputs[key]) for key in self.additionalSecretOutputs if key in outputs}
        self.outputs = outputs | marked


@dataclass
class Goal:
    """A resource as the program registers it."""

    name: str
    type: str
    custom: bool
    remote: bool
    properties: Properties
    parent: str
    provider: str
    version: str
    aliases: list[Alias]
    import_id: str
    delete_before_replace: bool | None
    resource: Resource
    """The resource that it becomes, without id, inputs and outputs."""

    @staticmethod
    def of(request: resource_pb2.RegisterResourceRequest, urn: str) -> Goal:
        # The SDK always sends hooks; without any, they take no bytes.
        set_fields = {found.name for found, value in request.ListFields() if found.name != "hooks" or value.ByteSize()}
        used = _UNSUPPORTED & set_fields
        if used:
            raise NotImplementedError(f"the harness has no {', '.join(sorted(used))}: {urn}")
        times = request.customTimeouts
        return Goal(
            name=request.name,
            type=request.type,
            custom=request.custom,
            remote=request.remote,
            properties=from_wire(request.object),
            parent=request.parent,
            provider=request.provider,
            version=request.version,
            aliases=list(request.aliases),
            import_id=request.importId,
            delete_before_replace=request.deleteBeforeReplace if request.deleteBeforeReplaceDefined else None,
            resource=Resource(
                urn=urn,
                type=request.type,
                custom=request.custom,
                parent=request.parent,
                dependencies=sorted(request.dependencies),
                propertyDependencies={key: sorted(each.urns) for key, each in request.propertyDependencies.items()},
                additionalSecretOutputs=list(request.additionalSecretOutputs),
                ignoreChanges=list(request.ignoreChanges),
                customTimeouts={
                    key: _seconds(text)
                    for key, text in (("create", times.create), ("update", times.update), ("delete", times.delete))
                    if text
                },
                importID=request.importId,
                deletedWith=request.deletedWith,
                protect=request.protect,
                retainOnDelete=request.retainOnDelete,
            ),
        )


def _seconds(text: str) -> float:
    found = re.findall(r"([\d.]+)(h|ms|m|s)", text)
    assert "".join(map("".join, found)) == text, text
    return sum(float(number) * _SECONDS[unit] for number, unit in found)


def urn_of(project: str, stack: str, parent: str, type_: str, name: str) -> str:
    """Return the URN of a resource below a parent."""
    above = parent.split("::")[2] if parent else STACK_TYPE
    qualified = type_ if above == STACK_TYPE else f"{above}${type_}"
    return f"urn:pulumi:{stack}::{project}::{qualified}::{name}"


def alias_urns(goal: Goal, project: str, stack: str) -> list[str]:
    """Return the URNs that the resource may have in the state."""
    found = []
    for alias in goal.aliases:
        if alias.WhichOneof("alias") == "urn":
            found.append(alias.urn)
            continue
        spec = alias.spec
        parent = spec.parentUrn or ("" if spec.noParent else goal.parent)
        found.append(
            urn_of(spec.project or project, spec.stack or stack, parent, spec.type or goal.type, spec.name or goal.name)
        )
    return found


def written(resources: list[Resource], vault: Vault) -> str:
    """Return a state as text, with its secrets sealed."""
    told = [
        {key: value for key, value in vars(each).items() if value or key in ("custom", "urn")} for each in resources
    ]
    return json.dumps({"version": 3, "deployment": {"resources": vault.sealed(told)}}, indent=1)


def read(text: str, vault: Vault) -> list[Resource]:
    """Return the resources of a state, in the order in which they were created."""
    known = set(Resource.__dataclass_fields__)
    found: list[dict[str, Any]] = vault.opened(json.loads(text)["deployment"]["resources"])
    return [Resource(**{key: value for key, value in each.items() if key in known}) for each in found]
