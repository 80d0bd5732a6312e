"""Calls of the provider's protocol without an engine, for tests of one resource."""

from __future__ import annotations

from typing import Any

from google.protobuf.struct_pb2 import Struct
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from components.providers.marshalling import decode, encode
from kubeapi.json_types import Json
from kubeapi.kinds import Kind


class Object:
    """One resource, changed through the provider's protocol in the calls that an engine makes."""

    def __init__(self, provider: provider_pb2_grpc.ResourceProviderStub, kind: Kind, namespace: str) -> None:
        self._provider = provider
        self._module = "core/v1" if kind.api_version == "v1" else kind.api_version
        self.kind = kind
        self.namespace = namespace
        self._inputs: Struct | None = None
        self._outputs: Struct | None = None
        self.replaced = False

    def apply(self, spec: Json, **metadata: Any) -> Json:
        """Preview and apply a spec, and assert that both agree; return the resource's outputs."""
        news = encode({"metadata": {"name": "web", "namespace": self.namespace, **metadata}, "spec": spec})
        told = {"urn": self._urn, "name": "web", "type": self._type}
        inputs = self._provider.Check(provider_pb2.CheckRequest(olds=self._inputs, news=news, **told)).inputs
        self.replaced = False
        if self._inputs is not None:
            old = {"id": f"{self.namespace}/web", "olds": self._outputs, "old_inputs": self._inputs}
            answer = self._provider.Diff(provider_pb2.DiffRequest(news=inputs, **old, **told))
            if answer.changes == provider_pb2.DiffResponse.DIFF_NONE:
                return decode(self._outputs)
            if answer.replaces:
                assert answer.deleteBeforeReplace
                deleted = {"id": old["id"], "properties": self._outputs, "old_inputs": self._inputs}
                self._provider.Delete(provider_pb2.DeleteRequest(**deleted, **told))
                self.replaced, self._inputs = True, None
            else:
                update = provider_pb2.UpdateRequest(news=inputs, preview=True, **old, **told)
                planned = decode(self._provider.Update(update).properties)["spec"]
                update.preview = False
                self._outputs = self._provider.Update(update).properties
                assert told_alike(planned, decode(self._outputs)["spec"])
        if self._inputs is None:
            create = provider_pb2.CreateRequest(properties=inputs, preview=True, **told)
            self._provider.Create(create)
            create.preview = False
            self._outputs = self._provider.Create(create).properties
        self._inputs = inputs
        return decode(self._outputs)

    def restore(self) -> Json:
        """Preview and apply the same inputs again after another client's change; return the resource's outputs."""
        assert self._inputs is not None
        told = {"urn": self._urn, "name": "web", "type": self._type}
        old = {"id": f"{self.namespace}/web", "olds": self._outputs, "old_inputs": self._inputs}
        answer = self._provider.Diff(provider_pb2.DiffRequest(news=self._inputs, **old, **told))
        assert answer.changes == provider_pb2.DiffResponse.DIFF_SOME
        update = provider_pb2.UpdateRequest(news=self._inputs, preview=True, **old, **told)
        planned = decode(self._provider.Update(update).properties)["spec"]
        update.preview = False
        self._outputs = self._provider.Update(update).properties
        assert told_alike(planned, decode(self._outputs)["spec"])
        return decode(self._outputs)

    def lose_state(self) -> None:
        """Lose the state, so that the next apply takes the object over."""
        self._inputs = None

    @property
    def _type(self) -> str:
        return f"kubernetes:{self._module}:{self.kind.kind}"

    @property
    def _urn(self) -> str:
        return f"urn:pulumi:dev::herdsman::{self._type}::web"


def told_alike(planned: Json, done: Json) -> bool:
    """Return whether a preview equals its result. Allocated addresses and ports are ignored."""
    drawn = ("nodePort", "healthCheckNodePort", "clusterIP", "clusterIPs")
    return without(planned, drawn) == without(done, drawn)


def without(value: Any, keys: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {key: without(each, keys) for key, each in value.items() if key not in keys}
    return [without(each, keys) for each in value] if isinstance(value, list) else value


def pods(container: Json | None = None, **pod: Any) -> Json:
    main = {"name": "main", "image": "example.com/engine:1", **(container or {})}
    labels = {"app": "web"}
    return {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [main], **pod}},
    }


def pod_of(live: Json) -> Json:
    found: Json = live["spec"]["template"]["spec"]
    return found
