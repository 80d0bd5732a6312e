"""The checks of `herdsman doctor host`, from the cluster. `herdsman doctor agent` checks on the machine itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import datetime
from urllib.parse import urlsplit

from agent.server.cluster.host_lease import lease_name
from automation.cli import host_rows as rows
from automation.cli.output import condition_of
from automation.console.check import Check
from automation.settings import SYSTEM_NAMESPACE
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json

CONNECT_TIMEOUT_S = 3.0


def examine(client: KubeClient, name: str, *, now: datetime) -> list[Check]:
    """Check a host. Raises NotFound when there is none of that name, KubeError."""
    host = client.get(kinds.HOSTS, None, name)
    lease = client.find(kinds.LEASES, SYSTEM_NAMESPACE, lease_name(name))
    placed = rows.placed_on(client.list(kinds.HOST_PROCESSES)["items"], name)
    return [*judge(host, lease, placed, now=now), *_reachable(host, placed)]


def judge(host: Json, lease: Json | None, placed: list[Json], *, now: datetime) -> Iterator[Check]:
    """Check the objects of a host in the cluster. Pure."""
    spec, status = host.get("spec") or {}, host.get("status") or {}
    by_ssh = spec.get("transport") == "ssh"
    ready = condition_of(status, "Ready")
    if ready.get("status") == "True":
        yield Check("ready", "ok", str(ready.get("reason", "")))
    else:
        hint = (
            "read the loop's log"
            if by_ssh
            else "run `herdsman agent status` and `herdsman doctor agent` on the machine"
        )
        yield Check(
            "ready",
            "missing",
            str(ready.get("message") or "no agent and no loop has reported this host's state yet"),
            hint,
        )
    if joining := rows.joining_text(lease, reported=bool(ready.get("message"))):
        yield Check("identity", "warning", joining, "run `herdsman host join` on the machine, or `agent install` there")
    yield Check("heartbeat", "ok" if lease else "missing", rows.heartbeat_text(lease, now=now))
    if spec.get("drain") or spec.get("unschedulable"):
        what = "is being drained" if spec.get("drain") else "is cordoned"
        yield Check("scheduling", "warning", what, f"`herdsman host uncordon {host['metadata']['name']}`")
    runtimes = status.get("runtimes") or {}
    if runtimes:
        yield Check("runtimes", "ok", ", ".join(f"{name} {version}".strip() for name, version in runtimes.items()))
    else:
        yield Check("runtimes", "missing", "none was found", "install llama-server (`brew install llama.cpp`)")
    allocatable = (status.get("allocatable") or {}).get("memory")
    reserved = rows.reserved_bytes(placed)
    detail = f"{rows.gib(reserved)} of {rows.gib(allocatable)} GiB are reserved for {len(placed)} processes"
    full = allocatable is not None and reserved > allocatable
    yield Check(
        "memory",
        "warning" if full else "ok",
        detail,
        "the processes reserve more than the host has: move a service" if full else "",
    )
    pressure = status.get("memoryPressure") or "Normal"
    remedy = "stop other programs on the host, or allow the agent to evict services (docs/how-to/hosts.md)"
    hint = "" if pressure == "Normal" else remedy
    yield Check("pressure", "ok" if pressure == "Normal" else "warning", pressure, hint)
    for process in placed:
        report = process.get("status") or {}
        if report.get("reason"):
            key = f"{process['metadata']['namespace']}/{process['metadata']['name']}"
            yield Check(key, "warning", f"{report.get('phase')}: {report['reason']}: {report.get('message', '')}")


def _reachable(host: Json, placed: list[Json]) -> Iterator[Check]:
    """Connect to the host's addresses from here, as clients and Prometheus do from other machines."""
    endpoint = urlsplit(str((host.get("status") or {}).get("endpoint") or ""))
    if endpoint.hostname and endpoint.port:
        yield _connect("agent's API", endpoint.hostname, endpoint.port)
    for process in placed:
        report = process.get("status") or {}
        if report.get("ready") and report.get("address") and report.get("port"):
            yield _connect(f"{process['metadata']['name']}'s port", report["address"], int(report["port"]))


def _connect(what: str, address: str, port: int) -> Check:
    try:
        with socket.create_connection((address, port), timeout=CONNECT_TIMEOUT_S):
            return Check(what, "ok", f"{address}:{port} answers")
    except OSError as error:
        # errno 65 on a Mac: macOS blocks the local network for a LaunchAgent, or for the terminal's program.
        hint = (
            "check the firewall and the network; on macOS, run the agent as a LaunchDaemon for access to the local "
            "network"
        )
        return Check(what, "warning", f"{address}:{port}: {error.strerror or error}", hint)
