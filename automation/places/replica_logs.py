"""The replicas of a service, and the ends of their logs, for the web console. Reads with the caller's permissions.

A replica is a pod or a process on a host. A log is read in steps and not as one long request, so that a log without new
lines occupies no thread. Called by `automation.web_console.reading` and, for its rules, by `herdsman logs`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from automation.cache.owners import process_selector_of, selector_of
from automation.places.log_sources import LogSource, NoLog, local_log, log_on_host
from automation.places.service_view import is_replica
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden, KubeError, NotFound
from kubeapi.json_types import Json
from kubeapi.pods import log_lines
from program.dialects.llmaz.naming import LABEL_GROUP
from program.dialects.registry import ENGINE_CONTAINERS, key_of

_LLMAZ = frozenset({"llmaz", "llmaz-service"})
_LIMIT_BYTES = 1 << 20
GAP = "... lines are missing here, because the log grows faster than it is read\n"


@dataclass(frozen=True)
class Replica:
    """One replica of a service."""

    name: str
    """Of the pod, or of the HostProcess."""
    where: str
    """`pod`, or the host: `host studio`."""
    document: Json | None = None
    """The pod or HostProcess; None on a machine without a cluster."""


class LogTail(Protocol):
    """The end of one log."""

    def read_new(self) -> str:
        """Return the last lines at the first call, then what was written since. Raises NoLog."""


def pods_of(client: KubeClient, namespace: str | None, dialects: Iterable[str], name: str) -> list[Json]:
    """Return the pods that are replicas of the services of this name. Raises KubeError."""
    wanted = list(dialects)
    found = [
        pod
        for each in wanted
        for pod in client.list(kinds.PODS, namespace, label_selector=selector_of(each, (name,)))["items"]
        if is_replica(pod)
    ]
    if not found and not _LLMAZ.isdisjoint(wanted):
        # llmaz's pods have no label of Herdsman.
        found = client.list(kinds.PODS, namespace, label_selector=f"{LABEL_GROUP}={name}")["items"]
    return sorted(found, key=lambda pod: (pod["metadata"]["namespace"], pod["metadata"]["name"]))


def engine_container(pod: Json) -> str:
    """Return the name of the container that runs the engine."""
    named = [str(each["name"]) for each in pod["spec"]["containers"]]
    return next((each for each in named if each in ENGINE_CONTAINERS), named[0])


def replicas_in_cluster(client: KubeClient, service: Json) -> list[Replica]:
    """Return the processes of a service on hosts, then its pods. Raises KubeError."""
    key = key_of(service)
    processes: list[Json] = []
    with contextlib.suppress(NotFound, Forbidden):  # a cluster without hosts, or a user who sees pods only
        selector = process_selector_of(key.dialect, (key.name,))
        processes = client.list(kinds.HOST_PROCESSES, key.namespace, label_selector=selector)["items"]
    ordered = sorted(processes, key=lambda each: int(each["spec"].get("replica") or 0))
    hosted = [Replica(each["metadata"]["name"], f"host {each['spec'].get('host', '')}", each) for each in ordered]
    pods = pods_of(client, key.namespace, [key.dialect], key.name)
    return hosted + [Replica(each["metadata"]["name"], "pod", each) for each in pods]


def tail_in_cluster(client: KubeClient, replica: Replica, *, lines: int) -> LogTail:
    """Return the log of a replica of `replicas_in_cluster`. Raises NoLog and KubeError."""
    document = replica.document or {}
    if replica.where == "pod":
        return PodTail(client, document, lines)
    host: Json | None = None
    with contextlib.suppress(NotFound):
        host = client.get(kinds.HOSTS, None, document["spec"]["host"])
    return SourceTail(log_on_host(document, host, token_file=None), lines)


def local_tail(store: Path, *, namespace: str, name: str, lines: int) -> LogTail:
    """Return the log of a service of this machine's agent, whose directory is `store`. Raises NoLog."""
    source = local_log(store, service=name, namespace=namespace, replica=0)
    if source is None:
        raise NoLog(f"`{name}` has not run on this machine yet", "its log begins with its first start")
    return SourceTail(source, lines)


class SourceTail:
    """The end of a log that is read by offsets; implements `LogTail`."""

    def __init__(self, source: LogSource, lines: int) -> None:
        self._source, self._lines = source, lines
        self._offset: int | None = None

    def read_new(self) -> str:
        tail = self._lines if self._offset is None else None
        piece = self._source.read(tail=tail, offset=self._offset)
        self._offset = piece.offset
        return piece.text


class PodTail:
    """The end of the log of a pod's engine; implements `LogTail`.

    The API has no offsets. Each read asks for the lines since the second of the last known line, and drops the lines up
    to it. An answer is cut after `_LIMIT_BYTES`. If this cuts off all new lines, because one second of the log is
    longer, the read asks for the last lines instead, and `GAP` stands for those between.
    """

    def __init__(self, client: KubeClient, pod: Json, lines: int) -> None:
        self._client, self._pod, self._lines = client, pod, lines
        self._last = ""
        """The last known line, with its time."""

    def read_new(self) -> str:
        found, is_cut = self._ask(since=self._last.partition(" ")[0] or None)
        new, is_joined = self._after_last(found)
        gap = ""
        if self._last and is_cut and not (is_joined and new):
            new, is_joined = self._after_last(self._ask(since=None)[0])
            gap = "" if is_joined else GAP
        if not new:
            return ""
        self._last = new[-1]
        return gap + "".join(f"{line.partition(' ')[2]}\n" for line in new)

    def _after_last(self, found: list[str]) -> tuple[list[str], bool]:
        """Return the lines after the last known one. False: the last known line is not among `found`."""
        if self._last in found:
            return found[found.index(self._last) + 1 :], True
        return found, False

    def _ask(self, *, since: str | None) -> tuple[list[str], bool]:
        """Return the lines since a time, or the last lines. True: the limit cut the answer. Raises NoLog."""
        metadata = self._pod["metadata"]
        try:
            text = log_lines(
                self._client,
                metadata["namespace"],
                metadata["name"],
                engine_container(self._pod),
                tail=None if since else self._lines,
                since=since,
                limit_bytes=_LIMIT_BYTES,
            )
        except NotFound:
            raise NoLog(f"the pod `{metadata['name']}` is gone", "the page of the service lists the replicas") from None
        except Forbidden as error:
            raise NoLog(error.message, "reading logs needs the permission `get` for pods/log") from None
        except ApiError as error:
            raise NoLog(error.message, "the conditions of the service say why it does not start") from None
        except KubeError as error:
            raise NoLog(str(error)) from None
        # A line that is not complete yet comes with a later read.
        return text.split("\n")[:-1], len(text.encode()) >= _LIMIT_BYTES
