"""Checks of the cluster as an agent sees it: token, API server, clock and permissions. Called by `agent_doctor`."""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path

from agent.server.cluster.host_lease import lease_name
from automation.cli.agent_checked_options import CheckedOptions
from automation.cli.agent_macos_checks import LAN_HINT
from automation.cli.agent_token_check import token_finding
from automation.console.check import Check
from automation.install import permissions
from kubeapi import kinds
from kubeapi.access_reviews import is_allowed
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden, KubeError, NotFound

CLOCK_WARNING_S = 5.0
CLOCK_FAILED_S = 60.0
"""A machine whose clock is behind by more than this refuses new tokens and certificates."""

PERMISSIONS = (
    *((*request, None) for request in permissions.requests(permissions.AGENT)),
    *((*request, "system") for request in permissions.requests(permissions.AGENT_LEASES)),
)
"""The rows of the agent's roles. The last element is the namespace, if it is not the agent's."""


def cluster_checks(options: CheckedOptions) -> Iterator[Check]:
    """Check whether an agent with these options reaches its API server, and may do what it does."""
    if options.kubeconfig:
        yield from token_finding(Path(options.kubeconfig).expanduser().absolute(), time.time())
    try:
        client = KubeClient.default(options.kubeconfig)
        sent = time.time()
        answer = client.exchange("GET", "/version", timeout_s=10.0, max_bytes=65536)
        received = time.time()
    except KubeError as error:
        hint = "check that this machine reaches the API server, or name another kubeconfig with --kubeconfig"
        yield Check("cluster", "failed", str(error), LAN_HINT if is_no_route(error) else hint)
        return
    yield Check("cluster", "ok", client.server)
    date = {key.lower(): value for key, value in answer.headers.items()}.get("date", "")
    if date:
        yield clock_finding(clock_offset_s(date, sent, received))
    denied = []
    for group, resource, verb, where in PERMISSIONS:
        places = (
            [options.system_namespace] if where else (options.namespaces if "hosts" not in resource else ()) or [None]
        )
        for place in places:
            try:
                name = lease_name(options.host) if resource == "leases" else options.host
                # Rights on Hosts and Leases may name the object; a right to create never does.
                named = name if resource.partition("/")[0] in ("hosts", "leases") and verb != "create" else ""
                if not is_allowed(client, group, resource, verb, place, name=named) and not (
                    verb == "create" and _exists(client, resource, place, name)
                ):
                    denied.append(f"{verb} {resource}" + (f" in {place}" if place else ""))
            except KubeError as error:
                yield Check(
                    "permissions", "failed", f"cannot be checked: {error}", "check that the kubeconfig is still valid"
                )
                return
    if denied:
        hint = "bind the roles herdsman-agent of docs/install/rbac.yaml to the identity of this kubeconfig"
        yield Check("permissions", "failed", f"may not {', '.join(denied)}", hint)
    else:
        yield Check("permissions", "ok", f"{len(PERMISSIONS)} checked")


def _exists(client: KubeClient, resource: str, namespace: str | None, name: str) -> bool:
    """Return whether an agent does not need the right to create its object: an invitation made it."""
    kind = {"hosts": kinds.HOSTS, "leases": kinds.LEASES}[resource]
    try:
        client.get(kind, namespace, name)
    except (Forbidden, NotFound):
        return False
    return True


def is_no_route(error: BaseException) -> bool:
    """Return whether there was no route to the host (EHOSTUNREACH). macOS reports this when it blocks the local
    network.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno == errno.EHOSTUNREACH:
            return True
        seen = seen.__cause__ or seen.__context__
    return bool(re.search(r"[Nn]o route to host|Errno 65\b", str(error)))


def clock_offset_s(date: str, sent: float, received: float) -> float:
    """Return by how many seconds this machine's clock is ahead of an answer's Date, by its send and receive times.

    A Date is cut to whole seconds, so half a second is added. A Date between the two times counts as no offset.
    """
    theirs = parsedate_to_datetime(date).timestamp()
    if sent - 1.0 <= theirs <= received:
        return 0.0
    return (sent + received) / 2 - (theirs + 0.5)


def clock_finding(offset_s: float) -> Check:
    """Check the offset of the clock."""
    size = abs(offset_s)
    detail = f"{size:.0f} s {'ahead of' if offset_s > 0 else 'behind'} the API server's clock"
    hint = "synchronize the clock: `timedatectl set-ntp true`, or `sntp -sS time.apple.com` on a Mac"
    if size >= CLOCK_FAILED_S:
        return Check("clock", "failed", detail, hint)
    if size >= CLOCK_WARNING_S:
        return Check("clock", "warning", detail, hint)
    return Check("clock", "ok", "equal to the API server's clock")
