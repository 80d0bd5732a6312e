"""`herdsman doctor`: check the parts of Herdsman and what they need, and name faults and remedies.

Each scope has its checks in another module: `automation.install.inspection` (cluster, loop, gateway), `host_doctor`,
`agent_doctor`, `local_checks`. This module runs those that were named, or that apply.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Annotated

import typer

from agent.steps.machine import MachineError
from automation.cli.doctor_scopes import (
    OF_A_CLUSTER,
    Finding,
    Request,
    Scope,
    ScopeUnknown,
    coverage,
    in_scope,
    read_request,
    skipped,
)
from automation.cli.output import OutputFormat, print_json, print_table, say
from automation.cli.place_options import Context
from automation.console.check import FATAL, Check
from automation.install.inspection import inspect_cluster, inspect_gateways, inspect_loop, utc_now
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotConfigured, NotFound
from tools import toolchain
from tools.kindcluster import docker_runs

PARALLEL = 8
"""Hosts that are checked at the same time: a connection to an unreachable one takes seconds."""


def doctor(
    scopes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCOPE",
            help="cluster, loop, host NAME, hosts, gateway, agent (of this machine) or local. The default is what "
            "applies here. Options of an agent follow `agent --`.",
            show_default=False,
        ),
    ] = None,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    context: Context = None,
    host: Annotated[
        str | None, typer.Option(help="Also check this host: the older form of `host NAME`.", hidden=True)
    ] = None,
    state: Annotated[str | None, typer.Option(help="Also check the state at this URL.")] = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """Check cluster, loop, hosts, gateway, agent and local mode, and name what to do.

    Without a scope it checks what applies here, and lists what it did not check, with the reason. Exit code 1 when
    something is missing or has failed.
    """
    try:
        request = read_request(scopes or (), [host] if host else ())
    except ScopeUnknown as error:
        raise typer.BadParameter(str(error)) from None
    findings: list[Finding] = []
    if any(request.wants(scope) for scope in OF_A_CLUSTER):
        findings += _of_a_cluster(request, kubeconfig, context)
    if state:
        findings += in_scope("state", _state(state))
    if request.wants(Scope.AGENT):
        findings += _agent(request)
    if request.wants(Scope.LOCAL):
        findings += _local(request)
    _report(findings, output, tell=request.is_open)


def _report(findings: list[Finding], output: OutputFormat, *, tell: bool) -> None:
    if output is OutputFormat.JSON:
        print_json([{"scope": str(each.scope), **asdict(each.check)} for each in findings])
    else:
        rows = [
            (each.scope, each.check.check, each.check.state, each.check.detail, each.check.hint) for each in findings
        ]
        print_table(("SCOPE", "CHECK", "STATE", "DETAIL", "WHAT TO DO"), rows, phase_column=2)
        if tell:
            say(coverage(findings), err=True)
    if any(each.check.state in FATAL for each in findings):
        raise typer.Exit(1)


# Scopes of a cluster


def _of_a_cluster(request: Request, kubeconfig: str | None, context: str | None) -> Iterator[Finding]:
    client: KubeClient | None = None
    try:
        client = KubeClient.default(kubeconfig, context=context)
        version = client.request("GET", "/version")
        reached = Check("cluster", "ok", f"{client.server} {version.get('gitVersion', '')}")
    except KubeError as error:
        if isinstance(error, NotConfigured) and request.is_open and _local_mode_runs():
            hint = "name a cluster with --kubeconfig or $KUBECONFIG"
            yield from (skipped(scope, "no cluster is configured", hint) for scope in OF_A_CLUSTER)
            return
        hint = 'start one: `herdsman cluster up`, then `eval "$(herdsman cluster env)"`'
        yield Finding(Scope.CLUSTER, Check("cluster", "missing", str(error), hint))
        if request.wants(Scope.LOOP):
            yield from in_scope(Scope.LOOP, _tools())
        others = (scope for scope in OF_A_CLUSTER if scope is not Scope.CLUSTER and request.wants(scope))
        yield from (skipped(scope, "the cluster cannot be asked") for scope in others)
        return
    if request.wants(Scope.CLUSTER):
        yield Finding(Scope.CLUSTER, reached)
        yield from _asked(Scope.CLUSTER, lambda: inspect_cluster(client))
    if request.wants(Scope.LOOP):
        yield from in_scope(Scope.LOOP, _tools())
        yield from _asked(Scope.LOOP, lambda: [*inspect_loop(client, now=utc_now()), *_peers(client)])
    if request.wants(Scope.HOSTS):
        yield from _hosts(client, request)
    if request.wants(Scope.GATEWAY):
        yield from _gateways(client, request)


def _asked(scope: Scope, ask: Callable[[], list[Check]]) -> list[Finding]:
    """Return the checks of a scope, or that the cluster refused or stopped to answer meanwhile."""
    try:
        return in_scope(scope, ask())
    except KubeError as error:
        return [Finding(scope, Check(scope, "missing", str(error), "check the cluster, and your permissions in it"))]


def _tools() -> list[Check]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    checks = [Check("python", "ok", version)]
    for name, needed in (("pulumi", True), ("llama-server", False), ("kube-apiserver", False), ("kubectl", False)):
        checks.append(tool_check(name, is_needed=needed))
    if docker_runs():
        checks.append(Check("docker", "ok", "runs; `herdsman cluster up` makes a kind cluster"))
    else:
        checks.append(Check("docker", "ok", "does not run; `herdsman cluster up` starts a local control plane"))
    return checks


def tool_check(name: str, *, is_needed: bool) -> Check:
    """Check whether a tool is on this machine."""
    try:
        return Check(name, "ok", str(toolchain.locate(name)))
    except toolchain.ToolMissing as error:
        return Check(name, "missing" if is_needed else "warning", "not found", error.remedy)


def _peers(client: KubeClient) -> list[Check]:
    """Return a check for each upstream controller that runs: it and a loop must not manage the same services."""
    from automation.adoption.upstream_controller import UPSTREAM_CONTROLLERS, running_controllers

    found = []
    for upstream in dict.fromkeys(UPSTREAM_CONTROLLERS.values()):
        if signs := running_controllers(client, upstream, now=utc_now()):
            hint = (
                "run the loop with --controller-class, so that the two manage different services; `herdsman adopt` "
                "moves services"
            )
            found.append(Check(f"controller of {upstream.name}", "warning", "runs: " + "; ".join(signs), hint))
    return found


def _hosts(client: KubeClient, request: Request) -> Iterator[Finding]:
    """Check the named hosts; all of them for the scope `hosts`, or where no scope and no host was named."""
    names = list(request.hosts)
    if Scope.HOSTS in request.scopes or not names:
        try:
            names += sorted(each["metadata"]["name"] for each in client.list(kinds.HOSTS)["items"])
        except NotFound:
            yield skipped(Scope.HOSTS, "the CRD of hosts is not installed", "`herdsman install`")
            return
        except KubeError as error:
            yield Finding(Scope.HOSTS, Check(Scope.HOSTS, "warning", f"cannot be listed: {error}"))
            return
        if not names:
            hint = "`herdsman host invite NAME` invites a machine"
            yield skipped(Scope.HOSTS, "there is no Host in this cluster", hint)
    with ThreadPoolExecutor(PARALLEL) as pool:
        for found in pool.map(lambda name: _host(client, name), dict.fromkeys(names)):
            yield from in_scope(Scope.HOSTS, found)


def _host(client: KubeClient, name: str) -> list[Check]:
    from automation.cli.host_doctor import examine

    try:
        found = examine(client, name, now=utc_now())
    except NotFound:
        hint = "list the hosts with `herdsman host list`; add one with `herdsman host add`"
        return [Check(f"host {name}", "missing", "no Host has this name", hint)]
    except KubeError as error:
        return [Check(f"host {name}", "missing", str(error))]
    return [replace(each, check=f"host {name}: {each.check}") for each in found]


def _gateways(client: KubeClient, request: Request) -> Iterator[Finding]:
    found = _asked(Scope.GATEWAY, lambda: inspect_gateways(client))
    yield from found
    if found:
        return
    hint = "`herdsman install --gateway`, with the other options of your installation"
    if request.is_open:
        yield skipped(Scope.GATEWAY, "no gateway is installed in this cluster", hint)
    else:
        yield Finding(Scope.GATEWAY, Check("gateway", "missing", "is not installed in this cluster", hint))


def _state(url: str) -> list[Check]:
    from automation.cli.state_access import StateNotOpened, backend_of, settings_of
    from automation.state.checking import check_state

    try:
        with backend_of(settings_of(url, None)) as backend:
            return list(check_state(backend))
    except StateNotOpened as error:
        return [Check("state", "failed", str(error), error.hint)]


# Scopes of this machine


def _agent(request: Request) -> Iterator[Finding]:
    from automation.cli.agent_doctor import agent_checks
    from automation.cli.agent_installation import read_installation
    from automation.cli.agent_service import DEFAULT_NAME, this_machine

    try:
        machine = this_machine()
        found = [own for own in (False, True) if read_installation(machine, DEFAULT_NAME, own_user=own) is not None]
        if request.is_open and not found:
            hint = "`herdsman doctor agent` checks whether this machine can be a host"
            yield skipped(Scope.AGENT, "no agent is installed on this machine", hint)
            return
        own_user = found[0] if found else False
        yield from in_scope(Scope.AGENT, agent_checks(request.agent_options, own_user=own_user))
    except MachineError as error:
        yield Finding(Scope.AGENT, Check("installation", "failed", str(error), error.hint))


def _local(request: Request) -> list[Finding]:
    if request.is_open and not _local_mode_runs():
        hint = "`herdsman local up` serves models here without a cluster"
        return [skipped(Scope.LOCAL, "local mode does not run on this machine", hint)]
    from automation.cli.local_checks import local_checks
    from automation.local.folders import LocalFolders

    tools = [tool_check("pulumi", is_needed=True), tool_check("llama-server", is_needed=False)]
    return in_scope(Scope.LOCAL, [*tools, *local_checks(LocalFolders.of_user())])


def _local_mode_runs() -> bool:
    from automation.local.folders import LocalFolders
    from automation.local.instance import running_instance

    return running_instance(LocalFolders.of_user()) is not None
