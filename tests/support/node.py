"""A cluster with a real node for tests, its images, and actions on pods: send requests, inspect, kill.

A node gets a separate control plane, so that it does not run the pods of other layers.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from components.priority_classes import priority_classes
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support import controlplane, needs
from tests.support.loop import eventually
from tools.localcluster import LocalCluster
from tools.node import cgroups, image_set
from tools.node.images import Image, Text
from tools.node.layout import Network
from tools.node.node import Node

LIAR_IMAGE = "herdsman.test/liar:1"
LIES = "/tmp/lies"
# An imitation of llama-server that can hang. When the file exists, and always if LIES is set, completion requests get
# no response, while its health check succeeds and its metrics report one running request.
_LIAR = f"""\
#!/bin/sh
read -r method path version
length=0
while read -r line && [ "$line" != "$(printf '\\r')" ]; do
    case $line in [Cc]ontent-[Ll]ength:*) length=$(echo "${{line#*:}}" | tr -dc 0-9) ;; esac
done
[ "$length" = 0 ] || head -c "$length" >/dev/null
answer() {{
    printf 'HTTP/1.1 200 OK\\r\\nContent-Length: %s\\r\\nConnection: close\\r\\n\\r\\n%s' "${{#1}}" "$1"
}}
lies=${{LIES:-}} running=0
[ ! -e {LIES} ] || lies=now
[ -z "$lies" ] || running=1
case $method$path in
    GET/metrics) answer "llamacpp:requests_processing $running
llamacpp:n_decode_total 5
" ;;
    GET*) answer ok ;;
    *) [ -z "$lies" ] || exec sleep 600
       answer '{{"choices":[{{"message":{{"role":"assistant","content":"true"}}}}]}}' ;;
esac
"""


@contextlib.contextmanager
def running() -> Iterator[tuple[LocalCluster, Node]]:
    """Run a cluster with one real node while the block lasts, and remove it at the end."""
    needs.require("node")
    for name in ("kubelet", "kube-proxy"):
        controlplane.tool_or_skip(name)
    controlplane.sweep()
    with controlplane.running() as cluster:
        node = Node(cluster)
        try:
            node.up()
            yield cluster, node
        finally:
            network = node.network if node.layout.plan.is_file() else None
            node.down(purge=True)
            assert network is None or not _left(network, node.layout.directory), "a node that is down leaves nothing"


def _left(network: Network, directory: Path) -> list[str]:
    """List what remains of a node: its link, control groups, processes, mounts, files."""
    found = [str(path) for path in (Path("/sys/class/net", network.device), directory) if path.exists()]
    found += [str(path) for path in cgroups.ROOT.glob(f"**/{network.cgroup}")]
    for process in psutil.process_iter(["cmdline"]):
        if any(str(directory) in word for word in process.info["cmdline"] or ()):
            found.append(str(process))
    return found + [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(directory) in line]


def liar() -> Image:
    """Return an image whose server can stop serving completions while it reports that it is healthy; see `_LIAR`."""
    # A shell that handles SIGTERM: PID 1 of a container ignores signals without a handler.
    script = "trap 'exit 0' TERM; nc -ll -p 8080 -e /app/answer & wait"
    return Image(
        LIAR_IMAGE,
        {**image_set.shell(), "app/answer": Text(_LIAR, mode=0o755)},
        entrypoint=("/bin/sh", "-c", script),
        folders={"tmp": 0o1777},
    )


def make_lie(pod: Json) -> None:
    """Make a pod of that image stop serving completions."""
    (server,) = processes_of(pod, "nc")
    Path(f"/proc/{server.pid}/root{LIES}").touch()


@dataclass(frozen=True)
class Answer:
    """An HTTP response; status 0 when there was none."""

    status: int
    body: str
    error: str = ""

    @property
    def json(self) -> Json:
        return dict(json.loads(self.body))


@dataclass(frozen=True)
class Address:
    """The address of a Service. All clusters use the same range for Services, so `link` selects the node."""

    host: str
    port: int
    device: str


class Tls(NamedTuple):
    """How a client checks a server's certificate."""

    context: ssl.SSLContext
    name: str
    """The name that the certificate must have."""


def ask(
    address: Address,
    path: str,
    body: Json | None = None,
    *,
    timeout_s: float = 30.0,
    headers: Mapping[str, str] | None = None,
    tls: Tls | None = None,
) -> Answer:
    """Send a request to an HTTP server of the cluster over a new connection."""
    connection = http.client.HTTPConnection(address.host, address.port)
    try:
        connection.sock = socket.socket()
        connection.sock.settimeout(timeout_s)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, address.device.encode())
        connection.sock.connect((address.host, address.port))
        if tls is not None:
            connection.sock = tls.context.wrap_socket(connection.sock, server_hostname=tls.name)
        payload = None if body is None else json.dumps(body)
        sent = {"Content-Type": "application/json", **(headers or {})}
        connection.request("POST" if body else "GET", path, payload, sent)
        answer = connection.getresponse()
        return Answer(answer.status, answer.read().decode())
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, "", f"{type(error).__name__}: {error}")
    finally:
        connection.close()


def chat(address: Address, *, tokens: int = 8, timeout_s: float = 30.0) -> Answer:
    """Request a completion whose text depends on the weights alone."""
    question = {"role": "user", "content": "Hello"}
    body = {"messages": [question], "max_tokens": tokens, "temperature": 0, "seed": 1}
    return ask(address, "/v1/chat/completions", body, timeout_s=timeout_s)


def said(answer: Answer) -> str:
    """Return the text of a completion."""
    assert answer.status == 200, answer
    return str(answer.json["choices"][0]["message"]["content"])


def cluster_address(client: KubeClient, node: Node, namespace: str, name: str = "svc") -> Address:
    """Return the address and port of a Service, as pods use them."""
    spec = client.get(kinds.SERVICES, namespace, name)["spec"]
    return Address(spec["clusterIP"], spec["ports"][0]["port"], node.network.device)


@contextlib.contextmanager
def routed_to(node: Node, address: str) -> Iterator[None]:
    """Route the address of a Service to this node while the block lasts.

    All nodes of a machine route the same range of addresses, and by default the first one gets the traffic.
    """
    route = (f"{address}/32", "via", node.network.address, "dev", node.network.device)
    subprocess.run(["ip", "route", "replace", *route], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "route", "del", *route], check=True)


def pods(client: KubeClient, namespace: str, selector: str | None = None) -> list[Json]:
    found = client.list(kinds.PODS, namespace, label_selector=selector)
    return list(found["items"])


def container_states(pod: Json) -> str:
    """Describe the states of a pod's containers in one line, for messages."""
    status = pod.get("status", {})
    every = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return ", ".join(f"{entry['name']}: {json.dumps(entry.get('state'))}" for entry in every)


def processes_of(pod: Json, program: str) -> list[psutil.Process]:
    """Find the processes of a pod that run a program, by the pod's control group."""
    found = []
    for process in psutil.process_iter(["name"]):
        with contextlib.suppress(OSError, psutil.Error):
            groups = Path(f"/proc/{process.pid}/cgroup").read_text()
            if f"pod{pod['metadata']['uid']}" in groups and process.info["name"] == program:
                found.append(process)
    return found


def kill_program(pod: Json, program: str) -> None:
    """Kill a program of a pod with SIGKILL, as the kernel does when memory runs out."""
    victims = processes_of(pod, program)
    assert victims, f"no process {program} of pod {pod['metadata']['name']}"
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)


def install_priority_classes(client: KubeClient) -> None:
    """Create the PriorityClasses that services use, as an installation does."""
    for document in priority_classes():
        client.apply(kinds.PRIORITY_CLASSES, None, document, field_manager="tests", force=True)


def pod_ready(client: KubeClient, namespace: str, name: str, *, timeout_s: float = 45.0) -> Json:
    """Wait until a pod is Ready; the failure describes its containers."""
    seen: list[Json] = []

    def look() -> bool:
        seen[:] = [client.get(kinds.PODS, namespace, name)]
        conditions = seen[0].get("status", {}).get("conditions", ())
        return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)

    try:
        eventually(look, what=f"pod {name} to be Ready", timeout_s=timeout_s)
    except AssertionError as error:
        raise AssertionError(f"{error}; {container_states(seen[0])}") from None
    return seen[0]
