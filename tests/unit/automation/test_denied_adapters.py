"""LoRAAdapters that a policy denies, and the services whose replicas would start with them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from automation.approval.approval import services_with_adapters
from automation.approval.policy_checker import Verdict
from automation.approval.resource_versions import ResourceVersions
from automation.cache.service_cache import _content, _content_version
from automation.reconcile.desire import Desirer
from automation.reconcile.observe import Observed
from automation.reconcile.services import CacheLookup
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.adapter import AdapterFile
from program.desired.facts import Problem
from program.desired.keys import ServiceKey
from tests.support.builders import http_model, service

DENIED = Verdict(Problem(reason="PolicyViolated", message="no", terminal=True))
LAW, SQL = (AdapterFile(name=name, source=http_model(), resource=name) for name in ("law", "sql"))


def adapters(
    verdicts: dict[str, Verdict | None], *, processes: tuple[Json, ...] = (), pods: tuple[Json, ...] = ()
) -> Any:
    """The adapters that the replicas of a service get, by the verdicts and by what the replicas have."""
    cache: Any = SimpleNamespace(get=lambda _kind, _namespace, name: {"name": name})
    parts: Any = None
    desirer = Desirer(parts, cache, parts, parts, policies=lambda cr: verdicts.get(cr["name"]))
    observed = Observed((), claim_exists=True, deployment=None, pods=pods, host_processes=dict(enumerate(processes)))
    wanted = service().model_copy(update={"adapters": (LAW, SQL)})
    return desirer._without_denied_adapters(wanted, observed).adapters


@pytest.mark.parametrize("verdict", [None, Verdict(), Verdict(advice=(Problem(reason="PolicyAdvice", message="hm"),))])
def test_adapters_that_no_mandatory_policy_denies_are_parts_of_the_service(verdict: Verdict | None) -> None:
    assert adapters({"sql": verdict}) == (LAW, SQL)


def test_a_denied_adapter_is_no_part_of_the_service() -> None:
    others = {"spec": {"adapters": (LAW.token,)}}
    assert adapters({"sql": DENIED}, processes=(others,), pods=({"engine": None},)) == (LAW,)


@pytest.mark.parametrize(
    "replicas",
    [{"processes": ({"spec": {"adapters": (SQL.token,)}},)}, {"pods": ({"engine": {"adapters": (SQL.container,)}},)}],
)
def test_replicas_that_have_a_denied_adapter_are_not_restarted(replicas: Any) -> None:
    assert adapters({"sql": DENIED}, **replicas) == (LAW, SQL)


def test_another_result_enqueues_the_services_with_adapters() -> None:
    def adapter(name: str, service: str, kind: str = "InferenceService") -> Json:
        spec = {"inferenceServiceRef": {"name": service, "kind": kind}, "name": name, "path": f"/a/{name}"}
        return {"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": spec}

    broken = {"metadata": {"name": "d", "namespace": "ns"}}
    crs = [adapter("a", "chat"), adapter("b", "chat"), adapter("c", "gone"), adapter("e", "chat", "Playground"), broken]
    cache = SimpleNamespace(get=lambda _kind, _, name: {} if name == "chat" else None)
    cluster: Any = SimpleNamespace(
        llmkube=SimpleNamespace(listed=lambda _kind: crs), caches={"llmkube": cache, "llmaz": cache}
    )
    found: list[ServiceKey] = []
    services_with_adapters(cluster, lambda key, _delay_s: found.append(key))
    assert found == [ServiceKey("llmaz", "ns", "chat"), ServiceKey("llmkube", "ns", "chat")]


def test_a_service_gets_the_accepted_version_of_an_adapter_while_a_mode_holds_the_next_one() -> None:
    def adapter(name: str, **status: Any) -> Json:
        metadata = {"name": name, "namespace": "ns", "uid": name, "generation": 2}
        return {"kind": "LoRAAdapter", "metadata": metadata, "spec": {"path": "/new"}, "status": status}

    crs = [
        adapter("changed", acceptedVersion={"generation": 1, "spec": {"path": "/old"}}),
        adapter("accepted", acceptedVersion={"generation": 2, "spec": {"path": "/new"}}),
        adapter("new"),
    ]
    cache: Any = SimpleNamespace(
        listed=lambda _kind, _namespace: crs,
        will_look_at=lambda _key, _reference: None,
        version=lambda _reference: "",
        trouble=lambda _kind: "",
    )
    modes = {"herdsman.dev/mode": "Preview"}
    versions = ResourceVersions(annotations=lambda _namespace: modes)
    look = CacheLookup(cache, ServiceKey("llmkube", "ns", "chat"), for_spec=True, is_held=versions.is_held)

    def paths() -> dict[str, str]:
        return {each["metadata"]["name"]: each["spec"]["path"] for each in look.listed(kinds.LORA_ADAPTERS, "ns")}

    assert paths() == {"changed": "/old", "accepted": "/new"}
    modes.clear()
    assert paths() == {"changed": "/new", "accepted": "/new", "new": "/new"}


def test_an_accepted_version_enqueues_the_services_and_the_list_of_replicas_does_not() -> None:
    def adapter(**status: Any) -> Json:
        return {"metadata": {"name": "sql", "uid": "u", "generation": 2}, "spec": {}, "status": status}

    before, accepted = adapter(), adapter(acceptedVersion={"generation": 2, "spec": {}})
    kind = kinds.LORA_ADAPTERS
    assert _content(kind, before) == _content(kind, adapter(pods=[{"name": "a"}])) != _content(kind, accepted)
    assert _content_version(kind, before) != _content_version(kind, accepted)
