"""How a preview reads the objects that services refer to: a few by name, many with one list, and none twice."""

from __future__ import annotations

from typing import Any

import pytest

from automation.preview.lookup import PreviewLookup
from automation.preview.requests import find_references
from kubeapi import kinds
from kubeapi.errors import Forbidden, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.errors import DesiredError
from program.dialects.registry import dialect_named

SPACES = [f"space-{number}" for number in range(12)]


class FakeClient:
    """A cluster with Models, which records each request."""

    def __init__(self, *models: Json, may_list: bool = True) -> None:
        self.models = {(each["metadata"]["namespace"], each["metadata"]["name"]): each for each in models}
        self.may_list = may_list
        self.requests: list[str] = []

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        self.requests.append(f"get {namespace}/{name}")
        try:
            return self.models[namespace, name]
        except KeyError:
            raise NotFound(404, "NotFound", "not found") from None

    def list(self, kind: Kind, namespace: str | None, **_options: Any) -> Json:
        self.requests.append(f"list {namespace or 'all'}")
        if not self.may_list:
            raise Forbidden(403, "Forbidden", "forbidden")
        return {"items": [each for (at, _), each in self.models.items() if namespace in (None, at)], "metadata": {}}


def model(name: str, namespace: str = "ns", *, phase: str = "") -> Json:
    return {
        "apiVersion": kinds.MODELS.api_version,
        "kind": "Model",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"source": f"https://example.com/{name}.gguf"},
        "status": {"phase": phase} if phase else {},
    }


def service(number: int, namespace: str = "ns") -> Json:
    return {
        "apiVersion": kinds.INFERENCE_SERVICES.api_version,
        "kind": "InferenceService",
        "metadata": {"name": f"s{number}", "namespace": namespace},
        "spec": {
            "modelRef": f"m{number}",
            "speculativeDecoding": {"type": "draft-simple", "draftModelRef": f"d{number}"},
        },
    }


def prefetched(client: Any, services: list[Json]) -> PreviewLookup:
    look = PreviewLookup(client)
    look.prefetch(services, map)
    return look


def parse_all(look: PreviewLookup, services: list[Json]) -> None:
    for cr in services:
        look.references_of(cr)


def test_few_services_are_read_while_they_are_parsed() -> None:
    client, services = FakeClient(model("m0"), model("d0")), [service(0)]
    look = prefetched(client, services)
    assert client.requests == []
    parse_all(look, services)
    assert client.requests == ["get ns/m0", "get ns/d0", "list ns"], "the Models, and the LoRAAdapters"
    parse_all(look, services)
    assert len(client.requests) == 3


def test_many_services_are_read_by_a_list_of_their_namespace_and_parsed_without_a_request() -> None:
    models = [each for number in range(20) for each in (model(f"m{number}"), model(f"d{number}"))]
    client, services = FakeClient(*models), [service(number) for number in range(20)]
    look = prefetched(client, services)
    assert set(client.requests) == {"list ns"}
    asked = list(client.requests)
    parse_all(look, services)
    assert client.requests == asked
    assert dialect_named("llmkube").parse(services[3], look).desired.model.name == "m3"


@pytest.mark.parametrize("ahead", [0, 20])
def test_services_that_were_parsed_ahead_are_not_parsed_again_before_their_models_are_read(
    ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [each for number in range(20) for each in (model(f"m{number}"), model(f"d{number}"))]
    client: Any = FakeClient(*models)
    services = [service(number) for number in range(20)]
    parsed: list[Json] = []
    look, dialect = PreviewLookup(client), dialect_named("llmkube")
    real = dialect.parse

    def parse(cr: Json, look: Any) -> Any:
        parsed.append(cr)
        return real(cr, look)

    monkeypatch.setattr(dialect, "parse", parse)
    for cr in services[:ahead]:
        look.parse_ahead(cr)
    assert not any(request.startswith("get") for request in client.requests)
    look.prefetch(services, map)
    parse_all(look, services)
    # The first Model, then the draft of each Model, and then both.
    assert len(parsed) == 3 * len(services)
    assert not any(request.startswith("get") for request in client.requests)


def test_services_of_many_namespaces_are_read_by_one_list() -> None:
    services = [service(0, space) for space in SPACES]
    client = FakeClient(*(model("m0", space) for space in SPACES))
    look = prefetched(client, services)
    assert set(client.requests) == {"list all"}
    asked = list(client.requests)
    parse_all(look, services)
    assert client.requests == asked


def test_where_lists_are_forbidden_each_object_is_read_by_name() -> None:
    services = [service(number) for number in range(12)]
    client = FakeClient(*(model(f"m{number}") for number in range(12)), may_list=False)
    look = prefetched(client, services)
    assert {f"get ns/m{number}" for number in range(12)} <= set(client.requests)
    with pytest.raises(DesiredError):
        dialect_named("llmkube").parse(service(99), look)


def test_models_that_the_loop_has_not_probed_are_named_in_the_order_of_the_lookups() -> None:
    client: Any = FakeClient(model("m1"), model("d1"), model("m2", phase="Ready"), model("d2"))
    look = PreviewLookup(client)
    look.references_of(service(1))
    assert list(look.models_not_ready()) == ["m1", "d1"]
    look.references_of(service(2))
    assert list(look.models_not_ready())[-1] == "d2"


def test_references_are_the_objects_that_exist() -> None:
    client: Any = FakeClient(model("m1"), model("d1"))
    assert [each["metadata"]["name"] for each in find_references(client, service(1))] == ["d1", "m1"]
    assert [each["metadata"]["name"] for each in find_references(client, service(2))] == []


def test_a_service_is_parsed_once_and_its_lookups_are_known_again() -> None:
    client: Any = FakeClient(model("m1"), model("d1"), model("m2"), model("d2"))
    look, one = PreviewLookup(client), service(1)
    parsed = look.parse(one)
    references = list(look.seen)
    look.parse(service(2))
    assert look.parse(one) is parsed
    assert list(look.seen) == references
