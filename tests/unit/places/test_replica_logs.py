"""The replicas of a service in a cluster, and the new lines of a pod's log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from automation.places.log_sources import NoLog
from automation.places.replica_logs import GAP, PodTail, replicas_in_cluster, tail_in_cluster
from components import naming
from kubeapi import kinds
from kubeapi.json_types import Json
from program.dialects.llmaz.naming import LABEL_GROUP
from tests.support.pod_proxy import PodProxy, Say, api_status

POD: Json = {
    "metadata": {"namespace": "prod", "name": "chat-0"},
    "spec": {"containers": [{"name": "proxy"}, {"name": "main"}]},
}
PROCESS: Json = {
    "metadata": {"namespace": "prod", "name": "chat"},
    "spec": {"host": "studio", "service": "chat", "replica": 0},
}
SERVICE: Json = {
    "apiVersion": kinds.INFERENCE_SERVICES.api_version,
    "kind": "InferenceService",
    "metadata": {"namespace": "prod", "name": "chat"},
}


@pytest.fixture
def api() -> Iterator[PodProxy]:
    with PodProxy() as proxy:
        yield proxy


def lines(*numbers: int) -> bytes:
    return "".join(f"2026-11-01T00:00:0{number}.5Z line {number}\n" for number in numbers).encode()


def test_each_read_has_only_the_new_lines_of_the_engine(api: PodProxy) -> None:
    answers = iter([lines(1, 2), lines(2), lines(2, 3) + b"2026-11-01T00:00:04Z begun", b"", lines(5)])
    asked: list[dict[str, list[str]]] = []

    def answer(_method: str, path: str, _body: Any) -> Say:
        asked.append(parse_qs(urlsplit(path).query))
        return Say(body=next(answers))

    api.other = answer
    tail = PodTail(api.client, POD, 300)
    read = [tail.read_new() for _ in range(5)]
    assert read == ["line 1\nline 2\n", "", "line 3\n", "", "line 5\n"]
    assert asked[0]["tailLines"] == ["300"] and "sinceTime" not in asked[0]
    assert asked[1]["sinceTime"] == ["2026-11-01T00:00:02.5Z"] and "tailLines" not in asked[1]
    assert {each["container"][0] for each in asked} == {"main"}


def test_a_log_of_more_than_the_limit_in_a_second_goes_on(api: PodProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("automation.places.replica_logs._LIMIT_BYTES", 3 * len(lines(1)))
    log: list[bytes] = []

    def answer(_method: str, path: str, _body: Any) -> Say:
        """Answer as a kubelet: all lines are of one second, and the limit cuts the end off."""
        query = parse_qs(urlsplit(path).query)
        wanted = log[-int(query["tailLines"][0]) :] if "tailLines" in query else log
        return Say(body=b"".join(wanted)[: int(query["limitBytes"][0])])

    api.other = answer
    tail, read = PodTail(api.client, POD, 2), []
    for numbers in ((1, 2), (3,), (4,), (5, 6, 7), ()):
        log += [lines(number).replace(b"00:00:0", b"00:00:00.00") for number in numbers]
        read.append(tail.read_new())
    assert read == ["line 1\nline 2\n", "line 3\n", "line 4\n", f"{GAP}line 6\nline 7\n", ""]


@pytest.mark.parametrize(
    ("code", "reason", "told"),
    [(404, "NotFound", "is gone"), (403, "Forbidden", "may not"), (400, "BadRequest", "is waiting to start")],
)
def test_a_refusal_is_in_words(api: PodProxy, code: int, reason: str, told: str) -> None:
    api.other = lambda *_: api_status(code, reason, told)
    with pytest.raises(NoLog, match=told) as caught:
        PodTail(api.client, POD, 300).read_new()
    assert caught.value.hint


def test_processes_on_hosts_come_before_pods(api: PodProxy) -> None:
    def answer(_method: str, path: str, _body: Any) -> Say:
        asked = urlsplit(path)
        wanted = parse_qs(asked.query).get("labelSelector") == [f"{naming.LABEL_SERVICE}=chat"]
        if asked.path.endswith("/pods"):
            return Say(body={"items": [POD] if wanted else []})
        if asked.path.endswith("/hostprocesses"):
            return Say(body={"items": [PROCESS] if wanted else []})
        return api_status(404, "NotFound", "no such host")

    api.other = answer
    hosted, pod = replicas_in_cluster(api.client, SERVICE)
    assert (hosted.name, hosted.where) == ("chat", "host studio")
    assert (pod.name, pod.where) == ("chat-0", "pod")
    with pytest.raises(NoLog, match="has no Host `studio`"):
        tail_in_cluster(api.client, hosted, lines=300)
    api.other = lambda _method, path, _body: (
        api_status(403, "Forbidden") if "hostprocesses" in path else Say(body={"items": [POD]})
    )
    assert [each.where for each in replicas_in_cluster(api.client, SERVICE)] == ["pod"]


@pytest.mark.parametrize(("kind", "found"), [(kinds.INFERENCE_SERVICES, []), (kinds.PLAYGROUNDS, ["chat-0"])])
def test_pods_of_llmaz_belong_to_its_services_only(api: PodProxy, kind: kinds.Kind, found: list[str]) -> None:
    def answer(_method: str, path: str, _body: Any) -> Say:
        asked = urlsplit(path)
        wanted = parse_qs(asked.query).get("labelSelector") == [f"{LABEL_GROUP}=chat"]
        return Say(body={"items": [POD] if wanted and asked.path.endswith("/pods") else []})

    api.other = answer
    service = {**SERVICE, "kind": kind.kind, "apiVersion": kind.api_version}
    assert [each.name for each in replicas_in_cluster(api.client, service)] == found
