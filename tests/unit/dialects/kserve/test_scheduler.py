"""The endpoint picker: its configuration, ports, pool and account, and the tokenizer beside it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.kserve.parse.accounts import BINDING
from program.dialects.kserve.router.picker_config import default_config, given_config
from tests.unit.dialects.kserve.combining import cluster, main, service, settings_map
from tests.unit.dialects.kserve.parsing import made, mounted, pod, pods_of

INLINE: Json = {"kind": "EndpointPickerConfig", "plugins": [{"type": "max-score-picker"}], "apiVersion": "v"}


def scheduled(scheduler: Json | None = None, **spec: Any) -> Json:
    return service({"router": {"scheduler": scheduler or {}}, **spec})


def args(cr: Json, *objects: Json) -> list[str]:
    found = main(pod(pods_of(made(cr, *objects), "scheduler")))
    return list(found.get("args") or ())


def weights(text: str) -> dict[str, dict[str, int | None]]:
    config = yaml.safe_load(text)
    return {
        profile["name"]: {plugin["pluginRef"]: plugin.get("weight") for plugin in profile["plugins"]}
        for profile in config["schedulingProfiles"]
    }


@pytest.mark.parametrize(
    ("prefill", "adapters", "profiles"),
    [(False, False, {"default"}), (False, True, {"default"}), (True, True, {"prefill", "decode"})],
)
def test_adapters_are_scored_in_every_profile_behind_its_filter(
    prefill: bool, adapters: bool, profiles: set[str]
) -> None:
    found = weights(default_config(prefill=prefill, adapters=adapters, tls=False))
    assert set(found) == profiles
    for plugins in found.values():
        assert ("lora-affinity-scorer" in plugins) == adapters
        assert list(plugins)[-1] == "max-score-picker"
        if prefill:
            assert next(iter(plugins)).endswith("-filter")


def test_every_plugin_of_a_profile_is_declared() -> None:
    for prefill in (False, True):
        config = yaml.safe_load(default_config(prefill=prefill, adapters=True, tls=True))
        declared = {plugin["type"] for plugin in config["plugins"]}
        used = {plugin["pluginRef"] for profile in config["schedulingProfiles"] for plugin in profile["plugins"]}
        assert used <= declared


def test_over_tls_metrics_are_read_by_https_unless_the_user_says_from_where() -> None:
    def sources(text: str) -> list[Json]:
        return [p for p in yaml.safe_load(text)["plugins"] if p["type"] == "metrics-data-source"]

    assert sources(default_config(prefill=False, adapters=False, tls=True))[0]["parameters"] == {"scheme": "https"}
    assert sources(given_config(INLINE, tls=True))[0]["parameters"] == {"scheme": "https"}
    own = {**INLINE, "plugins": [{"type": "metrics-data-source", "parameters": {"path": "/m"}}]}
    assert sources(given_config(own, tls=True)) == own["plugins"]
    assert sources(given_config(INLINE, tls=False)) == []


@pytest.mark.parametrize("text", ["just words", "[1, 2]", "a: b: c", "{", "x" * 100_001])
def test_text_that_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        given_config(text, tls=False)
    assert refused.value.field == "spec.router.scheduler.config"


def test_a_configuration_may_be_an_object_or_text() -> None:
    assert given_config(INLINE, tls=False) == given_config(yaml.safe_dump(INLINE), tls=False)


def test_the_users_configuration_goes_before_what_is_worked_out() -> None:
    text = args(scheduled({"config": {"inline": INLINE}}))
    assert text[0] == "--config-text"
    assert yaml.safe_load(text[1]) == INLINE


@pytest.mark.parametrize("flag", [["--config-text", "a: b"], ["--config-file=/etc/c.yaml"]])
def test_so_do_the_users_flags(flag: list[str]) -> None:
    template = {"containers": [{"name": "main", "args": ["-v=4", *flag]}]}
    assert args(scheduled({"template": template})) == ["-v=4", *flag]
    both = args(scheduled({"template": template, "config": {"inline": INLINE}}))
    assert both[:2] == ["-v=4", "--config-text"]
    assert len(both) == 3


def test_several_pickers_elect_one() -> None:
    assert args(scheduled({"replicas": 2}))[0] == "--ha-enable-leader-election"
    pods = pods_of(made(scheduled({"replicas": 2})), "scheduler")
    assert (pods.replicas, pods.strategy) == (2, {"type": "Recreate"})


def test_users_labels_are_in_no_selector() -> None:
    pods = pods_of(made(scheduled({"labels": {"s": "1"}, "annotations": {"a": "2"}})), "scheduler")
    assert "s" not in pods.selector
    assert pods.template["metadata"]["labels"]["s"] == "1"
    assert pods.template["metadata"]["annotations"]["a"] == "2"


def test_the_service_has_the_pickers_ports_and_the_name_that_the_pool_asks_for() -> None:
    picker = {"name": "ep", "port": {"number": 9002}}
    pool = {"selector": {"matchLabels": {"app": "x"}}, "targetPorts": [{"number": 8000}], "endpointPickerRef": picker}
    template = {"containers": [{"name": "main", "ports": [{"name": "extra", "containerPort": 7}]}]}
    workloads = made(scheduled({"pool": {"spec": pool}, "template": template}))
    front = next(s for s in workloads.services if s.part == "scheduler")
    assert front.name == "ep"
    assert [(p["name"], p["port"], p["targetPort"]) for p in front.ports] == [
        ("grpc", 9002, "grpc"),
        ("grpc-health", 9003, "grpc-health"),
        ("metrics", 9090, "metrics"),
        ("zmq", 5557, "zmq"),
    ]
    assert workloads.pool is not None
    assert workloads.pool.spec["selector"]["matchLabels"]["app"] == "x"
    assert workloads.certificate is not None
    assert "ep.team.svc.cluster.local" in workloads.certificate.dns_names


def test_the_service_listens_where_the_pool_says_that_gateways_ask() -> None:
    def ports(number: int, *container_ports: Json) -> list[tuple[str, int, str | int]]:
        pool = {"spec": {"endpointPickerRef": {"name": "ep", "port": {"number": number}}}}
        template = {"containers": [{"name": "main", "ports": list(container_ports)}]} if container_ports else {}
        scheduler = {"pool": pool, **({"template": template} if template else {})}
        (front,) = (each for each in made(scheduled(scheduler)).services if each.part == "scheduler")
        return [(each["name"], each["port"], each["targetPort"]) for each in front.ports]

    assert ports(443)[0] == ("grpc", 443, "grpc")
    assert ports(9002)[0] == ("grpc", 9002, "grpc")
    # A port of the container with this number is kept: the API server refuses two ports with one number.
    assert [name for name, port, _ in ports(9090) if port == 9090] == ["metrics"]


def test_a_pool_of_the_users_has_its_own_picker() -> None:
    workloads = made(scheduled({"pool": {"ref": {"name": "mine"}}}))
    assert [pods.part for pods in workloads.pods] == ["main"]
    assert (workloads.pool, workloads.access) == (None, ())


def test_the_picker_may_review_tokens_and_keep_its_lease() -> None:
    [access] = made(scheduled()).access
    assert (access.service_account, access.account_exists) == ("chat-epp-sa", False)
    assert (access.cluster_role, access.cluster_binding) == ("system:auth-delegator", "team-chat-epp-auth-rb")
    writing = {r for rule in access.rules if "create" in rule["verbs"] for r in rule["resources"]}
    assert writing == {"leases"}


def _bindings(*services: tuple[str, str, str], spec: Json | None = None) -> dict[str, str]:
    """Return by namespace the name of each service's binding; a service is its namespace, name and creation time."""
    crs = []
    for namespace, name, created in services:
        cr = service({"router": {"scheduler": {}}} if spec is None else spec, name=name)
        cr["metadata"] |= {"namespace": namespace, "creationTimestamp": created}
        crs.append(cr)
    look = cluster(*crs)
    return {cr["metadata"]["namespace"]: made(cr, look=look).access[0].cluster_binding for cr in crs}


@pytest.mark.parametrize(
    ("first", "second", "usual"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", ["a"]),
        ("2026-01-01T00:00:01Z", "2026-01-01T00:00:00Z", ["a-b"]),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", []),
    ],
)
def test_of_services_that_read_the_same_the_first_has_the_usual_name(first: str, second: str, usual: list[str]) -> None:
    found = _bindings(("a", "b-c", first), ("a-b", "c", second))
    assert len(set(found.values())) == 2
    assert [namespace for namespace, name in found.items() if name == "a-b-c-epp-auth-rb"] == usual
    assert all(name.endswith("-epp-auth-rb") for name in found.values())


def test_a_service_without_a_picker_of_its_own_has_no_binding_to_give_way_to() -> None:
    for spec in ({}, {"router": {"scheduler": {"pool": {"ref": {"name": "p"}}}}}):
        other = service(spec, name="b-c")
        other["metadata"] |= {"namespace": "a", "creationTimestamp": "2025-01-01T00:00:00Z"}
        cr = service({"router": {"scheduler": {}}}, name="c")
        cr["metadata"]["namespace"] = "a-b"
        assert made(cr, other).access[0].cluster_binding == "a-b-c-epp-auth-rb"


def test_who_once_had_another_name_keeps_it() -> None:
    apart = _bindings(("a", "b-c", "2026-01-01T00:00:00Z"), ("a-b", "c", "2026-01-01T00:00:01Z"))["a-b"]
    cr = service({"router": {"scheduler": {}}}, name="c", status={"annotations": {BINDING: apart}})
    cr["metadata"]["namespace"] = "a-b"
    assert made(cr).access[0].cluster_binding == apart
    cr["status"]["annotations"][BINDING] = "any"
    assert made(cr).access[0].cluster_binding == "a-b-c-epp-auth-rb"


def test_the_users_account_is_bound_and_not_made() -> None:
    template = {"serviceAccountName": "mine", "containers": [{"name": "main"}]}
    workloads = made(scheduled({"template": template}))
    assert (workloads.access[0].service_account, workloads.access[0].account_exists) == ("mine", True)
    assert pod(pods_of(workloads, "scheduler"))["serviceAccountName"] == "mine"


def test_the_tokenizer_has_the_model_and_a_service() -> None:
    workloads = made(scheduled({"tokenizer": {}}))
    pods = pods_of(workloads, "tokenizer")
    assert "/mnt/models/base" in mounted(main(pod(pods)))
    front = next(s for s in workloads.services if s.part == "tokenizer")
    assert (front.name, front.ports[0]["port"], front.selector) == ("chat-tokenizer", 8000, pods.selector)


def test_tls_reaches_service_and_picker() -> None:
    tls = settings_map(ingress={"enableLLMInferenceServiceTLS": True})
    workloads = made(scheduled(), tls)
    assert workloads.services[0].ports[0]["appProtocol"] == "https"
    assert "metrics-data-source" in args(scheduled(), tls)[1]
