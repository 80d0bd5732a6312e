"""What a preview says about ModelRouters, ModelPools and LoRAAdapters: names, turns, replicas, and what is missing."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from automation.preview.changes import Preview, ResourcePreview
from automation.preview.custom_resources import AppliedDocument
from automation.preview.effects import Effects, effects_of
from automation.preview.lookup import Identity, PreviewLookup
from automation.preview.report import as_json, as_terminal_text, markdown
from automation.preview.resources import preview_resource
from components.policies.policy import Violation
from kubeapi import kinds
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.facts import Problem
from program.manifests import Manifests

NOW = "2026-01-01T00:00:00Z"
LOCAL = {"name": "small", "inferenceServiceRef": {"name": "chat"}}
CLOUD = {
    "name": "big",
    "displayName": "gpt-4o",
    "external": {"provider": "openai", "model": "gpt-4o-2024", "credentialsSecretRef": {"name": "openai"}},
}


class Cluster:
    """A cluster with pods only."""

    def __init__(self, *pods: Json) -> None:
        self.pods = pods

    def get(self, *_path: Any) -> Json:
        raise NotFound(404, "NotFound", "not found")

    def request(self, *_words: Any, **_options: Any) -> Json:
        raise NotFound(404, "NotFound", "not found")

    def list(self, kind: Any, *_path: Any, label_selector: str = "", **_options: Any) -> Json:
        asked = dict(each.split("=") for each in label_selector.split(",") if each)
        pods = [pod for pod in self.pods if asked.items() <= pod["metadata"].get("labels", {}).items()]
        return {"items": pods if kind is kinds.PODS else []}


def resource(kind: str, resource_name: str, /, **spec: Any) -> Json:
    return {
        "apiVersion": kinds.MODEL_ROUTERS.api_version,
        "kind": kind,
        "metadata": {"name": resource_name, "namespace": "prod", "creationTimestamp": NOW, "uid": resource_name},
        "spec": spec,
    }


def service(name: str, **spec: Any) -> Json:
    return resource("InferenceService", name, modelRef="base", **spec)


def look(*documents: Json, pods: tuple[Json, ...] = ()) -> PreviewLookup:
    manifests = Manifests("prod")
    manifests.read_text("files", yaml.safe_dump_all(documents))
    assert not manifests.errors
    return PreviewLookup(Cluster(*pods), manifests=manifests)  # type: ignore[arg-type]  # what a lookup calls


def pod(name: str) -> Json:
    return {
        "metadata": {
            "name": name,
            "namespace": "prod",
            "uid": name,
            "labels": {"inference.llmkube.dev/service": "chat"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "chat-5d9", "controller": True, "uid": "r"}],
        },
        "spec": {"containers": [{"name": "vllm", "ports": [{"name": "http", "containerPort": 8000}]}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "ContainersReady", "status": "True"}],
            "containerStatuses": [{"name": "vllm", "containerID": "1", "ready": True}],
        },
    }


def said(parts: tuple[str, ...]) -> str:
    return "\n".join(parts)


def test_a_router_names_the_models_that_clients_see_and_what_changes_for_them() -> None:
    by_name = {"defaultRoute": "big", "defaultRouteStrategy": "BackendNameMatch"}
    before = resource("ModelRouter", "front", backends=[CLOUD], **by_name)
    after = resource("ModelRouter", "front", backends=[{**CLOUD, "displayName": "gpt-5"}], **by_name)
    found = effects_of(after, before, look(after))
    assert "/routers/prod/front/v1: `gpt-5`, `front`" in said(found.effects)
    assert "new for clients: `gpt-5`" in found.effects
    assert "clients do not find any more: `gpt-4o`" in found.effects
    assert "requests can leave the cluster to `big`" in found.effects


def test_a_router_warns_of_services_and_secrets_that_are_missing() -> None:
    router = resource("ModelRouter", "front", backends=[LOCAL, CLOUD], defaultRoute="small")
    warnings = said(effects_of(router, None, look(router)).warnings)
    assert "spec.backends[0].inferenceServiceRef: there is no InferenceService `chat`" in warnings
    assert "spec.backends[1].external.credentialsSecretRef: there is no Secret `openai`" in warnings
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "openai", "namespace": "prod"}}
    assert effects_of(router, None, look(router, service("chat"), secret)).warnings == ()


def test_a_router_warns_of_a_name_that_means_a_service_and_of_fields_without_effect() -> None:
    router = resource("ModelRouter", "chat", backends=[CLOUD], defaultRoute="big", endpoint={"port": 9000})
    warnings = said(effects_of(router, None, look(router, service("chat"))).warnings)
    assert "an InferenceService has the name too" in warnings
    assert "spec.endpoint.port has no effect" in warnings


def test_routers_that_lead_to_each_other_are_a_circle() -> None:
    def leads_to(target: str) -> Json:
        url = f"https://models.example.com/routers/prod/{target}/v1"
        return {"name": "next", "external": {"provider": "litellm", "model": "m", "url": url}}

    first = resource("ModelRouter", "first", backends=[leads_to("second")], defaultRoute="next")
    second = resource("ModelRouter", "second", backends=[leads_to("first")], defaultRoute="next")
    warnings = said(effects_of(first, None, look(first, second)).warnings)
    assert "circle through these ModelRouters: prod/first -> prod/second -> prod/first" in warnings
    alone = resource("ModelRouter", "second", backends=[CLOUD], defaultRoute="big")
    assert "circle" not in said(effects_of(first, None, look(first, alone)).warnings)


def test_a_pool_tells_who_joins_who_leaves_and_who_takes_no_turns() -> None:
    def members(*names: str) -> list[Json]:
        return [{"inferenceServiceRef": {"name": name}} for name in names]

    before = resource("ModelPool", "gpu", members=members("a", "old"))
    after = resource("ModelPool", "gpu", members=members("a", "b", "scaled", "missing"), default="c")
    scaled = service("scaled", autoscaling={"maxReplicas": 3})
    found = effects_of(after, before, look(after, service("a"), service("b"), service("old"), scaled))
    assert "`a`, `b` use 1 GPU by turns of at least" in said(found.effects)
    assert "InferenceService `b` becomes a member: it runs only in its turns" in found.effects
    assert "InferenceService `old` leaves the pool: it runs as its own spec says" in found.effects
    assert not any("`a` becomes" in each for each in found.effects)
    warnings = said(found.warnings)
    assert "`scaled` takes no turns: it has spec.autoscaling" in warnings
    assert "`missing` takes no turns: there is no InferenceService" in warnings
    assert "spec.default: `c` is no member" in warnings


def test_a_pool_reads_its_members_as_the_loop_does() -> None:
    """The GPUs of a member are those of its Deployment; a host selector places it on hosts before it has a process."""
    big, placed = service("big"), service("placed")
    placed["metadata"]["annotations"] = {"herdsman.dev/host-selector": "room=lab"}
    engine = {"name": "engine", "resources": {"limits": {"nvidia.com/gpu": 2}}}
    deployment = {**resource("Deployment", "big", template={"spec": {"containers": [engine]}}), "apiVersion": "apps/v1"}
    members = [{"inferenceServiceRef": {"name": name}} for name in ("big", "placed")]
    pool = resource("ModelPool", "shared", members=members)
    found = effects_of(pool, None, look(big, placed, deployment, pool))
    assert "`big`: its replicas request 2 GPUs, and the pool has 1" in found.warnings
    assert "`placed` take turns by the memory of their hosts" in found.effects


def test_a_pool_that_is_being_deleted_gives_no_turns() -> None:
    pool = resource("ModelPool", "shared", members=[{"inferenceServiceRef": {"name": "a"}}])
    leaving = {**pool, "metadata": {**pool["metadata"], "deletionTimestamp": NOW}}
    lookup = PreviewLookup(Cluster(), applied={Identity.of(leaving): leaving})  # type: ignore[arg-type]  # as in look
    assert effects_of(leaving, leaving, lookup) == Effects()


def test_an_adapter_names_the_replicas_that_load_it() -> None:
    adapter = resource("LoRAAdapter", "sql", inferenceServiceRef={"name": "chat"}, name="sql", path="/adapters/sql")
    vllm = service("chat", runtime="vllm")
    found = effects_of(adapter, None, look(adapter, vllm, pods=(pod("chat-1"), pod("chat-2"))))
    assert "load it: `chat-1`, `chat-2`; clients name it `chat:sql`" in said(found.effects)
    assert found.warnings == ()
    waits = effects_of(adapter, None, look(adapter, vllm))
    assert "each replica of InferenceService `chat` loads it when it runs" in said(waits.effects)
    refused = effects_of(adapter, None, look(adapter, service("chat", runtime="tgi")))
    assert (refused.effects, "runtime tgi serves no adapters" in said(refused.warnings)) == ((), True)
    older = {**adapter, "metadata": {**adapter["metadata"], "name": "old", "creationTimestamp": "2025-01-01T00:00:00Z"}}
    taken = effects_of(adapter, None, look(adapter, older, vllm, pods=(pod("chat-1"),)))
    assert "LoRAAdapter `old` is older" in said(taken.warnings)


def test_an_adapter_that_is_a_part_of_its_service_restarts_it() -> None:
    downloaded = resource("LoRAAdapter", "sql", inferenceServiceRef={"name": "chat"}, name="sql", source="hf://org/sql")
    vllm = service("chat", runtime="vllm")
    rolled = effects_of(downloaded, None, look(downloaded, vllm, pods=(pod("chat-1"),)))
    assert "`chat` rolls out once, and its pods download and load the adapter" in said(rolled.effects)
    kept = effects_of(downloaded, downloaded, look(downloaded, vllm, pods=(pod("chat-1"),)))
    assert "`chat` keeps it" in said(kept.effects)
    on_host = service("chat", runtime="llamacpp", extraArgs=["--cache-ram", "0"])
    on_host["metadata"]["annotations"] = {"herdsman.dev/host": "mac"}
    one_file = {**downloaded, "spec": {**downloaded["spec"], "source": "hf://org/sql/sql.gguf"}}
    restarted = effects_of(one_file, None, look(one_file, on_host))
    assert "`chat` restarts once on each host and loads the adapter" in said(restarted.effects)


def test_the_engine_of_another_dialects_service_is_that_of_its_pods() -> None:
    reference = {"kind": "LLMInferenceService", "name": "chat"}
    adapter = resource("LoRAAdapter", "sql", inferenceServiceRef=reference, name="sql", path="/adapters/sql")
    llm = {**resource("LLMInferenceService", "chat"), "apiVersion": kinds.LLM_SERVICES.api_version}
    waits = effects_of(adapter, None, look(adapter, llm))
    assert "each replica of LLMInferenceService `chat` loads it when it runs" in said(waits.effects)


def test_a_rollout_of_another_dialects_service_is_said_before_it_happens() -> None:
    reference = {"kind": "LLMInferenceService", "name": "chat"}
    address = "https://h/sql.gguf"
    adapter = resource("LoRAAdapter", "sql", inferenceServiceRef=reference, name="sql", source=address)
    llm = {**resource("LLMInferenceService", "chat"), "apiVersion": kinds.LLM_SERVICES.api_version}

    def replica(image: str) -> Json:
        found = pod("chat-kserve-1-a")
        labels = {"app.kubernetes.io/part-of": "llminferenceservice", "app.kubernetes.io/name": "chat"}
        owners = [{"kind": "ReplicaSet", "name": "chat-kserve-1", "uid": "u", "controller": True}]
        found["metadata"] |= {"labels": labels, "ownerReferences": owners}
        found["spec"]["containers"] = [{"name": "main", "image": image, "ports": [{"containerPort": 8080}]}]
        return found

    ours = replica("ghcr.io/ggml-org/llama.cpp:server")
    rolled = effects_of(adapter, None, look(adapter, llm, pods=(ours,)))
    assert "LLMInferenceService `chat` rolls out once, and its pods download" in said(rolled.effects)
    assert "keeps it" in said(effects_of(adapter, adapter, look(adapter, llm, pods=(ours,))).effects)
    refused = effects_of(adapter, None, look(adapter, llm, pods=(replica("corp/llama-server:1"),)))
    assert refused.effects == () and "is not llama.cpp's own" in said(refused.warnings)


def test_a_spec_that_its_controller_refuses_is_a_problem_with_its_field() -> None:
    router = resource("ModelRouter", "front", backends=[CLOUD], defaultRoute="none")
    with pytest.raises(SpecInvalid, match=r"spec\.defaultRoute"):
        effects_of(router, None, look(router))
    shown = preview_resource(look(router), AppliedDocument(router, None, changed=True))
    assert shown.refused
    assert shown.problem is not None
    assert (shown.op, shown.problem.field) == ("create", "spec.defaultRoute")


def test_a_preview_of_resources_is_reported_in_every_form() -> None:
    shown = ResourcePreview(
        "ModelRouter", "prod", "front", "update", ("rules[eu] added",), "ab12", ("clients see `x`",), ("no Secret",)
    )
    found = Preview(resources=(shown,))
    text = as_terminal_text(found, colour=False)
    assert text.splitlines() == [
        "ModelRouter prod/front  1 to change",
        "  ~  ModelRouter front",
        "       rules[eu] added",
        "  effect     clients see `x`",
        "  warning    no Secret",
        "  digest     ab12",
    ]
    assert found.changed
    comment = markdown(found)
    assert comment.startswith("### Herdsman preview: 1 resource would change (1 to change)")
    assert "- **warning** no Secret" in comment
    [told] = as_json(found)["resources"]
    assert (told["kind"], told["op"], told["effects"]) == ("ModelRouter", "update", ["clients see `x`"])


def test_a_resource_that_its_controller_refuses_is_reported_with_the_field() -> None:
    problem = Problem(reason="SpecInvalid", message="names no backend", field="spec.defaultRoute", terminal=True)
    violation = Violation("local", "no providers", "spec.backends[0].external", "openai", "use a service")
    found = Preview(
        resources=(ResourcePreview("ModelRouter", "prod", "front", "create", violations=(violation,), problem=problem),)
    )
    assert as_terminal_text(found, colour=False).splitlines() == [
        "ModelRouter prod/front  1 to create",
        "  ! spec.defaultRoute: names no backend",
        "  +  ModelRouter front",
        f"  !  {violation}",
    ]
    comment = markdown(found)
    assert "<b>ModelRouter prod/front</b>: cannot be applied: spec.defaultRoute: names no backend" in comment
    assert "- :x: policy `local`: spec.backends\\[0\\].external is openai" in comment
    [told] = as_json(found)["resources"]
    assert (told["problem"]["field"], told["violations"][0]["policy"]) == ("spec.defaultRoute", "local")
