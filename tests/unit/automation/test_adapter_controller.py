"""LoRAAdapters over real HTTP: replicas that load them, restart, refuse them, and unload them at a deletion."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from automation.approval.policy_checker import Verdict
from automation.approval.resource_versions import ResourceVersions
from automation.serving.adapters.controller import LoraAdapters
from automation.serving.adapters.deciding import FINALIZER, PEER_FINALIZER, UNLOAD_WITHIN_S, VERIFY_S
from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.adapter import AdapterReason
from program.desired.facts import Problem
from program.dialects.llmkube.parse.adapter import adapter_of
from program.dialects.registry import DIALECTS
from tests.support.adapter_engines import AdapterEngine
from tests.support.pod_proxy import PodProxy, Say, api_status
from tests.support.pods import remembered


class World:
    """A cluster with a service, its pods and its adapters, as the loop caches them; and its API server."""

    def __init__(self, proxy: PodProxy) -> None:
        self.proxy = proxy
        self.now_s = 0.0
        self.managed = True
        self.verdict: Verdict | None = None
        self.annotations: dict[str, str] = {}
        self.asked_for_annotations = 0
        self.service: Json | None = {"metadata": {"name": "svc", "namespace": "ns"}, "spec": {"runtime": "vllm"}}
        self.pods: dict[str, Json] = {}
        self.objects: dict[tuple[str, str], Json] = {}
        self.adapters: dict[str, Json] = {}
        self.events: list[tuple[str, str]] = []
        proxy.other = self._api
        cache = SimpleNamespace(
            listed=lambda _: list(self.adapters.values()),
            get=lambda kind, *_: self.service if kind is self.kind else None,
            index=SimpleNamespace(pods=lambda *_: list(self.pods.values()), objects=lambda *_: self.objects),
        )
        self.kind = kinds.INFERENCE_SERVICES
        self.cluster: Any = SimpleNamespace(
            llmkube=cache,
            caches=dict.fromkeys(DIALECTS, cache),
            is_ours=lambda _cr, held=False: self.managed and not held,
        )
        self.controller = self.another_loop()

    def another_loop(self) -> LoraAdapters:
        recorder: Any = SimpleNamespace(record=lambda _, **said: self.events.append((said["type"], said["reason"])))
        return LoraAdapters(
            self.proxy.client,
            self.cluster,
            recorder=recorder,
            versions=ResourceVersions(
                policies=lambda _cr: self.verdict,
                annotations=lambda _namespace: self.annotations,
                annotations_now=self._annotations_now,
            ),
            clock=lambda: self.now_s,
            dice=lambda: 0.0,
        )

    def engine(self, pod: str, engine: AdapterEngine, *, run: str = "c1") -> AdapterEngine:
        """Run an engine in a pod."""
        self.proxy.engines[pod] = engine.answer
        self.pods[pod] = remembered(pod, run=run)
        self.pods[pod]["engine"].pop("foreign", None)
        return engine

    def adapter(self, resource: str = "sql", *, created: str = "2026-11-01T00:00:00Z", **spec: Any) -> None:
        """Create an adapter."""
        metadata = {"name": resource, "namespace": "ns", "uid": resource, "creationTimestamp": created}
        self.adapters[resource] = {
            "apiVersion": kinds.LORA_ADAPTERS.api_version,
            "kind": "LoRAAdapter",
            "metadata": {**metadata, "generation": 1, "resourceVersion": "1"},
            "spec": {"inferenceServiceRef": {"name": "svc"}, "name": "sql", "path": "/a/sql", **spec},
        }

    def until(self, done: Callable[[], object]) -> None:
        """Make passes until something holds."""
        end = time.monotonic() + 30
        while not done():
            assert time.monotonic() < end, self.adapters
            self.controller.reconcile_all()
            time.sleep(0.005)

    def settle(self) -> None:
        """Make passes until nothing is under way: three passes without a request to a pod."""
        quiet = 0
        while quiet < 3:
            before = len(self.proxy.asked)
            self.controller.reconcile_all()
            time.sleep(0.02)
            quiet = quiet + 1 if len(self.proxy.asked) == before else 0

    def status(self, resource: str = "sql") -> Json:
        return self.adapters[resource].get("status") or {}

    def phase(self, resource: str = "sql") -> str:
        return str(self.status(resource).get("phase"))

    def reason(self, resource: str = "sql") -> str:
        found = (each["reason"] for each in self.status(resource)["conditions"] if each["type"] == "Ready")
        return str(next(found))

    def delete(self, resource: str = "sql") -> None:
        self.adapters[resource]["metadata"]["deletionTimestamp"] = "2026-11-28T00:00:00Z"

    def _annotations_now(self, _namespace: str) -> dict[str, str]:
        self.asked_for_annotations += 1
        return self.annotations

    def _api(self, method: str, path: str, body: Any) -> Say:
        name, _, subresource = path.partition("?")[0].partition("/loraadapters/")[2].partition("/")
        found = self.adapters.get(name)
        if found is None or method != "PATCH":
            return api_status(404, "NotFound")
        if subresource == "status":
            found = {**found, "status": body["status"]}
        else:
            found = {**found, "metadata": {**found["metadata"], "finalizers": body["metadata"]["finalizers"]}}
        version = str(int(found["metadata"]["resourceVersion"]) + 1)
        self.adapters[name] = {**found, "metadata": {**found["metadata"], "resourceVersion": version}}
        if "deletionTimestamp" in found["metadata"] and not found["metadata"]["finalizers"]:
            return Say(body=self.adapters.pop(name))
        return Say(body=self.adapters[name])


@pytest.fixture
def world() -> Iterator[World]:
    with PodProxy() as proxy:
        made = World(proxy)
        yield made
        made.controller.stop()


def test_every_replica_loads_an_adapter_once(world: World) -> None:
    engines = [world.engine(pod, AdapterEngine()) for pod in ("a", "b", "c")]
    world.adapter()
    world.until(lambda: world.phase() == "Loaded")
    world.settle()
    assert [each.adapters for each in engines] == [{"sql": "/a/sql"}] * 3
    assert [each.changes() for each in engines] == [["load_lora_adapter"]] * 3
    assert (world.status()["loadedReplicas"], world.status()["replicas"]) == (3, 3)
    assert world.adapters["sql"]["metadata"]["finalizers"] == [FINALIZER]
    assert world.events == [("Normal", "AdapterLoaded")]


def test_a_restarted_replica_loads_it_again_and_a_restarted_loop_asks_for_nothing_again(world: World) -> None:
    kept, restarted = (world.engine(pod, AdapterEngine()) for pod in ("a", "b"))
    world.adapter()
    world.until(lambda: world.phase() == "Loaded")
    restarted.restart()
    world.engine("b", restarted, run="c2")
    world.until(lambda: restarted.adapters and world.phase() == "Loaded")
    assert (kept.changes(), restarted.changes()) == (["load_lora_adapter"], ["load_lora_adapter"] * 2)
    world.controller.stop()
    world.controller = world.another_loop()
    asked = len(kept.asked)
    world.until(lambda: len(kept.asked) > asked and world.phase() == "Loaded")
    world.settle()
    assert kept.changes() == ["load_lora_adapter"]


def test_an_adapter_that_somebody_unloads_is_loaded_again(world: World) -> None:
    engine = world.engine("a", AdapterEngine())
    world.adapter()
    world.until(lambda: world.phase() == "Loaded")
    engine.restart()
    world.settle()
    assert engine.adapters == {}, "a replica is not asked with each pass"
    world.now_s += VERIFY_S
    world.until(lambda: engine.adapters)


def test_a_changed_path_is_loaded_and_an_earlier_one_again(world: World) -> None:
    engine = world.engine("a", AdapterEngine())
    world.adapter()
    for path in ("/a/sql", "/a/sql-2", "/a/sql"):
        world.adapters["sql"]["spec"]["path"] = path
        world.until(lambda path=path: engine.adapters == {"sql": path} and world.status().get("loadedPath") == path)


def test_of_two_adapters_of_one_name_the_older_is_loaded(world: World) -> None:
    engine = world.engine("a", AdapterEngine())
    world.adapter("later", created="2026-11-02T00:00:00Z", path="/a/other")
    world.adapter("first")
    world.until(lambda: world.phase("first") == "Loaded" and world.phase("later") == "Failed")
    assert world.reason("later") == "NameTaken"
    assert engine.adapters == {"sql": "/a/sql"}
    world.delete("first")
    world.until(lambda: "first" not in world.adapters and world.phase("later") == "Loaded")
    assert engine.adapters == {"sql": "/a/other"}


def test_an_adapter_that_lost_its_name_does_not_unload_the_older_one(world: World) -> None:
    engine = world.engine("a", AdapterEngine())
    world.adapter("older", path="not valid")
    world.adapter("later", created="2026-11-02T00:00:00Z", path="/a/later")
    world.until(lambda: world.phase("later") == "Loaded")
    world.adapters["older"]["spec"]["path"] = "/a/older"
    world.until(lambda: engine.adapters == {"sql": "/a/older"} and world.reason("later") == "NameTaken")
    world.delete("later")
    world.until(lambda: "later" not in world.adapters)
    assert engine.adapters == {"sql": "/a/older"}


def test_a_deleted_adapter_is_unloaded_everywhere(world: World) -> None:
    engines = [world.engine(pod, AdapterEngine()) for pod in ("a", "b")]
    world.adapter()
    world.until(lambda: world.phase() == "Loaded")
    world.adapters["sql"]["metadata"]["finalizers"].append(PEER_FINALIZER)
    world.delete()
    world.until(lambda: not world.adapters)
    assert [each.adapters for each in engines] == [{}, {}]
    assert world.events[-1] == ("Normal", "AdapterUnloaded")


def test_a_path_that_is_not_valid_any_more_does_not_keep_an_adapter_loaded(world: World) -> None:
    engine = world.engine("a", AdapterEngine())
    world.adapter()
    world.until(lambda: world.phase() == "Loaded")
    world.adapters["sql"]["spec"]["path"] = "../sql"
    world.until(lambda: world.reason() == "SpecInvalid")
    world.delete()
    world.until(lambda: not world.adapters)
    assert engine.adapters == {}


def test_a_deletion_does_not_wait_for_a_service_that_is_gone(world: World) -> None:
    world.engine("a", AdapterEngine())
    world.adapter()
    world.until(lambda: world.phase() == "Loaded")
    world.service, world.pods = None, {}
    world.delete()
    world.until(lambda: not world.adapters)
    assert world.events[-1] == ("Normal", "AdapterRemoved")


def test_a_deletion_ends_though_a_replica_is_unreachable(world: World) -> None:
    world.engine("a", AdapterEngine())
    world.adapter()
    world.until(lambda: world.phase() == "Loaded")
    world.proxy.engines["a"] = lambda *_: api_status(503, "ServiceUnavailable", "connection refused")
    world.delete()
    world.until(lambda: world.phase() == "Unloading")
    world.settle()
    assert world.adapters, "it waits"
    world.now_s += UNLOAD_WITHIN_S
    world.until(lambda: not world.adapters)
    assert world.events[-1] == ("Warning", "AdapterNotUnloaded")


def test_one_replica_that_refuses_is_named_and_the_others_serve(world: World) -> None:
    world.engine("a", AdapterEngine())
    world.engine("b", AdapterEngine(files=("/a/another",)))
    world.adapter()
    world.until(lambda: world.phase() == "Degraded" and world.status()["loadedReplicas"] == 1)
    assert world.reason() == "LoadUnsuccessful"
    assert world.events == [("Warning", "AdapterNotLoaded")]
    assert {each["name"]: each["loaded"] for each in world.status()["pods"]} == {"a": True, "b": False}


def test_an_engine_that_hangs_delays_only_its_own_adapters(world: World) -> None:
    released = threading.Event()
    other = world.engine("b", AdapterEngine())
    hanging = world.engine("a", AdapterEngine())

    def hang(method: str, path: str, body: Any) -> Say:
        released.wait(30)
        return hanging.answer(method, path, body)

    world.proxy.engines["a"] = hang
    names = [f"s{number}" for number in range(9)]
    for name in names:
        world.adapter(name, name=name)

    def passes(engine: AdapterEngine) -> bool:
        world.now_s += 1
        return set(engine.adapters) == set(names)

    world.until(lambda: passes(other))
    assert hanging.adapters == {}
    released.set()
    world.until(lambda: passes(hanging))


def test_llama_servers_number_of_the_adapter_is_in_the_status(world: World) -> None:
    world.service = {"metadata": {"name": "svc", "namespace": "ns"}, "spec": {"extraArgs": ["--cache-ram", "0"]}}
    engine = world.engine("a", AdapterEngine("llamacpp", files=("/a/other.gguf", "/a/sql.gguf")))
    world.adapter(path="/a/sql.gguf")
    world.until(lambda: world.phase() == "Loaded")
    assert world.status()["pods"] == [{"name": "a", "loaded": True, "adapterID": 1}]
    assert engine.scales["/a/sql.gguf"] == 0.0
    asked = len(engine.asked)
    world.delete()
    world.until(lambda: not world.adapters)
    assert len(engine.asked) == asked, "llama-server unloads nothing"


def test_an_adapter_that_is_given_to_another_controller_loses_the_finalizer_and_stays_loaded(world: World) -> None:
    engine = world.engine("a", AdapterEngine())
    world.adapter()
    world.until(lambda: world.phase() == "Loaded")
    world.managed = False
    world.until(lambda: world.adapters["sql"]["metadata"]["finalizers"] == [])
    assert engine.adapters == {"sql": "/a/sql"}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [({"path": "../x"}, "SpecInvalid"), ({"inferenceServiceRef": {"name": "svc", "namespace": "o"}}, None)],
)
def test_an_invalid_adapter_is_told_so_and_gets_no_finalizer(world: World, spec: Json, reason: str | None) -> None:
    engine = world.engine("a", AdapterEngine())
    world.adapter(**spec)
    world.until(lambda: world.phase() == "Failed")
    assert world.reason() == (reason or "NamespaceNotAllowed")
    assert "finalizers" not in world.adapters["sql"]["metadata"]
    assert engine.asked == []


def host_process(adapters: tuple[str, ...], *, observed: int = 1, **status: Any) -> Json:
    """A HostProcess as the loop caches it."""
    spec = {"host": "mac", "replica": 0, "adapters": adapters}
    said = {"host": "mac", "observedGeneration": observed, **status}
    return {"metadata": {"name": "svc", "generation": 1}, "spec": spec, "status": said}


def test_a_service_on_a_host_has_its_adapters_by_its_plan(world: World) -> None:
    engine = world.engine("a", AdapterEngine())
    world.service = {"metadata": {"name": "svc", "namespace": "ns"}, "spec": {}}
    world.adapter(path=None, source="https://example.com/sql.gguf")
    file = adapter_of(world.adapters["sql"]).file
    assert file is not None
    at = ("HostProcess", "svc")
    world.objects[at] = host_process(())
    world.until(lambda: world.phase() == "Loading" and world.reason() == "RestartPending")
    world.objects[at] = host_process((file.token,), observed=0, ready=True)
    world.settle()
    assert world.reason() == "RestartPending", "the process of the earlier plan is ready"
    world.objects[at] = host_process((file.token,), phase="Downloading", downloadedBytes=5, totalBytes=9)
    world.until(lambda: world.reason() == "Downloading")
    assert "5 of 9 bytes" in str(world.status()["conditions"])
    world.objects[at] = host_process((file.token,), phase="BackingOff", reason="ChecksumMismatch", message="other")
    world.until(lambda: world.reason() == "DownloadFailed" and world.phase() == "Failed")
    failing = {"phase": "BackingOff", "reason": "ChecksumMismatch", "message": "another one", "ready": True}
    world.objects[at] = host_process((file.token,), **failing, earlier={"phase": "Ready", "adapters": ["older"]})
    world.settle()
    assert world.phase() == "Failed", "the process that serves does not have it"
    earlier = {"phase": "Ready", "adapters": ["older", "other", file.token]}
    world.objects[at] = host_process((file.token, "new"), **failing, earlier=earlier)
    world.until(lambda: world.phase() == "Loaded")
    assert world.status()["pods"][0]["adapterID"] == 2, "the number in the process that serves"
    world.objects[at] = host_process(("other", file.token), phase="Ready", ready=True)
    world.until(lambda: world.status()["pods"][0].get("adapterID") == 1)
    assert world.status()["pods"] == [{"name": "svc", "host": "mac", "loaded": True, "adapterID": 1}]
    assert engine.asked == []

    world.delete()
    world.until(lambda: world.phase() == "Unloading")
    world.settle()
    assert world.adapters, "the process still has it"
    world.objects[at] = host_process(("other",), phase="Ready", ready=True)
    world.until(lambda: not world.adapters)


def test_other_engines_on_hosts_get_no_adapters(world: World) -> None:
    engine = world.engine("a", AdapterEngine())
    world.objects = {("HostProcess", "svc"): host_process(())}
    world.service = {"metadata": {"name": "svc", "namespace": "ns"}, "spec": {"runtime": "sglang"}}
    world.adapter()
    world.until(lambda: world.phase() == "Failed")
    assert (world.reason(), engine.asked) == ("HostsNotSupported", [])


def test_pods_that_download_an_adapter_are_asked_when_they_serve(world: World) -> None:
    old = world.engine("old", AdapterEngine())
    world.adapter(path=None, source="hf://org/sql")
    file = adapter_of(world.adapters["sql"]).file
    assert file is not None
    world.until(lambda: world.phase() == "Loading" and world.reason() == "RestartPending")
    new = world.engine("new", AdapterEngine(files=(file.pod_path,)))
    pod = world.pods["new"]
    pod["engine"] |= {"adapters": (file.container,), "healthy": False}
    pod["init_running"] = file.container
    world.until(
        lambda: {each["name"]: each.get("message", "") for each in world.status()["pods"]}.keys() == {"new", "old"}
    )
    assert "downloads" in str(world.status()["pods"])
    pod["init_running"], pod["problems"] = "", ({"container": file.container, "reason": "Error", "message": "404"},)
    world.until(lambda: world.reason() == "DownloadFailed")
    assert "Error: 404" in str(world.status()["pods"])
    pod["problems"], pod["engine"]["healthy"] = (), True
    del world.pods["old"]
    world.until(lambda: world.phase() == "Loaded")
    assert (old.asked, new.adapters) == ([], {"sql": file.pod_path})


def test_an_engine_that_cannot_read_the_source_is_told_so(world: World) -> None:
    world.engine("a", AdapterEngine())
    world.adapter(path=None, source="https://example.com/sql.gguf")
    world.until(lambda: world.phase() == "Failed")
    assert world.reason() == "SourceMismatch"


@pytest.mark.parametrize(
    ("kind", "resource"),
    [
        (kinds.LLM_SERVICES, "LLMInferenceService"),
        (kinds.PLAYGROUNDS, "Playground"),
        (kinds.LLMAZ_SERVICES, "Service"),
    ],
)
def test_services_of_other_dialects_load_adapters_by_their_path(world: World, kind: Kind, resource: str) -> None:
    world.kind, world.service = kind, {"metadata": {"name": "svc", "namespace": "ns"}, "spec": {}}
    reference = {"kind": resource, "name": "svc"}
    world.adapter(inferenceServiceRef=reference)
    world.adapter("absent", name="absent", inferenceServiceRef={"name": "svc"})
    world.until(lambda: world.phase() == "Pending" and world.reason() == "NoReplica")
    engines = {pod: world.engine(pod, AdapterEngine("sglang")) for pod in ("lead", "lead-1", "scheduler", "other")}
    for pod, of in (("lead", "set"), ("lead-1", "lead"), ("scheduler", "x"), ("other", "set")):
        world.pods[pod]["engine"] |= {"runtime": "sglang", "of": ("StatefulSet", of)}
    del world.pods["other"]["engine"]["runtime"]
    labels = {"app.kubernetes.io/component": "llminferenceservice-router-scheduler"}
    world.pods["scheduler"]["metadata"]["labels"] = labels
    world.until(lambda: world.phase() == "Loaded")
    assert {pod: each.adapters for pod, each in engines.items() if each.asked} == {"lead": {"sql": "/a/sql"}}
    assert (world.status()["runtime"], world.reason("absent")) == ("sglang", "InferenceServiceNotFound")
    world.delete()
    world.until(lambda: "sql" not in world.adapters)
    assert engines["lead"].adapters == {}


@pytest.mark.parametrize(
    ("change", "spec", "reason"),
    [
        ({}, {"path": None, "source": "https://h/sql.gguf"}, "SourceMismatch"),
        ({"annotations": {"herdsman.dev/host": "mac"}}, {}, "HostsNotSupported"),
        ({"finalizers": ["serving.kserve.io/llmisvc-finalizer"]}, {}, "InferenceServiceNotManaged"),
        ({}, {"name": "own"}, "NameTaken"),
    ],
)
def test_what_other_dialects_do_not_do_is_told(world: World, change: Json, spec: Json, reason: str) -> None:
    world.kind = kinds.LLM_SERVICES
    world.service = {
        "metadata": {"name": "svc", "namespace": "ns", **change},
        "spec": {"model": {"lora": {"adapters": [{"name": "own"}]}}},
    }
    engine = world.engine("a", AdapterEngine())
    world.pods["a"]["engine"] |= {"runtime": "vllm", "of": ("ReplicaSet", "svc")}
    world.adapter(inferenceServiceRef={"kind": "LLMInferenceService", "name": "svc"}, **spec)
    world.until(lambda: world.phase() == "Failed")
    assert (world.reason(), engine.asked) == (reason, [])


def test_pods_of_other_dialects_download_an_adapter(world: World) -> None:
    world.kind, world.service = kinds.PLAYGROUNDS, {"metadata": {"name": "svc", "namespace": "ns"}, "spec": {}}
    reference = {"kind": "Playground", "name": "svc"}
    old = world.engine("old", AdapterEngine())
    world.pods["old"]["engine"] |= {"runtime": "vllm", "of": ("StatefulSet", "svc")}
    world.adapter(inferenceServiceRef=reference, path=None, source="hf://org/sql")
    file = adapter_of(world.adapters["sql"]).file
    assert file is not None
    world.until(lambda: world.phase() == "Loading" and world.reason() == "RestartPending")
    new = world.engine("new", AdapterEngine(files=(file.pod_path,)))
    world.pods["new"]["engine"] |= {"runtime": "vllm", "of": ("StatefulSet", "svc"), "adapters": (file.container,)}
    del world.pods["old"]
    world.until(lambda: world.phase() == "Loaded")
    assert (old.asked, new.adapters) == ([], {"sql": file.pod_path})


def of_llama_server(world: World, *pods: str, **engine: Any) -> None:
    """Make pods those of a Playground with llama-server."""
    world.kind, world.service = kinds.PLAYGROUNDS, {"metadata": {"name": "svc", "namespace": "ns"}, "spec": {}}
    for pod in pods:
        world.pods[pod]["engine"] |= {"runtime": "llamacpp", "of": ("ReplicaSet", "svc"), **engine}


GGUF: Json = {"inferenceServiceRef": {"kind": "Playground", "name": "svc"}, "path": None, "source": "https://h/a.gguf"}


def test_llama_server_of_other_dialects_has_a_downloaded_adapter_from_each_start(world: World) -> None:
    world.adapter(**GGUF)
    file = adapter_of(world.adapters["sql"]).file
    assert file is not None
    old = world.engine("old", AdapterEngine("llamacpp"))
    of_llama_server(world, "old")
    world.until(lambda: world.phase() == "Loading" and world.reason() == "RestartPending")
    new = world.engine("new", AdapterEngine("llamacpp", files=("/other.gguf", file.pod_path), scale=0.0))
    of_llama_server(world, "new", adapters=(file.container,))
    del world.pods["old"]
    world.until(lambda: world.phase() == "Loaded")
    assert world.status()["pods"] == [{"name": "new", "loaded": True, "adapterID": 1}]
    world.engine("new", new, run="c2")
    of_llama_server(world, "new", adapters=(file.container,))
    world.until(lambda: len(new.asked) == 2)
    world.until(lambda: world.phase() == "Loaded")
    assert (old.asked, new.changes()) == ([], [])


def test_a_llama_server_that_takes_no_arguments_has_the_cause_in_the_condition(world: World) -> None:
    world.adapter(**GGUF)
    refusal = (AdapterReason.SOURCE_NOT_SUPPORTED, "image `corp/llama` is not llama.cpp's own")
    for pod in ("a", "b"):
        world.engine(pod, AdapterEngine("llamacpp"))
    of_llama_server(world, "a", "b", takes_no_adapters=refusal)
    world.until(lambda: world.phase() == "Failed" and world.reason() == "SourceNotSupported")
    [ready] = [each for each in world.status()["conditions"] if each["type"] == "Ready"]
    assert "Playground `svc`: image `corp/llama` is not llama.cpp's own" in ready["message"]
    world.engine("b", AdapterEngine("llamacpp"))
    of_llama_server(world, "b")
    world.until(lambda: world.reason() == "RestartPending")


def test_llama_server_of_other_dialects_reads_no_directory(world: World) -> None:
    world.adapter(**{**GGUF, "source": "hf://org/sql"})
    engine = world.engine("a", AdapterEngine("llamacpp"))
    of_llama_server(world, "a")
    world.until(lambda: world.phase() == "Failed" and world.reason() == "SourceMismatch")
    assert engine.asked == []


def test_an_adapter_that_a_policy_does_not_allow_is_not_loaded(world: World) -> None:
    engine = world.engine("a", AdapterEngine())
    world.verdict = Verdict(Problem(reason="PolicyViolated", message="policy `p`: no adapters", terminal=True))
    world.adapter()
    world.until(lambda: world.phase() == "Failed")
    assert (world.reason(), engine.asked) == ("PolicyViolated", [])
    world.verdict = Verdict()
    world.until(lambda: world.phase() == "Loaded")
    said = {each["type"]: each["reason"] for each in world.status()["conditions"]}
    assert said["PolicyCompliant"] == "PoliciesMet"


def test_a_change_of_an_adapter_waits_for_its_approval(world: World) -> None:
    engine = world.engine("a", AdapterEngine())
    world.adapter()
    world.until(lambda: world.phase() == "Loaded")
    world.annotations = {"herdsman.dev/mode": "Preview"}
    world.controller.reconcile_all()
    changed = world.adapters["sql"]
    changed["spec"] = {**changed["spec"], "path": "/a/new"}
    changed["metadata"]["generation"] = 2
    world.until(lambda: "pendingChange" in world.status())
    engine.restart()
    world.engine("a", engine, run="c2")
    world.until(lambda: engine.adapters)
    world.settle()
    pending = world.status()["pendingChange"]
    assert "path /a/sql -> /a/new" in pending["changes"][0]
    assert engine.adapters == {"sql": "/a/sql"}, "a restarted engine gets the accepted version again"
    world.adapters["sql"]["metadata"]["annotations"] = {"herdsman.dev/approved": pending["digest"]}
    world.until(lambda: engine.adapters == {"sql": "/a/new"})
    assert "pendingChange" not in world.status()
    assert world.status()["acceptedVersion"]["generation"] == 2


def test_a_new_adapter_in_mode_preview_is_loaded_after_its_approval(world: World) -> None:
    engine = world.engine("a", AdapterEngine())
    world.annotations = {"herdsman.dev/mode": "Preview"}
    world.adapter()
    world.settle()
    assert (world.reason(), engine.asked) == ("AwaitingApproval", [])
    digest = world.status()["pendingChange"]["digest"]
    world.adapters["sql"]["metadata"]["annotations"] = {"herdsman.dev/approved": digest}
    world.until(lambda: world.phase() == "Loaded")


def test_the_mode_is_not_read_for_adapters_of_another_controller(world: World) -> None:
    world.managed = False
    world.adapter()
    world.settle()
    assert world.asked_for_annotations == 0


def test_one_pass_decides_once_which_version_replicas_and_status_have(world: World) -> None:
    world.service = None
    world.adapter()
    world.controller.reconcile_all()
    assert world.status()["acceptedVersion"]["generation"] == 1
    assert world.asked_for_annotations == 1
    world.controller.reconcile_all()
    assert world.asked_for_annotations == 1
