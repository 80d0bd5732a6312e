"""The loop acts for hosts over SSH: real API server, real sshd in a network namespace, real llama-server.

Covered: Service and EndpointSlice, statuses of HostProcess and Host, the Lease, several hosts of which one hangs and
one has another key, a host that is cut off and returns, a fence, removal. Placement and the detection of lost hosts
are not part of the test: it creates the HostProcesses and the fence as the loop would.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.client.ssh.processes import SshProcesses
from agent.contract import ANNOTATION_FENCED
from agent.sources.source_policy import SourcePolicy
from automation.hosts import ssh_worker
from automation.hosts.ssh_hosts import SshHosts
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from kubeapi.kinds import ENDPOINT_SLICES, HOST_PROCESSES, HOSTS, LEASES, SECRETS, SERVICES
from tests.hosts.test_agent_kubernetes import host_process, status
from tests.support.agents import gone, llama_plan
from tests.support.controlplane import Api, eventually
from tests.support.definitions import install_crds
from tests.support.endpoints import publishing
from tests.support.netns import Network, network
from tests.support.sshd import QUICK, Sshd, make_key, sshd
from tools.localcluster import LocalCluster


@pytest.fixture(scope="session")
def ssh_api(api: Api) -> Api:
    install_crds(api)
    return api


@pytest.fixture
def net() -> Iterator[Network]:
    with network() as made:
        yield made


@pytest.fixture
def client(control_plane: LocalCluster) -> Iterator[KubeClient]:
    made = KubeClient.default(str(control_plane.kubeconfig))
    yield made
    made.close()


@pytest.fixture
def speaker(
    client: KubeClient, ssh_api: Api, namespace: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SshHosts]:
    """The loop's worker for SSH hosts, which contacts 2 hosts at once, with its Leases in the test's namespace."""
    real = ssh_worker.target_of
    monkeypatch.setattr(ssh_worker, "target_of", lambda host, identity: replace(real(host, identity), timeouts=QUICK))
    made = SshHosts(
        client,
        policy=SourcePolicy(allowed_host_path_roots=(str(tiny_model.parent),)),
        parallel=2,
        namespaces=(namespace,),
        system_namespace=namespace,
    )
    with publishing(client, namespaces=(namespace,), lease_namespace=namespace):
        yield made
        made.stop()


def ssh_host(api: Api, name: str, server: Sshd, **ssh: Any) -> Json:
    way = {
        "user": server.user,
        "allowRoot": server.user == "root",
        "port": server.port,
        "knownHosts": [server.host_key],
        "identityFile": str(server.user_key),
        "store": str(server.store),
        **ssh,
    }
    body = {
        "apiVersion": HOSTS.api_version,
        "kind": HOSTS.kind,
        "metadata": {"name": name},
        "spec": {
            "transport": "ssh",
            "address": server.address,
            "memoryFraction": 0.5,
            "ssh": {name: value for name, value in way.items() if value is not None},
        },
    }
    return api.apply(HOSTS.path(None, name), body)


def key_secret(namespace: str, text: bytes) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "key", "namespace": namespace},
        "type": "kubernetes.io/ssh-auth",
        "data": {"ssh-privatekey": base64.b64encode(text).decode()},
    }


def condition(api: Api, name: str) -> Json:
    found = ((api.get(HOSTS.path(None, name)) or {}).get("status") or {}).get("conditions") or ()
    return next((dict(each) for each in found if each["type"] == "Ready"), {})


def slice_of(api: Api, namespace: str, name: str = "tiny") -> Json:
    return dict(api.get(ENDPOINT_SLICES.path(namespace, name)) or {})


def is_ready(found: Json) -> bool:
    return bool(found) and found["endpoints"][0]["conditions"]["ready"]


def test_the_loop_serves_from_a_host_without_an_agent(
    ssh_api: Api, client: KubeClient, namespace: str, net: Network, speaker: SshHosts, tmp_path: Path,
    llama_server: Path, tiny_model: Path,
) -> None:  # fmt: skip
    api, names = ssh_api, [f"{part}-{namespace}" for part in ("serving", "hanging", "foreign")]
    serving, hanging, foreign = names
    with ExitStack() as stack:
        servers = []
        for name in names:
            there = net.host(name.partition("-")[0][:4])
            servers.append(
                stack.enter_context(
                    sshd(tmp_path / name, address=there.address, prefix=there.prefix, binaries=[llama_server])
                )
            )
            stack.callback(api.request, "DELETE", HOSTS.path(None, name))
        live, hung, other = servers
        api.apply(SECRETS.path(namespace, "key"), key_secret(namespace, live.user_key.read_bytes()))
        hung.freeze()
        ssh_host(api, hanging, hung)
        ssh_host(api, foreign, other, knownHosts=[make_key(tmp_path / "another")])
        ssh_host(api, serving, live, identityFile=None, identitySecret={"name": "key"})
        host_process(api, namespace, serving, llama_plan(tiny_model))
        speaker.start()

        # The process serves, although one host does not respond and another one has an unknown host key.
        eventually(lambda: status(api, namespace).get("ready") or None, what="the process to serve", timeout_s=90)
        found = eventually(lambda: ((s := slice_of(api, namespace)) and is_ready(s) and s) or None, what="an endpoint")
        address, port = found["endpoints"][0]["addresses"][0], found["ports"][0]["port"]
        assert address == live.address
        body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}).encode()
        url = f"http://{address}:{port}/v1/chat/completions"
        with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})) as answer:
            assert json.load(answer)["choices"]
        assert api.get(SERVICES.path(namespace, "tiny"))
        told = eventually(
            lambda: ((c := condition(api, serving)) and c["status"] == "True" and c) or None, what="Ready"
        )
        assert told["reason"] == "Reachable"
        said = (api.get(HOSTS.path(None, serving)) or {})["status"]
        assert said["os"] == "linux" and said["runtimes"]["llama-server"]
        assert said["allocatable"]["memory"] == said["capacity"]["memory"] // 2
        eventually(
            lambda: (
                [p["phase"] for p in (api.get(HOSTS.path(None, serving)) or {})["status"].get("processes") or ()]
                == ["Ready"]
                or None
            ),
            what="the process in the Host's status",
        )
        assert eventually(lambda: condition(api, foreign).get("reason"), what="a verdict") == "HostKeyChanged"
        assert (
            eventually(lambda: condition(api, hanging).get("reason"), what="a verdict", timeout_s=60) == "Unreachable"
        )
        lease_path = LEASES.path(namespace, f"herdsman-host-{serving}")
        renewed = (api.get(lease_path) or {})["spec"]["renewTime"]
        eventually(lambda: (api.get(lease_path) or {})["spec"]["renewTime"] != renewed or None, what="a renewal")
        assert api.get(LEASES.path(namespace, f"herdsman-host-{hanging}")) is None, "who does not answer does not live"

        # The host that hung recovers without an action.
        hung.thaw()
        eventually(
            lambda: condition(api, hanging).get("status") == "True" or None, what="the host to be back", timeout_s=90
        )

        # The annotation marks a host that counted as lost. Processes without a HostProcess are stopped, and then the
        # annotation is removed.
        pid = status(api, namespace)["pid"]
        api.request("DELETE", HOST_PROCESSES.path(namespace, "tiny"))
        # A patch does not conflict with a renewal of the Lease.
        fenced = {"metadata": {"annotations": {ANNOTATION_FENCED: "true"}}}
        client.patch(LEASES, namespace, f"herdsman-host-{serving}", fenced)
        assert gone(pid, timeout_s=40)
        eventually(
            lambda: ANNOTATION_FENCED not in ((api.get(lease_path) or {})["metadata"].get("annotations") or {}) or None,
            what="the fence to be taken away",
            timeout_s=30,
        )
        eventually(lambda: not slice_of(api, namespace) or None, what="the endpoint to be gone", timeout_s=60)
        assert condition(api, serving)["status"] == "True"


def test_a_key_that_is_replaced_in_its_secret_opens_the_host(
    ssh_api: Api, namespace: str, net: Network, speaker: SshHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_worker, "REFUSED_S", 0.5)
    api, name = ssh_api, f"key-{namespace}"
    there = net.host("key")
    make_key(tmp_path / "stranger")
    with sshd(tmp_path / "h", address=there.address, prefix=there.prefix) as server, ExitStack() as stack:
        stack.callback(api.request, "DELETE", HOSTS.path(None, name))
        ssh_host(api, name, server, identityFile=None, identitySecret={"name": "key"})
        api.apply(SECRETS.path(namespace, "key"), key_secret(namespace, b"no key"))
        speaker.start()
        for text, reason in (
            (b"no key", "IdentityUnusable"),
            ((tmp_path / "stranger").read_bytes(), "AuthenticationFailed"),
            (server.user_key.read_bytes(), "Reachable"),
        ):
            api.apply(SECRETS.path(namespace, "key"), key_secret(namespace, text))
            eventually(
                lambda reason=reason: condition(api, name).get("reason") == reason or None, what=reason, timeout_s=30
            )

        # The key of a host that answered is replaced, before the connection breaks. Nobody has to wait for a person.
        monkeypatch.setattr(ssh_worker, "REFUSED_S", 600.0)
        (server.directory / "authorized_keys").write_text(make_key(tmp_path / "next") + "\n")
        api.apply(SECRETS.path(namespace, "key"), key_secret(namespace, (tmp_path / "next").read_bytes()))
        accepted = server.log.count("Accepted publickey")
        server.cut_connections()
        eventually(lambda: server.log.count("Accepted publickey") > accepted or None, what="the next key", timeout_s=30)


@pytest.mark.soak
def test_a_host_that_was_cut_off_goes_on_and_one_that_is_removed_is_left_clean(
    ssh_api: Api, namespace: str, net: Network, speaker: SshHosts, tmp_path: Path, llama_server: Path, tiny_model: Path
) -> None:
    api, name = ssh_api, f"cut-{namespace}"
    there = net.host("cut")
    with (
        sshd(tmp_path / "h", address=there.address, prefix=there.prefix, binaries=[llama_server]) as server,
        ExitStack() as stack,
    ):
        stack.callback(api.request, "DELETE", HOSTS.path(None, name))
        ssh_host(api, name, server)
        host_process(api, namespace, name, llama_plan(tiny_model))
        speaker.start()
        eventually(lambda: is_ready(slice_of(api, namespace)) or None, what="an endpoint", timeout_s=90)
        pid = eventually(lambda: status(api, namespace).get("pid"), what="the process to be told")
        there.cut()
        eventually(
            lambda: condition(api, name).get("reason") == "Unreachable" or None, what="the cut to be told", timeout_s=60
        )
        there.heal()
        eventually(lambda: condition(api, name).get("status") == "True" or None, what="the host again", timeout_s=60)
        time.sleep(1.0)
        assert status(api, namespace)["pid"] == pid, "nothing was restarted"
        api.request("DELETE", HOSTS.path(None, name))
        assert gone(pid, timeout_s=40)
        eventually(
            lambda: (
                (api.get(LEASES.path(namespace, f"herdsman-host-{name}")) or {})["spec"].get("holderIdentity", "") == ""
                or None
            ),
            what="the Lease to be given back",
        )
        assert not is_ready(slice_of(api, namespace))


def test_a_host_that_is_created_again_keeps_its_processes(
    ssh_api: Api,
    namespace: str,
    net: Network,
    speaker: SshHosts,
    tmp_path: Path,
    llama_server: Path,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begins, may_go_on, remove_all = threading.Event(), threading.Event(), ssh_worker.SshWorker._remove_all

    def held(worker: ssh_worker.SshWorker, processes: SshProcesses) -> None:
        begins.set()
        may_go_on.wait(60)
        remove_all(worker, processes)

    monkeypatch.setattr(ssh_worker.SshWorker, "_remove_all", held)
    api, name = ssh_api, f"again-{namespace}"
    there = net.host("agn")
    with (
        sshd(tmp_path / "h", address=there.address, prefix=there.prefix, binaries=[llama_server]) as server,
        ExitStack() as stack,
    ):
        stack.callback(api.request, "DELETE", HOSTS.path(None, name))
        ssh_host(api, name, server)
        host_process(api, namespace, name, llama_plan(tiny_model))
        speaker.start()
        eventually(lambda: is_ready(slice_of(api, namespace)) or None, what="an endpoint", timeout_s=90)
        pid = eventually(lambda: status(api, namespace).get("pid"), what="the process to be told")

        def workers() -> list[threading.Thread]:
            return [each for each in threading.enumerate() if each.name == f"ssh-{name}"]

        [earlier] = workers()
        api.request("DELETE", HOSTS.path(None, name))
        assert begins.wait(60), "the worker withdraws the process first, and then removes it"
        ssh_host(api, name, server)
        eventually(lambda: len(workers()) == 2 or None, what="the worker of the new Host")
        may_go_on.set()
        earlier.join(60.0)
        assert not earlier.is_alive()
        assert not gone(pid, timeout_s=1), "the process was not stopped"
        eventually(lambda: status(api, namespace).get("ready") or None, what="the process again", timeout_s=60)
        eventually(lambda: is_ready(slice_of(api, namespace)) or None, what="the endpoint again", timeout_s=60)
        assert status(api, namespace)["pid"] == pid, "nothing was restarted"
