"""Both registrars send the same requests for a fleet, whatever the engine answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime.proto.engine_pb2 import LogRequest
from pulumi.runtime.proto.engine_pb2_grpc import EngineServicer, add_EngineServicer_to_server
from pulumi.runtime.proto.language_pb2 import RunRequest, RunResponse
from pulumi.runtime.proto.resource_pb2 import RegisterResourceRequest

from automation.engine.fleet_run import FleetProgram, run_fleet
from components import naming
from components.component_resources import COMPONENTS, FleetTarget
from components.kubernetes_object import cluster_provider
from components.rendered import RenderedObject, RenderedService
from kubeapi.json_types import Json
from program.fleet import static_fleet
from program.registrars import SdkRegistrar
from program.static.config import Cluster, FleetConfig
from program.static.plugin import KubernetesPlugin
from program.static.reading import PlacedService
from program.static.registering import FleetRegistrars
from tests.conformance.test_described_objects_stay import rendered
from tests.fakes.rendered import cache, key, service
from tests.support.recorded_monitor import Answer, Recorded, recording, without_engine
from tests.support.sdk_programs import run_fleet_by_sdk, sdk_program

STACK = "default"


@pytest.fixture
def logged() -> Iterator[tuple[str, list[str]]]:
    """The address of the engine's log, and its messages."""
    messages: list[str] = []

    class Log(EngineServicer):
        def Log(self, request: LogRequest, context: Any) -> Any:
            messages.append(request.message)
            return Empty()

    with ThreadPoolExecutor(max_workers=4) as threads:
        server = grpc.server(threads)
        add_EngineServicer_to_server(Log(), server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        yield address, messages
        server.stop(grace=None).wait()


Run = Callable[[FleetProgram, Sequence[RenderedService], Answer], tuple[Recorded, RunResponse]]


@pytest.fixture
def run(logged: tuple[str, list[str]]) -> Run:
    """Run a program with a monitor that records, and answers as `answer` says."""

    def result(program: FleetProgram, services: Sequence[RenderedService], answer: Answer) -> Any:
        recorded = Recorded()
        with recording(recorded, answer) as address:
            request = RunRequest(
                project=naming.PROJECT, stack=STACK, monitor_address=address, args=[logged[0]], parallel=8
            )
            # The server runs programs in threads. In the main thread, asyncio would close pytest's event loop.
            with ThreadPoolExecutor(max_workers=1) as thread:
                return recorded, thread.submit(program, services, request).result()

    return result


def refused(*names: str) -> Callable[[RegisterResourceRequest], bool]:
    """Let the engine fail to make the resources with these logical names."""
    return lambda request: bool(request.custom) and request.name in names


SERVICES = (
    service("a", autoscaled=True, cached=True),
    service("b", cached=True),
    service("c", autoscaled=True),
    RenderedService.of(key("shared-only"), (), (cache(),)),
    RenderedService.of(
        key("ignored"),
        tuple(
            RenderedObject(obj.part, obj.component, obj.manifest, ignore=("spec.replicas", "spec.x"))
            for obj in service("ignored").objects
        ),
    ),
)


@pytest.mark.parametrize(
    "failing",
    [
        pytest.param((), id="nothing"),
        pytest.param(("llmkube/a/hpa",), id="an accessory"),
        pytest.param(("llmkube/a/service",), id="a needed object"),
        pytest.param((f"cache/{naming.CACHE_CLAIM}/claim",), id="a shared object"),
        pytest.param(("llmkube/a/deployment", "llmkube/b/deployment"), id="last objects"),
    ],
)
def test_the_same_services_give_the_same_requests(run: Run, failing: tuple[str, ...]) -> None:
    recorded, answered = run(run_fleet, SERVICES, without_engine(STACK, failing=refused(*failing)))
    by_sdk, answered_by_sdk = run(run_fleet_by_sdk, SERVICES, without_engine(STACK, failing=refused(*failing)))
    names = {request["name"] for request in recorded.registrations()}
    assert names >= {"llmkube/a/hpa", "llmkube/b/deployment", *failing}
    assert recorded.registrations() == by_sdk.registrations()
    assert recorded.outputs() == by_sdk.outputs()
    assert answered == answered_by_sdk == RunResponse()
    assert recorded.calls[-1][0] == by_sdk.calls[-1][0] == "SignalAndWaitForShutdown"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["kserve", "llmaz"])
def test_every_object_of_a_dialect_gives_the_same_request(run: Run, family: str) -> None:
    objects = [obj for _, obj in rendered(family)]
    services = [RenderedService.of(key(f"s{number}"), (obj,)) for number, obj in enumerate(objects)]
    recorded, _ = run(run_fleet, services, without_engine(STACK))
    by_sdk, _ = run(run_fleet_by_sdk, services, without_engine(STACK))
    assert len(recorded.registrations()) > len(objects) > 0
    assert recorded.registrations() == by_sdk.registrations()


def test_values_of_each_json_type_are_sent_as_the_sdk_sends_them(run: Run) -> None:
    data: Json = {
        "none": None,
        "yes": True,
        "whole": 3,
        "half": 0.5,
        "large": 2**40,
        "empty": {},
        "list": [1, [], None],
    }
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": data, "absent": None}
    services = [RenderedService.of(key("a"), (RenderedObject("map", naming.TYPE_SERVICE, manifest),))]
    recorded, _ = run(run_fleet, services, without_engine(STACK))
    by_sdk, _ = run(run_fleet_by_sdk, services, without_engine(STACK))
    assert recorded.registrations() == by_sdk.registrations()
    (request,) = [found for found in recorded.registrations() if found["name"] == "llmkube/a/map"]
    assert request["object"]["data"] == data and "absent" not in request["object"]


def test_both_registrars_know_the_same_components() -> None:
    assert set(COMPONENTS) == naming.SERVICE_COMPONENT_TYPES


@pytest.mark.parametrize("program", [run_fleet, run_fleet_by_sdk], ids=["monitor", "sdk"])
def test_an_object_without_a_component_ends_the_program(
    run: Run, program: FleetProgram, logged: tuple[str, list[str]]
) -> None:
    manifest = service("a").objects[0].manifest
    strange = RenderedService.of(key("a"), (RenderedObject("x", "herdsman:index:Unknown", manifest),))
    _, answered = run(program, [strange], without_engine(STACK))
    (message,) = [each for each in logged[1] if "herdsman:index:Unknown" in each]
    assert answered.error == message


@pytest.mark.parametrize("program", [run_fleet, run_fleet_by_sdk], ids=["monitor", "sdk"])
def test_a_refused_request_ends_the_program_after_the_other_services(
    run: Run, program: FleetProgram, logged: tuple[str, list[str]]
) -> None:
    class Refused(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.INVALID_ARGUMENT

        def details(self) -> str:
            return "no such type"

    def answer(method: str, raw: bytes) -> bytes:
        if method == "RegisterResource" and RegisterResourceRequest.FromString(raw).name == "llmkube/a/service":
            raise Refused
        return without(method, raw)

    without = without_engine(STACK)
    recorded, answered = run(program, SERVICES, answer)
    assert "no such type" in answered.error
    assert any("no such type" in message for message in logged[1])
    names = {request["name"] for request in recorded.registrations()}
    assert {"llmkube/b/deployment", "llmkube/c/deployment"} <= names
    assert recorded.calls[-1][0] != "SignalAndWaitForShutdown"


def test_a_program_ends_when_its_engine_ends(logged: tuple[str, list[str]]) -> None:
    recorded, reached, ended = Recorded(), threading.Event(), threading.Event()
    without = without_engine(STACK)

    def answer(method: str, raw: bytes) -> bytes:
        if method == "RegisterResource" and RegisterResourceRequest.FromString(raw).name == "llmkube/a/service":
            reached.set()
            ended.wait(30)
        return without(method, raw)

    answers: list[RunResponse] = []
    with recording(recorded, answer) as address:
        request = RunRequest(project=naming.PROJECT, stack=STACK, monitor_address=address, args=[logged[0]])
        program = threading.Thread(target=lambda: answers.append(run_fleet(SERVICES, request)))
        program.start()
        assert reached.wait(30)
        threading.Timer(0.5, ended.set).start()
    program.join(30)
    assert not program.is_alive()
    assert answers[0].error.startswith("the engine ended before the program")
    assert logged[1] == [], "an engine that has ended takes no log"


def test_programs_in_one_process_share_no_state(run: Run) -> None:
    """The SDK keeps stack, engine and the registrations under way in variables of the context."""
    results: dict[int, list[Json]] = {}

    def one(number: int) -> None:
        mine = [service(f"s{number}-{each}") for each in range(20)]
        recorded, answered = run(run_fleet, mine, without_engine(STACK))
        assert not answered.error
        results[number] = recorded.registrations()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == [0, 1, 2, 3]
    for number, requests in results.items():
        names = {request["name"] for request in requests if request["type"] != naming.PULUMI_STACK_TYPE}
        assert len(names) == 20 * 3 and all(name.startswith(f"llmkube/s{number}-") for name in names)


# --- Static fleets ----------------------------------------------------------------------------------------------------

AT = "@default@eu"
EXISTING = frozenset({("kubernetes:core/v1:Service", "default/a")})


def static_by_sdk(services: Sequence[RenderedService], request: RunRequest) -> RunResponse:
    """Register services at a cluster with its own provider, by the SDK's components."""

    async def program() -> None:
        plugin = KubernetesPlugin.PULUMI
        provider = cluster_provider("eu", context="main", kubeconfig="", version=plugin.version)
        registrar = SdkRegistrar(FleetTarget(AT, existing=EXISTING, version=plugin.version, provider=provider))
        await static_fleet((service, registrar) for service in services)

    return sdk_program(program)(request)


def static(services: Sequence[RenderedService], request: RunRequest) -> RunResponse:
    """Register services at a cluster with its own provider, as `program.__main__` does."""
    config, cluster = FleetConfig(plugin=KubernetesPlugin.PULUMI), Cluster((), name="eu")

    async def program() -> None:
        provider = cluster_provider("eu", context="main", kubeconfig="", version=config.plugin.version)
        registrars = await FleetRegistrars.of_run(config, providers={"eu": provider}, existing={"eu": EXISTING})
        # The registrars do not read the desired state.
        placed = [PlacedService(None, service, cluster, AT) for service in services]  # type: ignore[arg-type]
        try:
            await static_fleet((each.rendered, registrars.of(each)) for each in placed)
        finally:
            await registrars.finish()

    return sdk_program(program)(request)


def test_a_static_fleet_sends_the_requests_of_the_sdks_components(run: Run) -> None:
    recorded, answered = run(static, SERVICES, without_engine(STACK))
    by_sdk, answered_by_sdk = run(static_by_sdk, SERVICES, without_engine(STACK))
    assert answered == answered_by_sdk == RunResponse()
    assert recorded.registrations() == by_sdk.registrations()
    assert recorded.outputs() == by_sdk.outputs()
    assert [name for name, _ in recorded.calls].count("SignalAndWaitForShutdown") == 1
    requests = {request["name"]: request for request in recorded.registrations()}
    provider = f"urn:pulumi:{STACK}::herdsman::pulumi:providers:kubernetes::eu::eu"
    assert requests[f"llmkube/b{AT}/deployment"]["provider"] == provider
    assert requests[f"llmkube/b{AT}"]["providers"] == {"kubernetes": provider}
    assert requests[f"llmkube/a{AT}/service"]["importId"] == "default/a"
    own, shared = f"llmkube/a{AT}/service", f"cache/{naming.CACHE_CLAIM}{AT}/claim"
    assert {urn.rpartition("::")[2] for urn in requests[f"llmkube/a{AT}/deployment"]["dependencies"]} >= {own, shared}


def test_a_static_fleet_with_a_failed_object_ends_with_an_error_that_names_the_service(run: Run) -> None:
    """The engine would delete the last object, which was not registered, after a program without an error."""
    recorded, answered = run(static, SERVICES, without_engine(STACK, failing=refused(f"llmkube/a{AT}/service")))
    names = {request["name"] for request in recorded.registrations()}
    assert f"llmkube/a{AT}/deployment" not in names
    assert f"llmkube/c{AT}/deployment" in names
    assert "FleetIncomplete: default/a" in answered.error
    assert "SignalAndWaitForShutdown" not in [name for name, _ in recorded.calls]
