"""An agent that takes its plans from a real API server, with real llama-servers as endpoints of the cluster's Services.

Covered: endpoints and status, ownership and garbage collection, foreign objects, outages of the API server, replaced
plans, the host's Lease, clean stop, leftovers of an earlier agent.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from agent.contract import ProcessPlan
from agent.server.host_facts import own_address
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists
from kubeapi.json_types import Json
from kubeapi.kinds import (
    ENDPOINT_SLICES,
    HOST_PROCESSES,
    HOSTS,
    INFERENCE_SERVICES,
    LEASES,
    NAMESPACES,
    SERVICES,
)
from tests.support.agents import REACHED, AgentProcess, agent, gone, llama_plan
from tests.support.controlplane import Api, eventually
from tests.support.definitions import install_crds
from tests.support.endpoints import publishing
from tools.localcluster import LocalCluster

StartAgent = Callable[..., AgentProcess]


@pytest.fixture(scope="module")
def hosts_api(api: Api, control_plane: LocalCluster) -> Iterator[Api]:
    """The shared control plane with Herdsman's CRDs, and the part of the loop that publishes endpoints."""
    install_crds(api)
    with published_on(control_plane):
        yield api


@contextmanager
def published_on(cluster: LocalCluster) -> Iterator[None]:
    client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "herdsman-system"}}
    with suppress(AlreadyExists):
        client.create(NAMESPACES, None, namespace)
    with publishing(client):
        yield
    client.close()


@pytest.fixture
def start_agent(tmp_path: Path, tiny_model: Path) -> Iterator[StartAgent]:
    """Start agents of hosts by name; they and their processes end with the test."""
    with ExitStack() as stack:

        def start(cluster: LocalCluster, host: str, *arguments: str, store: str = "store") -> AgentProcess:
            made = stack.enter_context(
                agent(
                    tmp_path / store,
                    *("--kubeconfig", str(cluster.kubeconfig), "--allowed-host-path-roots", str(tiny_model.parent)),
                    *(REACHED if "--listen" not in arguments else ()),
                    *arguments,
                    host=host,
                )
            )
            made.start()
            return made

        yield start


@pytest.fixture
def outage(fresh_control_plane: Callable[..., LocalCluster]) -> Iterator[ExitStack]:
    """A stack of contexts that close before the control plane of the test stops."""
    with ExitStack() as stack:
        yield stack


def host_process(api: Api, namespace: str, host: str, plan: ProcessPlan, *, owner: Json | None = None) -> Json:
    """Apply a HostProcess as the loop does, owned by an InferenceService."""
    name = plan.service
    owner = owner or inference_service(api, namespace, name)
    return api.apply(
        HOST_PROCESSES.path(namespace, name),
        {
            "apiVersion": HOST_PROCESSES.api_version,
            "kind": HOST_PROCESSES.kind,
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {"herdsman.dev/host": host},
                "ownerReferences": [
                    {
                        "apiVersion": owner["apiVersion"],
                        "kind": owner["kind"],
                        "name": name,
                        "uid": owner["metadata"]["uid"],
                        "controller": True,
                        "blockOwnerDeletion": True,
                    }
                ],
            },
            "spec": plan.model_copy(update={"host": host}).model_dump(mode="json", by_alias=True, exclude_none=True),
        },
    )


def inference_service(api: Api, namespace: str, name: str) -> Json:
    path = INFERENCE_SERVICES.path(namespace, name)
    body = {
        "apiVersion": INFERENCE_SERVICES.api_version,
        "kind": INFERENCE_SERVICES.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"modelRef": name},
    }
    return api.apply(path, body)


def status(api: Api, namespace: str, name: str = "tiny") -> Json:
    found = api.get(HOST_PROCESSES.path(namespace, name)) or {}
    return dict(found.get("status") or {})


def until_ready(api: Api, namespace: str, name: str = "tiny", *, timeout_s: float = 90) -> Json:
    def look() -> Json | None:
        seen = status(api, namespace, name)
        return seen if seen.get("phase") == "Ready" and seen.get("ready") else None

    return eventually(look, what=f"{name} to be ready", timeout_s=timeout_s)


def until_served(api: Api, namespace: str, name: str = "tiny", *, timeout_s: float = 90) -> Json:
    """Wait until the process is ready and is an endpoint of its Service; return the status of its HostProcess."""
    report = until_ready(api, namespace, name, timeout_s=timeout_s)

    def led_to() -> bool:
        found = api.get(ENDPOINT_SLICES.path(namespace, name))
        ready = found is not None and found["endpoints"][0]["conditions"]["ready"]
        return bool(ready and found is not None and found["ports"][0]["port"] == report["port"])

    eventually(led_to, what=f"the endpoint of {name}")
    return report


def endpoint(api: Api, namespace: str, name: str = "tiny") -> Json:
    found = api.get(ENDPOINT_SLICES.path(namespace, name))
    assert found is not None
    return {**found["endpoints"][0], "port": found["ports"][0]["port"], "metadata": found["metadata"]}


def host_says(api: Api, host: str, process: str) -> Json | None:
    """Return the status of a Host if it lists the process as Ready, otherwise None."""
    status = (api.get(HOSTS.path(None, host)) or {}).get("status") or {}
    ready = [p["name"] for p in status.get("processes") or () if p.get("phase") == "Ready"]
    return status if any(name.endswith(f"/{process}") for name in ready) else None


def unique_host(namespace: str) -> str:
    return f"host-{namespace}"


def test_a_planned_process_serves_behind_service_and_endpoints_of_its_inference_service(
    control_plane: LocalCluster,
    hosts_api: Api,
    namespace: str,
    llama_server: Path,
    tiny_model: Path,
    start_agent: StartAgent,
) -> None:
    host = unique_host(namespace)
    owner = inference_service(hosts_api, namespace, "tiny")
    start_agent(control_plane, host)
    applied = time.monotonic()
    host_process(hosts_api, namespace, host, llama_plan(tiny_model, service_port=9001), owner=owner)
    report = until_served(hosts_api, namespace)
    assert time.monotonic() - applied < 60
    service = hosts_api.get(SERVICES.path(namespace, "tiny"))
    assert service is not None
    assert service["metadata"]["labels"] == {
        "app": "tiny",
        "llmkube.ai/managed-by": "metal-agent",
        "llmkube.ai/inference-service": "tiny",
        "herdsman.dev/host": host,
    }
    assert service["spec"]["ports"][0]["port"] == 9001
    assert "selector" not in service["spec"]
    found = endpoint(hosts_api, namespace)
    assert found["conditions"]["ready"] is True
    assert found["port"] == report["port"]
    assert found["addresses"] == [own_address()]
    assert report["address"] == own_address(), "clients are led to where the process listens"
    assert found["metadata"]["labels"]["kubernetes.io/service-name"] == "tiny"
    assert found["metadata"]["annotations"]["llmkube.ai/agent-heartbeat"].endswith("Z")
    for each in (service, found):
        assert [o["uid"] for o in each["metadata"]["ownerReferences"]] == [owner["metadata"]["uid"]]
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}).encode()
    url = f"http://{found['addresses'][0]}:{found['port']}/v1/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] >= 1
    lease = hosts_api.get(LEASES.path("herdsman-system", f"herdsman-host-{host}"))
    assert lease is not None
    assert lease["spec"]["leaseDurationSeconds"] == 12
    assert not lease["metadata"].get("annotations"), "a Lease is small: it is written every few seconds"
    said = eventually(lambda: host_says(hosts_api, host, "tiny"), what="the Host to name the process")
    assert said["address"] == own_address()
    assert "llama-server" in said["runtimes"]
    assert said["capacity"]["memory"] >= said["allocatable"]["memory"] > 0
    conditions = {c["type"]: (c["status"], c["reason"]) for c in said["conditions"]}
    assert conditions["Ready"] == ("True", "AgentRunning")
    assert conditions["Schedulable"] == ("True", "Open")


def test_a_process_taken_off_the_host_takes_its_endpoints_with_it_though_the_service_stays(
    control_plane: LocalCluster,
    hosts_api: Api,
    namespace: str,
    llama_server: Path,
    tiny_model: Path,
    start_agent: StartAgent,
) -> None:
    host = unique_host(namespace)
    start_agent(control_plane, host)
    host_process(hosts_api, namespace, host, llama_plan(tiny_model))
    report = until_served(hosts_api, namespace)
    hosts_api.delete(HOST_PROCESSES.path(namespace, "tiny"))
    assert gone(report["pid"])
    for kind in (SERVICES, ENDPOINT_SLICES):
        path = kind.path(namespace, "tiny")
        eventually(lambda path=path: hosts_api.get(path) is None, what=f"{path} to go")
    assert hosts_api.get(INFERENCE_SERVICES.path(namespace, "tiny")) is not None


def test_what_was_removed_while_no_agent_ran_is_stopped_and_cleared_by_the_next(
    control_plane: LocalCluster,
    hosts_api: Api,
    namespace: str,
    llama_server: Path,
    tiny_model: Path,
    start_agent: StartAgent,
) -> None:
    host = unique_host(namespace)
    running = start_agent(control_plane, host)
    host_process(hosts_api, namespace, host, llama_plan(tiny_model))
    report = until_served(hosts_api, namespace)
    running.kill()
    hosts_api.delete(HOST_PROCESSES.path(namespace, "tiny"))
    running.start()
    assert gone(report["pid"])
    eventually(lambda: hosts_api.get(SERVICES.path(namespace, "tiny")) is None, what="the Service to go")


def test_an_agent_killed_and_started_keeps_the_process_and_the_endpoint_ready(
    control_plane: LocalCluster,
    hosts_api: Api,
    namespace: str,
    llama_server: Path,
    tiny_model: Path,
    start_agent: StartAgent,
) -> None:
    host = unique_host(namespace)
    running = start_agent(control_plane, host)
    host_process(hosts_api, namespace, host, llama_plan(tiny_model))
    before = until_served(hosts_api, namespace)
    version = endpoint(hosts_api, namespace)["metadata"]["generation"]
    running.kill()
    running.start()
    eventually(lambda: "Adopted" in running.output, what="the adoption")
    time.sleep(2)
    assert status(hosts_api, namespace) == before
    after = endpoint(hosts_api, namespace)
    assert after["conditions"]["ready"] is True
    assert after["metadata"]["generation"] == version, "the endpoint was never taken out of service"


def test_a_foreign_service_of_the_name_is_left_alone_and_named(
    control_plane: LocalCluster,
    hosts_api: Api,
    namespace: str,
    llama_server: Path,
    tiny_model: Path,
    start_agent: StartAgent,
) -> None:
    host = unique_host(namespace)
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "tiny", "namespace": namespace},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "other"}},
    }
    made = hosts_api.apply(SERVICES.path(namespace, "tiny"), foreign, manager="somebody-else")
    start_agent(control_plane, host)
    host_process(hosts_api, namespace, host, llama_plan(tiny_model))
    blocked = eventually(
        lambda: (s := status(hosts_api, namespace)).get("reason") == "ForeignService" and s, what="the refusal"
    )
    assert "somebody-else" in blocked["message"]
    assert blocked.get("ready") is False
    now = hosts_api.get(SERVICES.path(namespace, "tiny"))
    assert now is not None
    assert now["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    hosts_api.delete(SERVICES.path(namespace, "tiny"))
    until_served(hosts_api, namespace)


def test_a_changed_plan_moves_the_endpoint_only_after_the_old_process_ended(
    control_plane: LocalCluster,
    hosts_api: Api,
    namespace: str,
    llama_server: Path,
    tiny_model: Path,
    start_agent: StartAgent,
) -> None:
    host = unique_host(namespace)
    running = start_agent(control_plane, host)
    host_process(hosts_api, namespace, host, llama_plan(tiny_model))
    first = until_served(hosts_api, namespace)
    changed = host_process(hosts_api, namespace, host, llama_plan(tiny_model, extra=("--alias", "renamed")))
    eventually(
        lambda: status(hosts_api, namespace).get("observedGeneration") == changed["metadata"]["generation"],
        what="the new generation to be seen",
    )
    second = eventually(
        lambda: (s := status(hosts_api, namespace)).get("pid") != first["pid"] and s.get("ready") and s,
        what="the replacement",
    )
    assert gone(first["pid"], timeout_s=1)
    assert [p.pid for p in running.processes()] == [second["pid"]]


def test_a_plan_that_cannot_be_read_is_reported_and_the_running_process_stays(
    control_plane: LocalCluster,
    hosts_api: Api,
    namespace: str,
    llama_server: Path,
    tiny_model: Path,
    start_agent: StartAgent,
) -> None:
    host = unique_host(namespace)
    start_agent(control_plane, host)
    host_process(hosts_api, namespace, host, llama_plan(tiny_model))
    before = until_served(hosts_api, namespace)
    path = HOST_PROCESSES.path(namespace, "tiny")
    merge = "application/merge-patch+json"
    assert hosts_api.request("PATCH", path, {"spec": {"host": "another"}}, content_type=merge)[0] == 200
    seen = eventually(
        lambda: (s := status(hosts_api, namespace)).get("reason") == "PlanInvalid" and s, what="the complaint"
    )
    assert "spec.host" in seen["message"]
    assert seen["pid"] == before["pid"]
    assert hosts_api.request("PATCH", path, {"spec": {"host": host}}, content_type=merge)[0] == 200
    assert until_served(hosts_api, namespace)["pid"] == before["pid"]


@pytest.mark.soak
def test_an_api_server_outage_harms_no_process_and_is_caught_up_with(
    fresh_control_plane: Callable[..., LocalCluster],
    llama_server: Path,
    tiny_model: Path,
    start_agent: StartAgent,
    outage: ExitStack,
) -> None:
    cluster = fresh_control_plane(components=("etcd", "kube-apiserver"))
    api = Api(cluster)
    install_crds(api)
    outage.enter_context(published_on(cluster))
    running = start_agent(cluster, "outage-host")
    host_process(api, "default", "outage-host", llama_plan(tiny_model))
    before = until_served(api, "default")
    server = next(part for part in cluster.status().components if part.name == "kube-apiserver")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert gone(server.pid)
    time.sleep(6)
    assert [p.pid for p in running.processes()] == [before["pid"]], "no answer is no deletion"
    # The process also survives an agent that starts while the API server is away.
    running.kill()
    running.start()
    os.kill(before["pid"], signal.SIGKILL)
    after = eventually(
        lambda: [p.pid for p in running.processes() if p.pid != before["pid"]], what="a restart without API server"
    )
    cluster.up()
    caught_up = eventually(
        lambda: (s := status(api, "default")).get("pid") == after[0] and s.get("ready") and s,
        what="the status to catch up",
        timeout_s=40,
    )
    assert caught_up["restarts"] == 1
    eventually(lambda: endpoint(api, "default")["conditions"]["ready"], what="the endpoint", timeout_s=60)


def test_a_stopped_agent_takes_its_endpoints_out_of_service(
    control_plane: LocalCluster,
    hosts_api: Api,
    namespace: str,
    llama_server: Path,
    tiny_model: Path,
    start_agent: StartAgent,
) -> None:
    host = unique_host(namespace)
    running = start_agent(control_plane, host)
    host_process(hosts_api, namespace, host, llama_plan(tiny_model))
    report = until_served(hosts_api, namespace)
    assert running.stop() == 0
    assert gone(report["pid"], timeout_s=1)
    assert endpoint(hosts_api, namespace)["conditions"]["ready"] is False, "out before the process was stopped"
    seen = status(hosts_api, namespace)
    assert (seen["phase"], seen["ready"]) == ("Stopped", False)
    lease = hosts_api.get(LEASES.path("herdsman-system", f"herdsman-host-{host}"))
    assert lease is not None
    assert not lease["spec"].get("holderIdentity")
    said = (hosts_api.get(HOSTS.path(None, host)) or {})["status"]
    assert ("False", "AgentStopped") in [(c["status"], c["reason"]) for c in said["conditions"]]
    running.start()
    until_served(hosts_api, namespace)


def test_a_process_that_listens_where_no_client_comes_is_not_ready_and_says_what_to_do(
    control_plane: LocalCluster,
    hosts_api: Api,
    namespace: str,
    llama_server: Path,
    tiny_model: Path,
    start_agent: StartAgent,
) -> None:
    """An engine that listens on loopback is not reachable at the host's address, which its Service uses."""
    host = unique_host(namespace)
    running = start_agent(control_plane, host, "--listen", "127.0.0.1")
    host_process(hosts_api, namespace, host, llama_plan(tiny_model))
    told = eventually(
        lambda: (s := status(hosts_api, namespace)).get("reason") == "AddressNotAnswering" and s, what="the reason"
    )
    assert (told["phase"], told["ready"]) == ("Ready", False)
    assert f"start the agent with `--listen {own_address()}`" in told["message"]
    found = hosts_api.get(ENDPOINT_SLICES.path(namespace, "tiny"))
    assert found is None or not found["endpoints"][0]["conditions"]["ready"]
    running.kill()
    start_agent(control_plane, host)
    until_served(hosts_api, namespace)


def test_a_second_agent_of_the_same_host_refuses_to_start(
    control_plane: LocalCluster, hosts_api: Api, namespace: str, tmp_path: Path, start_agent: StartAgent
) -> None:
    host = unique_host(namespace)
    start_agent(control_plane, host)
    with agent(tmp_path / "other", "--kubeconfig", str(control_plane.kubeconfig), host=host) as second:
        assert second.run() == 1
        assert "another agent" in second.output


def test_an_agent_whose_host_was_taken_over_ends_and_stops_its_processes(
    control_plane: LocalCluster,
    hosts_api: Api,
    namespace: str,
    llama_server: Path,
    tiny_model: Path,
    start_agent: StartAgent,
) -> None:
    host = unique_host(namespace)
    running = start_agent(control_plane, host)
    host_process(hosts_api, namespace, host, llama_plan(tiny_model))
    report = until_served(hosts_api, namespace)
    path = LEASES.path("herdsman-system", f"herdsman-host-{host}")
    merge = "application/merge-patch+json"
    assert hosts_api.request("PATCH", path, {"spec": {"holderIdentity": "usurper"}}, content_type=merge)[0] == 200
    assert running.wait(60) == 1
    assert "usurper" in running.output
    assert gone(report["pid"], timeout_s=1)
    assert endpoint(hosts_api, namespace)["conditions"]["ready"] is True, "the endpoints belong to the other agent now"


def test_a_deleted_service_takes_process_and_endpoints_with_it(
    control_plane: LocalCluster,
    hosts_api: Api,
    namespace: str,
    llama_server: Path,
    tiny_model: Path,
    start_agent: StartAgent,
) -> None:
    host = unique_host(namespace)
    start_agent(control_plane, host)
    host_process(hosts_api, namespace, host, llama_plan(tiny_model))
    report = until_served(hosts_api, namespace)
    hosts_api.delete(INFERENCE_SERVICES.path(namespace, "tiny"))
    # The garbage collector discovers new kinds only every 30 s. The CRDs of this module are new for its first tests, so
    # this test is the last.
    assert gone(report["pid"], timeout_s=70)
    for kind in (HOST_PROCESSES, SERVICES, ENDPOINT_SLICES):
        path = kind.path(namespace, "tiny")
        eventually(lambda path=path: hosts_api.get(path) is None, what=f"{path} to go", timeout_s=60)
