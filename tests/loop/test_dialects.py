"""KServe's and llmaz's services in a real loop on a real API server: CRDs that appear and disappear, and invalid input.

The module has a separate control plane without controllers: CRDs are deleted here, and the tests write the statuses of
other controllers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from tests.conformance.played_controllers import PlayedControllers
from tests.support import controlplane, dialects, loop, peer_crds
from tests.support.loop import LoopProcess, eventually, find
from tools.localcluster import LocalCluster

SOON_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with controlplane.running(("etcd", "kube-apiserver")) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[KubeClient]:
    """The administrator, on a cluster with LLMKube's kinds alone."""
    administrator = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
    loop.install_crds(administrator)
    yield administrator
    administrator.close()


@pytest.fixture(scope="module")
def running(
    client: KubeClient, cluster: LocalCluster, pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoopProcess]:
    folder = tmp_path_factory.mktemp("loop")
    kubeconfig = loop.grant_loop_rights(client, cluster, folder / "kubeconfig")
    process = LoopProcess(kubeconfig, folder, environment=dialects.QUICK)
    try:
        yield process.start()
    finally:
        if process.poll() is None:
            process.stop()


@pytest.fixture(scope="module")
def place(client: KubeClient) -> str:
    return namespace(client, "dialects")


def namespace(client: KubeClient, name: str, annotations: dict[str, str] | None = None) -> str:
    metadata = {"name": name, "annotations": annotations or {}}
    client.create(kinds.NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    return name


def put(client: KubeClient, kind: Kind, where: str | None, name: str, spec: Json, **metadata: Any) -> Json:
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, **metadata}, "spec": spec}
    return client.create(kind, where, body)


def inferring(**spec: Any) -> Json:
    engine = {"name": "main", "image": "registry.example/engine:1", "command": ["serve"]}
    return {"model": {"uri": "hf://acme/tiny"}, "template": {"containers": [engine]}, **spec}


def playing(model: str = "tiny", backend: str = "engine", **spec: Any) -> Json:
    return {"modelClaim": {"modelName": model}, "backendRuntimeConfig": {"backendName": backend}, **spec}


def grouped() -> Json:
    engine = {"name": "model-runner", "image": "registry.example/engine:1"}
    template = {"spec": {"containers": [engine]}}
    return {
        "modelClaims": {"models": [{"name": "tiny"}]},
        "workloadTemplate": {"size": 2, "leaderTemplate": template, "workerTemplate": template},
    }


def runtimes(client: KubeClient) -> None:
    config = {"name": "default", "args": ["--model", "{{ .ModelPath }}"]}
    runtime = {"image": "registry.example/engine", "version": "1", "recommendedConfigs": [config]}
    put(client, kinds.BACKEND_RUNTIMES, None, "engine", runtime)
    wrong = {**config, "args": ["--model", "{{ .NoSuchThing }}"]}
    put(client, kinds.BACKEND_RUNTIMES, None, "wrong", {**runtime, "recommendedConfigs": [wrong]})
    flavor = {"name": "a10", "limits": {"nvidia.com/gpu": 1}}
    source = {"modelHub": {"modelID": "acme/tiny"}}
    model = {"familyName": "tiny", "source": source, "inferenceConfig": {"flavors": [flavor]}}
    put(client, kinds.OPEN_MODELS, None, "tiny", model)


def conditions(client: KubeClient, kind: Kind, where: str, name: str) -> dict[str, Json]:
    status = client.get(kind, where, name).get("status") or {}
    return {one["type"]: one for one in status.get("conditions") or ()}


def await_said(
    client: KubeClient, kind: Kind, where: str, name: str, type_: str, wanted: str, *saying: str, reason: str = ""
) -> Json:
    """Wait until a condition has the wanted status and a message with all of these words; return it."""

    def look() -> Json | None:
        one = conditions(client, kind, where, name).get(type_, {})
        fits = one.get("status") == wanted and all(word in one["message"] for word in saying)
        return one if fits and reason in ("", one.get("reason")) else None

    try:
        found = eventually(look, what=f"{type_}={wanted} of {name}", timeout_s=SOON_S)
    except AssertionError as error:
        raise AssertionError(f"{error}; conditions: {json.dumps(conditions(client, kind, where, name))}") from None
    assert found is not None
    return found


def made(client: KubeClient, kind: Kind, where: str, name: str) -> Json:
    found = eventually(lambda: find(client, kind, where, name), what=f"{kind.kind} {name}", timeout_s=SOON_S)
    assert found is not None
    return found


def await_gone(client: KubeClient, kind: Kind, where: str, name: str) -> None:
    eventually(lambda: find(client, kind, where, name) is None, what=f"{name} to be gone", timeout_s=SOON_S)


@pytest.mark.soak
def test_kinds_come_and_go_while_the_loop_runs(client: KubeClient, running: LoopProcess, place: str) -> None:
    loop.model(client, place)
    loop.service(client, place, runtime="vllm", skipModelInit=True)
    before = loop.deployed(client, place)["metadata"]
    loop.settled(client, place)

    for family in ("kserve", "llmaz"):
        dialects.install(client, family)
    runtimes(client)
    put(client, kinds.LLM_SERVICES, place, "infer", inferring(router={"route": {}, "gateway": {}, "scheduler": {}}))
    several = {"worker": {"containers": []}, "parallelism": {"data": 2, "dataLocal": 1}}
    put(client, kinds.LLM_SERVICES, place, "many", inferring(**several))
    put(client, kinds.PLAYGROUNDS, place, "play", playing())
    put(client, kinds.LLMAZ_SERVICES, place, "wide", grouped())
    uid = made(client, kinds.DEPLOYMENTS, place, "infer-kserve")["metadata"]["uid"]
    made(client, kinds.DEPLOYMENTS, place, "infer-kserve-router-scheduler")
    made(client, kinds.DEPLOYMENTS, place, "play")
    missing = {"reason": "NotInstalled"}
    for kind in ("HTTPRoute", "InferencePool"):
        await_said(client, kinds.LLM_SERVICES, place, "infer", "SpecHonoured", "False", kind, **missing)
    for of, name in ((kinds.LLM_SERVICES, "many"), (kinds.LLMAZ_SERVICES, "wide")):
        stalled = await_said(client, of, place, name, "Reconciling", "True", "LeaderWorkerSet", **missing)
        assert "install" in stalled["message"].lower()

    dialects.install_needed(client, peer_crds.ALL)
    made(client, kinds.LEADER_WORKER_SETS, place, "many-kserve-mn")
    made(client, kinds.LEADER_WORKER_SETS, place, "wide")
    made(client, kinds.INFERENCE_POOLS, place, "infer-inference-pool")
    made(client, kinds.HTTP_ROUTES, place, "infer-kserve-route")
    gone = ("SpecHonoured", "NotInstalled")
    eventually(
        lambda: conditions(client, kinds.LLM_SERVICES, place, "infer").get(gone[0], {}).get("reason") != gone[1],
        what="all of the spec to be honoured",
    )
    assert client.get(kinds.DEPLOYMENTS, place, "infer-kserve")["metadata"]["uid"] == uid

    dialects.uninstall(client, "llmaz")
    client.patch(kinds.LLM_SERVICES, place, "infer", {"spec": {"replicas": 3}})

    def replicas() -> int:
        return int(client.get(kinds.DEPLOYMENTS, place, "infer-kserve")["spec"]["replicas"])

    eventually(lambda: replicas() == 3, what="the others to be looked after")
    dialects.install(client, "llmaz")
    runtimes(client)
    put(client, kinds.PLAYGROUNDS, place, "again", playing())
    made(client, kinds.DEPLOYMENTS, place, "again")

    after = client.get(kinds.DEPLOYMENTS, place, "svc")["metadata"]
    assert (after["uid"], after["resourceVersion"]) == (before["uid"], before["resourceVersion"]), "it was not changed"
    assert running.poll() is None


@pytest.fixture(scope="module")
def served(client: KubeClient, running: LoopProcess, place: str) -> Iterator[str]:
    """A namespace with one settled service of each dialect; at the end their Deployments must be unchanged."""
    for family in ("kserve", "llmaz"):
        dialects.install(client, family)
    dialects.install_needed(client, peer_crds.ALL)
    if find(client, kinds.BACKEND_RUNTIMES, None, "engine") is None:
        runtimes(client)
    where = namespace(client, "served")
    loop.model(client, where)
    loop.service(client, where, runtime="vllm", skipModelInit=True)
    put(client, kinds.LLM_SERVICES, where, "good", inferring())
    put(client, kinds.PLAYGROUNDS, where, "calm", playing())
    names = ("svc", "good-kserve", "calm")
    before = {name: made(client, kinds.DEPLOYMENTS, where, name)["metadata"] for name in names}
    loop.settled(client, where)
    yield where
    for name, metadata in before.items():
        now = client.get(kinds.DEPLOYMENTS, where, name)["metadata"]
        assert (now["uid"], now["resourceVersion"]) == (metadata["uid"], metadata["resourceVersion"]), name
    assert running.poll() is None


@pytest.mark.soak
def test_what_cannot_be_is_said_and_stops_nobody_else(client: KubeClient, served: str) -> None:
    llm, play = kinds.LLM_SERVICES, kinds.PLAYGROUNDS
    variable = {"name": "TOLD", "value": "{{ .Spec.NoSuchThing }}"}
    broken = {"template": {"containers": [{"name": "main", "env": [variable]}]}}
    put(client, kinds.LLM_CONFIGS, served, "broken", broken)
    put(client, llm, served, "unknown-preset", inferring(baseRefs=[{"name": "nowhere"}]))
    put(client, llm, served, "unrendered", inferring(baseRefs=[{"name": "broken"}]))
    put(client, play, served, "no-variable", playing(backend="wrong"))
    put(client, play, served, "no-flavor", playing(modelClaim={"modelName": "tiny", "inferenceFlavors": ["h100"]}))
    put(client, play, served, "no-runtime", playing(backend="nowhere"))

    await_said(client, llm, served, "unknown-preset", "PresetsCombined", "False", "nowhere", reason="ConfigNotFound")
    await_said(
        client, llm, served, "unrendered", "PresetsCombined", "False", "NoSuchThing", reason="InvalidRenderedConfig"
    )
    await_said(client, play, served, "no-variable", "Stalled", "True", "NoSuchThing")
    await_said(client, play, served, "no-flavor", "Stalled", "True", "h100")
    await_said(client, play, served, "no-runtime", "Progressing", "False", "nowhere")
    for name in ("unknown-preset-kserve", "unrendered-kserve", "no-variable", "no-flavor", "no-runtime"):
        assert find(client, kinds.DEPLOYMENTS, served, name) is None, name

    two = {"familyName": "tiny", "source": {"modelHub": {"modelID": "acme/tiny"}, "uri": "s3://bucket/tiny"}}
    with pytest.raises(ApiError) as refused:
        put(client, kinds.OPEN_MODELS, None, "two-sources", two)
    assert [cause.field for cause in refused.value.causes] == ["spec.source"]

    # The missing object is created, and the invalid one is corrected.
    put(client, kinds.LLM_CONFIGS, served, "nowhere", {"template": {"containers": [{"name": "main"}]}})
    client.patch(kinds.LLM_CONFIGS, served, "broken", {"spec": {"template": {"containers": [{"name": "main"}]}}})
    client.patch(play, served, "no-flavor", {"spec": {"modelClaim": {"inferenceFlavors": ["a10"]}}})
    for name in ("unknown-preset-kserve", "unrendered-kserve", "no-flavor"):
        made(client, kinds.DEPLOYMENTS, served, name)


def test_a_refused_autoscaler_is_named_and_the_pods_are_made(client: KubeClient, served: str) -> None:
    where, llm, play = namespace(client, "refused"), kinds.LLM_SERVICES, kinds.PLAYGROUNDS
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "somebody"}
    for name in ("wva-kserve-hpa", "elastic"):
        put(client, kinds.AUTOSCALERS, where, name, {"maxReplicas": 2, "scaleTargetRef": target})
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}
    trigger = {"hpa": {"metrics": [{"type": "Resource", "resource": cpu}]}}
    put(client, llm, where, "wva", inferring(scaling={"maxReplicas": 3, "wva": {"hpa": {}}}))
    put(client, play, where, "elastic", playing(elasticConfig={"maxReplicas": 3, "scaleTrigger": trigger}))
    by_keda = inferring(scaling={"maxReplicas": 3, "keda": {"triggers": [{"type": "cron", "metadata": {"a": "b"}}]}})
    put(client, llm, where, "without-keda", by_keda)
    made(client, kinds.DEPLOYMENTS, where, "without-keda-kserve")
    await_said(client, llm, where, "without-keda", "SpecHonoured", "False", "KEDA", reason="NotInstalled")

    with dialects.needed(client, (kinds.SCALED_OBJECTS,)):
        put(client, kinds.SCALED_OBJECTS, where, "keda-kserve-keda", {"scaleTargetRef": {"name": "somebody"}})
        put(client, llm, where, "keda", by_keda)
        refused = (
            (llm, "wva", "wva-kserve", kinds.AUTOSCALERS, "wva-kserve-hpa"),
            (play, "elastic", "elastic", kinds.AUTOSCALERS, "elastic"),
            (llm, "keda", "keda-kserve", kinds.SCALED_OBJECTS, "keda-kserve-keda"),
        )
        for of, name, pods, kind, scaler in refused:
            made(client, kinds.DEPLOYMENTS, where, pods)
            words = (f"{kind.kind} {scaler}", "already exists and belongs to")
            await_said(client, of, where, name, "ObjectsApplied", "False", *words, reason="ForeignObject")
            if of == llm:
                await_said(client, of, where, name, "ScalingReady", "False", *words, reason="ReconcileScalingError")
            else:
                await_said(client, of, where, name, "AutoscalerReady", "False", *words, reason="ForeignObject")
        for of, name, _, kind, scaler in refused:
            client.delete(kind, where, scaler)
            eventually(
                lambda of=of, name=name: "ObjectsApplied" not in conditions(client, of, where, name),  # type: ignore[misc]
                what=f"all objects of {name}",
                timeout_s=SOON_S,
            )
            assert client.get(kind, where, scaler)["metadata"]["ownerReferences"][0]["name"] == name


def test_a_topology_that_meets_an_immutable_selector_is_replaced(client: KubeClient, served: str) -> None:
    where, llm = namespace(client, "topology"), kinds.LLM_SERVICES
    put(client, llm, where, "pair", inferring(prefill={"replicas": 1}))
    old = made(client, kinds.DEPLOYMENTS, where, "pair-kserve")["metadata"]["uid"]
    made(client, kinds.DEPLOYMENTS, where, "pair-kserve-prefill")
    client.patch(llm, where, "pair", {"spec": {"prefill": None}})
    await_gone(client, kinds.DEPLOYMENTS, where, "pair-kserve-prefill")
    eventually(
        lambda: made(client, kinds.DEPLOYMENTS, where, "pair-kserve")["metadata"]["uid"] != old,
        what="another Deployment",
        timeout_s=SOON_S,
    )
    played = PlayedControllers(client, where)

    def is_ready() -> bool:
        played.everything_ready()
        return conditions(client, llm, where, "pair").get("Ready", {}).get("status") == "True"

    eventually(is_ready, what="the service to be Ready", timeout_s=SOON_S)
    role = client.get(kinds.DEPLOYMENTS, where, "pair-kserve")["spec"]["selector"]["matchLabels"]["llm-d.ai/role"]
    assert role == "both"


@pytest.mark.soak
def test_a_certificate_that_is_deleted_comes_back_within_a_minute(client: KubeClient, served: str) -> None:
    name = "kept-kserve-self-signed-certs"
    put(client, kinds.LLM_SERVICES, served, "kept", inferring())
    first = made(client, kinds.SECRETS, served, name)
    client.delete(kinds.SECRETS, served, name)
    again = eventually(lambda: find(client, kinds.SECRETS, served, name), what="the Secret", timeout_s=60.0)
    assert again is not None
    assert again["metadata"]["uid"] != first["metadata"]["uid"]


def test_a_service_is_let_alone_held_repaired_and_let_go(client: KubeClient, served: str) -> None:
    theirs = namespace(client, "theirs", {"herdsman.dev/controller": "kserve"})
    put(client, kinds.LLM_SERVICES, theirs, "peers", inferring())
    held = {"annotations": {"herdsman.dev/mode": "Preview"}}
    put(client, kinds.PLAYGROUNDS, served, "held", playing(), **held)
    finalizers = {
        "finalizers": ["serving.kserve.io/llmisvc-finalizer"],
        "annotations": {"herdsman.dev/controller": "herdsman"},
    }
    put(client, kinds.LLM_SERVICES, served, "leaving", inferring(), **finalizers)
    put(client, kinds.LLM_SERVICES, served, "edited", inferring())

    # `leaving` is deleted although it has a finalizer of KServe, whose controller does not run.
    made(client, kinds.DEPLOYMENTS, served, "leaving-kserve")
    client.delete(kinds.LLM_SERVICES, served, "leaving")
    for kind, name in ((kinds.LLM_SERVICES, "leaving"), (kinds.DEPLOYMENTS, "leaving-kserve")):
        await_gone(client, kind, served, name)

    # Changes by other clients are reverted.
    made(client, kinds.DEPLOYMENTS, served, "edited-kserve")
    loop.eventually(
        lambda: conditions(client, kinds.LLM_SERVICES, served, "edited").get("PresetsCombined"), what="a status"
    )
    pod = client.get(kinds.DEPLOYMENTS, served, "edited-kserve")["spec"]["template"]["spec"]
    pod["containers"][0]["image"] = "registry.example/other:2"
    foreign = {"spec": {"template": {"spec": {"containers": pod["containers"]}}}}
    client.patch(kinds.DEPLOYMENTS, served, "edited-kserve", foreign, field_manager="somebody")

    def image() -> str:
        spec = client.get(kinds.DEPLOYMENTS, served, "edited-kserve")["spec"]["template"]["spec"]
        return str(spec["containers"][0]["image"])

    eventually(lambda: image() == "registry.example/engine:1", what="the image to be put back", timeout_s=SOON_S)

    # `held` waits for its approval.
    pending = await_said(client, kinds.PLAYGROUNDS, served, "held", "ChangePending", "True")
    assert find(client, kinds.DEPLOYMENTS, served, "held") is None
    digest = re.search(r"--digest (\w+)", pending["message"])
    assert digest is not None, pending
    approved = {"metadata": {"annotations": {"herdsman.dev/approved": digest[1]}}}
    client.patch(kinds.PLAYGROUNDS, served, "held", approved)
    made(client, kinds.DEPLOYMENTS, served, "held")

    assert find(client, kinds.DEPLOYMENTS, theirs, "peers-kserve") is None
    assert "status" not in client.get(kinds.LLM_SERVICES, theirs, "peers")
