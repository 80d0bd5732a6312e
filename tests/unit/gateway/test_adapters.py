"""Adapters of LoRAAdapters at the gateway: their names, the replicas that get their requests, and those without one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from gateway.clients.request_body import RequestBody
from gateway.cluster.adapters import declared_adapters
from gateway.cluster.cluster_routes import _trimmed_adapter
from gateway.cluster.routes import EngineModels, routes_of
from gateway.engines.backends import AdapterRoute, Route
from gateway.names import Match, Model, Names, NoMatch, ServiceName
from kubeapi.json_types import Json
from tests.support.gateways import OK, Engine, Front, says

Make = Callable[..., Engine]
CHAT = ServiceName("prod", "chat")
NOT_FOUND = says("404 Not Found", b'{"error": {"message": "The model `sql` does not exist."}}')


def adapter(resource: str = "sql", *, pods: tuple[Any, ...] = (), **fields: Any) -> Json:
    """A LoRAAdapter. `pods` are those that have loaded it, or pairs with llama-server's number."""
    metadata = {"namespace": "prod", "name": resource, "uid": resource, "creationTimestamp": "2026-11-01T00:00:00Z"}
    pairs = [each if isinstance(each, tuple) else (each, None) for each in pods]
    listed = [{"name": pod, "loaded": True, "adapterID": number} for pod, number in pairs]
    listed.append({"name": "without", "loaded": False})
    spec = {"inferenceServiceRef": {"name": "chat"}, "name": "sql", "path": "/a/sql", **fields.pop("spec", {})}
    return {"metadata": {**metadata, **fields}, "spec": spec, "status": {"pods": listed}}


def route_of(*crs: Json, runtime: str = "vllm", **annotations: str) -> Route:
    """The route of service `chat` with the pods p1, p2 and `without`, and a process on a host."""
    metadata = {
        "namespace": "prod",
        "name": "chat",
        "annotations": {f"herdsman.dev/{k}": v for k, v in annotations.items()},
    }
    pods = [(f"10.0.0.{n}", pod) for n, pod in enumerate(("p1", "p2", "without"), 1)]
    endpoints: list[Json] = [{"addresses": [at], "targetRef": {"kind": "Pod", "name": pod}} for at, pod in pods]
    endpoint_slice = {
        "metadata": {"namespace": "prod", "name": "x", "labels": {"kubernetes.io/service-name": "chat"}},
        "ports": [{"name": "http", "port": 8000}],
        "endpoints": [*endpoints, {"addresses": ["192.168.1.5"]}],
    }
    services = [("llmkube", {"metadata": metadata, "runtime": runtime})]
    [made] = routes_of(services, [endpoint_slice], {}, declared_adapters(crs))
    return made


@pytest.mark.parametrize(("runtime", "engine_name"), [("vllm", "sql"), ("sglang", "chat:sql"), ("something", "sql")])
def test_requests_go_to_the_pods_that_have_loaded_the_adapter(runtime: str, engine_name: str) -> None:
    route = route_of(adapter(pods=("p1", "p2", "gone")), runtime=runtime)
    targets = frozenset({("10.0.0.1", 8000), ("10.0.0.2", 8000)})
    assert route.adapters == {"sql": AdapterRoute(targets, engine_name)}
    assert (route.model.adapters, route.model.not_loaded) == (("sql",), frozenset())


def test_llama_server_gets_the_number_of_the_adapter() -> None:
    [made] = route_of(adapter(pods=(("p1", 1), ("p2", 1))), runtime="llamacpp").adapters.values()
    assert made.engine_name == "chat"
    assert json.loads(made.fields["lora"]) == [{"id": 1, "scale": 1.0}]
    assert len(made.targets) == 2


def test_replicas_that_number_their_adapters_otherwise_wait() -> None:
    crs = adapter(pods=(("p1", 0), ("p2", 2), ("without", 2)))
    [made] = route_of(crs, runtime="llamacpp").adapters.values()
    assert json.loads(made.fields["lora"])[0]["id"] == 2
    assert made.targets == {("10.0.0.2", 8000), ("10.0.0.3", 8000)}
    assert route_of(adapter(pods=("p1",)), runtime="llamacpp").model.not_loaded == {"sql"}, "its number is not known"


def test_an_adapter_that_ends_is_no_name_though_the_engine_still_lists_it() -> None:
    crs = [adapter(deletionTimestamp="2026-11-28T00:00:00Z", pods=("p1",))]
    services = [("llmkube", {"metadata": {"namespace": "prod", "name": "chat"}, "runtime": "vllm"})]
    said = {CHAT: EngineModels(("org/base",), ("sql", "of-its-arguments"))}
    states = []
    for found in (declared_adapters(crs), {}):
        [route] = routes_of(services, [], said, found)
        states.append(route.engine_state)
        assert route.model.adapters == (("of-its-arguments",) if found else ("sql", "of-its-arguments"))
    assert states[0] != states[1], "the engine is asked again"


def test_adapters_that_are_being_deleted_or_not_valid_are_no_names() -> None:
    crs = [
        adapter(deletionTimestamp="2026-11-28T00:00:00Z", pods=("p1",)),
        adapter("later", creationTimestamp="2026-11-02T00:00:00Z", pods=("p2",)),
        adapter("invalid", spec={"name": "bad", "path": ".."}),
        adapter("elsewhere", spec={"name": "other", "inferenceServiceRef": {"name": "code"}}),
        {"metadata": {"name": "x", "namespace": "prod", "uid": "x"}, "spec": 5, "status": {"pods": "none"}},
    ]
    assert route_of(*crs).model.adapters == ()


@pytest.mark.parametrize("name", ["chat:sql", "prod/chat:sql", "gpt:4:sql", "sql", "org/base:sql"])
def test_every_name_of_the_base_works_also_before_the_adapter_is_loaded(name: str) -> None:
    model = route_of(adapter(), **{"model-aliases": "gpt:4", "served-name": "org/base"}).model
    found = Names.of([model]).find(name)
    assert isinstance(found, Match)
    assert (found.adapter, found.model.not_loaded) == ("sql", {"sql"})


def test_an_adapter_that_does_not_exist_has_similar_names() -> None:
    names = Names.of([route_of(adapter(), adapter("law", spec={"name": "legal"})).model])
    for base in ("chat", "prod/chat"):
        found = names.find(f"{base}:sqk")
        assert isinstance(found, NoMatch)
        assert found.near == (f"{base}:sql", f"{base}:legal")


# --- requests ---------------------------------------------------------------------------------------------------------


def serve(front: Front, *replicas: Engine, having: tuple[Engine, ...], state: str = "ready", **fields: str) -> None:
    targets = frozenset(each.target for each in having)
    not_loaded = frozenset() if targets else frozenset({"sql"})
    model = Model(CHAT, ("org/base",), adapters=("sql",), not_loaded=not_loaded, state=state)
    name = "org/base" if fields else "sql"
    adapters = {"sql": AdapterRoute(targets, name, fields)}
    front.serve_routes(Route(model, tuple(each.target for each in replicas), prefix_hash=False, adapters=adapters))


def bodies(engine: Engine) -> list[Json]:
    return [json.loads(body) for _, body in engine.seen]


def test_only_replicas_that_have_the_adapter_get_its_requests(front: Front, make_engine: Make) -> None:
    having, lacking = make_engine(), make_engine()
    serve(front, having, lacking, having=(having,))
    for _ in range(8):
        assert front.ask({"model": "prod/chat:sql"})[0] == 200
    assert (bodies(having), lacking.seen) == ([{"model": "sql"}] * 8, [])
    for _ in range(20):
        front.ask({"model": "chat"})
    assert lacking.seen, "requests for the model itself go to all replicas"


def test_the_number_of_an_adapter_replaces_that_of_the_client(front: Front, make_engine: Make) -> None:
    engine = make_engine()
    serve(front, engine, having=(engine,), lora='[{"id": 1, "scale": 1.0}]')
    front.ask({"model": "chat:sql", "lora": [{"id": 0, "scale": 9}]})
    front.ask({"model": "chat:sql", "stream": True})
    with_number = {"model": "org/base", "lora": [{"id": 1, "scale": 1.0}]}
    first, second = bodies(engine)
    assert first == with_number
    assert {key: second[key] for key in with_number} == with_number


@pytest.mark.parametrize(
    ("given", "sent"),
    [({}, [{"id": 0, "scale": 0.0}]), ({"lora": []}, [{"id": 0, "scale": 0.0}]), ({"lora": [{"id": 2}]}, [{"id": 2}])],
)
def test_llama_server_is_told_when_a_request_is_for_the_model_itself(
    given: Json, sent: Json, front: Front, make_engine: Make
) -> None:
    engine = make_engine()
    fields = route_of(adapter(), runtime="llamacpp").model_fields
    front.serve_routes(Route(Model(CHAT), (engine.target,), prefix_hash=False, model_fields=fields))
    front.ask({"model": "chat", **given})
    front.ask({"model": "chat"}, "/v1/embeddings")
    assert bodies(engine) == [{"model": "chat", "lora": sent}, {"model": "chat"}]
    assert route_of(adapter()).model_fields == {} == route_of(runtime="llamacpp").model_fields


def test_a_form_is_refused_where_only_a_number_names_the_adapter(front: Front, make_engine: Make) -> None:
    engine = make_engine()
    serve(front, engine, having=(engine,), lora="[]")
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nchat:sql\r\n--b--\r\n'
    told = front.ask(form, "/v1/audio/transcriptions", Content_Type="multipart/form-data; boundary=b")
    assert (told[0], told[2]["error"]["param"], engine.seen) == (400, "model", [])


def test_an_adapter_that_no_replica_has_is_unavailable_and_not_unknown(front: Front, make_engine: Make) -> None:
    engine = make_engine()
    serve(front, engine, having=())
    status, headers, body = front.ask({"model": "chat:sql"})
    assert (status, body["error"]["code"]) == (503, "adapter_not_loaded")
    assert int(headers["retry-after"]) >= 1
    assert engine.seen == []
    states = {each["id"]: (each["status"], each["parent"]) for each in front.get("/v1/models")[1]["data"]}
    assert states["chat:sql"] == ("not loaded", "prod/chat")
    assert states["chat"] == ("ready", None)
    status, _, body = front.ask({"model": "chat:sqk"})
    assert status == 404 and "chat:sql" in body["error"]["message"]


def test_a_replica_that_lost_the_adapter_is_passed_over(front: Front, make_engine: Make) -> None:
    lost, having = make_engine(NOT_FOUND), make_engine()
    serve(front, lost, having, having=(lost, having))
    for _ in range(8):
        assert front.ask({"model": "chat:sql"})[0] == 200
    lost_too = make_engine(NOT_FOUND)
    serve(front, lost, lost_too, having=(lost, lost_too))
    status, _, body = front.ask({"model": "chat:sql"})
    assert (status, body["error"]["code"]) == (503, "adapter_not_loaded")


def test_a_404_of_the_model_itself_is_passed_on(front: Front, make_engine: Make) -> None:
    engine = make_engine(NOT_FOUND)
    serve(front, engine, having=(engine,))
    assert front.ask({"model": "chat"})[0] == 404


def test_a_request_for_an_adapter_wakes_a_service_that_sleeps_once(front: Front, make_engine: Make) -> None:
    awake = threading.Event()

    def waking(*arguments: Any) -> None:
        awake.wait(30)
        OK(*arguments)

    proxy = make_engine(waking)
    serve(front, proxy, having=(), state="asleep")
    for _ in range(3):
        assert front.ask({"model": "chat:sql"})[2]["error"]["code"] == "adapter_not_loaded"
    end = time.monotonic() + 30
    while not proxy.seen and time.monotonic() < end:
        time.sleep(0.01)
    assert [head.split(b"\r\n")[0] for head, _ in proxy.seen] == [b"GET /v1/models HTTP/1.1"]
    awake.set()


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ('{"model": "a"}', '{"lora":[1],"model": "b"}'),
        (' { "n":1, "lora" : {"x": [2]}, "model":"a" }', ' { "n":1, "lora" : [1], "model":"b" }'),
    ],
)
def test_other_bytes_of_a_body_stay_as_they_are(text: str, made: str) -> None:
    body = RequestBody.read(text.encode())
    assert body.with_values({"model": '"b"', "lora": "[1]"}).decode() == made


def test_a_process_on_a_host_is_found_by_its_host() -> None:
    labels = {"kubernetes.io/service-name": "chat", "herdsman.dev/host": "mac"}
    endpoint_slice = {
        "metadata": {"namespace": "prod", "name": "chat", "labels": labels},
        "ports": [{"name": "http", "port": 8000}],
        "endpoints": [{"addresses": ["192.168.1.5"]}],
    }
    cr = adapter()
    cr["status"]["pods"] = [
        {"name": "chat", "host": "mac", "loaded": True, "adapterID": 2},
        {"name": "chat-1", "host": "other", "loaded": True, "adapterID": 2},
    ]
    services = [("llmkube", {"metadata": {"namespace": "prod", "name": "chat"}, "runtime": "llamacpp"})]
    [route] = routes_of(services, [endpoint_slice], {}, declared_adapters([cr]))
    assert route.adapters["sql"].targets == {("192.168.1.5", 8000)}
    assert json.loads(route.adapters["sql"].fields["lora"]) == [{"id": 2, "scale": 1.0}]


def test_the_engine_of_a_playground_is_in_the_status() -> None:
    labels = {"kubernetes.io/service-name": "chat-lb"}
    endpoint_slice = {
        "metadata": {"namespace": "prod", "name": "x", "labels": labels},
        "ports": [{"name": "http", "port": 8000}],
        "endpoints": [{"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": "p1"}}],
    }
    cr = adapter(pods=("p1",), spec={"inferenceServiceRef": {"kind": "Playground", "name": "chat"}})
    cr["status"]["runtime"] = "sglang"
    services = [(name, {"metadata": {"namespace": "prod", "name": "chat"}}) for name in ("llmaz", "kserve")]
    of_llmaz, of_kserve = routes_of(services, [endpoint_slice], {}, declared_adapters([cr]))
    assert of_llmaz.adapters == {"sql": AdapterRoute(frozenset({("10.0.0.1", 8000)}), "chat:sql")}
    assert of_kserve.adapters == {}


def test_while_a_change_waits_the_accepted_version_has_the_name() -> None:
    cr = adapter(pods=("p1",))
    cr["status"] |= {
        "acceptedVersion": {"generation": 1, "spec": cr["spec"]},
        "conditions": [{"type": "ChangePending", "status": "True"}],
    }
    cr["spec"] = {**cr["spec"], "name": "renamed"}
    assert [each.name for each in declared_adapters([cr])[CHAT]] == ["sql"]
    accepted = {"generation": 2, "spec": cr["spec"]}
    cr["metadata"]["generation"] = 2
    cr["status"] |= {"acceptedVersion": accepted, "conditions": [{"type": "ChangePending", "status": "False"}]}
    assert [each.name for each in declared_adapters([cr])[CHAT]] == ["renamed"]


def test_an_adapter_that_names_a_mode_counts_after_the_loop_has_accepted_it() -> None:
    cr = adapter(annotations={"herdsman.dev/mode": "Preview"}, generation=1)
    trimmed = _trimmed_adapter(cr)
    assert declared_adapters([trimmed]) == {}
    deleted = {**trimmed, "metadata": {**trimmed["metadata"], "deletionTimestamp": "2026-11-01T00:00:00Z"}}
    assert declared_adapters([deleted])[CHAT][0].ends, "engines may have it"
    cr["status"] |= {"acceptedVersion": {"generation": 1, "spec": cr["spec"]}}
    assert [each.name for each in declared_adapters([_trimmed_adapter(cr)])[CHAT]] == ["sql"]


def test_a_gateway_that_awaits_policies_knows_no_adapter_before_their_check() -> None:
    cr = adapter(generation=1)
    assert declared_adapters([_trimmed_adapter(cr)], awaits=True) == {}
    cr["status"]["conditions"] = [{"type": "PolicyCompliant", "status": "False", "reason": "PolicyViolated"}]
    assert declared_adapters([_trimmed_adapter(cr)]) == {}, "a policy denies it"


def test_the_engine_that_the_loop_found_in_pods_reaches_the_routes() -> None:
    cr = adapter(pods=("p1",))
    cr["status"]["runtime"] = "sglang"
    assert declared_adapters([_trimmed_adapter(cr)])[CHAT][0].runtime == "sglang"
