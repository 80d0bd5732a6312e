"""One run of the harness: which steps a resource takes, and their order, as Pulumi's engine decides them.

Called by `tests.support.wire.monitor` for each resource that a program registers, and by `tests.support.wire.stack`.
Calls `tests.support.wire.provider`. One step runs at a time, so that a failing test fails in the same way again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace

from pulumi.automation.events import PropertyDiff
from pulumi.runtime.proto import provider_pb2

from tests.support.wire.provider import Difference, ProviderClient, StepFailed
from tests.support.wire.resources import PROVIDER_PREFIX, Goal, Resource, alias_urns, urn_of
from tests.support.wire.values import UNKNOWN, Properties, ignoring


@dataclass(frozen=True)
class Step:
    """One step of a run, with the fields of an event of the engine that the tests read."""

    op: str
    type: str
    name: str
    detailed_diff: dict[str, PropertyDiff] = field(default_factory=dict)


class Deployment:
    """The state of a stack on its way to what a program registers. `ports`: the providers by package."""

    def __init__(
        self, project: str, stack: str, olds: list[Resource], ports: dict[str, int], *, dry_run: bool = False
    ) -> None:
        self.project, self.stack, self.dry_run = project, stack, dry_run
        self.steps: list[Step] = []
        self._ports = ports
        self._olds = olds
        self._news: list[Resource] = []
        self._superseded: set[int] = set()
        """Old resources that are in the state no more, by identity."""
        self._operated: set[str] = set()
        """URNs of the state that the program registered."""
        self._registered: set[str] = set()
        self._deleted: set[str] = set()
        self._condemned: set[str] = set()
        """URNs of resources that were deleted because one that they depend on is replaced."""
        self._clients: dict[str, ProviderClient] = {}
        self._defaults: dict[str, Resource] = {}

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def resources(self) -> list[Resource]:
        """Return the state as it is now: what this run made, then what it left of the former state."""
        return [*self._news, *(each for each in self._olds if id(each) not in self._superseded)]

    def urn(self, parent: str, type_: str, name: str) -> str:
        return urn_of(self.project, self.stack, parent, type_, name)

    # What a program asks for

    def register(self, goal: Goal) -> Resource:
        """Take the steps that bring a resource to its goal. Raises StepFailed."""
        new = goal.resource
        if new.urn in self._registered:
            raise StepFailed(f"Duplicate resource URN '{new.urn}'; try giving it a unique name")
        self._registered.add(new.urn)
        old = self._old([new.urn, *alias_urns(goal, self.project, self.stack)])
        self._operated |= {new.urn} | ({old.urn} if old else set())
        if goal.remote:
            provider = self._provider(goal.provider, goal.type, goal.version)
            self._client(provider).construct(goal.type, goal.name, goal.properties)
        if new.is_provider:
            return self._register_provider(new, goal.properties, old)
        if not goal.custom:
            new.inputs = goal.properties
            new.outputs = old.outputs if old else {}
            self._take_place("same" if old else "create", new, old)
            return new
        new.provider = self._provider(goal.provider, goal.type, goal.version)
        if goal.import_id and (old is None or old.external or (old.importID or old.id) != goal.import_id):
            if old is not None:
                raise NotImplementedError("the harness does not import in the place of another resource")
            old = self._import(new, goal.import_id)
        self._settle(goal, new, old)
        return new

    def read(self, new: Resource, provider: str, version: str) -> Resource:
        """Read a resource that the stack does not manage. Raises StepFailed."""
        self._registered.add(new.urn)
        self._operated.add(new.urn)
        new.provider = self._provider(provider, new.type, version)
        old = self._old([new.urn])
        if old is not None and not old.external:
            raise NotImplementedError("the harness does not read in the place of a managed resource")
        if new.id != UNKNOWN:
            found = self._client(new.provider).read(new, new.id, new.inputs, new.inputs)
            if not found.id:
                raise StepFailed(f"resource '{new.id}' does not exist")
            new.id = found.id
            new.settle(found.outputs)
        self._take_place("read", new, old)
        return new

    def invoke(self, token: str, arguments: object, provider: str, version: str) -> provider_pb2.InvokeResponse:
        return self._client(self._provider(provider, token, version)).invoke(token, arguments)

    def set_outputs(self, urn: str, outputs: Properties) -> None:
        """Take over the outputs of a component or the stack."""
        next(each for each in self._news if each.urn == urn).outputs = outputs

    def finish(self) -> None:
        """Delete what the program did not register, and what was replaced, dependents first. Raises StepFailed."""
        doomed = [
            old
            for old in reversed(self._olds)
            if id(old) not in self._superseded and (old.delete or old.urn not in self._operated)
        ]
        self._deleted |= {old.urn for old in doomed}
        for old in doomed:
            if old.pendingReplacement:
                self._superseded.add(id(old))
                self._note("remove-pending-replace", old)
            else:
                self._delete(old, "delete-replaced" if old.delete else "delete")

    # Providers

    def _provider(self, reference: str, token: str, version: str) -> str:
        """Return the reference of the provider that serves a token; without one, of the default provider."""
        if reference:
            return reference
        package = token.partition(":")[0]
        name = f"default_{version.replace('.', '_')}" if version else "default"
        if name not in self._defaults:
            urn = self.urn("", f"{PROVIDER_PREFIX}{package}", name)
            new = Resource(urn, f"{PROVIDER_PREFIX}{package}")
            self._operated.add(urn)
            inputs = {"version": version} if version else {}
            self._defaults[name] = self._register_provider(new, inputs, self._old([urn]))
        return self._defaults[name].reference

    def _register_provider(self, new: Resource, inputs: Properties, old: Resource | None) -> Resource:
        package = new.type.removeprefix(PROVIDER_PREFIX)
        client = ProviderClient(self._ports[package], dry_run=self.dry_run)
        self._clients[new.urn] = client
        new.inputs = client.check_config(new, inputs, old.inputs if old else {})
        if old is not None and client.config_replaces(new, old):
            raise NotImplementedError("the harness does not replace providers")
        new.id = old.id if old else str(uuid.uuid4())
        new.outputs = new.inputs
        client.configure(new)
        self._take_place("same" if old else "create", new, old)
        return new

    def _client(self, reference: str) -> ProviderClient:
        """Return the client of a provider; one that only the state has is configured as it was."""
        urn = reference.rpartition("::")[0]
        if urn not in self._clients:
            of = next(each for each in self._olds if each.reference == reference)
            client = ProviderClient(self._ports[of.type.removeprefix(PROVIDER_PREFIX)], dry_run=self.dry_run)
            client.configure(of)
            self._clients[urn] = client
        return self._clients[urn]

    def _provider_moved(self, new: Resource, old: Resource) -> bool:
        """Return whether a resource has another provider, in a way that takes a new object."""
        if new.provider == old.provider:
            return False
        names = [each.provider.split("::")[3].partition("_")[0] for each in (new, old)]
        if names != ["default", "default"]:
            return True
        before = next(each for each in self._olds if each.reference == old.provider)
        after = next(each for each in self._news if each.reference == new.provider)
        return self._client(new.provider).config_replaces(after, before)

    # One resource

    def _import(self, new: Resource, id_: str) -> Resource:
        client = self._client(new.provider)
        found = client.read(new, id_, None, None)
        if not found.id:
            raise StepFailed(f"resource '{id_}' does not exist")
        assert found.inputs is not None, "the provider supports imports"
        imported = replace(new, id=found.id, inputs=found.inputs)
        imported.settle(found.outputs)
        self._olds.append(imported)
        self._note("import", imported)
        return imported

    def _settle(self, goal: Goal, new: Resource, old: Resource | None) -> None:
        client = self._client(new.provider)
        recreating = new.urn in self._condemned
        known = old if old is not None and not old.external and not recreating else None
        wanted = ignoring(goal.properties, old.inputs, new.ignoreChanges) if old else goal.properties
        new.inputs = client.check(new, wanted if known else goal.properties, known.inputs if known else None)
        if old is None:
            self._create("create", new, None)
        elif recreating:
            self._condemned.discard(new.urn)
            self._note("replace", new)
            self._create("create-replacement", new, old)
        elif old.external:
            self._create("create-replacement", new, old)
            self._note("replace", new)
        else:
            self._change(goal, new, old, client)

    def _change(self, goal: Goal, new: Resource, old: Resource, client: ProviderClient) -> None:
        if self._provider_moved(new, old):
            found = Difference(changed=True, replaces=True, delete_before_replace=False, detailed={})
        else:
            # The engine asks with the URN of the program, which an alias may have changed.
            found = client.diff(replace(old, urn=new.urn, type=new.type), new.inputs, new.ignoreChanges)
        if (found.changed and found.replaces) or old.pendingReplacement:
            self._replace(goal, new, old, client, found)
        elif found.changed:
            new.id = old.id
            self._note("update", new, found.detailed)
            new.settle(client.update(new, old))
            self._keep(new, old)
        else:
            new.id = old.id
            new.outputs = old.outputs
            if not any((step.op, step.name) == ("import", new.name) for step in self.steps):
                self._note("same", new)
            self._keep(new, old)

    def _replace(self, goal: Goal, new: Resource, old: Resource, client: ProviderClient, found: Difference) -> None:
        if new.protect and old.protect and not self.dry_run:
            raise StepFailed(f'unable to replace resource "{new.urn}"\nas it is currently marked for protection.')
        if goal.import_id and not self.dry_run:
            raise StepFailed("previously-imported resources that still specify an ID may not be replaced")
        new.inputs = client.check(new, goal.properties, None)
        first = found.delete_before_replace if goal.delete_before_replace is None else goal.delete_before_replace
        if first:
            for each in reversed(self._dependents_to_replace(old)):
                if each.protect:
                    raise StepFailed(f'unable to replace resource "{each.urn}" as part of replacing "{new.urn}"')
                self._condemned.add(each.urn)
                self._delete(each, "delete-replaced", pending=True)
            if not old.pendingReplacement:
                self._delete(old, "delete-replaced", pending=True)
            self._note("replace", new, found.detailed)
            self._create("create-replacement", new, old, found.detailed)
        else:
            self._create("create-replacement", new, None, found.detailed)
            self._note("replace", new, found.detailed)
            old.delete = True

    def _dependents_to_replace(self, root: Resource) -> list[Resource]:
        """Return the resources, in the order of the state, that a new object in the place of `root` replaces, too."""
        replaced, found = {root.urn}, []
        for each in self._olds[self._olds.index(root) + 1 :]:
            if not each.custom or each.external or each.is_provider or each.delete or each.urn in self._operated:
                continue
            fields = [key for key in each.inputs if replaced & set(each.propertyDependencies.get(key, ()))]
            if not fields:
                continue
            unknown = each.inputs | dict.fromkeys(fields, UNKNOWN)
            if self._client(each.provider).diff(each, unknown, each.ignoreChanges).replaces:
                replaced.add(each.urn)
                found.append(each)
        return found

    # Steps

    def _create(
        self, op: str, new: Resource, old: Resource | None, detailed: dict[str, PropertyDiff] | None = None
    ) -> None:
        self._note(op, new, detailed)
        new.id, outputs = self._client(new.provider).create(new)
        new.settle(outputs)
        self._keep(new, old)

    def _delete(self, old: Resource, op: str, *, pending: bool = False) -> None:
        """Delete a resource. `pending`: its replacement is to be created, and until then the state keeps it."""
        # The engine only forgets an object that it read.
        self._note(op.replace("delete", "discard") if old.external else op, old)
        if old.protect and op == "delete":
            raise StepFailed(f"resource {old.urn} cannot be deleted\nbecause it is protected.")
        ours = old.custom and not old.is_provider and not old.external and not old.retainOnDelete
        if ours and not self.dry_run and old.deletedWith not in self._deleted:
            self._client(old.provider).delete(old)
        self._deleted.add(old.urn)
        if pending:
            old.pendingReplacement = True
        else:
            self._superseded.add(id(old))

    def _take_place(self, op: str, new: Resource, old: Resource | None) -> None:
        self._note(op, new)
        self._keep(new, old)

    def _keep(self, new: Resource, old: Resource | None) -> None:
        self._news.append(new)
        if old is not None:
            self._superseded.add(id(old))

    def _note(self, op: str, of: Resource, detailed: dict[str, PropertyDiff] | None = None) -> None:
        self.steps.append(Step(op, of.type, of.name, detailed or {}))

    def _old(self, urns: list[str]) -> Resource | None:
        """Return the resource of the state that has one of the URNs; the first URN comes first."""
        living = {each.urn: each for each in self._olds if not each.delete and id(each) not in self._superseded}
        return next((living[urn] for urn in urns if urn in living), None)

    # Runs without a program

    def destroy(self) -> None:
        """Delete all resources. Raises StepFailed."""
        self.finish()

    def refresh(self) -> None:
        """Read all resources again. Raises StepFailed."""
        for at, old in enumerate(list(self._olds)):
            if not old.custom or old.is_provider or old.pendingReplacement:
                continue
            client = self._client(old.provider)
            found = client.read(old, old.id, old.inputs, old.outputs)
            if not found.id:
                self._note("delete", old)
                self._superseded.add(id(old))
                continue
            new = replace(old, id=found.id, inputs=old.inputs if found.inputs is None else found.inputs)
            new.settle(found.outputs)
            if old.external:
                changed, detailed = old.outputs != new.outputs, {}
            else:
                # The engine asks what an `up` after this refresh would change, and shows the opposite.
                difference = client.diff(new, old.inputs, old.ignoreChanges)
                changed, detailed = difference.changed, difference.detailed
            self._note("refresh" if not changed else "update", new, detailed)
            self._olds[at] = new

    def changes(self) -> list[Step]:
        """Return the steps of a refresh that found a change."""
        return [step for step in self.steps if step.op != "refresh"]
