"""What two engines did with one program, in a form that can be compared.

Called by `tests/contract/test_wire_engine.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import pulumi.automation as auto
import pytest
from google.protobuf.json_format import MessageToDict

from components.providers.kubernetes import KubernetesProvider
from kubeapi.client import KubeClient
from kubeapi.kinds import CONFIG_MAPS
from tests.engine.stacks import AnyStack, Program

RESOURCE_CALLS = ("Check", "Diff", "Create", "Update", "Delete", "Read")
KEPT = (
    *("type", "custom", "id", "inputs", "outputs", "parent", "dependencies", "propertyDependencies", "protect"),
    *(
        "external",
        "retainOnDelete",
        "deletedWith",
        "delete",
        "pendingReplacement",
        "additionalSecretOutputs",
        "importID",
    ),
)
"""The fields of a resource in the state that are compared."""
DRAWN = frozenset(
    {"uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "managedFields", "clusterIP", "clusterIPs"}
)
"""Fields that the API server draws, so that they differ between two namespaces."""
PER_RUN = frozenset({"randomSeed", "resourceStatusAddress", "resourceStatusToken", "ciphertext", "plaintext"})
UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
ADDRESS = re.compile(r"\b10\.\d+\.\d+\.\d+\b")
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"


@dataclass
class World:
    """One side of the comparison: a stack, its namespace, and what was seen of its runs."""

    stack: AnyStack
    namespace: str
    client: KubeClient
    calls: list[tuple[str, str, Any]]
    seen: list[dict[str, Any]] = field(default_factory=list)
    is_chain: bool = False
    """Each resource depends on the one before, which fixes the order of deletes also where they run in parallel."""

    def up(self, program: Program, **options: Any) -> None:
        self._look("up", self.stack.up(program, **options))

    def preview(self, program: Program) -> None:
        self._look("preview", self.stack.preview(program))

    def refresh(self, **options: Any) -> None:
        self.stack.refresh(**options)
        self._look("refresh")

    def destroy(self) -> None:
        self._look("destroy", self.stack.destroy())

    def fails(self, work: Callable[[], Any], *fragments: str) -> None:
        """Do work that must fail, and note which fragments of a message the failure has."""
        with pytest.raises(auto.CommandError) as caught:
            work()
        said = str(caught.value).replace(self.namespace, "NAMESPACE")
        assert [each for each in fragments if each not in said] == [], said
        self._look("fails")

    def config_map(self) -> dict[str, Any]:
        return self.client.get(CONFIG_MAPS, self.namespace, "settings")

    def config_maps(self) -> set[str]:
        return {each["metadata"]["name"] for each in self.client.list(CONFIG_MAPS, self.namespace)["items"]}

    def patch(self, body: Any) -> None:
        self.client.patch(CONFIG_MAPS, self.namespace, "settings", body, field_manager="kubectl-edit")

    def _look(self, what: str, run: Any = None) -> None:
        state = {
            name: {key: value for key in KEPT if (value := _sorted_if_urns(key, each.get(key)))}
            for name, each in self.stack.state().items()
            if each["type"].startswith("kubernetes:")
        }
        calls: dict[str, list[Any]] = {}
        for method, name, request in self.calls:
            calls.setdefault(name, []).append((method, request))
        deletes = [name for method, name, _ in self.calls if method == "Delete"]
        deletes = deletes if self.is_chain else sorted(deletes)
        self.calls.clear()
        operations = {name: (run.operations(name), run.detailed(name)) for name in run.steps()} if run else {}
        # The fixture of the CLI reads the outputs of an `up` only.
        outputs = run.outputs if what == "up" else {}
        found = {"state": state, "calls": calls, "deletes": deletes, "operations": operations, "outputs": outputs}
        self.seen.append({"what": what, **self._comparable(found)})

    def _comparable(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key.replace(self.namespace, "NAMESPACE"): "drawn" if key in DRAWN else self._comparable(each)
                for key, each in value.items()
                if key not in PER_RUN
            }
        if isinstance(value, (list, tuple)):
            return [self._comparable(each) for each in value]
        if isinstance(value, str):
            known = value.replace(self.namespace, "NAMESPACE")
            return known if known == UNKNOWN else ADDRESS.sub("drawn", UID.sub("drawn", known))
        return value


def _sorted_if_urns(key: str, value: Any) -> Any:
    if key == "dependencies":
        return sorted(value or ())
    if key == "propertyDependencies":
        return {name: sorted(urns) for name, urns in (value or {}).items() if urns}
    return value


class Recording(KubernetesProvider):
    """The provider, with a record of the requests about resources that it got."""

    def __init__(self, client: KubeClient) -> None:
        super().__init__(client)
        self.calls: list[tuple[str, str, Any]] = []

    def record(self, method: str, request: Any) -> None:
        self.calls.append((method, request.name, MessageToDict(request)))


def _recorded(method: str) -> Callable[[Recording, Any, grpc.ServicerContext], Any]:
    def answer(self: Recording, request: Any, context: grpc.ServicerContext) -> Any:
        self.record(method, request)
        return getattr(KubernetesProvider, method)(self, request, context)

    return answer


for _method in RESOURCE_CALLS:
    setattr(Recording, _method, _recorded(_method))
