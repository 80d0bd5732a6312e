"""Puts an installation into a cluster, and takes it out again: by our own engine, with a small state of its own.

Called by `herdsman install` and `herdsman uninstall`. One engine run for each stage, in their order, because what is in
a namespace waits for it. The state is a cache on the machine of whoever installs, one for each cluster: who has another
machine, or lost it, finds the same names and adopts what is ours; what only older options had is found by its name.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from automation.engine.port import Batch, Change, Engine, Stack
from automation.engine.pulumi_engine import PulumiEngine
from automation.install import identities, objects
from automation.install.blanks import filled
from automation.install.comparison import MANAGER, Compared, compare, find, leftovers, other_operators
from automation.install.objects import Part
from automation.install.options import InstallOptions
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
"""In the place of a dialect: no stack of services holds a key like this."""
_COMPONENTS = {
    "cluster": naming.TYPE_FOUNDATION,
    "kept": naming.TYPE_FOUNDATION,
    "operator": naming.TYPE_OPERATOR,
}


class InstallRefused(Exception):
    """The installation would do harm, or cannot be done; the message says what to do."""


class TakeOverNeeded(InstallRefused):
    """Somebody else's objects would change, and nobody has said that they may."""


@dataclass(frozen=True)
class Comparison:
    """What an installation would change."""

    wanted: tuple[Compared, ...]
    unwanted: tuple[tuple[Compared, str], ...]
    """What an older installation made and these options do not ask for, with its uid."""

    @property
    def all(self) -> tuple[Compared, ...]:
        return (*self.wanted, *(each for each, _ in self.unwanted))

    @property
    def changed(self) -> tuple[Compared, ...]:
        return tuple(each for each in self.all if each.change.op != "same")

    @property
    def foreign(self) -> tuple[Compared, ...]:
        """What is somebody else's and would change."""
        return tuple(each for each in self.wanted if each.needs_leave)

    @property
    def refused(self) -> tuple[Compared, ...]:
        return tuple(each for each in self.wanted if each.change.refused)


class Installer:
    """Installs into one cluster. `directory` holds state and work of the engine, for all clusters."""

    def __init__(self, client: KubeClient, directory: pathlib.Path) -> None:
        self._client = client
        self._directory = directory

    def compare(self, options: InstallOptions) -> Comparison:
        """Say what `install` would do. Raises ApiError; InstallRefused where another operator is in the way."""
        self._check_alone(options)
        unserved = self.unserved()
        stages = (rendered(options, stage, unserved) for stage in objects.STAGES)
        wanted = compare(self._client, (obj for stage in stages for obj in stage.objects))
        return Comparison(wanted, leftovers(self._client, _unwanted(options)))

    def install(self, options: InstallOptions, *, take_over: bool = False) -> tuple[Change, ...]:
        """Make everything as the options say, and give what was changed. Nothing is done when something is refused.

        What is somebody else's is changed with `take_over` only. Raises InstallRefused, ApiError, EngineFailed.
        """
        comparison = self.compare(options)
        if comparison.refused:
            first = comparison.refused[0]
            raise InstallRefused(f"{first.change.kind} {first.change.name}: {first.change.refused}")
        if comparison.foreign and not take_over:
            names = ", ".join(f"{each.change.kind} {each.change.name} ({each.holder})" for each in comparison.foreign)
            raise TakeOverNeeded(f"somebody else's objects would change: {names}")
        for each in comparison.wanted:
            if each.holder:
                self._take_over(each)
        changes: list[Change] = []
        stack, unserved = Stack(options.namespace), self.unserved()
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

    def uninstall(self, namespace: str) -> tuple[Change, ...]:
        """Take the operator out of a namespace. What serves stays, and what it needs: see `objects.STAGES`.

        Raises ApiError, EngineFailed; InstallRefused when the operator there is not of our making.
        """
        options = InstallOptions(namespace=namespace)
        everything = [(part, _manifest(part, options)) for part in objects.parts() if part.stage == "operator"]
        self._check_ours(everything)
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

    def unserved(self) -> frozenset[str]:
        """Name the kinds of an installation that this API server does not serve and that can be left out.

        Raises ApiError.
        """
        answer = served(lambda path: self._client.request("GET", path), identities.KINDS)
        return frozenset(kind.kind for kind in identities.KINDS if not answer.get(kind))

    def _check_alone(self, options: InstallOptions) -> None:
        if others := other_operators(self._client, options.namespace):
            raise InstallRefused(
                f"an operator is in namespace {', '.join(others)} already, and a cluster has one; "
                f"`herdsman uninstall --namespace {others[0]}` takes it out and leaves everything else as it is"
            )

    def _check_ours(self, everything: list[tuple[Part, Json]]) -> None:
        manifest = everything[-1][1]
        metadata = manifest["metadata"]
        live = find(self._client, kinds.DEPLOYMENTS, metadata["namespace"], metadata["name"])
        if live is None:
            return
        found = compare(self._client, [RenderedObject("deployment", "", manifest)])[0]
        if found.holder:
            raise InstallRefused(
                f"Deployment {metadata['name']} is held by {found.holder}, not by `herdsman install`: take it out by "
                "what put it there (`helm uninstall`, `kubectl delete -f`)"
            )

    def _take_over(self, each: Compared) -> None:
        """Become a manager of an object, after which the engine knows it as ours."""
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
        """Our engine on the state of this cluster, which its system namespace names whatever its address is."""
        try:
            cluster = self._client.get(kinds.NAMESPACES, None, "kube-system")["metadata"]["uid"]
        except ApiError as error:
            raise InstallRefused(f"cannot tell which cluster this is: {error}") from error
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
    """One stage of an installation without the kinds that are not served, ready for the engine."""
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
    """The operator's parts that only other options ask for."""
    wanted = {_name(document) for document in objects.documents(options, ("operator",))}
    others = ((part, _manifest(part, options)) for part in objects.parts() if part.stage == "operator")
    return [(part, manifest) for part, manifest in others if _name(manifest) not in wanted]


def _name(manifest: Json) -> tuple[str, str, str]:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", ""), metadata["name"]


def _manifest(part: Part, options: InstallOptions) -> Json:
    found: Json = filled(part.tree, options.model_dump(), dict.fromkeys(objects.CONDITIONS, True))
    return found
