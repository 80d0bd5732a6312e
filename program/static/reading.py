"""Reads the services of a static fleet from the files of its config, and renders them. Calls no cluster.

Called by `program.__main__`; calls `program.manifests`, the renderers and the policies. Errors are collected, so that
one run reports them all. If there is one, nothing is registered.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from components import naming
from components.policies.policy import NoPolicies, Policies
from components.providers.kubernetes_objects import LAST_APPLIED_ANNOTATION
from components.render import render
from components.rendered import RenderedObject, RenderedService
from kubeapi.json_types import Json
from program.desired.errors import DesiredError, SpecInvalid
from program.desired.keys import ANNOTATION_HOST
from program.desired.service import DesiredService
from program.dialects.llmkube.parse.referrers import check_referrer, services_named_by
from program.dialects.registry import LLMKUBE, key_of
from program.manifests import Document, Manifests
from program.runtimes.host_rules import DEFAULT, UNRESTRICTED
from program.static.config import Cluster, FleetConfig
from program.static.without_loop import scaled_without_loop, unsupported_without_loop, with_default_contexts


@dataclass(frozen=True)
class PlacedService:
    """One service of the fleet, rendered, with its cluster."""

    desired: DesiredService
    rendered: RenderedService
    cluster: Cluster
    at: str = ""
    """The suffix of its logical names; empty in the one namespace of a simple stack."""


@dataclass(frozen=True)
class PlacedResource:
    """A ModelRouter, ModelPool or LoRAAdapter of the fleet, with its cluster."""

    rendered: RenderedService
    """The resource itself is its only object."""
    cluster: Cluster
    at: str = ""
    """The suffix of its logical names."""


Placed = PlacedService | PlacedResource


@dataclass
class Fleet:
    """All services and resources of a stack, or all of its errors."""

    services: list[PlacedService] = field(default_factory=list)
    resources: list[PlacedResource] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def is_in_cluster(placed: Placed, config: FleetConfig) -> bool:
    """Return whether a service has an object in a cluster. A service on hosts of the config may have none."""
    objects = (*placed.rendered.shared, *placed.rendered.objects)
    # Accounts and roles have no spec.
    return any((obj.manifest.get("spec") or {}).get("host") not in config.hosts for obj in objects)


def read_fleet(config: FleetConfig, root: Path, *, stack: str, policies: Policies | None = None) -> Fleet:
    """Read and render all services. `stack` is `project/name`; objects in clusters get it as an annotation."""
    fleet = Fleet(errors=list(config.errors), notes=list(config.notes))
    reader = _Reader(config, fleet, stack, policies or NoPolicies())
    for cluster in config.clusters:
        manifests = Manifests(cluster.namespace, root, options=cluster.options)
        for path in cluster.manifests:
            manifests.read(path)
        resources = manifests.take_referrers()
        made: set[tuple[str, str]] = set()
        for document, desired in manifests.services():
            reader.add_service(cluster, manifests, document, desired)
            made.add((desired.key.namespace, desired.key.name))
        for document in resources:
            reader.add_resource(cluster, manifests, document, made)
        prefix = f"{cluster.name}: " if cluster.name else ""
        fleet.errors += [f"{prefix}{error}" for error in manifests.errors]
        fleet.notes += [f"{prefix}{note.removeprefix('Warning: ')}" for note in manifests.notes]
    return fleet


@dataclass
class _Reader:
    config: FleetConfig
    fleet: Fleet
    stack: str
    policies: Policies
    owners: dict[tuple[str, str, str, str], Document] = field(default_factory=dict)
    """The document of each object, by cluster, kind, namespace and name."""
    on_hosts: dict[tuple[str, str, str], Document] = field(default_factory=dict)

    def add_service(self, cluster: Cluster, manifests: Manifests, document: Document, desired: DesiredService) -> None:
        """Render one service and add it to the fleet, or add its errors."""
        host_inputs = self._host_inputs(desired)
        annotations = document.cr["metadata"].get("annotations") or {}
        for problem in unsupported_without_loop(
            annotations, desired, connected=host_inputs is not None, over_ssh="ssh" in (host_inputs or {})
        ):
            manifests.notes.append(f"{document}: {problem.field}: {problem.message}")
        try:
            _check_host(desired)
            # The config has a token or key for this host, so its author controls the host.
            manifests.check_allowed(desired, default=UNRESTRICTED if host_inputs is not None else DEFAULT)
            desired = scaled_without_loop(desired)
            if host_inputs is not None:
                desired = with_default_contexts(desired)
            rendered = render(desired, cluster.options)
        except DesiredError as error:
            manifests.errors.append(f"{document}: {error}")
            return
        conflict = self._conflict(cluster, document, rendered, host_inputs)
        if conflict is not None:
            manifests.errors.append(f"{document}: metadata.name: {conflict}")
            return
        for violation in self.policies.check(desired, rendered, namespace_labels={}, cr=document.cr):
            (manifests.errors if violation.mandatory else manifests.notes).append(f"{document}: {violation}")
        if host_inputs is None:
            rendered = replace(rendered, objects=tuple(marked(each, self.stack) for each in rendered.objects))
        self.fleet.services.append(PlacedService(desired, rendered, cluster, self._suffix(cluster, document)))

    def add_resource(
        self, cluster: Cluster, manifests: Manifests, document: Document, made: set[tuple[str, str]]
    ) -> None:
        """Add a ModelRouter, ModelPool or LoRAAdapter. `made` has namespace and name of the services of the files.

        A fleet makes no InferenceServices, and the gateway and the loop find only those of the cluster.
        """
        cr = document.cr
        try:
            unused = check_referrer(cr)
            named = services_named_by(cr)
        except DesiredError as error:
            manifests.errors.append(f"{document}: {error}")
            return
        manifests.notes += [f"{document}: {problem.field} {problem.message}" for problem in unused]
        for name in named:
            if (document.namespace, name) in made:
                manifests.notes.append(
                    f"{document}: names InferenceService `{name}`, for which this fleet makes no custom resource; the "
                    f"{cr['kind']} uses it only after `herdsman fleet give {name}`"
                )
        for violation in self.policies.check_resource(cr, namespace_labels={}):
            (manifests.errors if violation.mandatory else manifests.notes).append(f"{document}: {violation}")
        manifest = {"apiVersion": cr["apiVersion"], "kind": cr["kind"], "metadata": _metadata(cr), "spec": cr["spec"]}
        obj = marked(RenderedObject("resource", naming.TYPE_CONFIGURATION, manifest), self.stack)
        rendered = RenderedService(key_of(cr), (obj,))
        self.fleet.resources.append(PlacedResource(rendered, cluster, self._suffix(cluster, document)))

    def _suffix(self, cluster: Cluster, document: Document) -> str:
        simple = not cluster.name and document.namespace == self.config.namespace
        return "" if simple else naming.place_suffix(document.namespace, cluster.name)

    def _host_inputs(self, desired: DesiredService) -> Json | None:
        placement = desired.host_placement
        return self.config.hosts.get(placement.host or "") if placement is not None else None

    def _conflict(
        self, cluster: Cluster, document: Document, rendered: RenderedService, host_inputs: Json | None
    ) -> str | None:
        """Return which other document has a process or object of the same name; None if there is none.

        In a cluster, services of two dialects may have the same name.
        """
        namespace, name = rendered.key.namespace, rendered.key.name
        if host_inputs is not None:
            host = str(rendered.objects[0].manifest["spec"].get("host", "")) if rendered.objects else ""
            process = rendered.objects[0].name if rendered.objects else name
            other = self.on_hosts.setdefault((host, namespace, process), document)
            return None if other is document else f"is already used on host `{host}` by {other}"
        needed = [
            (each.kind, str(each.manifest["metadata"].get("namespace", "")), each.name) for each in rendered.objects
        ]
        if rendered.key.dialect == LLMKUBE:
            # Also for a service without pods: names that differ in `.` and `-` have the same Service name.
            needed.insert(0, ("Service", namespace, naming.service_name(name)))
        for kind, where, each in needed:
            other = self.owners.setdefault((cluster.name, kind, where, each), document)
            if other is not document:
                return f"needs the {kind} `{each}`, which {other} also has; rename one of the two"
        return None


def _metadata(cr: Json) -> Json:
    """Return the metadata that a user writes, without what `kubectl get -o yaml` adds."""
    given = cr["metadata"]
    kept = {name: given[name] for name in ("name", "namespace", "labels") if given.get(name)}
    annotations = {
        name: value for name, value in (given.get("annotations") or {}).items() if name != LAST_APPLIED_ANNOTATION
    }
    return {**kept, "annotations": annotations}


def marked(obj: RenderedObject, stack: str) -> RenderedObject:
    """Return the object with the annotation that names its stack, so that no loop and no other stack changes it."""
    metadata = obj.manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), naming.ANNOTATION_FLEET: stack}
    return replace(obj, manifest={**obj.manifest, "metadata": {**metadata, "annotations": annotations}})


def _check_host(desired: DesiredService) -> None:
    if desired.host_placement is not None and desired.host_placement.host is None:
        raise SpecInvalid(
            field=f"metadata.annotations[{ANNOTATION_HOST}]",
            why=f"Model `{desired.model.name}` needs a host; name it here, because a static fleet has no loop that "
            f"chooses one",
        )
