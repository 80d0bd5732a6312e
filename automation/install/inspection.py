"""Checks an installation: the operator, its leader, the version of the CRDs, and its permissions.

For `herdsman doctor`. Reads only. The results are texts, which the command only prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from automation.console.check import Check
from automation.external_metrics import front_proxy
from automation.install import gateway, identities, metrics_api, permissions
from automation.install.naming import NAME, SELECTOR
from automation.install.operator import CLAIM, CONTAINER
from automation.install.operator_pods import judge_engine_memory, judge_pods, uses_claim
from automation.install.options import version
from automation.leadership.shards import shard_of_lease
from automation.settings import SYSTEM_NAMESPACE
from components.providers.kubernetes_ownership import managers_words
from kubeapi import kinds
from kubeapi.access_reviews import is_allowed
from kubeapi.client import KubeClient
from kubeapi.discovery import served
from kubeapi.errors import ApiError, Forbidden, KubeError
from kubeapi.json_types import Json
from program.desired.request_report import REPORTS_NAMESPACE
from program.dialects.crds.definitions import crd_documents
from program.dialects.registry import KINDS
from program.dialects.status.conditions import Reason

Row = tuple[str, str, str, str, str]
PARALLEL = 8
MOST_NAMED = 4
_ASK_OTHERS = "run the command with an administrator's kubeconfig"


def inspect_cluster(client: KubeClient) -> list[Check]:
    """Check what every part of Herdsman needs of the cluster: CRDs, and the policies on agents' identities.

    Raises KubeError when the cluster cannot be asked at all.
    """
    return [*_crds(client), _identities(client)]


def inspect_loop(client: KubeClient, *, now: datetime) -> list[Check]:
    """Check the operator, its pods, the leader and the permissions. Raises KubeError as `inspect_cluster`."""
    checks: list[Check] = []
    namespace = ""
    selector = ",".join(f"{k}={v}" for k, v in SELECTOR.items())
    try:
        found = client.list(kinds.DEPLOYMENTS, label_selector=selector)["items"]
    except Forbidden as error:
        checks.append(Check("operator", "warning", str(error), _ASK_OTHERS))
    else:
        checks += judge_operator(found)
        checks += [each for deployment in found for each in _pods(client, deployment, now=now)]
        namespace = found[0]["metadata"]["namespace"] if found else ""
        checks += [each for deployment in found for each in _external_metrics(client, deployment)]
    checks += _leases(client, namespace or SYSTEM_NAMESPACE, now=now)
    checks.append(_permissions(client, namespace))
    checks += _dialects(client, namespace)
    return checks


def inspect_gateways(client: KubeClient) -> list[Check]:
    """Check the installed gateways; no checks where none is installed. Raises KubeError as `inspect_cluster`."""
    selector = ",".join(f"{key}={value}" for key, value in gateway.SELECTOR.items())
    try:
        found = client.list(kinds.DEPLOYMENTS, label_selector=selector)["items"]
    except Forbidden as error:
        return [Check("gateway", "warning", str(error), _ASK_OTHERS)]
    return [judge_gateway(each) for each in found]


# CRDs


def _crds(client: KubeClient) -> Iterator[Check]:
    for document in crd_documents():
        name = document["metadata"]["name"]
        check = f"crd {name}"
        try:
            live = client.find(kinds.CRDS, None, name)
        except ApiError as error:
            yield Check(check, "warning", str(error), _ASK_OTHERS)
            continue
        yield (
            Check(check, "missing", "is missing", "`herdsman install`") if live is None else judge_crd(live, document)
        )


def judge_crd(live: Json, document: Json) -> Check:
    """Compare a CRD with that of this version, field by field. Pure."""
    check = f"crd {document['metadata']['name']}"
    wanted, there = set(_fields(document)), set(_fields(live))
    lacks, more = sorted(wanted - there), sorted(there - wanted)
    by = managers_words(live)
    if lacks:
        detail = f"lacks {_some(lacks)}; another version or another project installed it ({by})"
        return Check(check, "warning", detail, "`herdsman install --dry-run`, then `herdsman install`")
    if more:
        detail = f"has {_some(more)} in addition to the fields of this version ({by})"
        return Check(check, "ok", detail)
    return Check(check, "ok", f"of version {version()}")


def _fields(crd: Json) -> Iterator[str]:
    for each in crd["spec"]["versions"]:
        yield from _properties((each.get("schema") or {}).get("openAPIV3Schema") or {}, "")


def _properties(schema: Json, path: str) -> Iterator[str]:
    for name, below in (schema.get("properties") or {}).items():
        at = f"{path}.{name}" if path else name
        yield at
        yield from _properties(below, at)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _properties(schema[key], f"{path}[]")


def _some(names: list[str]) -> str:
    told = ", ".join(names[:MOST_NAMED])
    return told if len(names) <= MOST_NAMED else f"{told} and {len(names) - MOST_NAMED} more fields"


# The operator


def judge_operator(deployments: list[Json]) -> list[Check]:
    """Check whether the operator exists and runs. Pure."""
    if not deployments:
        return [
            Check(
                "operator",
                "warning",
                "is not installed in this cluster",
                "`herdsman install`, or start a loop with `herdsman run`",
            )
        ]
    checks = []
    for deployment in deployments:
        where = f"{deployment['metadata']['namespace']}/{deployment['metadata']['name']}"
        containers = deployment["spec"]["template"]["spec"]["containers"]
        image = next((c["image"] for c in containers if c["name"] == CONTAINER), containers[0]["image"])
        wanted = deployment["spec"].get("replicas", 1)
        ready = (deployment.get("status") or {}).get("readyReplicas", 0)
        detail = f"{where}: {image}, {ready} of {wanted} ready"
        namespace = deployment["metadata"]["namespace"]
        if ready < wanted:
            hint = f"`kubectl -n {namespace} describe pods -l app.kubernetes.io/name={NAME}`, and read its log"
            checks.append(Check("operator", "warning" if ready else "missing", detail, hint))
        elif not image.partition("@")[0].endswith(f":{version()}"):
            hint = (
                f"this command is version {version()}; change the operator's version with `herdsman install --image …`"
            )
            checks.append(Check("operator", "ok", detail, hint))
        else:
            checks.append(Check("operator", "ok", detail))
    if len(deployments) > 1:
        hint = "a cluster needs exactly one operator: remove the others with `herdsman uninstall --namespace …`"
        checks.append(Check("operator", "warning", f"{len(deployments)} operators are installed", hint))
    return checks


def _pods(client: KubeClient, deployment: Json, *, now: datetime) -> list[Check]:
    namespace = deployment["metadata"]["namespace"]
    selector = ",".join(f"{key}={value}" for key, value in SELECTOR.items())
    try:
        pods = client.list(kinds.PODS, namespace, label_selector=selector)["items"]
        events = client.list(kinds.EVENTS, field_selector=f"reason={Reason.ENGINE_OUT_OF_MEMORY}")["items"]
        claim = client.find(kinds.CLAIMS, namespace, CLAIM) if any(map(uses_claim, pods)) else None
    except ApiError as error:
        return [Check("operator's pods", "warning", f"cannot be checked: {error}", _ASK_OTHERS)]
    found = judge_pods(pods, now=now, claim_is_there=claim is not None)
    return [*found, *judge_engine_memory(events, deployment, now=now)]


def _external_metrics(client: KubeClient, deployment: Json) -> Iterator[Check]:
    if not metrics_api.is_wanted(deployment):
        return
    namespace = deployment["metadata"]["namespace"]
    try:
        yield metrics_api.inspect(client, namespace)
    except ApiError as error:
        yield Check("external metrics", "warning", str(error), _ASK_OTHERS)
    rows = [
        (*request, "", name)
        for permission in permissions.EXTERNAL_METRICS
        for request in permission.requests
        for name in permission.names or ("",)
    ]
    # By Kubernetes' Role extension-apiserver-authentication-reader, which has this one name.
    rows.append(("", "configmaps", "get", front_proxy.NAMESPACE, front_proxy.NAME))
    yield _granted(client, namespace, "permissions for external metrics", rows, option="external-metrics")


def judge_gateway(deployment: Json) -> Check:
    """Check whether the installed gateways are ready. Pure."""
    metadata, wanted = deployment["metadata"], deployment["spec"].get("replicas", 1)
    ready = (deployment.get("status") or {}).get("readyReplicas", 0)
    detail = f"{metadata['namespace']}/{metadata['name']}: {ready} of {wanted} ready"
    if ready >= wanted:
        return Check("gateway", "ok", detail)
    volumes = deployment["spec"]["template"]["spec"].get("volumes") or ()
    secrets = ", ".join(each["secret"]["secretName"] for each in volumes if "secret" in each)
    hint = (
        f"check that Secret {secrets} exists; `kubectl -n {metadata['namespace']} describe pods "
        f"-l app.kubernetes.io/name={gateway.GATEWAY}` names the reason"
    )
    return Check("gateway", "warning" if ready else "missing", detail, hint)


def _leases(client: KubeClient, namespace: str, *, now: datetime) -> Iterator[Check]:
    try:
        leases = client.list(kinds.LEASES, namespace)["items"]
    except ApiError as error:
        yield Check("leader", "warning", f"cannot be checked: {error}")
        return
    ours = [each for each in leases if shard_of_lease(each["metadata"]["name"], NAME) is not None]
    if not ours:
        yield Check("leader", "warning", f"no loop has led yet in {namespace}")
    for lease in ours:
        yield judge_lease(lease, now=now)


def judge_lease(lease: Json, *, now: datetime) -> Check:
    """Name the leader. Pure; by this machine's clock, so a few seconds mean nothing."""
    spec = lease.get("spec") or {}
    name = f"leader {lease['metadata']['namespace']}/{lease['metadata']['name']}"
    holder = spec.get("holderIdentity") or ""
    if not holder:
        return Check(name, "warning", "no loop leads", "check that an operator runs")
    try:
        age_s = (now - datetime.fromisoformat(str(spec.get("renewTime", "")).replace("Z", "+00:00"))).total_seconds()
    except (ValueError, TypeError):
        return Check(name, "warning", f"{holder} holds the Lease and has never renewed it")
    if age_s > 2 * spec.get("leaseDurationSeconds", 15):
        return Check(
            name,
            "warning",
            f"{holder} renewed the Lease {age_s:.0f} s ago, and it has expired",
            "check that an operator runs",
        )
    return Check(name, "ok", f"{holder}, renewed {max(0.0, age_s):.0f} s ago")


# Permissions


def _permissions(client: KubeClient, namespace: str) -> Check:
    """Check each row of the permissions: for the operator's account, or for the caller where there is no operator."""
    where = namespace or SYSTEM_NAMESPACE
    rows = [(*request, "", "") for request in permissions.requests(permissions.LOOP)]
    rows += [(*request, where, "") for request in permissions.requests(permissions.LOOP_LEASES)]
    rows += [(*request, REPORTS_NAMESPACE, "") for request in permissions.requests(permissions.LOOP_REPORTS)]
    return _granted(client, namespace, "permissions", rows, option="")


def _dialects(client: KubeClient, namespace: str) -> Iterator[Check]:
    """Check the same for each dialect whose CRDs exist; other dialects' permissions are not needed."""
    try:
        answer = served(lambda path: client.request("GET", path), KINDS.values())
    except KubeError as error:
        yield Check("dialects", "warning", f"cannot be checked: {error}")
        return
    for name in permissions.DIALECTS:
        if answer.get(KINDS[name]):
            of_all = (each for each in permissions.DIALECTS[name] if not each.names)
            rows = [(*request, "", "") for each in of_all for request in each.requests]
            yield _granted(client, namespace, f"permissions for {name}", rows, option=name)


def _granted(client: KubeClient, namespace: str, check: str, rows: list[Row], *, option: str) -> Check:
    """Check rights: group, resource and verb, the namespace or "" for all, and the name of the object or "" for all."""
    account = f"system:serviceaccount:{namespace}:{NAME}" if namespace else ""
    who = f"the operator's account ({namespace}/{NAME})" if namespace else "you"
    try:
        with ThreadPoolExecutor(PARALLEL) as pool:
            allowed = list(pool.map(lambda row: is_allowed(client, *row[:4], name=row[4], account=account), rows))
    except KubeError as error:
        return Check(
            check, "warning", f"cannot be checked: {error}", "run the command with an administrator's kubeconfig"
        )
    denied = [row for row, may in zip(rows, allowed, strict=True) if not may]
    needed = [row for row in denied if row[0] not in permissions.OPTIONAL_GROUPS]
    if not denied:
        return Check(check, "ok", f"{who}: {len(rows)} checked")
    command = f"`herdsman install --{option}`" if option else "`herdsman install`"
    file = f"docs/install/rbac-{option}.yaml" if option else "docs/install/rbac.yaml"
    own_hint = f"run the loop with an identity to which the roles of {file} are bound"
    hint = f"{command} grants the permissions" if namespace else own_hint
    return Check(check, "missing" if needed else "warning", f"{who} may not {_rows(needed or denied)}", hint)


def _identities(client: KubeClient) -> Check:
    """Check whether the API server restricts each agent to its host."""
    check, kind_of_binding = "agents' identities", identities.KINDS[1]
    try:
        answer = served(lambda path: client.request("GET", path), identities.KINDS)
        if not all(answer.get(kind) for kind in identities.KINDS):
            detail = "the API server has no ValidatingAdmissionPolicy, so an agent's token can write for other hosts"
            return Check(
                check,
                "warning",
                detail,
                "Kubernetes 1.30 or newer; docs/explanation/security.md describes what to do on older versions",
            )
        found = [[client.find(kind, None, name) for kind in identities.KINDS] for name in identities.names()]
    except KubeError as error:
        return Check(check, "warning", f"cannot be checked: {error}", _ASK_OTHERS)
    lacks = [name for name, both in zip(identities.names(), found, strict=True) if None in both]
    if lacks:
        detail = f"policy or binding {', '.join(lacks)} is missing: an agent's token can write for other hosts"
        return Check(check, "missing", detail, "`herdsman install`, or apply docs/install/agent-policies.yaml")
    lax = [
        str(binding["metadata"]["name"])
        for _, binding in found
        if binding is not None and "Deny" not in binding["spec"].get("validationActions", ())
    ]
    if lax:
        detail = f"{kind_of_binding.kind} {', '.join(lax)} only warns: an agent's token can write for other hosts"
        return Check(check, "warning", detail, "`herdsman install` without `--host-identities warn`")
    return Check(check, "ok", "each agent can write only for its own host")


def _rows(rows: Iterable[Row]) -> str:
    by_resource: dict[str, list[str]] = {}
    for group, resource, verb, *_ in rows:
        by_resource.setdefault(f"{resource}.{group}" if group else resource, []).append(verb)
    told = [f"{'/'.join(verbs)} {resource}" for resource, verbs in by_resource.items()]
    return ", ".join(told[:MOST_NAMED]) + (f" and {len(told) - MOST_NAMED} more" if len(told) > MOST_NAMED else "")


def utc_now() -> datetime:
    """Return the time by this machine's clock."""
    return datetime.now(UTC)
