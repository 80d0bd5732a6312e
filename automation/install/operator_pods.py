"""Finds out why the operator's pods do not run, or ended before, from their status and their claim. Pure.

Called by `inspection`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from automation.console.check import Check
from automation.install.operator import CLAIM, CONTAINER
from kubeapi.json_types import Json

RECENT = timedelta(days=1)
"""For a pod that is Ready, an earlier end is reported only for this long."""
ENOUGH = "docs/how-to/install.md lists the memory for numbers of services"
_IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_UNREMARKABLE = frozenset({"ContainerCreating", "PodInitializing", "CrashLoopBackOff"})
_QUANTITY = re.compile(r"([0-9]+)(\.[0-9]+)?([A-Za-z]*)")


def judge_pods(pods: list[Json], *, now: datetime, claim_is_there: bool = True) -> list[Check]:
    """Return a check for each pod that does not run or that ended within the last day; empty when all is well."""
    found = []
    for pod in sorted(pods, key=lambda each: str(each["metadata"]["name"])):
        if not pod["metadata"].get("deletionTimestamp"):
            found += list(_judge(pod, now=now, claim_is_there=claim_is_there))
    return found


def judge_engine_memory(events: list[Json], deployment: Json, *, now: datetime) -> list[Check]:
    """Return a check if the kernel killed an engine for lack of memory while the loop ran on; empty otherwise.

    `events` are those of services with that reason. The API server keeps Events for an hour.
    """
    if not events:
        return []
    objects = (each["involvedObject"] for each in events)
    names = sorted({f"{each.get('namespace')}/{each.get('name')}" for each in objects})
    others = len(names) - 1
    told = names[0] + (f" and {others} other service{'' if others == 1 else 's'}" if others else "")
    last = max((at for each in events if (at := _time(each.get("lastTimestamp"))) is not None), default=None)
    limit = _limit(deployment["spec"]["template"])
    detail = (
        f"the engine used up the memory (EngineOutOfMemory){_ago(last, now)}; the limit is {limit or 'unknown'}; "
        f"changes of {told} failed"
    )
    return [Check("operator's memory", "warning", detail, _more_memory(limit))]


def uses_claim(pod: Json) -> bool:
    """Return whether the pod has the engine's state on the operator's claim."""
    return any(
        (volume.get("persistentVolumeClaim") or {}).get("claimName") == CLAIM
        for volume in pod["spec"].get("volumes") or ()
    )


def _judge(pod: Json, *, now: datetime, claim_is_there: bool) -> Iterator[Check]:
    metadata, status = pod["metadata"], pod.get("status") or {}
    check = f"pod {metadata['namespace']}/{metadata['name']}"
    if status.get("phase") == "Failed":
        # The Deployment has replaced the pod.
        detail = f"{status.get('reason') or 'failed'}: {status.get('message') or 'the kubelet gives no reason'}"
        yield Check(check, "warning", detail, f"`kubectl -n {metadata['namespace']} delete pod {metadata['name']}`")
        return
    if uses_claim(pod) and not claim_is_there and not _is_ready(status):
        detail = f"waits for the claim {CLAIM}, which does not exist; models keep serving"
        yield Check(check, "missing", detail, "`herdsman install` with your options creates a new claim")
        return
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield Check(check, "missing", f"has no node: {condition.get('message', '')}")
            return
    for entry in status.get("containerStatuses") or ():
        if entry.get("name") == CONTAINER:
            yield from _judge_container(pod, entry, check, now=now)


def _judge_container(pod: Json, entry: Json, check: str, *, now: datetime) -> Iterator[Check]:
    state = entry.get("state") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or (entry.get("lastState") or {}).get("terminated") or {}
    reason = str(waiting.get("reason") or "")
    if reason in _IMAGE_REASONS:
        detail = f"its image {entry.get('image', '')} cannot be pulled: {waiting.get('message') or reason}"
        yield Check(
            check,
            "missing",
            detail,
            "`herdsman install --image …`; add `--pull-secret` if the registry needs credentials",
        )
    elif reason and reason not in _UNREMARKABLE:
        yield Check(check, "missing", f"{reason}: {waiting.get('message', '')}")
    elif ended:
        yield from _judge_end(pod, entry, ended, check, now=now)


def _judge_end(pod: Json, entry: Json, ended: Json, check: str, *, now: datetime) -> Iterator[Check]:
    is_ready, at = bool(entry.get("ready")), _time(ended.get("finishedAt"))
    if is_ready and at is not None and now - at > RECENT:
        return
    state = "warning" if is_ready else "missing"
    told = f"{_restarts(entry)}{_ago(at, now)}"
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    if ended.get("reason") == "OOMKilled":
        limit = _limit(pod)
        of = limit or "the memory of the node"
        detail = f"was killed because it reached its memory limit (OOMKilled){told}; its limit is {of}"
        yield Check(check, state, detail, _more_memory(limit))
    elif ended.get("exitCode", 0) != 0 or not is_ready:
        detail = f"exited with code {ended.get('exitCode', 0)} ({ended.get('reason', 'no reason given')}){told}"
        yield Check(
            check, state, detail, f"`kubectl -n {namespace} logs {name} -c {CONTAINER} --previous` shows the reason"
        )


def _more_memory(limit: str) -> str:
    larger = doubled(limit) or "2Gi"
    return f"`herdsman install --memory {larger}` with your other options (chart: `memory: {larger}`); {ENOUGH}"


def doubled(quantity: str) -> str:
    """Return twice an amount of memory, in the same unit (`512Mi` gives `1Gi`); empty for an invalid amount."""
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        return ""
    amount, unit = 2 * float(match[1] + (match[2] or "")), match[3]
    if unit == "Mi" and amount >= 1024 and amount % 1024 == 0:
        amount, unit = amount / 1024, "Gi"
    return f"{amount:g}{unit}"


def _limit(pod: Json) -> str:
    for container in pod["spec"]["containers"]:
        if container["name"] == CONTAINER:
            return str(((container.get("resources") or {}).get("limits") or {}).get("memory") or "")
    return ""


def _restarts(entry: Json) -> str:
    count = int(entry.get("restartCount") or 0)
    return f", {count} restart{'' if count == 1 else 's'}" if count else ""


def _ago(at: datetime | None, now: datetime) -> str:
    if at is None:
        return ""
    minutes = max(0.0, (now - at).total_seconds()) / 60
    if minutes < 2:
        when = "less than two minutes ago"
    else:
        when = f"{minutes:.0f} minutes ago" if minutes < 120 else f"{minutes / 60:.0f} h ago"
    return f", the last time {when}"


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None


def _is_ready(status: Json) -> bool:
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in status.get("conditions") or ())
