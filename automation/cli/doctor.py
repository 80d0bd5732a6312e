"""`herdsman doctor`: check everything that the loop needs, and name missing parts and how to get them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from typing import Annotated

import typer

from automation.cli.output import OutputFormat, report_checks
from automation.cli.place_options import Context
from automation.console.check import Check
from automation.install.inspection import inspect, utc_now
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotFound
from tools import toolchain


def doctor(
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    context: Context = None,
    host: Annotated[str | None, typer.Option(help="Also check this host, as `herdsman host doctor` does.")] = None,
    state: Annotated[str | None, typer.Option(help="Also check the state at this URL.")] = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """Check tools, cluster, CRDs, operator and permissions.

    Exit code 1 when something that the loop needs is missing.
    """
    checks = [*_tools(), *_cluster(kubeconfig, context, host), *(_state(state) if state else ())]
    report_checks(checks, output)


def _tools() -> list[Check]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    checks = [Check("python", "ok", version)]
    for name, needed in (("pulumi", True), ("llama-server", False), ("kube-apiserver", False), ("kubectl", False)):
        try:
            path = toolchain.locate(name)
        except toolchain.ToolMissing as error:
            state = "missing" if needed else "warning"
            checks.append(Check(name, state, "not found", error.remedy))
        else:
            checks.append(Check(name, "ok", str(path)))
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0:
        checks.append(Check("docker", "ok", "runs; `herdsman cluster up` makes a kind cluster"))
    else:
        checks.append(Check("docker", "ok", "does not run; `herdsman cluster up` starts a local control plane"))
    return checks


def _cluster(kubeconfig: str | None, context: str | None, host: str | None) -> list[Check]:
    try:
        client = KubeClient.default(kubeconfig, context=context)
        version = client.request("GET", "/version")
        checks = [Check("cluster", "ok", f"{client.server} {version.get('gitVersion', '')}")]
        checks += inspect(client, now=utc_now())
        checks += _peers(client)
    except KubeError as error:
        hint = 'start one: `herdsman cluster up`, then `eval "$(herdsman cluster env)"`'
        return [Check("cluster", "missing", str(error), hint)]
    if host:
        checks += _host(client, host)
    return checks


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


def _host(client: KubeClient, name: str) -> list[Check]:
    from automation.cli.host_doctor import examine

    try:
        found = examine(client, name, now=utc_now())
    except NotFound:
        return [
            Check(
                f"host {name}",
                "missing",
                "no Host has this name",
                "list the hosts with `herdsman host list`; add one with `herdsman host add`",
            )
        ]
    except KubeError as error:
        return [Check(f"host {name}", "missing", str(error))]
    return [replace(each, check=f"host {name}: {each.check}") for each in found]


def _state(url: str) -> list[Check]:
    from automation.cli.state_access import opened, settings_of
    from automation.state.checking import check_state

    with opened(settings_of(url, None)) as backend:
        return list(check_state(backend))
