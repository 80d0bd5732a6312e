"""`herdsman doctor`: look at everything that a run needs and say what is missing and how to get it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from automation.cli.output import OutputFormat, print_json, print_table
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError
from tools import toolchain

# What the loop does in the cluster; the rows of the ClusterRole in docs/install/rbac.yaml.
PERMISSIONS = (
    ("inference.llmkube.dev", "inferenceservices", "watch"),
    ("inference.llmkube.dev", "inferenceservices/status", "patch"),
    ("inference.llmkube.dev", "models", "watch"),
    ("inference.llmkube.dev", "models/status", "patch"),
    ("herdsman.dev", "hostprocesses", "patch"),
    ("herdsman.dev", "hosts", "watch"),
    ("herdsman.dev", "hosts/status", "patch"),
    ("apps", "deployments", "patch"),
    ("apps", "deployments", "delete"),
    ("", "services", "patch"),
    ("", "persistentvolumeclaims", "patch"),
    ("autoscaling", "horizontalpodautoscalers", "patch"),
    ("", "pods", "watch"),
    ("", "nodes", "list"),
    ("", "events", "create"),
    ("coordination.k8s.io", "leases", "update"),
    ("discovery.k8s.io", "endpointslices", "watch"),
    ("discovery.k8s.io", "endpointslices", "patch"),
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    check: str
    state: str
    """ok, warning or missing; only `missing` makes the command fail."""
    detail: str
    hint: str = ""


def doctor(
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """Check tools, cluster, CRDs and permissions; exit code 1 when something that a run needs is missing."""
    findings = [*_tools(), *_cluster(kubeconfig)]
    if output is OutputFormat.JSON:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = [(f.check, f.state, f.detail, f.hint) for f in findings]
        print_table(("CHECK", "STATE", "DETAIL", "WHAT TO DO"), rows, phase_column=1)
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)


def _tools() -> list[Finding]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    findings = [Finding("python", "ok", version)]
    for name, needed in (("pulumi", True), ("llama-server", False), ("kube-apiserver", False), ("kubectl", False)):
        try:
            path = toolchain.locate(name)
        except toolchain.ToolMissing as error:
            state = "missing" if needed else "warning"
            findings.append(Finding(name, state, "not found", error.remedy))
        else:
            findings.append(Finding(name, "ok", str(path)))
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0:
        findings.append(Finding("docker", "ok", "runs; `herdsman cluster up` makes a kind cluster"))
    else:
        findings.append(Finding("docker", "ok", "does not run; `herdsman cluster up` starts a local control plane"))
    return findings


def _cluster(kubeconfig: str | None) -> list[Finding]:
    try:
        client = KubeClient.default(kubeconfig)
        version = client.request("GET", "/version")
    except KubeError as error:
        hint = 'start one: `herdsman cluster up`, then `eval "$(herdsman cluster env)"`'
        return [Finding("cluster", "missing", str(error), hint)]
    findings = [Finding("cluster", "ok", f"{client.server} {version.get('gitVersion', '')}")]
    for kind in (kinds.MODELS, kinds.INFERENCE_SERVICES, kinds.HOST_PROCESSES, kinds.HOSTS):
        name = f"{kind.plural}.{kind.group}"
        try:
            client.get(kinds.CRDS, None, name)
        except KubeError as error:
            findings.append(Finding(f"crd {name}", "missing", str(error), "`herdsman crds | kubectl apply -f -`"))
        else:
            findings.append(Finding(f"crd {name}", "ok", kind.api_version))
    denied = [row for row in PERMISSIONS if not _allowed(client, *row)]
    for group, resource, verb in denied:
        detail = f"may not {verb} {resource}{'.' + group if group else ''}"
        findings.append(Finding("permission", "missing", detail, "bind the role of docs/install/rbac.yaml"))
    if not denied:
        findings.append(Finding("permissions", "ok", f"{len(PERMISSIONS)} checked"))
    return findings


def _allowed(client: KubeClient, group: str, resource: str, verb: str) -> bool:
    plural, _, subresource = resource.partition("/")
    attributes = {"group": group, "resource": plural, "subresource": subresource, "verb": verb}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    try:
        answer = client.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review)
    except KubeError:
        return False
    return bool((answer.get("status") or {}).get("allowed"))
