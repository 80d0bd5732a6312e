"""Installs into a cluster, and uninstalls: by Herdsman's engine, with a small separate state.

Called by `herdsman install` and `herdsman uninstall`. Each stage is one engine run, in order, because objects in a
namespace need the namespace first. The state is a cache on the machine of the caller, one for each cluster. On another
machine, or after the loss of the state, the names are the same and Herdsman's objects are adopted; objects of earlier
options are found by their names.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from automation.engine.port import Batch, Change, Engine, Stack
from automation.engine.pulumi_engine import PulumiEngine
from automation.install import identities, metrics_api, objects
from automation.install.blanks import filled
from automation.install.comparison import MANAGER, Compared, compare, leftovers, other_operators
from automation.install.objects import Part
from automation.install.options import InstallOptions
from automation.preview.changes import ObjectChange
from components import naming
from components.providers.kubernetes import KubernetesProvider
from components.providers.plugin_server import PluginServer
from components.rendered import RenderedObject, RenderedService
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.discovery import served
from kubeapi.errors import ApiError, NotFound
from kubeapi.json_types import Json
from program.desired.keys import Dialect, ServiceKey
from tools import toolchain

TIMEOUT_S = 180.0
_DIALECT = cast(Dialect, "install")
"""Takes the place of a dialect: no stack of services contains such a key."""
_COMPONENTS = {
    "cluster": naming.TYPE_FOUNDATION,
    "kept": naming.TYPE_FOUNDATION,
    "operator": naming.TYPE_OPERATOR,
}


class InstallRefused(Exception):
    """The installation would do harm, or is impossible. The message says what to do."""


class TakeOverNeeded(InstallRefused):
    """Objects of another owner would change, and the caller has not allowed that."""


@dataclass(frozen=True)
class Comparison:
    """The changes that an installation would make."""

    wanted: tuple[Compared, ...]
    unwanted: tuple[tuple[Compared, str], ...]
    """Objects of an earlier installation that these options do not include, with their uids."""

    @property
    def all(self) -> tuple[Compared, ...]:
        return (*self.wanted, *(each for each, _ in self.unwanted))

    @property
    def changed(self) -> tuple[Compared, ...]:
        return tuple(each for each in self.all if each.change.op != "same")

    @property
    def foreign(self) -> tuple[Compared, ...]:
        """Objects of another owner that would change."""
        return tuple(each for each in self.wanted if each.needs_leave)

    @property
    def refused(self) -> tuple[Compared, ...]:
        return tuple(each for each in self.wanted if each.change.refused)


class Installer:
    """Installs into one cluster. `directory` contains state and work directories of the engine, for all clusters."""

    def __init__(self, client: KubeClient, directory: pathlib.Path) -> None:
        self._client = client
        self._directory = directory

    def compare(self, options: InstallOptions) -> Comparison:
        """Return the changes that `install` would make.

        Raises ApiError; InstallRefused if another operator is in the way.
        """
        self._check_alone(options)
        unserved = self._left_out(options)
        stages = (rendered(options, stage, unserved) for stage in objects.STAGES)
        wanted = compare(self._client, (obj for stage in stages for obj in stage.objects))
        return Comparison(wanted, leftovers(self._client, _unwanted(options)))

    def install(self, options: InstallOptions, *, take_over: bool = False) -> tuple[Change, ...]:
        """Apply all objects by the options, and return the changes. Nothing is done when any change is refused.

        Objects of another owner are changed only with `take_over`. Raises InstallRefused, ApiError, EngineFailed.
        """
        comparison = self.compare(options)
        if comparison.refused:
            first = comparison.refused[0]
            raise InstallRefused(f"{first.change.kind} {first.change.name}: {first.change.refused}")
        if comparison.foreign and not take_over:
            names = ", ".join(f"{each.change.kind} {each.change.name} ({each.holder})" for each in comparison.foreign)
            raise TakeOverNeeded(f"the installation would change objects of other managers: {names}")
        for each in comparison.wanted:
            if each.holder:
                self._take_over(each)
        changes: list[Change] = []
        stack, unserved = Stack(options.namespace), self._left_out(options)
        metrics_api.release(self._client, options.namespace)
        with self._engine() as engine:
            for stage in objects.STAGES:
                batch = Batch(stack, apply=(rendered(options, stage, unserved),))
                [outcome] = engine.up(batch, timeout_s=TIMEOUT_S).services.values()
                changes += (change for change in outcome.changes if change.op != "same")
                if outcome.error is not None:
                    raise outcome.error
        done = {(change.kind, change.name) for change in changes if change.op == "delete"}
        for each, uid in comparison.unwanted:
            if (each.change.kind, each.change.name) not in done and self._delete(each, uid):
                changes.append(Change("", each.change.kind, each.change.name, "delete"))
        return tuple(changes)

    def installed(self, namespace: str) -> tuple[ObjectChange, ...]:
        """Return the deletions that `uninstall` would make. Raises ApiError, and InstallRefused as `uninstall`."""
        return tuple(each.change for each, _ in reversed(leftovers(self._client, self._operator(namespace))))

    def uninstall(self, namespace: str) -> tuple[Change, ...]:
        """Delete the operator of a namespace. The services and what they need stay: see `objects.STAGES`.

        Raises ApiError, EngineFailed; InstallRefused when another tool installed that operator.
        """
        everything = self._operator(namespace)
        metrics_api.release(self._client, namespace)
        changes: list[Change] = []
        key = _key(namespace, "operator")
        with self._engine() as engine:
            stack = Stack(namespace)
            if stack in engine.stacks() and key in engine.services(stack):
                outcome = engine.up(Batch(stack, remove=(key,)), timeout_s=TIMEOUT_S).services[key]
                changes += (change for change in outcome.changes if change.op == "delete")
                if outcome.error is not None:
                    raise outcome.error
        for each, uid in reversed(leftovers(self._client, everything)):
            if self._delete(each, uid):
                changes.append(Change("", each.change.kind, each.change.name, "delete"))
        return tuple(changes)

    def _operator(self, namespace: str) -> list[tuple[Part, Json]]:
        """Return the objects that an operator of this namespace can have. Raises InstallRefused for another tool's."""
        options = InstallOptions(namespace=namespace)
        everything = [(part, _manifest(part, options)) for part in objects.parts() if part.stage == "operator"]
        self._check_ours(everything)
        return everything

    def unserved(self) -> frozenset[str]:
        """Return the optional kinds of an installation that this API server does not serve.

        Raises ApiError.
        """
        answer = served(lambda path: self._client.request("GET", path), identities.KINDS)
        return frozenset(kind.kind for kind in identities.KINDS if not answer.get(kind))

    def other_metrics_adapter(self, options: InstallOptions) -> str:
        """Return `namespace/name` of the Service of another adapter that serves the cluster's external metrics.

        Empty if there is none, or if the options ask for no external metrics. Raises ApiError.
        """
        return metrics_api.other_adapter(self._client, options.namespace) if options.external_metrics else ""

    def _left_out(self, options: InstallOptions) -> frozenset[str]:
        """Return the kinds that the installation leaves out."""
        taken = frozenset({kinds.API_SERVICES.kind}) if self.other_metrics_adapter(options) else frozenset()
        return self.unserved() | taken

    def _check_alone(self, options: InstallOptions) -> None:
        if others := other_operators(self._client, options.namespace):
            raise InstallRefused(
                f"namespace {', '.join(others)} already has an operator, and a cluster can have only one; "
                f"`herdsman uninstall --namespace {others[0]}` removes only the operator"
            )

    def _check_ours(self, everything: list[tuple[Part, Json]]) -> None:
        manifest = everything[-1][1]
        metadata = manifest["metadata"]
        live = self._client.find(kinds.DEPLOYMENTS, metadata["namespace"], metadata["name"])
        if live is None:
            return
        found = compare(self._client, [RenderedObject("deployment", "", manifest)])[0]
        if found.holder:
            raise InstallRefused(
                f"Deployment {metadata['name']} is managed by {found.holder}, not by `herdsman install`: remove it "
                f"with that tool (`helm uninstall`, `kubectl delete -f`)"
            )

    def _take_over(self, each: Compared) -> None:
        """Become a manager of an object, so that the engine takes it for Herdsman's."""
        manifest = each.rendered.manifest
        kind = self._client.mapping(str(manifest["apiVersion"]), each.rendered.kind)
        self._client.apply(kind, each.namespace or None, manifest, field_manager=MANAGER, force=True)

    def _delete(self, each: Compared, uid: str) -> bool:
        manifest = each.rendered.manifest
        kind = self._client.mapping(str(manifest["apiVersion"]), str(manifest["kind"]))
        try:
            self._client.delete(kind, each.namespace or None, manifest["metadata"]["name"], uid=uid)
        except NotFound:
            return False
        return True

    @contextlib.contextmanager
    def _engine(self) -> Iterator[Engine]:
        """Make an engine with the state of this cluster.

        The uid of kube-system identifies it, whatever its address is.
        """
        try:
            cluster = self._client.get(kinds.NAMESPACES, None, "kube-system")["metadata"]["uid"]
        except ApiError as error:
            raise InstallRefused(f"cannot identify the cluster: {error}") from error
        root = self._directory / cluster
        provider = PluginServer(KubernetesProvider(self._client, field_manager=MANAGER, remember="identity"))
        try:
            engine = PulumiEngine(
                provider_port=provider.start(),
                state_url=f"file://{root / 'state'}",
                work_root=root / "work",
                pulumi=toolchain.locate("pulumi"),
            )
            try:
                yield engine
            finally:
                engine.close()
        finally:
            provider.stop()


def rendered(options: InstallOptions, stage: str, unserved: frozenset[str] = frozenset()) -> RenderedService:
    """Return one stage of an installation, without the kinds that are not served, ready for the engine."""
    made = []
    for document in objects.documents(options, (stage,), unserved=unserved):
        metadata = document["metadata"]
        where = f".{metadata['namespace']}" if "namespace" in metadata else ""
        part = f"{document['kind'].lower()}.{metadata['name']}{where}"
        made.append(RenderedObject(part, _COMPONENTS[stage], document))
    return RenderedService.of(_key(options.namespace, stage), tuple(made))


def _key(namespace: str, stage: str) -> ServiceKey:
    return ServiceKey(_DIALECT, namespace, stage)


def _unwanted(options: InstallOptions) -> list[tuple[Part, Json]]:
    """Return the operator's parts that these options do not include."""
    wanted = {_name(document) for document in objects.documents(options, ("operator",))}
    others = ((part, _manifest(part, options)) for part in objects.parts() if part.stage == "operator")
    return [(part, manifest) for part, manifest in others if _name(manifest) not in wanted]


def _name(manifest: Json) -> tuple[str, str, str]:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", ""), metadata["name"]


def _manifest(part: Part, options: InstallOptions) -> Json:
    found: Json = filled(part.tree, options.model_dump(), dict.fromkeys(objects.CONDITIONS, True))
    return found
