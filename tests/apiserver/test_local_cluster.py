"""The local cluster: access, repeated commands, crashes, several clusters, and data and processes after `down`."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.support.controlplane import Api, eventually, new_directory, tool_or_skip
from tools.localcluster import ClusterError, ClusterStatus, LocalCluster, certificates
from tools.localcluster.layout import ProcessRecord, State
from tools.versions import CONTROL_PLANE, KUBERNETES

Fresh = Callable[..., LocalCluster]
STORE_AND_API = ("etcd", "kube-apiserver")
HERDSMAN = Path(sys.executable).with_name("herdsman")


def pids(cluster: LocalCluster) -> dict[str, int | None]:
    return {component.name: component.pid for component in cluster.status().components}


def await_up(cluster: LocalCluster) -> ClusterStatus:
    """Return the status once all components are healthy: on a busy machine a single health check may come too late."""

    def look() -> ClusterStatus | None:
        status = cluster.status()
        return status if status.state == "up" else None

    return eventually(look, what="all components to be healthy")


def get(cluster: LocalCluster, path: str, context: ssl.SSLContext, token: str | None = None) -> tuple[int, Any]:
    port = int(cluster.server.rpartition(":")[2])
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def nobody(cluster: LocalCluster) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(cluster.layout.pki / "ca.crt"))


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory for a cluster that the test starts; it is stopped and deleted after the test."""
    for name in CONTROL_PLANE:
        tool_or_skip(name)
    path = new_directory()
    yield path
    LocalCluster(path).down(purge=True)


def test_all_components_are_healthy_and_of_the_pinned_version(control_plane: LocalCluster, api: Api) -> None:
    status = await_up(control_plane)
    assert [(part.name, part.state) for part in status.components] == [(name, "healthy") for name in CONTROL_PLANE]
    version = api.get("/version")
    assert version is not None
    assert version["gitVersion"] == f"v{KUBERNETES}"


def test_every_component_listens_on_loopback_only(control_plane: LocalCluster) -> None:
    for name, pid in pids(control_plane).items():
        assert pid is not None
        listening = [entry for entry in psutil.Process(pid).net_connections() if entry.status == psutil.CONN_LISTEN]
        assert listening, name
        assert {entry.laddr.ip for entry in listening} == {"127.0.0.1"}, name


def test_only_the_health_paths_answer_to_nobody_in_particular(control_plane: LocalCluster) -> None:
    context = nobody(control_plane)
    assert get(control_plane, "/readyz", context)[0] == 200
    assert get(control_plane, "/livez", context)[0] == 200
    assert get(control_plane, "/api/v1/namespaces", context)[0] == 401
    assert get(control_plane, "/metrics", context)[0] == 401


def test_the_store_lets_in_neither_strangers_nor_clients_of_the_api(control_plane: LocalCluster) -> None:
    pki = control_plane.layout.pki
    port = State.read(control_plane.layout.state).ports["etcd"]
    for pair in (None, certificates.ADMIN):
        context = ssl.create_default_context(cafile=str(pki / "etcd-ca.crt"))
        if pair:
            context.load_cert_chain(str(pki / f"{pair}.crt"), str(pki / f"{pair}.key"))
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
        with contextlib.closing(connection), pytest.raises((ssl.SSLError, ConnectionError)):
            _ask(connection, "/version")


def _ask(connection: http.client.HTTPSConnection, path: str) -> http.client.HTTPResponse:
    # With TLS 1.3 the server refuses a client only when the client reads the first response.
    connection.request("GET", path)
    return connection.getresponse()


def test_a_user_may_do_what_roles_allow_and_nothing_else(
    control_plane: LocalCluster, api: Api, namespace: str, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "jane"
    control_plane.write_kubeconfig(kubeconfig, user="jane", groups=["qa"])
    assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600
    user = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]
    context = nobody(control_plane)
    certificate, key = tmp_path / "jane.crt", tmp_path / "jane.key"
    certificate.write_bytes(base64.b64decode(user["client-certificate-data"]))
    key.write_bytes(base64.b64decode(user["client-key-data"]))
    context.load_cert_chain(str(certificate), str(key))

    path = f"/api/v1/namespaces/{namespace}/pods"
    status, answer = get(control_plane, path, context)
    assert status == 403
    assert 'User \\"jane\\" cannot list resource \\"pods\\"' in answer
    api.create(
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
        {
            "metadata": {"name": "qa-reads"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "Group", "name": "qa", "apiGroup": "rbac.authorization.k8s.io"}],
        },
    )
    assert eventually(lambda: get(control_plane, path, context)[0] == 200, what="the role to take effect")


def test_a_token_of_a_service_account_opens_the_api(control_plane: LocalCluster, api: Api, namespace: str) -> None:
    answer = api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token", {"spec": {}})
    status, text = get(control_plane, "/api/v1/namespaces", nobody(control_plane), answer["status"]["token"])
    assert status == 403
    assert f"system:serviceaccount:{namespace}:default" in text


def test_controllers_and_scheduler_work(api: Api, namespace: str) -> None:
    labels = {"app": "probe"}
    api.create(
        f"/apis/apps/v1/namespaces/{namespace}/deployments",
        {
            "metadata": {"name": "probe"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}},
            },
        },
    )

    def unschedulable() -> list[dict[str, Any]] | None:
        pods = (api.get(f"/api/v1/namespaces/{namespace}/pods") or {})["items"]
        seen = [
            condition
            for pod in pods
            for condition in pod["status"].get("conditions", [])
            if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable"
        ]
        return seen if len(seen) == 2 else None

    assert "no nodes available" in eventually(unschedulable, what="two pods that no node takes")[0]["message"]


def test_a_second_up_changes_nothing(control_plane: LocalCluster) -> None:
    before = (pids(control_plane), control_plane.kubeconfig.read_text())
    assert control_plane.up() == ()
    assert (pids(control_plane), control_plane.kubeconfig.read_text()) == before
    assert stat.S_IMODE(control_plane.kubeconfig.stat().st_mode) == 0o600


@pytest.mark.soak
def test_a_killed_component_is_restarted_by_up_and_the_others_are_not(fresh_control_plane: Fresh) -> None:
    cluster = fresh_control_plane()
    before = pids(cluster)
    for component in ("kube-scheduler", "kube-apiserver"):
        pid = before[component]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)  # as the kernel does when memory is short
    eventually(lambda: cluster.status().state == "degraded", what="the loss to show")
    assert cluster.up() == ("kube-apiserver", "kube-scheduler")
    after = pids(cluster)
    assert cluster.status().state == "up"
    changed = {name for name in CONTROL_PLANE if before[name] != after[name]}
    assert changed == {"kube-apiserver", "kube-scheduler"}

    cluster.kill("kube-controller-manager")
    assert cluster.pid("kube-controller-manager") is None
    cluster.start("kube-controller-manager")
    cluster.restart_component("kube-scheduler")
    await_up(cluster)
    assert pids(cluster)["kube-scheduler"] != after["kube-scheduler"]


@pytest.mark.soak
def test_a_frozen_component_shows_as_unhealthy_until_it_goes_on(fresh_control_plane: Fresh) -> None:
    cluster = fresh_control_plane(STORE_AND_API)
    cluster.pause("kube-apiserver")
    frozen = {part.name: part.state for part in cluster.status().components}
    assert frozen == {"etcd": "healthy", "kube-apiserver": "unhealthy"}
    cluster.resume("kube-apiserver")
    eventually(lambda: cluster.status().state == "up", what="the API server to go on")
    with pytest.raises(ClusterError, match="kube-scheduler does not run"):
        cluster.pause("kube-scheduler")


@pytest.mark.soak
def test_two_clusters_side_by_side_know_nothing_of_each_other(
    control_plane: LocalCluster, fresh_control_plane: Fresh, api: Api, namespace: str
) -> None:
    other = fresh_control_plane(STORE_AND_API)
    ports = State.read(control_plane.layout.state).ports
    assert not set(ports.values()) & set(State.read(other.layout.state).ports.values())
    assert Api(other).get(f"/api/v1/namespaces/{namespace}") is None
    with pytest.raises(ssl.SSLError):
        get(other, "/readyz", nobody(control_plane))
    before = pids(control_plane)
    assert other.down() == STORE_AND_API
    assert pids(control_plane) == before
    await_up(control_plane)


@pytest.mark.soak
def test_data_outlives_down_and_up_and_ends_with_purge(fresh_control_plane: Fresh) -> None:
    cluster = fresh_control_plane(STORE_AND_API)
    kubeconfig = cluster.kubeconfig.read_text()
    Api(cluster).create("/api/v1/namespaces", {"metadata": {"name": "kept"}})
    assert cluster.down() == STORE_AND_API
    assert cluster.status().state == "down"
    assert cluster.down() == ()
    cluster.up()
    assert Api(cluster).get("/api/v1/namespaces/kept") is not None
    assert cluster.kubeconfig.read_text() == kubeconfig
    cluster.down(purge=True)
    assert not cluster.layout.directory.exists()


@pytest.mark.soak
def test_a_port_that_was_taken_meanwhile_is_given_up_for_another(fresh_control_plane: Fresh) -> None:
    cluster = fresh_control_plane(STORE_AND_API)
    Api(cluster).create("/api/v1/namespaces", {"metadata": {"name": "kept"}})
    cluster.down()
    taken = int(cluster.server.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", taken)):
        cluster.up()
        assert int(cluster.server.rpartition(":")[2]) != taken
        assert cluster.server in cluster.kubeconfig.read_text()
        assert Api(cluster).get("/api/v1/namespaces/kept") is not None
        cluster.kill("kube-apiserver")
    port = int(cluster.server.rpartition(":")[2])
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ClusterError, match=r"another program uses port [0-9]+ of kube-apiserver"),
    ):
        cluster.up()


@pytest.mark.soak
def test_down_leaves_a_process_alone_that_took_over_a_recorded_number(fresh_control_plane: Fresh) -> None:
    cluster = fresh_control_plane(STORE_AND_API)
    cluster.kill("kube-apiserver")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as foreign:
        state = State.read(cluster.layout.state)
        started = psutil.Process(foreign.pid).create_time()
        state.processes["kube-apiserver"] = ProcessRecord(foreign.pid, started)
        state.processes["kube-scheduler"] = ProcessRecord(foreign.pid, started - 3600)
        state.write(cluster.layout.state)
        assert cluster.down() == ("etcd",)
        assert foreign.poll() is None
        foreign.kill()


@pytest.mark.soak
def test_two_ups_at_the_same_time_start_everything_once(directory: Path) -> None:
    started: list[tuple[str, ...]] = []
    threads = [
        threading.Thread(target=lambda: started.append(LocalCluster(directory, components=STORE_AND_API).up()))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(started) == [(), STORE_AND_API]
    running = [
        process.info["pid"]
        for process in psutil.process_iter(["pid", "cmdline"])
        if any(str(directory) in argument for argument in process.info["cmdline"] or ())
    ]
    assert sorted(running) == sorted(pid for pid in pids(LocalCluster(directory)).values() if pid)


def test_a_component_that_ends_at_once_is_told_with_its_last_words(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "kube-apiserver"
    broken.write_text("#!/bin/sh\necho 'bad flag: moon phase' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("HERDSMAN_KUBE_APISERVER", str(broken))
    with pytest.raises(ClusterError, match=r"kube-apiserver exited right after its start(.|\n)*bad flag: moon phase"):
        LocalCluster(directory).up()
    monkeypatch.delenv("HERDSMAN_KUBE_APISERVER")
    assert LocalCluster(directory, components=STORE_AND_API).up() == ("kube-apiserver",)


def herdsman(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HERDSMAN), *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.soak
def test_the_command_line_brings_a_cluster_up_and_down(directory: Path) -> None:
    where = ("--dir", str(directory))
    assert herdsman("cluster", "status", *where).returncode == 1
    missing = herdsman("cluster", "env", *where)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "herdsman cluster up" in missing.stderr

    up = herdsman("cluster", "up", *where, "--provider", "local")
    assert up.returncode == 0, up.stderr
    assert up.stdout.startswith("The cluster is up after ")
    assert "\x1b" not in up.stdout
    status = herdsman("cluster", "status", *where, "-o", "json")
    assert status.returncode == 0
    report = json.loads(status.stdout)
    assert (report["state"], report["provider"]) == ("up", "local")

    classes = Api(LocalCluster(directory)).get("/apis/scheduling.k8s.io/v1/priorityclasses") or {}
    assert {"llmkube-normal", "llmkube-batch"} <= {one["metadata"]["name"] for one in classes["items"]}

    # The processes run on after the command that started them, and a shell can use the cluster.
    kubectl = tool_or_skip("kubectl")
    script = f'eval "$({HERDSMAN} cluster env --dir {directory})" && {kubectl} get namespace default -o name'
    seen = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (seen.stdout, seen.returncode) == ("namespace/default\n", 0), seen.stderr

    assert herdsman("cluster", "up", *where).stdout.startswith("The cluster was up already.")
    down = herdsman("cluster", "down", *where, "--purge")
    assert (down.stdout, down.returncode) == ("The cluster is down.\n", 0)
    assert not any(psutil.pid_exists(part["pid"]) and _ours(part["pid"], directory) for part in report["components"])
    assert not directory.exists()
    assert herdsman("cluster", "down", *where).stdout == "The cluster was down already.\n"
    assert herdsman("cluster", "up", "--provider", "moon").returncode == 64


def _ours(pid: int, directory: Path) -> bool:
    try:
        return any(str(directory) in argument for argument in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False
