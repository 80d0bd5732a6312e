"""From an agent's report on a process to the endpoint that the loop publishes for it, on a real API server.

Covered without any process: heartbeats, repairs, moves, objects that are left alone, refused addresses, the objects and
reports of older agents, and the notice that no endpoint leads to a process any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.contract import EndpointNotice, ProcessPhase, ProcessPlan, ProcessReport
from agent.server.cluster.publisher import Publication, Publisher
from automation.hosts import registration
from automation.hosts.endpoints import HostEndpoints
from automation.hosts.liveness import Liveness
from automation.hosts.registration import Registered, Registration
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict
from kubeapi.informer import Informer
from kubeapi.json_types import Json
from kubeapi.kinds import ENDPOINT_SLICES, HOST_PROCESSES, HOSTS, SERVICES, Kind
from tests.support.controlplane import Api, eventually
from tests.support.definitions import install_crds
from tests.support.endpoints import living, make_host, publishing

READY = ProcessReport(
    phase=ProcessPhase.READY, ready=True, port=18001, address="10.1.2.3", pid=5, observed_generation=1
)
PLAN = ProcessPlan(host="h", service="svc", argv=("x",), service_name="svc", service_port=8080)


@pytest.fixture
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    made = KubeClient.from_kubeconfig(str(kubeconfig))
    yield made
    made.close()


@pytest.fixture
def process(api: Api, namespace: str) -> Json:
    """A HostProcess without any agent."""
    install_crds(api)
    return api.apply(
        HOST_PROCESSES.path(namespace, "svc"),
        {
            "apiVersion": HOST_PROCESSES.api_version,
            "kind": HOST_PROCESSES.kind,
            "metadata": {"name": "svc", "namespace": namespace, "labels": {"herdsman.dev/host": "h"}},
            "spec": PLAN.model_dump(mode="json", by_alias=True, exclude_none=True),
        },
    )


class Desk:
    """The source of the publisher's publications, which the test changes."""

    def __init__(self, publication: Publication | None, api: Api | None = None) -> None:
        """With `api`, each publication has the present HostProcess, as with an agent's watch."""
        self.publication = publication
        self.may_speak = True
        self._api = api

    def look(self, _key: str) -> Publication | None:
        said = self.publication
        if said is None or self._api is None:
            return said
        metadata = said.process["metadata"]
        now = self._api.get(HOST_PROCESSES.path(metadata["namespace"], metadata["name"]))
        return replace(said, process=now or said.process)


@pytest.fixture
def alive() -> Liveness:
    return living("h", "other", "another")


@pytest.fixture
def loop(api: Api, client: KubeClient, namespace: str, process: Json, alive: Liveness) -> Iterator[HostEndpoints]:
    """The part of the loop that publishes endpoints; the host `h` exists and is alive."""
    make_host(client, "h")
    make_host(client, "other", address="10.4.4.4")
    with publishing(client, namespaces=(namespace,), liveness=alive, heartbeat_s=1.0) as made:
        yield made
    for name in ("h", "other"):
        api.delete(HOSTS.path(None, name))


@pytest.fixture
def publish(client: KubeClient, loop: HostEndpoints) -> Iterator[Callable[[Desk], Publisher]]:
    running: list[Publisher] = []

    def start(desk: Desk) -> Publisher:
        made = Publisher(client, host="h", look=desk.look, may_speak=lambda: desk.may_speak, look_again_s=1.0)
        running.append(made)
        made.start()
        return made

    yield start
    for each in running:
        each.stop(last_words=False)


def heartbeat(api: Api, namespace: str) -> str | None:
    found = api.get(ENDPOINT_SLICES.path(namespace, "svc"))
    return found["metadata"]["annotations"][registration.ANNOTATION_HEARTBEAT] if found else None


def test_the_heartbeat_goes_on_and_a_lost_service_comes_back(
    api: Api, namespace: str, process: Json, publish: Callable[[Desk], Publisher]
) -> None:
    publish(Desk(Publication(process, PLAN, READY))).enqueue(f"{namespace}/svc")
    first = eventually(lambda: heartbeat(api, namespace), what="the endpoints")
    eventually(lambda: heartbeat(api, namespace) != first, what="the next heartbeat")
    api.delete(SERVICES.path(namespace, "svc"))
    eventually(lambda: api.get(SERVICES.path(namespace, "svc")), what="the Service to come back")


@pytest.mark.parametrize("kind", [SERVICES, ENDPOINT_SLICES], ids=lambda kind: kind.kind)
def test_a_deleted_object_comes_back_before_the_next_heartbeat(
    api: Api, namespace: str, process: Json, client: KubeClient, alive: Liveness, kind: Kind
) -> None:
    make_host(client, "h")
    with publishing(client, namespaces=(namespace,), liveness=alive, heartbeat_s=3600.0):
        status = {"phase": "Ready", "ready": True, "port": 18001, "host": "h", "observedGeneration": 1}
        client.patch(HOST_PROCESSES, namespace, "svc", {"status": status}, subresource="status")
        eventually(lambda: endpoint_ready(api, namespace), what="the endpoint")
        first = api.get(kind.path(namespace, "svc"))
        assert first is not None
        api.delete(kind.path(namespace, "svc"))
        again = eventually(lambda: api.get(kind.path(namespace, "svc")), what=f"the {kind.kind} to come back")
        assert again["metadata"]["uid"] != first["metadata"]["uid"]
        eventually(lambda: endpoint_ready(api, namespace), what="the endpoint again")
    api.delete(HOSTS.path(None, "h"))


def test_an_unchanged_report_is_written_once(
    api: Api, namespace: str, process: Json, client: KubeClient, publish: Callable[[Desk], Publisher]
) -> None:
    publisher = publish(Desk(Publication(process, PLAN, READY)))
    publisher.enqueue(f"{namespace}/svc")
    path = HOST_PROCESSES.path(namespace, "svc")

    def written() -> Json | None:
        found = api.get(path)
        return found if found and found.get("status") else None

    eventually(written, what="the status")
    first = eventually(lambda: heartbeat(api, namespace), what="the endpoint")
    before = api.get(path)
    assert before is not None
    for _ in range(5):
        publisher.enqueue(f"{namespace}/svc")
        time.sleep(0.05)
    eventually(lambda: heartbeat(api, namespace) != first, what="the next heartbeat")
    after = api.get(path)
    assert after is not None
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert after["status"]["port"] == 18001


def test_a_value_that_is_no_longer_known_leaves_the_status(
    api: Api, namespace: str, process: Json, publish: Callable[[Desk], Publisher]
) -> None:
    desk = Desk(Publication(process, PLAN, READY))
    publisher = publish(desk)
    publisher.enqueue(f"{namespace}/svc")
    path = HOST_PROCESSES.path(namespace, "svc")
    eventually(lambda: (api.get(path) or {}).get("status", {}).get("pid") == 5, what="the status")
    eventually(lambda: endpoint_ready(api, namespace), what="the endpoint")
    desk.publication = Publication(process, PLAN, ProcessReport(phase=ProcessPhase.BACKING_OFF, reason="ProcessExited"))
    publisher.enqueue(f"{namespace}/svc")
    status = eventually(
        lambda: (s := (api.get(path) or {})["status"]).get("phase") == "BackingOff" and s, what="the new status"
    )
    assert "pid" not in status
    eventually(lambda: not endpoint_ready(api, namespace), what="the endpoint to be out")
    found = api.get(ENDPOINT_SLICES.path(namespace, "svc"))
    assert found is not None
    assert found["ports"][0]["port"] == 18001, "the last known port stays while nothing is ready"


def test_endpoints_leave_the_service_on_withdrawal_and_objects_with_the_process(
    api: Api, namespace: str, process: Json, publish: Callable[[Desk], Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.server.cluster.publisher.ENDPOINTS_OUT_S", 60.0)
    desk = Desk(Publication(process, PLAN, READY), api)
    publisher = publish(desk)
    publisher.enqueue(f"{namespace}/svc")
    eventually(lambda: endpoint_ready(api, namespace), what="the endpoints")
    assert publisher.withdrawn(f"{namespace}/svc") is False
    publisher.withdraw()
    found = api.get(ENDPOINT_SLICES.path(namespace, "svc"))
    assert found is not None
    assert found["endpoints"][0]["conditions"]["ready"] is False, "withdrawn when the call returns"
    assert publisher.withdrawn(f"{namespace}/svc") is True
    desk.publication = None
    api.delete(HOST_PROCESSES.path(namespace, "svc"))
    publisher.enqueue(f"{namespace}/svc")
    for kind in (SERVICES, ENDPOINT_SLICES):
        path = kind.path(namespace, "svc")
        eventually(lambda path=path: api.get(path) is None, what=f"{path} to go")


def wanted(namespace: str, **changes: Any) -> Registration:
    base = Registration(
        namespace=namespace,
        service_name="svc",
        service_port=8080,
        inference_service="svc",
        host="h",
        address="10.1.2.3",
        port=18001,
        ready=True,
        owner=None,
        version="1",
    )
    return replace(base, **changes)


def test_a_host_that_moves_from_ipv4_to_ipv6_gets_new_endpoints(api: Api, namespace: str, client: KubeClient) -> None:
    now = datetime.now(UTC)
    registration.register(client, wanted(namespace), now=now)
    registration.register(client, wanted(namespace, address="fd00::7"), now=now)
    found = api.get(ENDPOINT_SLICES.path(namespace, "svc"))
    assert found is not None
    assert (found["addressType"], found["endpoints"][0]["addresses"]) == ("IPv6", ["fd00::7"])


def test_objects_that_an_llmkube_agent_left_are_taken_over_whole(api: Api, namespace: str, client: KubeClient) -> None:
    """The objects are as LLMKube's agent writes them: without an owner, with its labels, and with another address and
    port. The heartbeat is old.
    """
    beat = (datetime.now(UTC) - timedelta(minutes=10)).isoformat(timespec="seconds").replace("+00:00", "Z")
    labels = {"app": "svc", "llmkube.ai/managed-by": "metal-agent", "llmkube.ai/inference-service": "svc"}
    metadata = {"name": "svc", "namespace": namespace, "labels": labels}
    api.create(
        SERVICES.path(namespace),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"ports": [{"name": "http", "port": 8080, "targetPort": 55555}]},
        },
    )
    api.create(
        ENDPOINT_SLICES.path(namespace),
        {
            "apiVersion": ENDPOINT_SLICES.api_version,
            "kind": "EndpointSlice",
            "metadata": {
                **metadata,
                "labels": {**labels, "kubernetes.io/service-name": "svc"},
                "annotations": {registration.ANNOTATION_HEARTBEAT: beat},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.9.9.9"], "conditions": {"ready": True}}],
            "ports": [{"name": "http", "port": 55555}],
        },
    )
    registration.register(client, wanted(namespace), now=datetime.now(UTC))
    found = api.get(ENDPOINT_SLICES.path(namespace, "svc"))
    assert found is not None
    assert [e["addresses"] for e in found["endpoints"]] == [["10.1.2.3"]]
    assert [p["port"] for p in found["ports"]] == [18001]
    service = api.get(SERVICES.path(namespace, "svc"))
    assert service is not None
    assert [p["targetPort"] for p in service["spec"]["ports"]] == [18001]
    assert service["metadata"]["labels"]["herdsman.dev/host"] == "h"


def test_only_this_hosts_objects_are_removed(api: Api, namespace: str, client: KubeClient) -> None:
    registration.register(client, wanted(namespace, host="another"), now=datetime.now(UTC))
    registration.unregister(client, namespace=namespace, service_name="svc", host="h")
    assert api.get(SERVICES.path(namespace, "svc")) is not None
    assert registration.registered(client, namespaces=(namespace,)) == {Registered(namespace, "svc", None, "another")}
    registration.unregister(client, namespace=namespace, service_name="svc", host="another")
    assert api.get(SERVICES.path(namespace, "svc")) is None


def test_a_further_replica_keeps_a_slice_of_its_own_and_leaves_the_service_to_the_first(
    api: Api, namespace: str, client: KubeClient
) -> None:
    now = datetime.now(UTC)
    registration.register(client, wanted(namespace, endpoint_slice="svc-1-abcde", port=18002), now=now)
    assert api.get(SERVICES.path(namespace, "svc")) is None, "the Service is replica 0's to make"
    registration.register(client, wanted(namespace, host="another"), now=now)
    further = api.get(ENDPOINT_SLICES.path(namespace, "svc-1-abcde"))
    assert further is not None
    assert further["metadata"]["labels"]["kubernetes.io/service-name"] == "svc"
    assert further["ports"][0]["port"] == 18002
    known = {Registered(namespace, "svc", "svc-1-abcde", "h"), Registered(namespace, "svc", None, "another")}
    assert registration.registered(client, namespaces=(namespace,)) == known
    registration.unregister(client, namespace=namespace, service_name="svc", host="h", endpoint_slice="svc-1-abcde")
    assert api.get(ENDPOINT_SLICES.path(namespace, "svc-1-abcde")) is None
    for kind in (SERVICES, ENDPOINT_SLICES):
        assert api.get(kind.path(namespace, "svc")) is not None, "the other replica's"


def test_a_further_replica_joins_no_service_of_somebody_else(api: Api, namespace: str, client: KubeClient) -> None:
    foreign = {"spec": {"ports": [{"port": 80}], "selector": {"app": "other"}}, "metadata": {"name": "svc"}}
    api.create(SERVICES.path(namespace), {"apiVersion": "v1", "kind": "Service", **foreign})
    with pytest.raises(registration.Refused):
        registration.register(client, wanted(namespace, endpoint_slice="svc-1-abcde"), now=datetime.now(UTC))
    assert api.get(ENDPOINT_SLICES.path(namespace, "svc-1-abcde")) is None


def test_a_process_that_moved_takes_its_endpoint_along_and_leaves_service_and_status_to_the_other_host(
    api: Api, namespace: str, process: Json, client: KubeClient, publish: Callable[[Desk], Publisher]
) -> None:
    desk = Desk(Publication(process, PLAN, READY))
    publisher = publish(desk)
    publisher.enqueue(f"{namespace}/svc")
    eventually(lambda: endpoint_ready(api, namespace), what="the endpoint")
    address = (api.get(SERVICES.path(namespace, "svc")) or {})["spec"]["clusterIP"]
    moved = {"metadata": {"labels": {"herdsman.dev/host": "other"}}, "spec": {"host": "other"}}
    client.patch(HOST_PROCESSES, namespace, "svc", moved)
    # The old host has not seen the move yet, and reports that the process stops.
    desk.publication = Publication(process, PLAN, ProcessReport(phase=ProcessPhase.STOPPING))
    publisher.enqueue(f"{namespace}/svc")
    eventually(lambda: not endpoint_ready(api, namespace), what="the endpoint to be out")
    time.sleep(0.5)
    assert (api.get(HOST_PROCESSES.path(namespace, "svc")) or {})["status"]["phase"] == "Ready", "no longer its own"
    desk.publication = None
    publisher.enqueue(f"{namespace}/svc")
    eventually(lambda: api.get(ENDPOINT_SLICES.path(namespace, "svc")) is None, what="the endpoint to go")
    time.sleep(0.5)
    assert api.get(ENDPOINT_SLICES.path(namespace, "svc")) is None, "the port on the other host is unknown"
    time.sleep(0.5)
    assert (api.get(SERVICES.path(namespace, "svc")) or {})["spec"]["clusterIP"] == address


def test_a_host_that_slept_through_a_move_takes_no_endpoint_back(
    api: Api, namespace: str, process: Json, client: KubeClient, publish: Callable[[Desk], Publisher]
) -> None:
    moved = {"metadata": {"labels": {"herdsman.dev/host": "other"}}, "spec": {"host": "other"}}
    client.patch(HOST_PROCESSES, namespace, "svc", moved)

    def register() -> bool:
        try:
            registration.register(client, wanted(namespace, host="other", address="10.4.4.4"), now=datetime.now(UTC))
        except Conflict:  # the loop has written the Service in the meantime
            return False
        return True

    eventually(register, what="the endpoint of the other host")
    # The agent's watch has not delivered the change yet.
    publish(Desk(Publication(process, PLAN, READY))).enqueue(f"{namespace}/svc")
    time.sleep(1.5)
    found = api.get(ENDPOINT_SLICES.path(namespace, "svc"))
    assert found is not None
    assert found["endpoints"][0]["addresses"] == ["10.4.4.4"]
    again = {"metadata": {"labels": {"herdsman.dev/host": "h"}}, "spec": {"host": "h"}}
    client.patch(HOST_PROCESSES, namespace, "svc", again)
    back = eventually(
        lambda: (
            (s := api.get(ENDPOINT_SLICES.path(namespace, "svc")))
            and s["metadata"]["labels"]["herdsman.dev/host"] == "h"
            and s
        ),
        what="the endpoint of the host that has it again",
    )
    assert back["endpoints"][0]["addresses"] == ["10.1.2.3"]


def endpoint_ready(api: Api, namespace: str) -> bool:
    found = api.get(ENDPOINT_SLICES.path(namespace, "svc"))
    return bool(found and found["endpoints"][0]["conditions"]["ready"])


def test_a_host_that_may_have_been_called_lost_says_nothing_until_it_knows_and_then_everything_again(
    api: Api, namespace: str, process: Json, client: KubeClient, publish: Callable[[Desk], Publisher], alive: Liveness
) -> None:
    desk = Desk(Publication(process, PLAN, READY))
    publisher = publish(desk)
    publisher.enqueue(f"{namespace}/svc")
    eventually(lambda: endpoint_ready(api, namespace), what="the endpoint")
    desk.may_speak = False
    alive.lose("h")
    eventually(lambda: not endpoint_ready(api, namespace), what="the endpoint to be out")
    desk.publication = Publication(process, PLAN, READY.model_copy(update={"pid": 6}))
    publisher.enqueue(f"{namespace}/svc")
    time.sleep(2.5)
    assert not endpoint_ready(api, namespace), "two heartbeats went by"
    assert (api.get(HOST_PROCESSES.path(namespace, "svc")) or {})["status"]["pid"] == 5
    desk.may_speak = True
    alive.seen("h", {"renewed": "2", "holder": "agent", "duration_s": 3600, "fenced": ""})
    publisher.publish_again()
    eventually(lambda: endpoint_ready(api, namespace), what="the endpoint again")
    eventually(lambda: (api.get(HOST_PROCESSES.path(namespace, "svc")) or {})["status"]["pid"] == 6, what="the status")


def notice(api: Api, namespace: str) -> EndpointNotice | None:
    return EndpointNotice.of((api.get(HOST_PROCESSES.path(namespace, "svc")) or {})["metadata"])


def test_the_loop_answers_each_status_and_a_stop_waits_until_nobody_is_led_to_the_process(
    api: Api, namespace: str, process: Json, publish: Callable[[Desk], Publisher]
) -> None:
    key = f"{namespace}/svc"
    desk = Desk(Publication(process, PLAN, READY), api)
    publisher = publish(desk)
    publisher.enqueue(key)
    eventually(lambda: endpoint_ready(api, namespace), what="the endpoint")
    assert notice(api, namespace) == EndpointNotice(ready=True), "told before anybody is led there"
    assert publisher.withdrawn(key) is False
    desk.publication = Publication(
        process, PLAN, READY.model_copy(update={"phase": ProcessPhase.STOPPING, "ready": False})
    )
    publisher.enqueue(key)
    eventually(lambda: publisher.withdrawn(key), what="the loop's word")
    assert not endpoint_ready(api, namespace), "told after nobody is led there any more"


def test_an_address_that_is_never_a_hosts_is_led_to_by_nobody_and_named_in_the_status(
    api: Api, namespace: str, process: Json, client: KubeClient, publish: Callable[[Desk], Publisher]
) -> None:
    desk = Desk(Publication(process, PLAN, READY), api)
    publisher = publish(desk)
    publisher.enqueue(f"{namespace}/svc")
    eventually(lambda: endpoint_ready(api, namespace), what="the endpoint")
    client.patch(HOSTS, None, "h", {"status": {"address": "169.254.169.254"}}, subresource="status")
    eventually(lambda: not endpoint_ready(api, namespace), what="the endpoint to be out")
    eventually(lambda: (n := notice(api, namespace)) and n.reason == "AddressRefused", what="the reason")
    publisher.enqueue(f"{namespace}/svc")

    def told() -> Json | None:
        status: Json = (api.get(HOST_PROCESSES.path(namespace, "svc")) or {})["status"]
        return status if status.get("reason") == "AddressRefused" else None

    status = eventually(told, what="the reason in the status")
    assert "link-local" in status["message"] and status.get("ready") is False
    # The address in the Host's spec takes precedence over the agent's.
    client.patch(HOSTS, None, "h", {"spec": {"address": "10.8.8.8"}})

    def led_to() -> list[str]:
        return (api.get(ENDPOINT_SLICES.path(namespace, "svc")) or {})["endpoints"][0]["addresses"]

    eventually(lambda: endpoint_ready(api, namespace) and led_to() == ["10.8.8.8"], what="the owner's address")


def test_what_an_older_agent_made_is_taken_over_without_a_gap_and_kept_after_the_agent_lost_its_rights(
    api: Api, namespace: str, process: Json, client: KubeClient, alive: Liveness
) -> None:
    """The older agent wrote Service and EndpointSlice itself, and reports RegistrationFailed when the API server
    refuses.
    """
    make_host(client, "h")
    status = {"phase": "Ready", "ready": True, "port": 18001, "observedGeneration": 1}
    client.patch(HOST_PROCESSES, namespace, "svc", {"status": status}, subresource="status")
    registration.register(client, wanted(namespace, owner=registration.owner_reference(process)), now=datetime.now(UTC))
    before = api.get(ENDPOINT_SLICES.path(namespace, "svc"))
    assert before is not None
    states: list[bool] = []

    def seen(_old: Json | None, new: Json | None) -> None:
        states.append(new is not None and bool(new["endpoints"][0]["conditions"]["ready"]))

    watch = Informer(client, ENDPOINT_SLICES, namespaces=[namespace], on_change=seen)
    watch.start()
    assert watch.wait_synced(60)
    with publishing(client, namespaces=(namespace,), liveness=alive, heartbeat_s=1.0):
        eventually(lambda: heartbeat(api, namespace) != beat_of(before), what="the loop to renew the heartbeat")
        refused = {"ready": False, "reason": "RegistrationFailed", "message": "services is forbidden"}
        client.patch(HOST_PROCESSES, namespace, "svc", {"status": refused}, subresource="status")
        then = heartbeat(api, namespace)
        eventually(lambda: heartbeat(api, namespace) != then, what="the next heartbeat")
        now = api.get(ENDPOINT_SLICES.path(namespace, "svc"))
        assert now is not None
        assert now["metadata"]["uid"] == before["metadata"]["uid"]
        assert {entry["manager"] for entry in now["metadata"]["managedFields"]} == {"herdsman-agent"}
        watch.stop()
        assert states and all(states), "the endpoint was never out"
        client.patch(HOST_PROCESSES, namespace, "svc", {"status": {"phase": "BackingOff"}}, subresource="status")
        eventually(lambda: not endpoint_ready(api, namespace), what="the endpoint of a crashed process to be out")


def beat_of(endpoints: Json) -> str:
    return str(endpoints["metadata"]["annotations"][registration.ANNOTATION_HEARTBEAT])


def test_a_write_that_was_held_up_undoes_nothing_that_was_said_since(
    api: Api, namespace: str, client: KubeClient
) -> None:
    now = datetime.now(UTC)
    registration.register(client, wanted(namespace), now=now)
    held_up = registration._at_version(
        registration.slice_object(wanted(namespace), now=now), client.get(ENDPOINT_SLICES, namespace, "svc")
    )
    registration.register(client, wanted(namespace, host="another", address="10.4.4.4"), now=now)
    with pytest.raises(Conflict):
        client.apply(ENDPOINT_SLICES, namespace, held_up, field_manager=registration.FIELD_MANAGER, force=True)
    found = api.get(ENDPOINT_SLICES.path(namespace, "svc"))
    assert found is not None
    assert found["endpoints"][0]["addresses"] == ["10.4.4.4"]
